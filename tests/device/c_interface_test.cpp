// SPDX-License-Identifier: Apache-2.0
// The C interface over the memory of a device decides as over the host's, and reports what kernels find when it waits.

#include <kvpolicy/c/kvpolicy.h>

#include "../../src/c/state.hpp"
#include "c/small_engine.hpp"
#include "support/device.hpp"

namespace c_device_test {

using kvpolicy_test::device_executor;
using kvpolicy_test::dice;
using engine = c_test::small_engine;

kvpolicy_status make_on_device(engine& of) {
  return kvpolicy_c::make_state<device_executor>("kvpolicy_cuda_make", of.policy, &of.cache, &of.state);
}

void fill(engine& of, std::uint64_t seed) {
  dice random(seed);
  for (std::vector<float>* const each : {&of.keys, &of.values, &of.queries, &of.mass}) {
    for (float& one : *each) one = static_cast<float>(random.real(1));
  }
  for (std::size_t i = 0; i < of.slots.size(); ++i) of.slots[i] = static_cast<int>(i);
}

std::vector<int> kept(engine& of) {
  std::vector<int> all;
  for (int s = 0; s < engine::sequences; ++s) {
    for (int l = 0; l < engine::layers; ++l) {
      for (int h = 0; h < engine::kv_heads; ++h) {
        int const* ordinals = nullptr;
        int count = -1;
        REQUIRE(kvpolicy_kept(of.state, s, l, h, &ordinals, &count) == KVPOLICY_OK);
        all.push_back(count);
        all.insert(all.end(), ordinals, ordinals + count);
      }
    }
  }
  return all;
}

enum class locating { contiguous, slots, blocks };

/// Both engines as one after each call.
void same(engine const& a, engine const& b) {
  CHECK(a.counts == b.counts);
  CHECK(a.positions == b.positions);
  CHECK(a.slots == b.slots);
  CHECK(a.keys == b.keys);
  CHECK(a.values == b.values);
}

/// Prefill, and a few tokens of each sequence, each followed by a decision.
void decides_as_the_host(std::string const& spec, locating where, std::uint64_t seed) {
  INFO("spec ", spec, ", where ", where);
  engine host(spec.c_str()), device(spec.c_str());
  for (engine* const each : {&host, &device}) {
    fill(*each, seed);
    if (where == locating::blocks) each->use_blocks();
    if (where == locating::slots) {
      each->cache.slots = each->slots.data();
      each->cache.slot_count = static_cast<std::int64_t>(each->slots.size());
      for (kvpolicy_plane* const plane : {&each->cache.keys, &each->cache.values}) {
        plane->layer_stride = plane->token_stride = 0;
        plane->unit_stride = engine::dim * sizeof(float);
        plane->head_stride = 0;
      }
    }
  }
  REQUIRE(host.make() == KVPOLICY_OK);
  REQUIRE(make_on_device(device) == KVPOLICY_OK);
  int position = 0;
  for (int const tokens : {3, 1, 1, 2}) {
    for (engine* const each : {&host, &device}) {
      for (int s = 0; s < engine::sequences; ++s) {
        REQUIRE(kvpolicy_append(each->state, s, tokens, position) == KVPOLICY_OK);
      }
      each->row_positions.assign(engine::sequences, position + tokens - 1);
      REQUIRE(kvpolicy_observe(each->state, &each->signals) == KVPOLICY_OK);
      REQUIRE(kvpolicy_decide(each->state, &each->signals) == KVPOLICY_OK);
    }
    CHECK(kept(host) == kept(device));
    kvpolicy_report reports[2]{};
    kvpolicy_stats stats[2]{};
    REQUIRE(kvpolicy_reported(host.state, &reports[0]) == KVPOLICY_OK);
    REQUIRE(kvpolicy_reported(device.state, &reports[1]) == KVPOLICY_OK);
    CHECK(reports[0].triggered == reports[1].triggered);
    CHECK(reports[0].nan_scores == reports[1].nan_scores);
    REQUIRE(kvpolicy_apply(host.state, &stats[0]) == KVPOLICY_OK);
    REQUIRE(kvpolicy_apply(device.state, &stats[1]) == KVPOLICY_OK);
    CHECK(stats[0].logical_kept == stats[1].logical_kept);
    CHECK(stats[0].physical_freed == stats[1].physical_freed);
    CHECK(stats[0].attended_length == stats[1].attended_length);
    same(host, device);
    position += tokens;
  }
  for (engine* const each : {&host, &device}) {
    REQUIRE(kvpolicy_truncate(each->state, 1, position - 1) == KVPOLICY_OK);
    REQUIRE(kvpolicy_reset(each->state, 0) == KVPOLICY_OK);
    REQUIRE(kvpolicy_synchronize(each->state) == KVPOLICY_OK);
  }
  same(host, device);
}

TEST_SUITE("device/c_interface") {
  TEST_CASE("a device decides as the host: contiguous, by slots, in blocks") {
    for (char const* const spec :
         {"snapkv(window=1) | budget(2)", "knorm | budget(3)", "streaming_llm | budget(4)", "tova | budget(2)",
          "knorm | budget(3, scope=layer)", "snapkv(window=1) | budget(ratio=0.5)"}) {
      for (locating const where : {locating::contiguous, locating::slots, locating::blocks}) {
        decides_as_the_host(spec, where, 7);
      }
    }
  }

  TEST_CASE("what kernels find wrong is returned by the call that waits, in the name of the call that did it, once") {
    engine one("knorm | budget(2)");
    fill(one, 3);
    REQUIRE(make_on_device(one) == KVPOLICY_OK);
    for (int s = 0; s < engine::sequences; ++s) REQUIRE(kvpolicy_append(one.state, s, 3, 0) == KVPOLICY_OK);
    REQUIRE(kvpolicy_decide(one.state, &one.signals) == KVPOLICY_OK);
    one.counts[1] = 1;  // another lane than was decided about
    std::vector<float> const before = one.keys;
    REQUIRE(kvpolicy_apply(one.state, nullptr) == KVPOLICY_OK);
    CHECK(one.keys == before);
    CHECK(kvpolicy_synchronize(one.state) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(std::string(kvpolicy_last_error()).starts_with("kvpolicy_apply: "));
    CHECK(kvpolicy_synchronize(one.state) == KVPOLICY_OK);
  }

  TEST_CASE("arguments are refused at once, in the names of C") {
    engine one;
    one.cache.keys.data = nullptr;
    CHECK(make_on_device(one) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(std::string(kvpolicy_last_error()).starts_with("kvpolicy_cuda_make: cache.keys"));
    CHECK(one.state == nullptr);
    engine trim("trim_kv | budget(2)");
    CHECK(make_on_device(trim) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(std::string(kvpolicy_last_error()).find("kvpolicy_signals does not have") != std::string::npos);
  }
}

}  // namespace c_device_test

// SPDX-License-Identifier: Apache-2.0
// The device's turned keys, against the host's.

#include <kvpolicy/ops/cuda/fill_row.hpp>
#include <kvpolicy/ops/cuda/rerotate.hpp>

#include "device/moves.hpp"

namespace {

using namespace kvpolicy_test;
using backend = device_executor::backend;

/// A pair's sine and cosine may be off by a bit of a float, and the sum is rounded to the element.
bool near(double found, double expected, double length, kv::codec element) {
  if (std::isnan(expected) || std::isinf(expected)) return std::isnan(expected) == std::isnan(found);
  double const rounding = element == kv::codec::f32 ? 0x1p-23 : element == kv::codec::f16 ? 0x1p-10 : 0x1p-7;
  return std::abs(found - expected) <= 0x1p-22 * length + rounding * std::abs(expected) + 0x1p-24;
}

/// The first channel of a key that turns: in a latent cache the one behind its values.
int first_turned(mock_cache const& of) { return of.latent() ? of.value_dim() : 0; }

bool keys_agree(mock_cache& on_host, mock_cache& on_device, kv::rope const& how) {
  int const pairs = (how.dims != 0 ? how.dims : on_host.model().head_dim - first_turned(on_host)) / 2;
  bool const halves = how.style == kv::rope_style::neox;
  for (kv::lane const this_lane : lanes_of(on_host)) {
    for (int e = 0; e < on_host.count(this_lane); ++e) {
      reference::row const expected = on_host.row(of::keys, this_lane, e),
                           found = on_device.row(of::keys, this_lane, e);
      for (int p = 0; p < pairs; ++p) {
        auto const x = as_size(first_turned(on_host) + (halves ? p : 2 * p));
        auto const y = halves ? x + as_size(pairs) : x + 1;
        double const length = std::hypot(expected[x], expected[y]);
        if (!near(found[x], expected[x], length, on_host.options().element)) return false;
        if (!near(found[y], expected[y], length, on_host.options().element)) return false;
      }
    }
  }
  return true;
}

/// What is not a key that turned: every other byte, and channels behind those that turn.
bool others_agree(mock_cache& on_host, mock_cache& on_device, kv::rope const& how) {
  int const first = first_turned(on_host);
  int const dims = how.dims != 0 ? how.dims : on_host.model().head_dim - first;
  for (kv::lane const this_lane : lanes_of(on_host)) {
    for (int e = 0; e < on_host.count(this_lane); ++e) {
      for (int d = first; d < first + dims; ++d) {
        encode(on_host.options().element, 0.0, on_host.element(of::keys, this_lane, e, d));
        encode(on_device.options().element, 0.0, on_device.element(of::keys, this_lane, e, d));
      }
    }
  }
  return on_host.save() == on_device.save();
}

/// Copies of the keys of a cache, some of which were written before.
class copied_keys {
 public:
  copied_keys(mock_cache& of, kv::rope const& how)
      : element_(of.options().element),
        dims_(how.dims != 0 ? how.dims : of.model().head_dim - first_turned(of)),
        bound_(of.options().bound),
        heads_(of.model().kv_heads),
        layers_(of.model().layers) {
    auto const entries = as_size(of.lane_count() * bound_);
    dice random(of.options().seed + 1);
    for (std::size_t i = 0; i < entries; ++i)
      written_.push_back(random.chance(40) ? random.between(1, bound_ + 70) : 0);
    keys_.resize(entries * as_size(2 * dims_));
    for (std::size_t at = 0; at < keys_.size(); at += 2) encode(element_, random.real(4), keys_.data() + at);
  }
  [[nodiscard]] kv::first_keys view() {
    std::int64_t const head = bound_, layer = heads_ * head, sequence = layers_ * layer, row = 2 * dims_;
    return {{keys_.data(), row * sequence, row * layer, row * head}, {written_.data(), sequence, layer, head}};
  }
  [[nodiscard]] bool agrees(copied_keys const& other) const {
    bool same = written_ == other.written_;
    for (std::size_t at = 0; at < keys_.size(); at += 2) {
      double const mine = decoded(element_, keys_.data() + at), others = decoded(element_, other.keys_.data() + at);
      same = same && (mine == others || (std::isnan(mine) && std::isnan(others)));
    }
    return same;
  }

 private:
  kv::codec element_;
  int dims_, bound_, heads_, layers_;
  std::vector<std::byte> keys_;
  std::vector<int> written_;
};

bool is_the_hosts(mock_options const& shape, kv::rope const& how, int threads, bool copies = false) {
  filled_cache on_host(shape), on_device(shape);
  kv::host_executor host;
  device_executor device(numbers_of(threads), shape.seed);
  host.reserve(scratch_of_every_verb<kv::host>(on_host.view()));
  device.reserve(scratch_of_every_verb<backend>(on_device.view()));
  if (copies) {
    copied_keys of_host(on_host, how), of_device(on_device, how);
    kv::ops::rerotate(host, on_host.lanes(), on_host.view(), how, of_host.view());
    kv::ops::rerotate(device, on_device.lanes(), on_device.view(), how, of_device.view());
    device.check();
    if (!of_host.agrees(of_device)) return false;
  } else {
    kv::ops::rerotate(host, on_host.lanes(), on_host.view(), how);
    kv::ops::rerotate(device, on_device.lanes(), on_device.view(), how);
    device.check();
  }
  return keys_agree(on_host, on_device, how) && others_agree(on_host, on_device, how);
}

/// A cache that streams: a token a step, which `compact_rerotated` makes room for from the eighth on.
template <class Executor>
struct streaming {
  explicit streaming(bool copies)
      : in(cache.view()),
        state(copies ? kv::make_state(exec, policy, in, turn) : kv::make_state(exec, policy, in)),
        plan(kv::make_plan(exec, policy, in, turn)) {}
  void decide(kv::cache& batch, int slot, int token) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      if (cache.lane_at(i).sequence == slot)
        cache.write_new_row(cache.lane_at(i), cache.count(cache.lane_at(i)), token);
    }
    int const position = cache.count({slot, 0, 0});
    int const sequence = batch.lanes.slots != nullptr ? 0 : slot;
    kv::append(exec, batch, state, {.sequence = sequence, .tokens = 1, .position = position});
    kv::decide(exec, policy, kv::signals{batch.lanes.sequences_only(sequence, sequence + 1)}, state, plan);
  }
  void step(kv::cache& batch, int slot, int token) {
    decide(batch, slot, token);
    kv::apply(exec, turn, plan, batch, state);
    if constexpr (requires { exec.check(); }) exec.check();
  }

  Executor exec;
  mock_cache cache{{.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                    .sequences = 2,
                    .bound = 9,
                    .element = kv::codec::bf16}};
  kv::eviction<kv::streaming_llm> policy{.score = {.sinks = 2}, .budget = kv::per_lane{8}};
  kv::compact_rerotated turn{{.theta = 500000}};
  kv::cache in;
  kv::state<Executor> state;
  kv::plan<Executor> plan;
};

TEST_SUITE("device/rerotate") {
  TEST_CASE("keys that turn in every step are those of the host") {
    streaming<kv::host_executor> host(true);
    streaming<device_executor> device(true);
    for (int token = 0; token < 60; ++token) {
      host.step(host.in, token % 2, token);
      device.step(device.in, token % 2, token);
    }
    CHECK(keys_agree(host.cache, device.cache, host.turn.rope));
    CHECK(others_agree(host.cache, device.cache, host.turn.rope));
  }

  TEST_CASE("a slot without copies is applied three times") {
    streaming<device_executor> now(false);
    std::string const why =
        ", where it was applied three times, but keys of bf16 lose digits in each turn, and turn three times at most: "
        "name the applier in make_state, which then keeps each key as it was first written";
    for (int token = 0; token < 3; ++token) now.step(now.in, 0, token);
    now.decide(now.in, 0, 3);
    auto const before = now.cache.save();
    CHECK(error_of([&] { kv::apply(now.exec, now.turn, now.plan, now.in, now.state); }) ==
          "apply: state = without copies of the keys in slot 0" + why);
    CHECK(now.cache.save() == before);
    now.step(now.in, 1, 3);  // each slot by itself
    int const one = 1;
    kv::cache listed = kv::only(now.in, {.slots = &one, .size = 1, .on_host = &one});
    now.step(listed, 1, 4);
    kv::reset(now.exec, now.in, now.state, 0);
    kv::fork(now.exec, now.in, now.state, 1, 0);
    now.step(listed, 1, 5);
    CHECK(error_of([&] { now.step(listed, 1, 6); }) == "apply: state = without copies of the keys in slot 1" + why);
    kv::cache unknown = kv::only(now.in, {.slots = &one, .size = 1});  // the host cannot read the list: any slot counts
    kv::reset(now.exec, now.in, now.state, 1);
    now.step(unknown, 1, 7);
    CHECK(error_of([&] { now.step(unknown, 1, 8); }) == "apply: state = without copies of the keys in slot 0" + why);
  }

  TEST_CASE("keys turn as on the host, positions become ordinals, and nothing else changes") {
    holds("any cache", [] {
      mock_options shape = any_mock();
      shape.skew = 0;
      if (kv::is_fp8(shape.element)) shape.element = kv::codec::bf16;
      shape.scales = scaling::none;
      shape.model.head_dim += shape.model.head_dim % 2;
      if (shape.memory == arrangement::latent || shape.memory == arrangement::latent_view) {
        shape.model.head_dim = (shape.model.head_dim + 3) / 4 * 4;
        shape.model.value_dim = shape.model.head_dim / 2;
      }
      if (shape.memory == arrangement::packed_rows || shape.memory == arrangement::packed_units) {
        shape.model.value_dim = 0;
      }
      shape.shared_entries = any_bool();
      kv::rope how{.style = *rc::gen::element(kv::rope_style::neox, kv::rope_style::gptj)};
      how.dims = *rc::gen::element(0, 2, shape.model.head_dim / 4 * 2);
      std::vector<float> table;
      for (int pair = 0; pair < 128; ++pair) table.push_back(1.0f / static_cast<float>(1 + pair));
      std::vector<double> const wide(table.begin(), table.end());
      if (any_bool()) how.frequency = table.data();
      if (*rc::gen::element(false, false, true)) how.frequency = wide.data();
      bool const copies = kv::bytes_of(shape.element) == 2 && any_bool();
      RC_LOG() << shape << ", dims " << how.dims << ", copies " << copies << '\n';
      RC_ASSERT(is_the_hosts(shape, how, *rc::gen::element(32, 64, 256), copies));
    });
  }

  TEST_CASE("long lanes turn by many angles, forth and back") {
    mock_options const shape{.bound = 4097, .rows = content::troubled, .seed = 9};
    CHECK(is_the_hosts(shape, {}, 64));
    mock_options in_16_bits = shape;
    in_16_bits.element = kv::codec::bf16;
    CHECK(is_the_hosts(in_16_bits, {}, 64, true));
  }

  TEST_CASE("a place gets one key and one value in every layer and head") {
    holds("any slots", [] {
      mock_options shape = any_mock();
      shape.skew = 0;
      mock_cache on_host(shape), on_device(shape);
      kv::host_executor host;
      device_executor device(shape.seed);
      kv::place const at{on_host.where().units - 1, on_host.where().unit_tokens - 1};
      float const key = kv::is_fp8(shape.element) ? 0.0f : -3.0f;
      float const value = kv::is_fp8(shape.element) ? 0.0f : on_host.latent() ? key : 0.5f;
      kv::ops::fill_row(host, on_host.view(), at, key, value);
      kv::ops::fill_row(device, on_device.view(), at, key, value);
      device.check();
      RC_ASSERT(on_host.save() == on_device.save());
    });
  }

  TEST_CASE("nothing changes after a fault, and elements must be aligned") {
    filled_cache some({.bound = 40, .element = kv::codec::f16, .seed = 3}, false);
    device_executor device;
    device.reserve(scratch_of_every_verb<backend>(some.view()));
    auto const save = [&] { return some.save(); };
    CHECK(
        is_idle_after_a_fault(device, [&] { kv::ops::rerotate(device, some.lanes(), some.view(), kv::rope{}); }, save));
    CHECK(
        is_idle_after_a_fault(device, [&] { kv::ops::fill_row(device, some.view(), kv::place{}, 1.0f, 1.0f); }, save));
    kv::cache view = some.view();
    view.k.base += 1;
    CHECK(error_of([&] { kv::ops::rerotate(device, some.lanes(), view, kv::rope{}); }) ==
          "rerotate: k = misaligned rows, but a device reads elements of 2 bytes where they are aligned");
  }
}

}  // namespace

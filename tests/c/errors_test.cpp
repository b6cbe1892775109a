// SPDX-License-Identifier: Apache-2.0
// The C interface speaks of itself: every error names a function and members of kvpolicy.h, and nothing of C++.

#include <kvpolicy/c/kvpolicy.h>

#include <cctype>

#include "c/small_engine.hpp"

namespace c_errors_test {

using engine = c_test::small_engine;

std::string const& header() {
  static std::string const text = [] {
    std::ifstream file(KVPOLICY_SOURCE_DIR "/include/kvpolicy/c/kvpolicy.h");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return text;
}

/// The error of a call that must be refused. It begins with the function's name, its argument is made of words of the
/// header, and it has none of the words of C++.
std::string refused(char const* call, kvpolicy_status status) {
  std::string said = kvpolicy_last_error();
  CAPTURE(said);
  CHECK(status == KVPOLICY_INVALID_ARGUMENT);
  REQUIRE(said.starts_with(std::string(call) + ": "));
  std::size_t const end = said.find(" = ");
  REQUIRE(end != std::string::npos);
  std::string word;
  for (char const each : said.substr(0, end) + " ") {
    if (std::isalnum(static_cast<unsigned char>(each)) || each == '_') {
      word += each;
    } else if (!word.empty()) {
      CAPTURE(word);
      CHECK(header().find(word) != std::string::npos);
      word.clear();
    }
  }
  for (char const* const cpp : {"make_state", "make_plan", "lanes.", "where", "shape", "plan", "executor",
                                "kv::", "kvpolicy::", "any_", " decide comes", "const&", "locator", ".dims", "slot "}) {
    CAPTURE(cpp);
    bool const slots = std::string_view(cpp) == "slot " && said.find("cache.slot") != std::string::npos;
    CHECK((slots || said.find(cpp) == std::string::npos));
  }
  return said;
}

TEST_SUITE("c/kvpolicy") {
  TEST_CASE("a cache that cannot be is refused by the members of kvpolicy_cache") {
    using change = std::function<void(engine&)>;
    std::vector<change> const changes{
        [](engine& e) { e.cache.layers = 0; },
        [](engine& e) { e.cache.layers = -3; },
        [](engine& e) { e.cache.layers = 0x7FFFFFFF; },
        [](engine& e) { e.cache.kv_heads = 0; },
        [](engine& e) { e.cache.kv_heads = 3; },
        [](engine& e) { e.cache.query_heads = 0; },
        [](engine& e) { e.cache.query_heads = 3; },
        [](engine& e) { e.cache.head_dim = 0; },
        [](engine& e) { e.cache.head_dim = 5; },
        [](engine& e) { e.cache.value_dim = -1; },
        [](engine& e) { e.cache.value_dim = 3; },
        [](engine& e) { e.cache.sequences = 0; },
        [](engine& e) { e.cache.sequences = 0x7FFFFFFF; },
        [](engine& e) { e.cache.capacity = 0; },
        [](engine& e) { e.cache.capacity = -1; },
        [](engine& e) { e.cache.layers = e.cache.kv_heads = e.cache.query_heads = e.cache.capacity = 0x7FFFFFFF; },
        [](engine& e) { e.cache.keys.data = nullptr; },
        [](engine& e) { e.cache.values.data = nullptr; },
        [](engine& e) { e.cache.values.data = e.cache.keys.data; },
        [](engine& e) { e.cache.keys.element = static_cast<kvpolicy_element>(9); },
        [](engine& e) { e.cache.values.element = static_cast<kvpolicy_element>(-1); },
        [](engine& e) { e.cache.keys.channels = 3; },
        [](engine& e) { e.cache.values.channels = 0; },
        [](engine& e) { e.cache.keys.layer_stride = 0; },
        [](engine& e) { e.cache.keys.unit_stride = 4; },
        [](engine& e) { e.cache.values.token_stride = 1; },
        [](engine& e) { e.cache.values.head_stride = 0; },
        [](engine& e) { e.cache.keys.channel_stride = 2; },
        [](engine& e) { e.cache.counts = nullptr; },
        [](engine& e) { e.cache.positions = nullptr; },
        [](engine& e) { e.cache.slots = e.slots.data(); },
        [](engine& e) {
          e.cache.slots = e.slots.data();
          e.cache.slot_count = -4;
        },
        [](engine& e) {
          e.use_blocks();
          e.cache.slots = e.slots.data();
        },
        [](engine& e) {
          e.use_blocks();
          e.cache.block_size = 0;
        },
        [](engine& e) {
          e.use_blocks();
          e.cache.block_count = 0;
        },
    };
    for (std::size_t i = 0; i < changes.size(); ++i) {
      CAPTURE(i);
      engine one;
      changes[i](one);
      refused("kvpolicy_make", one.make());
      CHECK(one.state == nullptr);
    }
  }

  TEST_CASE("arguments are refused by their names") {
    engine one;
    refused("kvpolicy_make", kvpolicy_make(one.policy, &one.cache, 0, &one.state));
    refused("kvpolicy_make", kvpolicy_make(one.policy, nullptr, 1, &one.state));
    refused("kvpolicy_make", kvpolicy_make(nullptr, &one.cache, 1, &one.state));
    one.fill();
    refused("kvpolicy_append", kvpolicy_append(one.state, 2, 1, 3));
    refused("kvpolicy_append", kvpolicy_append(one.state, -1, 1, 3));
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, -1, 3));
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, 1, -3));
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, 1, 1));
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, 1, 0));
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, 2, 0x7FFFFFFF));
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, 6, 3));
    refused("kvpolicy_truncate", kvpolicy_truncate(one.state, 5, 1));
    refused("kvpolicy_truncate", kvpolicy_truncate(one.state, 0, -1));
    refused("kvpolicy_reset", kvpolicy_reset(one.state, 2));
    int const* kept = nullptr;
    int count = 0;
    CHECK(refused("kvpolicy_kept", kvpolicy_kept(one.state, 0, 0, 0, &kept, &count)) ==
          "kvpolicy_kept: state = empty, but kvpolicy_decide comes before kvpolicy_kept");
    CHECK(refused("kvpolicy_apply", kvpolicy_apply(one.state, nullptr)) ==
          "kvpolicy_apply: state = empty, but kvpolicy_decide comes before kvpolicy_apply");
    REQUIRE(kvpolicy_observe(one.state, &one.signals) == KVPOLICY_OK);
    REQUIRE(kvpolicy_decide(one.state, &one.signals) == KVPOLICY_OK);
    refused("kvpolicy_kept", kvpolicy_kept(one.state, 2, 0, 0, &kept, &count));
    refused("kvpolicy_kept", kvpolicy_kept(one.state, 0, 2, 0, &kept, &count));
    refused("kvpolicy_kept", kvpolicy_kept(one.state, 0, 0, 2, &kept, &count));
    REQUIRE(kvpolicy_append(one.state, 0, 1, 3) == KVPOLICY_OK);
    refused("kvpolicy_apply", kvpolicy_apply(one.state, nullptr));
    for (auto const call : {kvpolicy_observe, kvpolicy_decide}) CHECK(call(nullptr, &one.signals) != KVPOLICY_OK);
    one.counts[1] = 99;
    CHECK(refused("kvpolicy_decide", kvpolicy_decide(one.state, &one.signals)) ==
          "kvpolicy_decide: cache.counts = 99 in layer 0, head 1 of sequence 0, but a lane holds 0 to 8 entries, its "
          "`capacity`");
    refused("kvpolicy_append", kvpolicy_append(one.state, 0, 1, 5));
  }

  TEST_CASE("signals are refused by the members of kvpolicy_signals and kvpolicy_queries") {
    using change = std::function<void(engine&)>;
    std::vector<change> const changes{
        [](engine& e) { e.signals.queries = nullptr; },
        [](engine& e) { e.rows_of.data = nullptr; },
        [](engine& e) { e.rows_of.element = static_cast<kvpolicy_element>(7); },
        [](engine& e) { e.rows_of.element = KVPOLICY_OPAQUE; },
        [](engine& e) { e.rows_of.rows = -1; },
        [](engine& e) { e.rows_of.sequence_stride = 0; },
        [](engine& e) { e.rows_of.layer_stride = 0; },
        [](engine& e) { e.rows_of.layer_stride = e.rows_of.sequence_stride; },
        [](engine& e) { e.rows_of.head_stride = 0; },
        [](engine& e) { e.rows_of.positions = nullptr; },
        [](engine& e) { e.valid_rows[1] = 3; },
        [](engine& e) { e.valid_rows[0] = -1; },
    };
    for (std::size_t i = 0; i < changes.size(); ++i) {
      CAPTURE(i);
      engine one;
      one.fill();
      changes[i](one);
      refused("kvpolicy_observe", kvpolicy_observe(one.state, &one.signals));
    }
    engine external("external | budget(2)");
    external.fill();
    refused("kvpolicy_decide", kvpolicy_decide(external.state, &external.signals));
    engine trim("trim_kv | budget(2)");
    refused("kvpolicy_make", trim.make());
  }

  TEST_CASE("policies are refused in the name of kvpolicy_parse, and one that lists what it drops by kvpolicy_make") {
    kvpolicy_policy* policy = nullptr;
    CHECK(kvpolicy_parse("snapkv(windw=8)", &policy) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(
        std::string(kvpolicy_last_error()).starts_with("kvpolicy_parse: column 8 = windw, but snapkv has the fields"));
    CHECK(kvpolicy_parse("snapkv(window=0)", &policy) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(std::string(kvpolicy_last_error()) ==
          "kvpolicy_parse: column 1: snapkv.window = 0, but at least one row observes");
    engine one("knorm | budget(2) | lowest_one");
    CHECK(refused("kvpolicy_make", one.make()) ==
          "kvpolicy_make: policy = knorm | budget(2) | lowest_one, but lowest_one lists what is dropped, and "
          "kvpolicy_apply carries out what is kept");
  }
}

}  // namespace c_errors_test

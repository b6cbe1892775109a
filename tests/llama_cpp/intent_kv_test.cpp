// SPDX-License-Identifier: Apache-2.0
#include "oracle.hpp"

namespace {

using namespace llama_cpp_test;

auto const intent_kv = kv::policies::intent_kv({.budget = 96, .score = {.prefix = 8}});

/// Reads some turns, with answers between them, in llama.cpp and in tinylm's own decoder. That reads each turn at once,
/// and shows the policy turns only.
template <class Policy>
void read_turns(Policy const& policy, llama_cpp::engine_options const& options) {
  llama_cpp::engine engine(model(), policy, options);
  reader<decltype(engine)> one{engine};
  oracle expected(intent_kv, tinylm::session_options{.bound = 1536, .chunk = 1024, .observe_steps = false});
  int at = 20000;
  for (int const length : {600, 150, 20, 257, 90}) {
    CAPTURE(length);
    bytes const turn = stretch(at, length);
    at += length;
    CHECK(tinylm_test::furthest(one.prefill(turn), expected.prefill(turn)) < 1e-3);
    CHECK(engine.count(0) == 96);
    CHECK(same_tokens(engine, 0, expected));
    for (int i = 0; i < 7; ++i, ++at) {
      std::uint8_t const byte = stretch(at, 1).front();
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
    }
  }
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("intent_kv: over several turns all lanes keep what tinylm's keep, in one chunk or several") {
    for (int const chunk : {1024, 256}) {
      CAPTURE(chunk);
      read_turns(intent_kv, exact(1536, chunk));
    }
  }

  TEST_CASE("intent_kv: by name it remembers the same turns, whether steps are observed or not") {
    kv::any_policy const named = kv::parse("intent_kv(prefix=8) | budget(96)");
    for (bool const observed : {true, false}) {
      llama_cpp::engine_options options = exact(1536, 256);
      options.observe_steps = observed;
      read_turns(named, options);
    }
  }

  TEST_CASE("intent_kv: sequences are decided about by the rows of their last turn, whatever took cells since") {
    llama_cpp::engine_options options = exact(1536, 256, 3);
    options.decide = llama_cpp::when::by_hand;
    llama_cpp::engine engine(model(), intent_kv, options);
    reader<decltype(engine)> one{engine};
    oracle expected(
        intent_kv,
        tinylm::session_options{.bound = 1536, .chunk = 1024, .decide = tinylm::when::by_hand, .observe_steps = false});
    one.prefill(stretch(40000, 250));
    expected.prefill(stretch(40000, 250));
    expected.session.evict();
    engine.fork(0, 1);
    engine.adopt(2, 10, [](kv::cache const&) {});
    engine.evict(1);
    CHECK(same_tokens(engine, 1, expected));
    engine.evict(0);
    CHECK(same_tokens(engine, 0, expected));
  }

  TEST_CASE("intent_kv: a copy of a sequence has its memory") {
    llama_cpp::engine engine(model(), intent_kv, exact(1536, 256, 2));
    reader<decltype(engine)> one{engine};
    oracle expected(intent_kv, tinylm::session_options{.bound = 1536, .chunk = 1024, .observe_steps = false});
    for (bytes const& turn : {stretch(40000, 300), stretch(60000, 100)}) {
      one.prefill(turn);
      expected.prefill(turn);
    }
    engine.fork(0, 1);
    reader<decltype(engine)> two{engine, 1, one.text};
    one.prefill(stretch(5000, 120));  // another turn, which the copy does not remember
    CHECK(tinylm_test::furthest(two.prefill(stretch(50000, 80)), expected.prefill(stretch(50000, 80))) < 1e-3);
    CHECK(same_tokens(engine, 1, expected));
  }
}

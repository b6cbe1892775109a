// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>

#include "oracle.hpp"

namespace {

using namespace llama_cpp_test;

auto const snapkv = kv::policies::snapkv({.budget = 64, .score = {.window = 16, .pool = kv::max_pool{15}}});

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("evictions: after one the logits are those of lanes that hold the kept tokens alone") {
    for (bool const flash : {false, true}) {
      CAPTURE(flash);
      llama_cpp::engine_options options = exact();
      options.context.flash_attention = flash;
      double const bound = flash ? 0.2 : 1e-3;  // flash attention reads keys and values as float16
      llama_cpp::engine engine(model(), snapkv, options);
      reader<decltype(engine)> one{engine};
      oracle expected(snapkv);
      bytes const text = stretch(1000, 900);
      CHECK(tinylm_test::furthest(one.prefill(text), expected.prefill(text)) < bound);
      CHECK(engine.count(0) == 64);
      if (!flash) CHECK(same_tokens(engine, 0, expected));
      for (std::uint8_t const byte : stretch(1900, 40)) {
        CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < bound);
      }
      CHECK(engine.count(0) == 104);
      CHECK(engine.length(0) == 940);
    }
  }

  TEST_CASE("evictions: later turns are read in whole batches, and evicted again") {
    llama_cpp::engine engine(model(), snapkv, exact());
    reader<decltype(engine)> one{engine};
    oracle expected(snapkv);
    int at = 20000;
    for (int const length : {700, 200, 33, 300, 1}) {
      bytes const turn = stretch(at, length);
      at += length;
      CHECK(tinylm_test::furthest(one.prefill(turn), expected.prefill(turn)) < 1e-3);
      CHECK(engine.count(0) == 64);
      CHECK(same_tokens(engine, 0, expected));
      for (int i = 0; i < 5; ++i, ++at) {
        std::uint8_t const byte = stretch(at, 1).front();
        CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
      }
    }
  }

  TEST_CASE("evictions: a policy may decide after every token") {
    auto const policy = kv::policies::h2o({.budget = 40});
    llama_cpp::engine_options options = exact();
    options.decide = llama_cpp::when::every_decode;
    llama_cpp::engine engine(model(), policy, options);
    reader<decltype(engine)> one{engine};
    oracle expected(policy, tinylm::when::every_forward);
    bytes const text = stretch(5000, 512);  // two whole chunks in both
    CHECK(tinylm_test::furthest(one.prefill(text), expected.prefill(text)) < 1e-3);
    for (std::uint8_t const byte : stretch(5512, 100)) {
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
      CHECK(engine.count(0) == 40);
    }
    CHECK(same_tokens(engine, 0, expected));
  }

  TEST_CASE("evictions: a policy may drop the newest token") {
    auto const policy = kv::policies::knorm({.budget = 40});
    llama_cpp::engine engine(model(), policy, exact());
    reader<decltype(engine)> one{engine};
    oracle expected(policy);
    bytes const text = stretch(41000, 500);
    CHECK(tinylm_test::furthest(one.prefill(text), expected.prefill(text)) < 1e-3);
    CHECK(same_tokens(engine, 0, expected));
    CHECK(engine.positions({0, 0, 0}).back() < 499);
    for (std::uint8_t const byte : stretch(41500, 20))
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
  }

  TEST_CASE("evictions: a sequence that was saved goes on in another slot, and in another engine") {
    llama_cpp::engine engine(model(), snapkv, exact(2048, 256, 2));
    llama_cpp::engine other(model(), snapkv, exact(1024, 100));
    reader<decltype(engine)> one{engine};
    one.prefill(stretch(1000, 700));
    for (std::uint8_t const byte : stretch(1700, 10)) one.step(byte);
    std::vector<std::byte> const saved = engine.save(0);
    reader<decltype(engine)> two{engine, 1};
    reader<decltype(other)> three{other};
    two.prefill(stretch(9000, 300));  // cells that are in use are left alone
    engine.reset(1);
    engine.load(1, saved);
    other.load(0, saved);
    two.text = three.text = one.text;
    for (bytes const& turn : {stretch(1710, 1), stretch(1711, 150), stretch(1861, 1)}) {
      std::vector<float> const logits = one.prefill(turn);
      CHECK(tinylm_test::furthest(two.prefill(turn), logits) < 1e-3);
      CHECK(tinylm_test::furthest(three.prefill(turn), logits) < 1e-3);
      CHECK(std::ranges::equal(engine.positions({0, 3, 1}), engine.positions({1, 3, 1})));
      CHECK(std::ranges::equal(engine.positions({0, 3, 1}), other.positions({0, 3, 1})));
    }
    engine.truncate(1, engine.length(1));
    CHECK_THROWS_WITH_AS(engine.load(0, saved), "load: sequence = 0, but it is in use: reset it before",
                         kv::invalid_argument);
    engine.reset(0);
    int const free = engine.free_count();
    CHECK_THROWS_AS(engine.load(0, std::span(saved).first(saved.size() - 1)), kv::invalid_argument);
    CHECK_THROWS_WITH_AS(engine.load(0, std::span(saved).first(8)), "load: bytes = 8, but they end within the header",
                         kv::invalid_argument);
    CHECK(engine.free_count() == free);
    engine.load(0, saved);
    CHECK(engine.count(0) == 74);
  }

  TEST_CASE("evictions: attention then reads the low cells only") {
    llama_cpp::engine engine(model(), snapkv, exact());
    reader<decltype(engine)> one{engine};
    one.prefill(stretch(1000, 900));
    CHECK(engine.highest_cell() < 256);
    one.step('a');
    CHECK(engine.highest_cell() < 256);
  }

  TEST_CASE("evictions: several sequences share the cells, and each is what it would be alone") {
    constexpr int sequences = 3;
    llama_cpp::engine engine(model(), snapkv, exact(2048, 256, sequences));
    std::vector<reader<decltype(engine)>> readers;
    std::vector<std::unique_ptr<oracle<std::remove_const_t<decltype(snapkv)>>>> expected;
    std::vector<int> at;
    auto const start = [&](int s, int begin, int length) {
      readers[static_cast<std::size_t>(s)].text.clear();
      expected[static_cast<std::size_t>(s)] = std::make_unique<oracle<std::remove_const_t<decltype(snapkv)>>>(snapkv);
      at[static_cast<std::size_t>(s)] = begin + length;
      bytes const text = stretch(begin, length);
      CHECK(tinylm_test::furthest(readers[static_cast<std::size_t>(s)].prefill(text),
                                  expected[static_cast<std::size_t>(s)]->prefill(text)) < 1e-3);
    };
    for (int s = 0; s < sequences; ++s) {
      readers.push_back({engine, s});
      expected.push_back(nullptr);
      at.push_back(0);
      start(s, 30000 + 3000 * s, 300 + 100 * s);
    }
    std::mt19937 random(5);
    for (int round = 0; round < 40; ++round) {
      if (round % 13 == 12) {  // a request ends, another begins in its slot
        int const s = static_cast<int>(random() % sequences);
        engine.reset(s);
        start(s, 60000 + 1000 * round, 200 + 7 * round);
      }
      std::vector<llama_cpp::sequence_rows> batch;
      std::vector<std::vector<float>> rows(sequences);
      for (int s = 0; s < sequences; ++s) {
        if (random() % 3 == 0) continue;
        rows[static_cast<std::size_t>(s)] =
            readers[static_cast<std::size_t>(s)].add(stretch(at[static_cast<std::size_t>(s)], 1));
        batch.push_back({s, {.tokens = {}, .embeddings = rows[static_cast<std::size_t>(s)]}});
      }
      if (batch.empty()) continue;
      auto const logits = engine.step(batch);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        auto const s = static_cast<std::size_t>(batch[i].sequence);
        auto const alone = expected[s]->step(stretch(at[s]++, 1).front());
        CHECK(tinylm_test::furthest(logits.subspan(i * 256, 256), alone) < 1e-3);
      }
    }
    for (int s = 0; s < sequences; ++s) CHECK(same_tokens(engine, s, *expected[static_cast<std::size_t>(s)]));
  }

  TEST_CASE("evictions: a sequence may be rolled back to where its last eviction was") {
    llama_cpp::engine engine(model(), snapkv, exact());
    reader<decltype(engine)> one{engine};
    oracle expected(snapkv);
    bytes const text = stretch(70000, 500);
    one.prefill(text);
    expected.prefill(text);
    for (std::uint8_t const byte : stretch(80000, 20)) one.step(byte);
    for (int const position : {510, 500}) {
      engine.truncate(0, position);
      one.text.resize(static_cast<std::size_t>(position));
      CHECK(engine.count(0) == 64 + position - 500);
    }
    for (std::uint8_t const byte : stretch(70500, 20))
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
  }

  TEST_CASE("evictions: a type-erased policy decides as the typed one") {
    kv::any_policy const named = kv::parse("snapkv(window=16, pool=max:15) | budget(64)");
    llama_cpp::engine typed(model(), snapkv, exact());
    llama_cpp::engine erased(model(), named, exact());
    reader<decltype(typed)> one{typed};
    reader<decltype(erased)> other{erased};
    bytes const text = stretch(90000, 400);
    CHECK(one.prefill(text) == other.prefill(text));
    CHECK(std::ranges::equal(typed.positions({0, 3, 1}), erased.positions({0, 3, 1})));
  }

  TEST_CASE("evictions: quantised rows are moved by policies that do not read them") {
    auto const policy = kv::parse("streaming_llm(sinks=4) | budget(64)");
    llama_cpp::engine_options options = exact();
    options.context.type_k = options.context.type_v = GGML_TYPE_Q8_0;
    options.context.flash_attention = true;
    llama_cpp::engine engine(model(), policy, options);
    reader<decltype(engine)> one{engine};
    oracle expected(kv::policies::streaming_llm({.budget = 64}));
    bytes const text = stretch(1000, 600);
    one.prefill(text);
    expected.prefill(text);
    CHECK(same_tokens(engine, 0, expected));
    for (std::uint8_t const byte : stretch(1600, 20))
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 2);
  }
}

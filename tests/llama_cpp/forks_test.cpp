// SPDX-License-Identifier: Apache-2.0
#include "oracle.hpp"
#include "support/error_of.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

auto const snapkv = kv::policies::snapkv({.budget = 64, .score = {.window = 16, .pool = kv::max_pool{15}}});

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("forks: a sequence and its copy go on as two sequences that read the same text") {
    llama_cpp::engine engine(model(), snapkv, exact(2048, 256, 3));
    reader<decltype(engine)> one{engine};
    oracle expected(snapkv), of_copy(snapkv);
    bytes const prompt = stretch(1000, 700);
    one.prefill(prompt);
    expected.prefill(prompt);
    of_copy.prefill(prompt);
    for (std::uint8_t const byte : stretch(1700, 10)) {
      one.step(byte);
      expected.step(byte);
      of_copy.step(byte);
    }
    reader<decltype(engine)> other{engine, 2};  // takes cells between those of the two
    other.prefill(stretch(50000, 200));
    engine.fork(0, 1);
    reader<decltype(engine)> two{engine, 1, one.text};
    CHECK(engine.length(1) == 710);
    CHECK(engine.count(1) == 74);
    CHECK(same_tokens(engine, 1, expected));
    CHECK(tinylm_test::furthest(one.prefill(stretch(1710, 90)), expected.prefill(stretch(1710, 90))) < 1e-3);
    CHECK(tinylm_test::furthest(two.prefill(stretch(31000, 150)), of_copy.prefill(stretch(31000, 150))) < 1e-3);
    for (int i = 0; i < 20; ++i) {
      std::uint8_t const byte = stretch(1800 + i, 1).front(), another = stretch(31150 + i, 1).front();
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
      CHECK(tinylm_test::furthest(two.step(another), of_copy.step(another)) < 1e-3);
    }
    CHECK(same_tokens(engine, 0, expected));
    CHECK(same_tokens(engine, 1, of_copy));
  }

  TEST_CASE("forks: a copy may be rolled back as the sequence itself, and keeps its copy of quantised keys") {
    llama_cpp::engine_options options = exact(1024, 256, 2);
    options.context.type_k = options.context.type_v = GGML_TYPE_Q8_0;
    options.context.flash_attention = true;
    options.context.keep_keys = true;
    llama_cpp::engine engine(model(), kv::any_policy(snapkv), options);
    reader<decltype(engine)> one{engine};
    one.prefill(stretch(1000, 300));
    one.prefill(stretch(1300, 30));
    engine.fork(0, 1);
    reader<decltype(engine)> two{engine, 1, one.text};
    CHECK(tinylm_test::furthest(one.prefill(stretch(1330, 50)), two.prefill(stretch(1330, 50))) < 1e-3);
    for (int lane = 0; lane < 8; ++lane)
      CHECK(std::ranges::equal(engine.positions({0, lane / 2, lane % 2}), engine.positions({1, lane / 2, lane % 2})));
    one.step('a');
    std::vector<float> const logits = two.step('b');
    engine.truncate(0, 380);
    one.text.pop_back();
    CHECK(tinylm_test::furthest(one.step('b'), logits) < 1e-3);
  }

  TEST_CASE("forks: a slot that is used, no room, and slots that there are not") {
    llama_cpp::engine engine(model(), snapkv, exact(256, 64, 2));
    reader<decltype(engine)> one{engine};
    reader<decltype(engine)> two{engine, 1};
    one.prefill(stretch(1000, 100));
    CHECK(error_of([&] { engine.fork(0, 2); }) == "fork: sequence = 2, but the engine has 2 sequences");
    CHECK(error_of([&] { engine.fork(-1, 1); }) == "fork: sequence = -1, but the engine has 2 sequences");
    CHECK(error_of([&] { engine.fork(0, 0); }) == "fork: to = 0, but it is the sequence that is copied");
    two.prefill(stretch(1000, 10));
    CHECK(error_of([&] { engine.fork(0, 1); }) == "fork: to = 1, but it is in use: reset it before");
    engine.reset(1);
    for (std::uint8_t const byte : stretch(1100, 80)) one.step(byte);
    CHECK(error_of([&] { engine.fork(0, 1); }) == "fork: tokens = 144, but the cache has 112 free cells");
    CHECK(engine.free_count() == 112);
    CHECK(engine.length(1) == 0);
    engine.evict(0);
    engine.fork(0, 1);
    CHECK(engine.free_count() == 128);
    engine.reset(1);
  }

  TEST_CASE("forks: a sequence may begin with rows that were computed elsewhere") {
    llama_cpp::engine from(model(), snapkv, exact(512, 64));
    llama_cpp::engine to(model(), snapkv, exact(1024, 50, 2));
    reader<decltype(from)> one{from};
    from.prefill(0, {.tokens = {}, .embeddings = one.add(stretch(1000, 60))});
    CHECK(from.count(0) == 60);
    to.adopt(1, 60, [&](kv::cache const& cache) {
      kv::host_executor exec;
      kv::ops::copy_rows(exec, from.view(0), cache);
    });
    reader<decltype(to)> two{to, 1, one.text};
    CHECK(tinylm_test::furthest(one.step('a'), two.step('a')) < 1e-3);
    CHECK(error_of([&] { to.adopt(1, 60, [](kv::cache const&) {}); }) ==
          "adopt: sequence = 1, but it is in use: reset it before");
    CHECK(error_of([&] { to.adopt(0, 1000, [](kv::cache const&) {}); }) ==
          "adopt: tokens = 1000, but the cache has 963 free cells");
    CHECK_THROWS_AS(to.adopt(0, 100, [](kv::cache const&) { throw std::runtime_error("no rows"); }),
                    std::runtime_error);
    CHECK(to.free_count() == 963);
  }
}

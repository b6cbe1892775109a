// SPDX-License-Identifier: Apache-2.0
#include "as_before.hpp"
#include "oracle.hpp"
#include "support/error_of.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

/// Keeps every entry of a layer from a position on, and from a sequence length on throws instead. Only a decision shows
/// that this lane keeps more entries than others.
struct one_layer {
  int from = 1 << 20;
  int throws_from = 1 << 20;
  static constexpr auto name = "one_layer";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"from", &one_layer::from}, kv::field{"throws_from", &one_layer::throws_from});
  }
  bool operator()(kv::entry at) const {
    if (at.position >= throws_from) throw std::runtime_error("no protection");
    return at.lane.layer == 1 && at.position >= from;
  }
  [[maybe_unused]] friend bool operator==(one_layer const&, one_layer const&) = default;
};

/// H2O, whose decisions rest on what all tokens before have recorded, with that protection.
auto h2o_with(one_layer const& protect) {
  return kv::eviction<kv::h2o, one_layer, kv::per_lane>{.score = {}, .protect = protect, .budget = {40}};
}
using policy_type = decltype(h2o_with({}));
using engine_type = llama_cpp::engine<policy_type>;

/// The next tokens of an engine and of a twin in which the failed call was never made.
void check_twins(engine_type& engine, engine_type& twin, int sequence, bytes const& text) {
  reader<engine_type> one{engine, sequence, text}, two{twin, sequence, text};
  for (std::uint8_t const byte : stretch(7000, 5)) CHECK(one.step(byte) == two.step(byte));
  engine.evict(sequence);
  twin.evict(sequence);
  CHECK(std::ranges::equal(engine.positions({sequence, 3, 1}), twin.positions({sequence, 3, 1})));
  CHECK(one.step('a') == two.step('a'));
}

llama_cpp::engine_options options_of(llama_cpp::when decide, int chunk = 64) {
  llama_cpp::engine_options made = exact(512, chunk, 2);
  made.decide = decide;
  return made;
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("undo: a decision that is refused after the prompt leaves no token of it") {
    for (bool const begun : {false, true}) {
      for (int const throws_from : {1 << 20, 230}) {
        CAPTURE(begun);
        engine_type engine(model(), h2o_with({200, throws_from}), options_of(llama_cpp::when::after_prefill));
        engine_type twin(model(), h2o_with({200, throws_from}), options_of(llama_cpp::when::after_prefill));
        reader<engine_type> one{engine}, two{twin};
        if (begun) {
          one.prefill(stretch(1000, 130));
          two.prefill(stretch(1000, 130));
        }
        auto const before = look_at(engine, 2);
        bytes const text = one.text;
        std::string error;
        try {
          one.prefill(stretch(2000, 260 - static_cast<int>(text.size())));
        } catch (std::exception const& failed) {
          error = failed.what();
        }
        CHECK(error == std::string(throws_from == 230
                                       ? "no protection"
                                       : "apply: plan.keep = 60 entries of a lane, but llama_cpp has one length for "
                                         "this lane and another that keeps 40"));
        CHECK(look_at(engine, 2) == before);
        CHECK(engine.length(0) == static_cast<int>(text.size()));
        one.text = text;
        if (begun) {
          check_twins(engine, twin, 0, text);
        } else {
          CHECK(one.prefill(stretch(3000, 150)) == two.prefill(stretch(3000, 150)));
        }
      }
    }
  }

  TEST_CASE("undo: a decision that is refused after a step leaves no sequence of the batch with its token") {
    engine_type engine(model(), h2o_with({150, 1 << 20}), options_of(llama_cpp::when::every_decode));
    reader<engine_type> one{engine}, two{engine, 1};
    one.prefill(stretch(1000, 100));
    two.prefill(stretch(2000, 190 - 41));  // its next tokens are protected in one layer only
    int length = 149, count = 40;
    for (std::uint8_t const byte : stretch(3000, 40)) {
      two.step(byte);
      ++length;
    }
    CHECK(engine.count(1) == count);
    auto const before = look_at(engine, 2);
    std::vector<float> const rows_of_one = one.add(stretch(4000, 1)), rows_of_two = two.add(stretch(5000, 3));
    std::vector<llama_cpp::sequence_rows> const batch{{0, {.tokens = {}, .embeddings = rows_of_one}},
                                                      {1, {.tokens = {}, .embeddings = rows_of_two}}};
    CHECK(error_of([&] { engine.step(batch); }) ==
          "apply: plan.keep = 42 entries of a lane, but llama_cpp has one length for this lane and another that keeps "
          "40");
    CHECK(look_at(engine, 2) == before);
    CHECK(engine.length(0) == 100);
    CHECK(engine.length(1) == length);
    one.text.pop_back();
    CHECK_NOTHROW(one.step('a'));
    CHECK(engine.count(0) == 40);
  }

  TEST_CASE("undo: decisions about several sequences of a batch are those about each alone") {
    engine_type engine(model(), h2o_with({}), options_of(llama_cpp::when::every_decode));
    engine_type alone(model(), h2o_with({}), options_of(llama_cpp::when::every_decode));
    std::vector<reader<engine_type>> both{{engine, 0}, {engine, 1}}, each{{alone, 0}, {alone, 1}};
    for (int s = 0; s < 2; ++s) {
      both[static_cast<std::size_t>(s)].prefill(stretch(1000 + 500 * s, 60));
      each[static_cast<std::size_t>(s)].prefill(stretch(1000 + 500 * s, 60));
    }
    for (int i = 0; i < 30; ++i) {
      std::vector<std::vector<float>> const rows{both[0].add(stretch(4000 + i, 1)), both[1].add(stretch(5000 + i, 1))};
      std::vector<llama_cpp::sequence_rows> const batch{{0, {.tokens = {}, .embeddings = rows[0]}},
                                                        {1, {.tokens = {}, .embeddings = rows[1]}}};
      auto const logits = engine.step(batch);
      CHECK(tinylm_test::furthest(logits.first(256), each[0].step(stretch(4000 + i, 1).front())) < 1e-3);
      CHECK(tinylm_test::furthest(logits.last(256), each[1].step(stretch(5000 + i, 1).front())) < 1e-3);
      for (int s = 0; s < 2; ++s) CHECK(std::ranges::equal(engine.positions({s, 2, 1}), alone.positions({s, 2, 1})));
    }
  }

  TEST_CASE(
      "undo: a prefill that its visitor cancels, or that finds no room, takes back what it has read and evicted") {
    for (auto const decide : {llama_cpp::when::after_prefill, llama_cpp::when::every_decode}) {
      for (bool const begun : {false, true}) {
        bool const moved = decide == llama_cpp::when::every_decode;
        CAPTURE(moved);
        CAPTURE(begun);
        engine_type engine(model(), h2o_with({}), options_of(decide)), twin(model(), h2o_with({}), options_of(decide));
        reader<engine_type> one{engine}, two{twin};
        if (begun) {
          one.prefill(stretch(1000, 130));
          two.prefill(stretch(1000, 130));
        }
        auto const before = look_at(engine, 2);
        bytes const text = one.text;
        int chunks = 0;
        auto const cancel = [&](int, std::span<float const>) {
          if (++chunks == 3) throw std::runtime_error("cancelled");
        };
        CHECK_THROWS_WITH_AS(one.prefill(stretch(2000, 256), cancel), "cancelled", std::runtime_error);
        CHECK(chunks == 3);
        if (!moved || !begun) CHECK(look_at(engine, 2) == before);
        CHECK(engine.free_count() == before.free);
        CHECK(engine.length(0) == static_cast<int>(text.size()));
        one.text = text;
        std::vector<float> const logits = two.prefill(stretch(3000, 150));
        CHECK(tinylm_test::furthest(one.prefill(stretch(3000, 150)), logits) < 1e-4);
        CHECK(std::ranges::equal(engine.positions({0, 3, 1}), twin.positions({0, 3, 1})));
      }
    }
  }

  TEST_CASE("undo: a prefill that finds no room for a later chunk leaves none of it") {
    llama_cpp::engine_options options = options_of(llama_cpp::when::every_decode);
    llama_cpp::engine engine(model(), kv::policies::full(), options);
    reader<decltype(engine)> one{engine};
    one.prefill(stretch(1000, 300));
    auto const before = look_at(engine, 2);
    CHECK(error_of([&] { one.prefill(stretch(2000, 256)); }) ==
          "prefill: tokens = 64, but the cache has 20 free cells");
    CHECK(engine.length(0) == 300);
    CHECK(engine.free_count() == before.free);
    one.text.resize(300);
    CHECK_NOTHROW(one.step('a'));
  }

  TEST_CASE("undo: a decode that is aborted leaves no token, and a cancelled prefill may be read again") {
    engine_type engine(model(), h2o_with({}), options_of(llama_cpp::when::after_prefill));
    engine_type twin(model(), h2o_with({}), options_of(llama_cpp::when::after_prefill));
    reader<engine_type> one{engine}, two{twin};
    one.prefill(stretch(1000, 130));
    two.prefill(stretch(1000, 130));
    bool stop = false;
    llama_set_abort_callback(engine.get(), [](void* asked) { return *static_cast<bool*>(asked); }, &stop);
    auto const before = look_at(engine, 2);
    bytes const text = one.text;
    auto const stop_later = [&](int, std::span<float const>) { stop = true; };
    CHECK_THROWS_WITH_AS(one.prefill(stretch(2000, 200), stop_later),
                         "prefill: llama_decode failed; the sequences are as they were before", std::runtime_error);
    CHECK(look_at(engine, 2) == before);
    one.text = text;
    CHECK_THROWS_AS(one.step('a'), std::runtime_error);
    CHECK_THROWS_AS(engine.fork(0, 1), std::runtime_error);
    CHECK(look_at(engine, 2) == before);
    stop = false;
    check_twins(engine, twin, 0, text);
  }

  TEST_CASE(
      "undo: a sequence that has evicted and for which llama.cpp then gives no cells is reset, and the error says so") {
    engine_type engine(model(), h2o_with({}), options_of(llama_cpp::when::every_decode));
    reader<engine_type> one{engine}, two{engine, 1};
    one.prefill(stretch(1000, 130));
    two.prefill(stretch(2000, 130));
    bool stop = false;
    llama_set_abort_callback(engine.get(), [](void* asked) { return *static_cast<bool*>(asked); }, &stop);
    auto const stop_later = [&](int, std::span<float const>) { stop = true; };
    CHECK_THROWS_WITH_AS(one.prefill(stretch(2000, 200), stop_later),
                         "prefill: it failed, and the sequence is reset, because it could not be restored: load: "
                         "llama_decode failed",
                         std::runtime_error);
    CHECK(engine.length(0) == 0);
    CHECK(engine.free_count() == 512 - 40);
    stop = false;
    one.text.clear();
    CHECK_NOTHROW(one.prefill(stretch(1000, 130)));
    CHECK_NOTHROW(two.step('a'));
  }

  TEST_CASE("undo: after a call that was refused a policy still decides by the rows of the decode before") {
    auto const tova = kv::policies::tova({.budget = 24});
    llama_cpp::engine engine(model(), tova, options_of(llama_cpp::when::by_hand));
    llama_cpp::engine twin(model(), tova, options_of(llama_cpp::when::by_hand));
    reader<decltype(engine)> one{engine}, two{twin};
    one.prefill(stretch(1000, 100));
    two.prefill(stretch(1000, 100));
    std::vector<float> const many(65 * 256);
    CHECK(error_of([&] { engine.step(0, {.tokens = {}, .embeddings = many}); }) ==
          "step: tokens = 65, but a decode has at most 64 tokens");
    CHECK(error_of([&] { engine.step(1, {.tokens = {}, .embeddings = std::span(many).first(100)}); }) ==
          "step: embeddings = 100, but a token has 256 numbers");
    engine.evict(0);
    twin.evict(0);
    for (int lane = 0; lane < 8; ++lane)
      CHECK(std::ranges::equal(engine.positions({0, lane / 2, lane % 2}), twin.positions({0, lane / 2, lane % 2})));
  }

  TEST_CASE("undo: ids that the model does not have are refused before a chunk is read") {
    llama_cpp::engine engine(model(), kv::policies::knorm({.budget = 24}), exact(256, 16, 2));
    std::vector<llama_token> tokens(100, 7);
    tokens[90] = 256;
    CHECK(error_of([&] { engine.prefill(0, {.tokens = tokens}); }) ==
          "prefill: token = 256, but the model has tokens 0 to 255");
    llama_token const negative = -1;
    CHECK(error_of([&] { engine.step(0, {.tokens = {&negative, 1}}); }) ==
          "step: token = -1, but the model has tokens 0 to 255");
    CHECK(error_of([&] { engine.step(std::span<llama_cpp::sequence_rows const>()); }) ==
          "step: batch = empty, but a decode reads at least one token");
    std::vector<float> const row(256);
    std::vector<llama_cpp::sequence_rows> const mixed{{0, {.tokens = std::span(tokens).first(1)}},
                                                      {1, {.tokens = {}, .embeddings = row}}};
    CHECK(error_of([&] { engine.step(mixed); }) ==
          "step: embeddings = 256, but a batch has ids or embeddings, not both");
    CHECK(engine.length(0) == 0);
    CHECK(engine.free_count() == 256);
  }
}

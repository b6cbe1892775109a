// SPDX-License-Identifier: Apache-2.0
#include "as_before.hpp"
#include "oracle.hpp"
#include "support/error_of.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

auto const snapkv = kv::policies::snapkv({.budget = 24, .score = {.window = 8}});
using engine_type = llama_cpp::engine<std::remove_const_t<decltype(snapkv)>>;
constexpr char const* own_calls = ": cells are moved, shifted and removed by the engine's own calls only";

/// The texts of the errors of all calls about sequence 0, which has read `text`, without the name of the call. Sequence
/// `empty` has no tokens.
std::vector<std::string> errors_of_all(engine_type& engine, bytes const& text, int empty = 1) {
  reader<engine_type> one{engine, 0, text};
  std::vector<float> const rows = one.add(stretch(3000, 1));
  llama_cpp::token_rows const next{.tokens = {}, .embeddings = rows};
  std::vector<std::string> made;
  auto const note = [&](auto const& call) {
    std::string const error = error_of(call);
    made.push_back(error.substr(std::min(error.size(), error.find(':'))));
  };
  note([&] { engine.step(0, next); });
  note([&] { engine.prefill(0, next); });
  note([&] { engine.evict(0); });
  note([&] { static_cast<void>(engine.save(0)); });
  note([&] { engine.truncate(0, engine.length(0)); });
  note([&] { engine.fork(0, empty); });
  return made;
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("untouched: cells that somebody else removes anywhere in a sequence are noticed by every call") {
    for (bool const flash : {false, true}) {
      llama_cpp::engine_options options = exact(512, 64, 2);
      options.context.flash_attention = flash;
      engine_type engine(model(), snapkv, options);
      reader<engine_type> one{engine};
      llama_memory_t const memory = llama_get_memory(engine.get());
      struct removed {
        int first;
        int end;
        std::string found;
      };
      for (removed const& what :
           {removed{57, 58, "which has no cell at position 57, but the engine left one there"},
            removed{0, 1, "whose first cell is at position 1, but the engine left it at 0"},
            removed{0, 20, "whose first cell is at position 20, but the engine left it at 0"},
            removed{30, 119, "which has no cell at position 30, but the engine left one there"},
            removed{1, 2, "which has no cell at position 1, but the engine left one there"},
            removed{118, 119, "which has no cell at position 118, but the engine left one there"},
            removed{100, -1, "whose last cell is at position 99, but the engine left it at 119"},
            removed{-1, -1, "whose last cell is at position -1, but the engine left it at 119"}}) {
        CAPTURE(what.found);
        engine.reset(0);
        one.text.clear();
        for (std::uint8_t const byte : stretch(1000, 120)) one.step(byte);
        llama_memory_seq_rm(memory, 0, what.first, what.end);
        auto const before = look_at(engine, 2);
        for (std::string const& error : errors_of_all(engine, one.text))
          CHECK(error == ": sequence = 0, " + what.found + own_calls);
        CHECK(look_at(engine, 2) == before);
        CHECK(engine.length(0) == 120);
      }
      engine.reset(0);  // a new request is served
      one.text.clear();
      one.prefill(stretch(1000, 100));
      CHECK(engine.count(0) == 24);
    }
  }

  TEST_CASE("untouched: removed cells are noticed after an eviction, where positions have gaps") {
    engine_type engine(model(), snapkv, exact(512, 64, 2));
    reader<engine_type> one{engine};
    one.prefill(stretch(1000, 120));
    for (std::uint8_t const byte : stretch(1120, 10)) one.step(byte);
    CHECK(engine.count(0) == 34);
    llama_memory_t const memory = llama_get_memory(engine.get());
    llama_memory_seq_rm(memory, 0, 125, 126);
    for (std::string const& error : errors_of_all(engine, one.text)) {
      CHECK(error == ": sequence = 0, which has no cell at position 125, but the engine left one there" +
                         std::string(own_calls));
    }
    engine.reset(0);
    one.text.clear();
    one.prefill(stretch(1000, 120));
    llama_memory_seq_rm(memory, 0, 0, 119);  // all but the newest
    for (std::string const& error : errors_of_all(engine, one.text)) {
      CHECK(error == ": sequence = 0, whose first cell is at position 119, but the engine left it at 0" +
                         std::string(own_calls));
    }
  }

  TEST_CASE(
      "untouched: cells that somebody else adds to a sequence, to an empty slot or to the engine's own sequence") {
    engine_type engine(model(), snapkv, exact(512, 64, 3));
    reader<engine_type> one{engine}, two{engine, 1};
    for (std::uint8_t const byte : stretch(1000, 50)) one.step(byte), two.step(byte);
    llama_memory_t const memory = llama_get_memory(engine.get());
    llama_memory_seq_cp(memory, 1, 0, 10, 12);
    for (std::string const& error : errors_of_all(engine, one.text, 2))
      CHECK(error == ": sequence = 0, which has 52 cells, but the engine left it 50" + std::string(own_calls));
    engine.reset(0);
    std::vector<std::byte> const saved = engine.save(1);
    llama_memory_seq_cp(memory, 1, 2, 10, 12);
    std::string const used =
        ": sequence = 2, whose last cell is at position 11, but the engine left it at -1" + std::string(own_calls);
    CHECK(error_of([&] { engine.load(2, saved); }) == "load" + used);
    CHECK(error_of([&] { engine.fork(1, 2); }) == "fork" + used);
    CHECK(error_of([&] { engine.adopt(2, 5, [](kv::cache const&) {}); }) == "adopt" + used);
    engine.reset(2);
    llama_memory_seq_cp(memory, 1, 3, 10, 12);
    std::string const spare =
        ": sequence = 3, whose last cell is at position 11, but the engine needs this sequence for itself and left it "
        "empty" +
        std::string(own_calls);
    CHECK(error_of([&] { engine.load(2, saved); }) == "load" + spare);
    CHECK(error_of([&] { two.step('a'); }) == "step" + spare);
    two.text.pop_back();
    llama_memory_seq_rm(memory, 3, -1, -1);
    engine.load(2, saved);
    reader<engine_type> three{engine, 2, two.text};
    CHECK(two.step('a') == three.step('a'));
  }

  TEST_CASE("untouched: a shift of a part of a sequence is noticed if it moves an end") {
    engine_type engine(model(), snapkv, exact(512, 64, 2));
    reader<engine_type> one{engine};
    for (std::uint8_t const byte : stretch(1000, 50)) one.step(byte);
    llama_memory_seq_add(llama_get_memory(engine.get()), 0, 0, 20, 1);
    for (std::string const& error : errors_of_all(engine, one.text)) {
      CHECK(error ==
            ": sequence = 0, whose first cell is at position 1, but the engine left it at 0" + std::string(own_calls));
    }
  }

  TEST_CASE("untouched: without counting only the ends are looked at") {
    llama_cpp::engine_options options = exact(512, 64, 2);
    options.context.count_cells = false;
    engine_type engine(model(), snapkv, options);
    reader<engine_type> one{engine};
    for (std::uint8_t const byte : stretch(1000, 50)) one.step(byte);
    llama_memory_t const memory = llama_get_memory(engine.get());
    llama_memory_seq_rm(memory, 0, 20, 21);
    CHECK_NOTHROW(one.step('a'));
    llama_memory_seq_rm(memory, 0, 0, 1);
    CHECK(error_of([&] { one.step('a'); }) ==
          "step: sequence = 0, whose first cell is at position 1, but the engine left it at 0" +
              std::string(own_calls));
  }
}

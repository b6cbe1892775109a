// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "as_before.hpp"
#include "oracle.hpp"
#include "support/error_of.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

auto const snapkv = kv::policies::snapkv({.budget = 24, .score = {.window = 8}});
using engine_type = llama_cpp::engine<std::remove_const_t<decltype(snapkv)>>;

/// A sequence that was evicted, and read 10 tokens since.
std::vector<std::byte> saved_by(engine_type& engine, reader<engine_type>& one) {
  one.prefill(stretch(1000, 120));
  for (std::uint8_t const byte : stretch(1120, 10)) one.step(byte);
  return engine.save(0);
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("saved: bytes in which one bit has changed are refused, wherever it is, and nothing is changed") {
    engine_type engine(model(), snapkv, exact(512, 64, 2));
    reader<engine_type> one{engine};
    std::vector<std::byte> const saved = saved_by(engine, one);
    auto const before = look_at(engine, 2);
    std::mt19937 random(3);
    std::vector<std::size_t> bits;
    for (std::size_t bit = 0; bit < 8 * 56; ++bit) bits.push_back(bit);  // those of the header
    for (int i = 0; i < 400; ++i) bits.push_back(random() % (8 * saved.size()));
    for (std::size_t i = 0; i < 8; ++i) bits.push_back(8 * saved.size() - 1 - i);
    for (std::size_t const bit : bits) {
      std::vector<std::byte> damaged = saved;
      damaged[bit / 8] ^= std::byte{1} << (bit % 8);
      CAPTURE(bit);
      std::string const error = error_of([&] { engine.load(1, damaged); });
      REQUIRE(error.starts_with("load: "));
      REQUIRE(error.find(", but ") != std::string::npos);
    }
    CHECK(look_at(engine, 2) == before);
    std::vector<std::byte> damaged = saved;
    damaged.back() ^= std::byte{1};  // of a row
    CHECK(error_of([&] { engine.load(1, damaged); }) ==
          "load: bytes = damaged, but the sum of what was saved is another one");
    engine.load(1, saved);
    reader<engine_type> two{engine, 1, one.text};
    CHECK(tinylm_test::furthest(one.step('a'), two.step('a')) < 1e-3);
  }

  TEST_CASE("saved: bytes of another kind are refused in one sentence each") {
    engine_type engine(model(), snapkv, exact(512, 64, 2));
    reader<engine_type> one{engine};
    std::vector<std::byte> const saved = saved_by(engine, one);
    auto const before = look_at(engine, 2);
    auto const refused = [&](std::vector<std::byte> const& bytes) { return error_of([&] { engine.load(1, bytes); }); };
    std::vector<std::byte> other = saved;
    other.pop_back();
    std::string const size = std::to_string(saved.size());
    CHECK(refused(other) == "load: bytes = " + std::to_string(saved.size() - 1) + ", but the saved sequence has " +
                                size + ": it is truncated, or more follows");
    other.resize(saved.size() + 3);
    CHECK(refused(other) == "load: bytes = " + std::to_string(saved.size() + 3) + ", but the saved sequence has " +
                                size + ": it is truncated, or more follows");
    CHECK(refused(std::vector<std::byte>(1000)) == "load: bytes = no saved sequence, but engine::save writes them");
    CHECK(refused({}) == "load: bytes = 0, but they end within the header");
    other = saved;
    other[8] = std::byte{9};
    CHECK(refused(other) == "load: version = 9, but this engine reads version 1");
    llama_cpp::engine_options halves = exact(512, 64);
    halves.context.type_k = GGML_TYPE_F16;
    engine_type in_halves(model(), snapkv, halves);
    CHECK(error_of([&] { in_halves.load(0, saved); }) == "load: type_k = f16, but the rows were saved as f32");
    CHECK(in_halves.free_count() == 512);
    llama_cpp::engine recorder(model(), kv::policies::h2o({.budget = 24}), exact(512, 64));
    CHECK(error_of([&] { recorder.load(0, saved); }) ==
          "load: state = another policy's, but the slot was saved with the columns of another policy");
    CHECK(llama_memory_seq_pos_max(llama_get_memory(recorder.get()), 0) == -1);
    CHECK(recorder.free_count() == 512);
    engine_type small(model(), snapkv, exact(256, 64));
    reader<engine_type> filled{small};
    for (std::uint8_t const byte : stretch(1000, 230)) filled.step(byte);
    CHECK(error_of([&] { small.load(0, saved); }) == "load: sequence = 0, but it is in use: reset it before");
    CHECK(look_at(engine, 2) == before);
  }
}

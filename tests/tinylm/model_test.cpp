// SPDX-License-Identifier: Apache-2.0
#include "fixture.hpp"
#include "support/test.hpp"

namespace {

using namespace tinylm_test;

auto const full = kv::policies::full();

}  // namespace

TEST_SUITE("tinylm") {
  TEST_CASE("model: logits are PyTorch's") {
    for (std::string const name : {"text", "recall"}) {
      golden const expected(name);
      double const error = furthest(logits_of(expected.text, full, {}), expected.logits);
      MESSAGE(name, ": largest difference ", error);
      CHECK(error < 1e-3);
    }
  }

  TEST_CASE("model: a text read in chunks, byte by byte or at once gives the same logits") {
    golden const expected("recall");
    auto const whole = logits_of(expected.text, full, {.chunk = 256});
    for (int const chunk : {1, 7, 16, 100, 255}) {
      CAPTURE(chunk);
      CHECK(furthest(logits_of(expected.text, full, {.chunk = chunk}), whole) < 1e-4);
    }
  }

  TEST_CASE("model: the number of threads changes nothing") {
    golden const expected("text");
    kv::host_executor alone(1);
    fixture& with = fixture::get();
    tinylm::session one(with.lm, alone, with.pool, full, {});
    std::vector<float> logits;
    one.prefill(expected.text, [&](int, std::span<float const> rows) { logits.assign(rows.begin(), rows.end()); });
    CHECK(furthest(logits, logits_of(expected.text, full, {})) < 1e-4);
  }

  TEST_CASE("model: a chunk of one sequence beside single tokens of another gives each the logits that it has alone") {
    fixture& with = fixture::get();
    golden const first("text"), second("recall");
    kv::shape const shape = with.lm.about().shape();
    constexpr int capacity = 512, chunk = 5;
    std::size_t const lanes = static_cast<std::size_t>(shape.layers * shape.kv_heads);
    std::vector<float> k(2 * lanes * capacity * static_cast<std::size_t>(shape.head_dim)), v(k.size());
    std::vector<int> counts(2 * lanes), positions(2 * lanes * capacity);
    kv::cache cache = kv::contiguous_cache({.k = k.data(),
                                            .v = v.data(),
                                            .shape = shape,
                                            .sequences = 2,
                                            .capacity = capacity,
                                            .counts = counts.data(),
                                            .positions = positions.data()});
    auto state = kv::make_state(with.exec, full, cache);
    tinylm::query_rows queries(shape, chunk + 1);
    std::vector<float> of_first, of_second;
    std::span<std::uint8_t const> const a(first.text), b(second.text);
    int steps = 0;
    for (std::size_t at = 0; at + chunk <= a.size() && static_cast<std::size_t>(steps) < b.size(); at += chunk) {
      kv::append(with.exec, cache, state, {.sequence = 0, .tokens = 1, .position = steps});
      kv::append(with.exec, cache, state, {.sequence = 1, .tokens = chunk, .position = static_cast<int>(at)});
      std::vector<tinylm::forward_part> const parts{{a.first(at + chunk), chunk, 1},
                                                    {b.first(static_cast<std::size_t>(steps) + 1), 1, 0}};
      queries.clear();
      auto const logits = with.lm.forward(with.exec, parts, cache, queries);
      of_first.insert(of_first.end(), logits.begin(), logits.begin() + chunk * 256);
      of_second.insert(of_second.end(), logits.end() - 256, logits.end());
      ++steps;
    }
    REQUIRE(steps > 10);
    auto const alone = [&](golden const& text, std::size_t floats) {
      auto all = logits_of(text.text, full, {});
      all.resize(floats);
      return all;
    };
    CHECK(furthest(of_first, alone(first, of_first.size())) < 1e-4);
    CHECK(furthest(of_second, alone(second, of_second.size())) < 1e-4);
  }

  TEST_CASE("model: a cache to which the text's tokens were not appended is refused") {
    fixture& with = fixture::get();
    tinylm::kv_sequence entries(with.pool, 64);
    tinylm::query_rows queries(with.lm.about().shape(), 8);
    std::vector<std::uint8_t> const text{'a', 'b'};
    CHECK_THROWS_WITH_AS(with.lm.forward(with.exec, text, 2, entries.view(), queries),
                         "forward: cache = lane 0, but its last entries are not the text's last 2: append them first",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(with.lm.forward(with.exec, text, 3, entries.view(), queries),
                         "forward: fresh = 3, but the text has 2 bytes", kv::invalid_argument);
  }

  TEST_CASE("sampling: bits add up to one, and temperature 0 takes the most probable") {
    std::vector<float> const logits{1, 3, 2, 3};
    double all = 0;
    for (std::uint8_t byte = 0; byte < 4; ++byte) all += std::exp2(-tinylm::bits_of(logits, byte));
    CHECK(all == doctest::Approx(1));
    std::mt19937_64 random(1);
    CHECK(tinylm::choose(logits, {}, random) == 1);
    int seen[4] = {};
    for (int i = 0; i < 20000; ++i) ++seen[tinylm::choose(logits, {.temperature = 1}, random)];
    for (std::uint8_t byte = 0; byte < 4; ++byte)
      CHECK(seen[byte] / 20000.0 == doctest::Approx(std::exp2(-tinylm::bits_of(logits, byte))).epsilon(0.1));
  }
}

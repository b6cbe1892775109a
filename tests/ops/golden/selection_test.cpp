// SPDX-License-Identifier: Apache-2.0
// Selections, pools and page bounds: bits on every instruction set.

#include "support/golden.hpp"

namespace golden_selection_test {

using namespace kvpolicy_test;

/// Scores of one of a few kinds: with ties, NaN, infinities, zeros of both signs and all exponents, or without.
void fill(std::span<float> row, int kind, dice& random) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  std::vector<std::byte> const any = any_rows(random, kv::codec::f32, row.size(), false);
  for (std::size_t e = 0; e < row.size(); ++e) {
    row[e] = kind % 2 == 0 ? static_cast<float>(random.real(10)) : std::round(static_cast<float>(random.real(4)));
    if (kind >= 2 && random.chance(3)) row[e] = random.one_of<float>({-0.0f, infinite, -infinite, std::nanf("")});
    if (kind == 3) std::memcpy(&row[e], any.data() + 4 * e, 4);
    if (kind == 4 && random.chance(60)) row[e] = std::nanf("");
  }
}

struct at_least {
  float least;
  [[nodiscard]] bool picks(float score) const { return score * 1.1f + 0.3f >= least; }
  [[nodiscard]] bool forces(kv::entry const& at) const { return at.position % 37 == 0; }
};

void add(folded& all, owned_keep& keep) {
  for (int s = 0; s < keep.view().segments(); ++s) all.add(keep.view().listed(s));
  all.add(keep.report().nan_scores);
}

/// top_k of budgets by lane, by layer and of forced entries anywhere, and select_if.
std::uint64_t of_selections(kv::isa level) {
  folded all;
  dice random(8);
  for (int const count : {0, 1, 7, 31, 33, 100, 520, 2049, 5001, 9000}) {
    for (int kind = 0; kind < 5; ++kind) {
      owned_lanes const lanes(1, 1, 3, std::max(count, 1), {count, count / 2, count});
      owned_scores scores(lanes.view());
      fill(scores.all(), kind, random);
      owned_keep keep(scores.view());
      kv::host_executor exec(1, level);
      exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, std::max(count, 1)));
      for (int const budget : {1, count / 9 + 40, count / 2, count - 5}) {
        using kv::detail::decision_rule;
        auto const over = kv::over_budget{};
        auto const decide = [&](auto const& rule) { kv::ops::top_k(exec, scores.view(), rule, keep.view()); };
        decide(decision_rule{kv::safe{4, 17}, kv::nothing{}, kv::per_lane{std::max(budget, 0)}, over});
        add(all, keep);
        decide(decision_rule{kv::position_span{9, 60}, kv::nothing{}, kv::per_lane{std::max(budget, 0)}, over});
        add(all, keep);
        decide(decision_rule{kv::safe{1, 3}, kv::nothing{}, kv::per_layer{std::max(budget, 0)}, over});
        add(all, keep);
      }
      kv::ops::select_if(exec, scores.view(), at_least{kind == 1 ? 2.0f : 0.5f}, keep.view());
      add(all, keep);
    }
  }
  return all.bits();
}

std::uint64_t of_pools(kv::isa level) {
  folded all;
  dice random(9);
  for (int const count : {1, 5, 8, 31, 33, 64, 70, 129, 300, 4500}) {
    for (int kind = 0; kind < 5; ++kind) {
      owned_lanes const lanes(count);
      owned_scores scores(lanes.view());
      kv::host_executor exec(1, level);
      exec.reserve(kv::implementation<kv::ops::pool_t, kv::host>::scratch({}, count));
      for (int const width : {1, 3, 7, 21, 601}) {
        for (kv::pooling const by : {kv::pooling{kv::max_pool{width}}, kv::pooling{kv::avg_pool{width}}}) {
          fill(scores.all(), kind, random);
          kv::ops::pool(exec, by, scores.view(), kind);
          all.add(std::span<float const>(scores.all()));
        }
      }
    }
  }
  return all.bits();
}

std::uint64_t of_bounds(kv::isa level, kv::codec element) {
  folded all;
  dice random(10);
  for (int const dims : {1, 3, 8, 17, 32, 61, 64, 100, 128, 259}) {
    for (kv::codec const held : {element, kv::codec::f32}) {
      constexpr int entries = 67;
      auto const row = as_size(dims);
      std::vector<std::byte> rows = any_rows(random, element, entries * row, false);
      std::vector<std::byte> bounds(std::size_t{8} * row * entries);
      int known = 0;
      kv::plane const plane{.base = rows.data(),
                            .element = element,
                            .channels = dims,
                            .token_stride = dims * kv::bytes_of(element),
                            .channel_stride = kv::bytes_of(element)};
      owned_lanes const lanes(entries);
      kv::host_executor exec(1, level);
      exec.reserve(kv::implementation<kv::ops::extend_bounds_t, kv::host>::scratch({.head_dim = dims}, 0));
      for (int const page : {1, 16, 40}) {
        known = 0;
        kv::ops::extend_bounds(exec, lanes.view(), kv::keys{{plane, kv::identity_map(entries)}},
                               kv::page_bound_memory{{bounds.data()}, {&known}, held, dims, page});
        if (held == kv::codec::f32) {
          std::vector<float> numbers(bounds.size() / 4);
          std::memcpy(numbers.data(), bounds.data(), bounds.size());
          all.add(std::span<float const>(numbers));
        } else {
          for (std::byte const each : bounds) all.add(static_cast<int>(each));
        }
      }
    }
  }
  return all.bits();
}

TEST_SUITE("ops/golden/selection") {
  TEST_CASE("selections, pools and bounds are what they were") {
    for_each_isa([](kv::isa level) {
      CHECK(of_selections(level) == 0xB531FFA9E3BDEC25u);
      CHECK(of_pools(level) == 0x44A88C9008187BEu);
      CHECK(of_bounds(level, kv::codec::f32) == 0x3F737C72C22698EDu);
      CHECK(of_bounds(level, kv::codec::f16) == 0x77DB7DC1663F718Bu);
      CHECK(of_bounds(level, kv::codec::bf16) == 0xD37A50A444EA842Fu);
    });
  }
}

}  // namespace golden_selection_test

// SPDX-License-Identifier: Apache-2.0
// Inside a property: lanes with `order`, numbers that engines give, and policies that drop one entry a decision.
#pragma once

#include "layout/any_slots.hpp"

namespace kvpolicy_test {

/// Up to `most` entries in a table for each lane, of slots or of pages.
inline slot_options any_lane_orders(int most) {
  slot_options how = any_slots(true);
  how.one_list = false;
  how.bound = *rc::gen::element(4, 9, 33, most);
  how.page = *rc::gen::element(1, 1, 4);
  how.element = *rc::gen::element(kv::codec::f32, kv::codec::bf16);
  return how;
}

/// Numbers that engines give: of the gate at birth, and of attention. There are equal ones, infinite ones and NaN.
inline float number_of(int lane, int position, int kind) {
  unsigned const mixed = static_cast<unsigned>(lane * 131 + position * 7919 + kind * 977) * 2654435761u >> 16;
  if (mixed % 23 == 0) return std::numeric_limits<float>::quiet_NaN();
  if (mixed % 29 == 0) return -std::numeric_limits<float>::infinity();
  return -static_cast<float>(mixed % 6) * 0.25f;
}

/// The masses of a cache's entries, which depend on their positions.
struct masses {
  explicit masses(slot_cache const& of) : numbers(as_size(of.lane_count() * of.options.bound)) {
    for (int i = 0; i < of.lane_count(); ++i) {
      auto const positions = of.positions(of.lane_at(i));
      for (std::size_t e = 0; e < positions.size(); ++e) {
        numbers[as_size(i * of.options.bound) + e] = number_of(i, positions[e], 2);
      }
    }
    std::int64_t const row = of.options.bound;
    std::int64_t const layer = row * of.options.model.kv_heads;
    given = {{numbers.data(), layer * of.options.model.layers, layer, row}};
  }
  std::vector<float> numbers;
  kv::attention_mass given;
};

/// What an engine does with signals before it applies; the mass that H2O goes by is the engine's.
template <class Executor, class Policy, class State, class Plan>
void observe_unless_told(Executor& exec, Policy const& policy, auto const& in, State& state, Plan& plan) {
  if constexpr (!std::same_as<std::remove_cvref_t<decltype(policy.score)>, kv::h2o>) {
    kv::observe(exec, policy, in, state);
  }
  kv::decide(exec, policy, in, state, plan);
}

/// Calls decides_alike(policy) with a policy of this scorer that drops one entry, under any protection.
template <class Score, class Check>
void with_protections(slot_options const& how, Score const& score, Check const& decides_alike) {
  int const budget = *rc::gen::inRange(0, how.bound), window = *rc::gen::inRange(0, how.bound);
  with_one_of(
      [&](auto const& protect) {
        decides_alike(
            kv::eviction{.score = score, .protect = protect, .budget = kv::per_lane{budget}, .pick = kv::lowest_one{}});
      },
      kv::nothing{}, kv::sinks{window}, kv::recent{window}, kv::safe{2, window},
      kv::sinks{1} | kv::recent{window} | kv::sinks{3});
}

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// What a test is made of: doctest and rapidcheck, the library, std, and the fakes and generators that tests share. A
// test includes this header and names besides only what is its own; every program of tests precompiles it.
#pragma once

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/dice.hpp"
#include "support/elements.hpp"
#include "support/error_of.hpp"
#include "support/holds.hpp"
#include "support/mock_batch.hpp"
#include "support/mock_cache.hpp"
#include "support/mock_options.hpp"
#include "support/owned_keep.hpp"
#include "support/owned_lanes.hpp"
#include "support/rounds.hpp"
#include "support/sanitized.hpp"
#include "support/scores.hpp"
#include "support/scratch.hpp"
#include "support/troubled_scores.hpp"

namespace kvpolicy_test {

namespace kv = kvpolicy;

inline constexpr kv::isa every_isa[] = {kv::isa::portable, kv::isa::avx2, kv::isa::avx512, kv::isa::avx512_bf16,
                                        kv::isa::amx};

/// Those of them up to AVX-512 that the processor has.
inline std::vector<kv::isa> vector_isas() {
  std::vector<kv::isa> all;
  for (kv::isa const one : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
    if (one <= kv::best_isa()) all.push_back(one);
  }
  return all;
}

// --- Inside a property
// --------------------------------------------------------------------------------------------------

inline bool any_bool() { return *rc::gen::arbitrary<bool>(); }
inline std::uint64_t any_seed() { return *rc::gen::inRange<std::uint64_t>(0, 1u << 20); }
/// An element type of signals.
inline kv::codec any_float() { return *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16); }
inline kv::isa any_isa() { return *rc::gen::elementOf(std::vector(std::begin(every_isa), std::end(every_isa))); }

/// Any batch of at most so many lanes, whose rows are one of these; `aligned`: as a device reads them. It is logged.
inline mock_options any_batch(std::vector<content> const& rows, int most_lanes = 6, bool aligned = false) {
  mock_options shape = any_mock(most_lanes);
  shape.rows = *rc::gen::elementOf(rows);
  if (aligned) shape.skew = 0;
  RC_LOG() << shape << '\n';
  return shape;
}

// -------------------------------------------------------------------------------------------------------------------------

/// So many numbers in [-size, size).
inline std::vector<float> drawn(dice& from, int count, double size) {
  std::vector<float> made(as_size(count));
  for (float& each : made) each = static_cast<float>(from.real(size));
  return made;
}

/// 0 and on, below `end`.
inline std::vector<int> up_to(int end) {
  std::vector<int> all;
  for (int i = 0; i < end; ++i) all.push_back(i);
  return all;
}

/// Checks that `actual`, rounded to so many decimals, reads `printed`.
inline void check_digits(reference::row const& actual, reference::row const& printed, int decimals) {
  REQUIRE(actual.size() == printed.size());
  for (std::size_t j = 0; j < actual.size(); ++j) {
    INFO("entry ", j, ": ", actual[j], " should print as ", printed[j]);
    CHECK(std::abs(actual[j] - printed[j]) <= 0.5 * std::pow(10.0, -decimals) + 1e-12);
  }
}

/// Checks, inside a property or outside of one, that a comparison found no difference.
inline void assert_same(comparison const& result) {
  RC_LOG() << result << '\n';
  RC_ASSERT(result.same);
}
inline void check_same(comparison const& result) { CHECK_MESSAGE(result.same, result); }

/// The lanes of a fake cache, or of a batch, in their order.
template <class Lanes>
std::vector<kv::lane> lanes_of(Lanes const& of) {
  std::vector<kv::lane> all;
  if constexpr (requires { of.lane_count(); }) {
    for (int i = 0; i < of.lane_count(); ++i) all.push_back(of.lane_at(i));
  } else {
    for (int i = 0; i < of.size(); ++i) all.push_back(of.at(i));
  }
  return all;
}

/// What decisions of a policy about a cache need; the appliers of `how` reserve what they need besides.
template <class Executor, class Policy, class Cache>
auto state_and_plan(Executor& exec, Policy const& policy, Cache const& in, auto const&... how) {
  return std::pair{kv::make_state(exec, policy, in), kv::make_plan(exec, policy, in, how...)};
}

/// The same after a decision by these signals.
template <class Executor, class Policy, class Signals, class Cache>
auto decided(Executor& exec, Signals const& signals, Policy const& policy, Cache const& in, auto const&... how) {
  auto made = state_and_plan(exec, policy, in, how...);
  kv::decide(exec, policy, signals, made.first, made.second);
  return made;
}

/// What an engine does with the signals of a forward, before it applies.
template <class Executor>
void observe_and_decide(Executor& exec, auto const& policy, auto const& signals, auto& state, auto& plan) {
  kv::observe(exec, policy, signals, state);
  kv::decide(exec, policy, signals, state, plan);
}

/// The text of a call's error. If it throws one, what `save()` returns is what it returned before.
template <class Call, class Save>
std::string refusal_without_change(Call const& call, Save const& save) {
  auto const before = save();
  std::string const said = error_of(call);
  CHECK((said.empty() || save() == before));
  return said;
}

/// What a policy's plan about a cache is refused with; empty if the cache is sound.
inline std::string refusal_of_cache(kv::cache const& in) {
  kv::host_executor exec;
  return error_of([&] { (void)kv::make_plan(exec, kv::policies::knorm(), in); });
}

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// Which policies a context of llama.cpp can serve, and admissions whose lanes decide together.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <type_traits>

namespace llama_cpp {

namespace kv = kvpolicy;

/// An admission that decides about a token for all layers and heads at once, by the scores of all lanes reduced to one.
/// Lanes of llama.cpp share their cells, so none can admit a token alone.
///
///     llama_cpp::engine engine(model, llama_cpp::by_token(admission, kv::reduction::mean),
///                              {.decide = llama_cpp::when::every_decode});
///
/// Every token is written. With `when::every_decode` it is dropped when it leaves the window, unless it is admitted: a
/// decoded token sees the window, of which it is a part, and what was admitted before. Within one decode of a prefill,
/// tokens see each other and all that was in the cache before; with `context.chunk` = 1 there is no such difference.
///
/// - in: the score of an entry must depend on that entry alone, as for every admission, because an admitted entry is
///   asked about again at every decode.
/// - throws: `kvpolicy::invalid_argument` if the admission is not sound, or has a cap, which no lane has for itself.
template <class Score, class Protect, class Pick>
[[nodiscard]] auto by_token(kv::admission<Score, Protect, Pick> const& from, kv::reduction how) {
  from.check("by_token");
  kv::expects(from.cap < 0, "by_token", "admission.cap", from.cap, "lanes that admit together have no cap");
  using kept = kv::either<Protect, kv::recent>;
  return kv::eviction<kv::reduce_lanes<Score>, kept, kv::unlimited, Pick>{
      .score = {from.score, kv::granularity::sequence, how},
      .protect = kept{from.protect, kv::recent{from.window - 1}},
      .budget = {},
      .pick = from.pick};
}

namespace detail {

/// Which lanes decide together.
template <class Policy>
[[nodiscard]] kv::granularity decides_of(Policy const& policy) {
  if constexpr (requires { policy.score; }) {
    return policy.score.decides;
  } else {
    return policy.decides();
  }
}

/// Which lanes share a budget.
template <class Policy>
[[nodiscard]] kv::budget_scope scope_of(Policy const& policy) {
  if constexpr (requires { policy.budget; }) {
    return kv::detail::scope_of(policy.budget);
  } else {
    return policy.scope();
  }
}

/// Refuses policies whose plans cannot be carried out by moving kept rows together, or whose lanes would keep different
/// numbers of entries, because lanes share their cells.
template <class Policy>
void check_pick(Policy const& policy) {
  auto const refuse = [&](bool wrong, char const* rule) {
    kv::expects(!wrong, "llama_cpp::engine", "policy", [&] { return to_string(policy); }, rule);
  };
  refuse(kv::detail::resolve(policy).drops_one,
         "lowest_one lists the entry that is dropped, and llama.cpp's cells are freed by moving those that are kept: "
         "without it the budget alone decides");
  refuse(
      kv::detail::resolve(policy).by_threshold && decides_of(policy) != kv::granularity::sequence,
      "lanes that each keep what reaches a threshold keep different numbers of entries, and lanes of llama.cpp share "
      "their cells: an admission goes through by_token");
}

/// Refuses budgets that are not the same for all lanes, at any count of their entries up to `cells`. What a budget of
/// one's own allots is known in a decision only.
template <class Policy>
void check_shares(Policy const& policy, kv::shape const& model, std::int64_t entry_bytes, int cells) {
  auto const refuse = [](auto const& found, auto const& why) {
    kv::expects(false, "llama_cpp::engine", "policy.budget", found, why);
  };
  constexpr auto rule = "lanes of llama.cpp share their cells, so that all of them keep equally many entries";
  auto const limit = kv::detail::resolve(policy).limit(model, entry_bytes);
  if (decides_of(policy) == kv::granularity::sequence) return;
  if (kv::detail::compares_layers(limit)) refuse("different for each layer", rule);
  using limit_type = std::remove_const_t<decltype(limit)>;
  if constexpr (kv::detail::allots<limit_type> && !kv::detail::may_allot<limit_type>) return;
  for (int count = 1; count <= cells; count += std::max(1, count / 64)) {
    auto const share = [&](kv::lane of) { return std::clamp(limit(of, count), 0, count); };
    for (int i = 1; i < model.layers * model.kv_heads; ++i) {
      kv::lane const one{0, i / model.kv_heads, i % model.kv_heads};
      if (int const first = share({}), other = share(one); first != other) {
        refuse(
            [&] {
              return std::to_string(first) + " of " + std::to_string(count) + " entries in layer 0, head 0, and " +
                     std::to_string(other) + " in layer " + std::to_string(one.layer) + ", head " +
                     std::to_string(one.head);
            },
            rule);
      }
    }
  }
}

/// Refuses policies that a context of `cells` cells cannot serve.
template <class Policy>
void check_policy(Policy const& policy, kv::cache const& in, int cells) {
  check_pick(policy);
  kv::engines::check(kv::engines::llama_cpp::can, decides_of(policy), "compact", kv::codec::f32, scope_of(policy));
  check_shares(policy, in.shape, kv::entry_bytes(in), cells);
}

}  // namespace detail
}  // namespace llama_cpp

// Which policies a context of llama.cpp can serve, and admissions whose lanes decide together.
#pragma once

#include <concepts>
#include <kvpolicy/kvpolicy.hpp>

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
      .score = {from.score, kv::granularity::token, how},
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

/// Refuses policies whose lanes would keep different numbers of entries, because lanes share their cells.
template <class Policy>
void check_policy(Policy const& policy) {
  kv::granularity const decides = decides_of(policy);
  if constexpr (requires { policy.pick; }) {
    bool const counts_itself = kv::threshold<std::remove_cvref_t<decltype(policy.pick)>>;
    kv::expects(
        !counts_itself || decides == kv::granularity::token, "llama_cpp::engine", "policy",
        [&] { return to_string(policy); },
        [&] {
          return "lanes that each keep what reaches a threshold keep different numbers of entries, and lanes of "
                 "llama.cpp share their cells: an admission goes through by_token";
        });
  }
  kv::engines::check(kv::engines::llama_cpp::can, decides, "compact", kv::codec::f32, scope_of(policy));
}

}  // namespace detail
}  // namespace llama_cpp

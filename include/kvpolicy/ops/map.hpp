// Verb: any function of a score and its entry.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `map(exec, scores, f)`: scores[e] = f(scores[e], entry e) for every committed entry of every segment.
///
/// - in, out: `scores` [segments, entries]. `f` is a struct with a KVPOLICY_HD `float operator()(float, entry) const`.
/// - cost: O(entries) a segment; no scratch.
/// - throws: on the host what `f` throws. Then each score is the old one or the new one: in the segment
///   that threw the entries before the one that threw have new scores; in other segments all, none or some.
struct map_t : verb<map_t> {
  static constexpr auto name = "map";

  template <class Scores, class Function>
  using hooks_of = detail::map_hooks<Function>;

  template <class Function>
  static constexpr void check(score_view const&, Function const&) {}
};
inline constexpr map_t map{};

}  // namespace KVPOLICY_NAMESPACE::ops

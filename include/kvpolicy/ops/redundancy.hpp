// SPDX-License-Identifier: Apache-2.0
// Verb: computes how much each entry's key resembles the other keys of its lane.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// From when on two keys are similar, and whether an entry forgives the newest entry that is similar to it.
struct redundancy_options {
  float threshold = 0.5f;    ///< keys are similar if their cosine is greater
  bool spare_newest = true;  ///< false: no pair is left out
};

namespace ops {

/// `redundancy(exec, keys, inverse_norms, options, out)`: turns the mean cosine of each entry with all entries of its
/// lane into R-KV's redundancy (Cai et al. 2025, arXiv:2505.24133, equations 4 to 6). From the mean
///
///     out[e] = 1 / n  sum over i of cos(k_i, k_e)           as `mean_row` and `logits` make it: see scorers/r_kv.hpp
///
/// it takes the pair (e, e), and with `spare_newest` for each entry i the pair (i, c), in which c is the newest entry
/// that is similar to i, or the oldest entry of the lane if none is similar.
///
/// - in: `keys` of `out.lanes`; `inverse_norms`, 1 / norm of each entry's key as `mean_row` gives it.
/// - out: float32 [lanes, entries], changed in place. What is newest goes by the order of the entries in the lane.
/// - NaN: a NaN in a key has made the means of its lane NaN, which stay so.
/// - cost: O(entries^2 * D) per lane if hardly any keys are similar. The search for an entry begins at the newest one
///   and ends where it finds a similar one, so that it is a small part of that where keys resemble each other. Without
///   `spare_newest` it is O(entries). Scratch per worker: a double for each entry, 226 rows of D floats, where D is
///   rounded up to a multiple of 32, and 8 KiB. Scratch on a device: 8 bytes for each entry of a lane.
/// - throws: `invalid_argument` if the threshold is not within 0 to 1, or if a segment of `out` is not one lane.
struct redundancy_t : verb<redundancy_t> {
  static constexpr auto name = "redundancy";
  template <executor Executor>
  void operator()(Executor& exec, keys const& from, by_lane<float> const& inverse_norms, redundancy_options const& how,
                  score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<redundancy_t>::operator()(exec, from, inverse_norms, how, out);
  }
  static void check(keys const& from, by_lane<float> const& inverse_norms, redundancy_options const& how,
                    score_view const& out) {
    detail::check_readable("redundancy", "keys", from.rows.element);
    detail::check_scales("redundancy", "keys", from.rows);
    expects(inverse_norms.data != nullptr, "redundancy", "inverse_norms", "null", "mean_row computes them");
    expects(how.threshold >= 0 && how.threshold <= 1, "redundancy", "threshold", how.threshold,
            "it is a cosine, 0 to 1");
    expects(out.decides == granularity::lane, "redundancy", "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }
};
inline constexpr redundancy_t redundancy{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

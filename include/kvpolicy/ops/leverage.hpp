// SPDX-License-Identifier: Apache-2.0
// Verb: computes the leverage of each row, which says how far it lies in directions that few rows have.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/seeded.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the keys of every entry before RoPE.
struct pre_rope_keys : row_view {
  static constexpr auto name = "pre_rope_keys";
  void check(char const* call, shape const& model) const {
    expects(rows.base != nullptr || rows.bases.data != nullptr, call, name, "null", "a signal is the engine's memory");
    detail::check_readable(call, name, rows.element);
    detail::check_scales(call, name, rows);
    expects(rows.channels == model.head_dim, call, "pre_rope_keys.channels", rows.channels,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
  }
  void check_strides(char const* call, lanes const& batch) const { detail::check_places(call, name, where, batch); }
};

/// A matrix of D rows and `columns` columns for each lane, by which rows are multiplied, so that they have fewer
/// channels: one that is given, or one of independent normal numbers, which are divided by the square root of their
/// columns. The numbers are a hash of (seed, layer, head, place): the same on every backend and in every batch.
struct row_sketch {
  int columns = 0;  ///< 0: rows stay as they are
  std::uint64_t seed = 42;
  by_lane<float const> given{};  ///< [lane][D][columns] in the executor's memory, scaled already; null: it is drawn

  /// The number of a row and column in a lane.
  [[nodiscard]] KVPOLICY_HD double at(lane one, int d, int column) const {
    std::int64_t const place = std::int64_t{d} * columns + column;
    if (given.data != nullptr) return static_cast<double>(given.row(one)[place]);
    auto const uniform = detail::seeded_lane::of(seed, 0, one);
    auto const first = static_cast<double>(uniform.at(static_cast<std::uint64_t>(2 * place)));
    auto const second = static_cast<double>(uniform.at(static_cast<std::uint64_t>(2 * place + 1)));
    return ::sqrt(-2 * ::log(1 - first) / columns) * ::cos(6.283185307179586 * second);
  }
};

/// Of what leverages are computed.
struct leverage_options {
  row_sketch sketch{};
  double jitter = 0.01;              ///< added to the diagonal of the rows' Gram matrix
  bool centre = true;                ///< true: rows are less their mean
  by_lane<float const> weights{};    ///< of each entry, 0 or more; null: each is 1
  float more = 0;                    ///< added to each weight, but that of the result
  bool less_mean = false;            ///< true: leverages are less the mean that they would have without a jitter, of as
                                     ///< many rows as the first lane of the layer has: z-scores need these digits
  static constexpr int retries = 5;  ///< so often a jitter that does not suffice becomes ten times as much
};

namespace ops {

/// `leverage(exec, rows, options, among, out)`: out[e] = the leverage of entry e among those that `among` takes, and
/// -inf for any other entry. With x_j the row of an entry, less the mean of these rows by the weights w_j + more if
/// `centre`, and times the sketch S if there is one,
///
///     G    = jitter I + sum of (w_j + more) x_j^T x_j        w_j: the weight of entry j
///     s_j  = w_j x_j G^-1 x_j^T
///
/// - in: `rows` of `out.lanes`, of any element type; `among`, a struct with a KVPOLICY_HD `bool operator()(entry)
///   const`, such as a protection. The budget of these entries is not set. `weights` may be the memory of `out`.
/// - out: float32 [lanes, entries], 0 or more. With `less_mean` the same number is taken off in all lanes of a layer:
///   min(columns, D, n - 1) / n for n rows that are centred, and n in the place of n - 1 for others.
/// - range: all sums, products and the Cholesky factor of G are in double precision. A sketch of D columns or more is
///   replaced by the factor of S S^T, which has D: leverages depend on that product alone.
/// - NaN: a NaN or an infinity in a row or a weight makes all leverages of its lane NaN.
/// - cost: O(entries * D^2 / 2 + entries * D * min(D, columns) + D^3) per lane, and reads the rows two times, three if
///   `centre`. Scratch per worker, and on a device for each lane: 3 D^2 doubles and some rows.
/// - throws: `invalid_argument` if the jitter or a count is negative or not finite, or if a segment of the scores is
///   not one lane. If G has no Cholesky factor, the jitter becomes ten times as much, at most five times; if it still
///   has none, the host throws `invalid_argument` that names the jitter and the lane, and a device notes it as a fault.
///   The scores of other lanes are written then.
/// - source: leverage scores (Drineas et al.); Compactor (Chari and Van Durme 2025, arXiv:2507.08143), CapKV.
struct leverage_t : verb<leverage_t> {
  static constexpr auto name = "leverage";
  template <executor Executor, class Among>
  void operator()(Executor& exec, row_view const& from, leverage_options const& how, Among const& among,
                  score_view const& out) const {
    verb<leverage_t>::operator()(exec, from, how, among, out);  // typed, so that options may be in braces
  }
  template <class Among>
    requires requires(Among const& among, entry at) {
      { among(at) } -> std::same_as<bool>;
    }
  static void check(row_view const& from, leverage_options const& how, Among const&, score_view const& out) {
    detail::check_readable(name, "rows", from.rows.element);
    detail::check_scales(name, "rows", from.rows);
    expects(how.jitter >= 0 && how.jitter - how.jitter == 0, name, "jitter", how.jitter, "a finite number, 0 or more");
    expects(how.more >= 0 && how.more - how.more == 0, name, "more", how.more, "a finite number, 0 or more");
    expects(how.sketch.columns >= 0, name, "sketch.columns", how.sketch.columns, "a count cannot be negative");
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "rows belong to lanes");
  }
};
inline constexpr leverage_t leverage{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

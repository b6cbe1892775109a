// SPDX-License-Identifier: Apache-2.0
// Verbs: the mean and the covariance of query rows before RoPE, and what they become at positions that are to come.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/query_model.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The moments of the query heads of each lane, head by head, in the caller's memory.
struct moments_of_queries {
  by_lane<float> mean{};    ///< D numbers for each query head of the lane's group
  by_lane<float> square{};  ///< D rows of D numbers for each, the covariance; null: not wanted

  /// The moments of one query head for each lane as a profile, which `future_moments` turns.
  [[nodiscard]] query_model model(lanes const& batch, int dims, rope const& turns) const {
    auto const view = [&](by_lane<float> const& from, int rows) {
      query_view made;
      if (from.data == nullptr) return made;
      made.base = reinterpret_cast<std::byte const*>(from.data);
      made.dims = dims;
      made.sequence = from.sequence * 4;
      made.layer = from.layer * 4;
      made.head = from.head * 4;
      made.row = std::int64_t{4} * dims;
      made.heads = batch.heads;
      made.rows = rows;
      made.slots = from.slots;
      return made;
    };
    return {view(mean, 1), {}, turns, view(square, dims)};
  }
};

namespace detail {

/// The mean of RoPE's matrices at some positions, for each unit of a head: a pair of channels that turn, which is a
/// complex number, or a channel that does not.
struct mean_turn {
  query_model model;
  int future = 0;  ///< positions after the newest one; 0: queries stay as they are

  struct number {
    double real = 1, imaginary = 0;
  };

  [[nodiscard]] KVPOLICY_HD int pairs() const { return model.turned() / 2; }
  [[nodiscard]] KVPOLICY_HD int units() const { return pairs() + model.mean.dims - model.turned(); }
  [[nodiscard]] KVPOLICY_HD int first_of(int unit) const {
    return unit < pairs() ? model.first_of(unit) : unit - pairs() + model.turned();
  }
  /// The second channel of a pair, or the first one again if there is no other.
  [[nodiscard]] KVPOLICY_HD int second_of(int unit) const {
    return unit < pairs() ? model.second_of(unit) : first_of(unit);
  }
  /// 1 / n of the sum of e^(i p w) over the n positions p after `newest`, as a product: sines of half of the angles,
  /// whose quotient is exact to some units of the last place, and the turn to the middle of the positions.
  [[nodiscard]] KVPOLICY_HD number of(int unit, int newest) const {
    if (unit >= pairs() || future == 0) return {};
    double const turns =
        model.rope.frequency ? model.rope.frequency[unit] : ::pow(model.rope.theta, -2.0 * unit / model.turned());
    double const single = ::sin(turns / 2);
    double const length = single == 0 ? 1 : ::sin(turns * (future / 2.0)) / (future * single);
    double const middle = (newest + (future + 1) / 2.0) * turns;
    return {length * ::cos(middle), length * ::sin(middle)};
  }
};

/// Turns the moments of one query head. Every unit of the mean, and every pair of units of the covariance, is read
/// before it is written, and by itself: source and result may be the same memory.
struct turned_head {
  mean_turn const& turn;
  mean_turn::number const* by;  ///< of each unit
  query_view const &mean, &square;
  std::byte const *from_mean, *from_square;
  float *to_mean, *to_square;

  KVPOLICY_HD turned_head(mean_turn const& all, mean_turn::number const* numbers, moments_of_queries const& out,
                          lane one, int head, int group)
      : turn(all),
        by(numbers),
        mean(all.model.mean),
        square(all.model.square),
        from_mean(mean.at(one, one.head * group + head, 0)),
        from_square(out.square.data != nullptr ? square.at(one, one.head * group + head, 0) : nullptr),
        to_mean(out.mean.row(one) + std::int64_t{head} * mean.dims),
        to_square(out.square.data != nullptr ? out.square.row(one) + std::int64_t{head} * mean.dims * mean.dims
                                             : nullptr) {}

  KVPOLICY_HD void turn_mean(int unit) const {
    int const first = turn.first_of(unit), second = turn.second_of(unit), bytes = bytes_of(mean.element);
    auto const x = static_cast<double>(load(mean.element, from_mean + first * bytes));
    auto const y = static_cast<double>(load(mean.element, from_mean + second * bytes));
    mean_turn::number const by_one = by[unit];
    if (first != second) to_mean[second] = static_cast<float>(y * by_one.real + x * by_one.imaginary);
    to_mean[first] = static_cast<float>(first == second ? x : x * by_one.real - y * by_one.imaginary);
  }

  /// Turns the rows of unit `a` and the columns of unit `b`.
  KVPOLICY_HD void turn_square(int a, int b) const {
    int const row[2] = {turn.first_of(a), turn.second_of(a)}, column[2] = {turn.first_of(b), turn.second_of(b)};
    double from[2][2];
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        std::byte const* const at = from_square + row[i] * square.row + column[j] * bytes_of(square.element);
        from[i][j] = static_cast<double>(load(square.element, at));
      }
    }
    if (row[0] != row[1]) turned(from[0][0], from[1][0], by[a]), turned(from[0][1], from[1][1], by[a]);
    if (column[0] != column[1]) turned(from[0][0], from[0][1], by[b]), turned(from[1][0], from[1][1], by[b]);
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        to_square[std::int64_t{row[i]} * mean.dims + column[j]] = static_cast<float>(from[i][j]);
      }
    }
  }

 private:
  KVPOLICY_HD static void turned(double& x, double& y, mean_turn::number by_one) {
    double const now = x * by_one.real - y * by_one.imaginary;
    y = y * by_one.real + x * by_one.imaginary;
    x = now;
  }
};

}  // namespace detail

namespace ops {

/// `query_moments(exec, lanes, rows, sinks, out)`: the mean of the query rows of each query head, and their covariance,
/// E (q - E q) (q - E q)^T, which divides by the number of rows.
///
/// - in: `rows` before or after RoPE, of any number of query heads for each KV head. Rows at positions below `sinks` do
///   not count, nor do those below 0; where rows have no positions, the first `sinks` rows do not.
/// - out: float32, of each lane group * D and group * D * D numbers; zeros where no row counts.
/// - range: sums of 128 rows are in single precision. Means are added up in double, and sums of the covariance, whose
///   rows have the mean taken from them before, in single precision.
/// - cost: O(group * rows * D^2) per lane, half of all products. Reads rows twice. Scratch per worker: 256 + 2 D rows
///   of 32 floats for each 32 channels. A device takes no scratch.
/// - throws: `invalid_argument` if rows have another number of channels than keys, or out is null.
/// - source: Expected Attention (arXiv:2510.00636), of kvpress.
struct query_moments_t : verb<query_moments_t> {
  static constexpr auto name = "query_moments";
  static void check(lanes const& batch, query_view const& rows, int sinks, moments_of_queries const& out) {
    detail::check_readable("query_moments", "queries", rows.element);
    detail::check_not_fp8("query_moments", "queries", rows.element);
    expects(rows.heads > 0 && rows.heads % batch.heads == 0, "query_moments", "queries.heads", rows.heads,
            "query heads are shared out evenly among KV heads");
    expects(sinks >= 0, "query_moments", "sinks", sinks, "a count cannot be negative");
    expects(out.mean.data != nullptr, "query_moments", "out.mean", "null",
            "a scorer asks its plan for memory by `spare_rows`");
  }
};
inline constexpr query_moments_t query_moments{};

/// `future_moments(exec, lanes, model, future, out)`: the moments of queries as RoPE turns them on average at the
/// `future` positions after the lane's newest entry. With R the mean of RoPE's matrices at these positions:
///
///     mean' = R mean        square' = R square R^T          future = 0: R is the identity
///
/// - in: `model`, of which `square` may be null if `out.square` is. Angles are in double.
/// - out: float32, of each lane group * D and group * D * D numbers. It may be the memory of `model`.
/// - cost: O(group * D^2) per lane. Scratch per worker: 2 D doubles; a device has as many in shared memory.
/// - throws: `invalid_argument` if `future` is negative, or out is null.
/// - source: Expected Attention (arXiv:2510.00636).
struct future_moments_t : verb<future_moments_t> {
  static constexpr auto name = "future_moments";
  static void check(lanes const& batch, query_model const& from, int future, moments_of_queries const& out) {
    expects(future >= 0, "future_moments", "future", future, "a count cannot be negative");
    expects(out.mean.data != nullptr, "future_moments", "out.mean", "null",
            "a scorer asks its plan for memory by `spare_rows`");
    expects(out.square.data == nullptr || from.square.base != nullptr, "future_moments", "query_model.square", "null",
            "its turned form is asked for");
    expects(from.mean.heads > 0 && from.mean.heads % batch.heads == 0, "future_moments", "query_model.mean.heads",
            from.mean.heads, "query heads are shared out evenly among KV heads");
  }
};
inline constexpr future_moments_t future_moments{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

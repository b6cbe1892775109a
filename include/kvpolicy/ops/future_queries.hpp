// SPDX-License-Identifier: Apache-2.0
// Verb: turns the mean queries of a model to positions that are to come.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/query_model.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The positions to which queries are turned: t + 1, t + 2, t + 4, ... of which there are `offsets`, where t is the
/// newest position + 1.
struct future_positions {
  int offsets = 17;
  bool mean = true;  ///< true: a head has one row, the mean over the positions; false: one row for each
  [[nodiscard]] KVPOLICY_HD constexpr int rows() const { return mean ? 1 : offsets; }
};

/// The turned queries of a lane: `rows` of D floats for each query head of its group, head by head; and for each query
/// head a number for each pair, E |q_f| - |E q_f|, which turning does not change.
struct future_rows {
  by_lane<float> rows{};
  by_lane<float> spread{};
};

namespace detail {

/// Turns one pair of one query head, and with the first pair the channels that do not turn.
struct turn_future_pair {
  lanes batch;
  query_model model;
  future_positions to;
  future_rows out;

  [[nodiscard]] KVPOLICY_HD int group() const { return model.mean.heads / batch.heads; }
  [[nodiscard]] KVPOLICY_HD int pairs() const { return model.turned() / 2; }
  [[nodiscard]] KVPOLICY_HD std::int64_t count() const { return std::int64_t{batch.size()} * group() * pairs(); }

  KVPOLICY_HD void operator()(std::int64_t i) const {
    auto const pair = static_cast<int>(i % pairs());
    auto const head = static_cast<int>(i / pairs() % group());
    lane const one = batch.at(static_cast<int>(i / pairs() / group()));
    int const dims = model.mean.dims, bytes = bytes_of(model.mean.element);
    std::byte const* const mean = model.mean.at(one, one.head * group() + head, 0);
    float* const rows = out.rows.row(one) + std::int64_t{head} * to.rows() * dims;
    for (int d = model.turned(); pair == 0 && d < dims; ++d) {
      for (int r = 0; r < to.rows(); ++r) rows[r * dims + d] = load(model.mean.element, mean + d * bytes);
    }
    int const first = model.first_of(pair), second = model.second_of(pair);
    auto const x = static_cast<double>(load(model.mean.element, mean + first * bytes));
    auto const y = static_cast<double>(load(model.mean.element, mean + second * bytes));
    double const turns =
        model.rope.frequency ? model.rope.frequency[pair] : ::pow(model.rope.theta, -2.0 * pair / model.turned());
    double const now = static_cast<double>(batch.newest(one)) + 1;
    double all_x = 0, all_y = 0;
    for (int r = 0; r < to.offsets; ++r) {
      double const angle = (now + static_cast<double>(std::int64_t{1} << r)) * turns;
      double const cosine = ::cos(angle), sine = ::sin(angle);
      all_x += x * cosine - y * sine;
      all_y += y * cosine + x * sine;
      if (to.mean && r + 1 < to.offsets) continue;
      float* const row = rows + (to.mean ? 0 : r) * dims;
      int const shares = to.mean ? to.offsets : 1;
      row[first] = static_cast<float>(all_x / shares);
      row[second] = static_cast<float>(all_y / shares);
      all_x = all_y = 0;
    }
    std::byte const* const radius = model.radius.at(one, one.head * group() + head, 0);
    auto const length = static_cast<double>(load(model.radius.element, radius + pair * bytes_of(model.radius.element)));
    out.spread.row(one)[head * pairs() + pair] = static_cast<float>(length - ::sqrt(x * x + y * y));
  }
};

}  // namespace detail

namespace ops {

/// `future_queries(exec, lanes, model, positions, out)`: the mean query of every query head as RoPE turns it at
/// positions that are to come, and by how much pairs of queries are longer than those of their mean.
///
/// - in: `model`, see there. Angles are computed in double: in single precision one of 65,536 is wrong by 4e-3.
/// - out: float32, of each lane group * rows * D and group * pairs numbers.
/// - cost: O(group * offsets * D) per lane; no scratch.
/// - throws: `invalid_argument` if there are not 1 to 31 offsets.
/// - source: TriAttention (arXiv:2604.04921), whose trigonometric score of a distance is linear in the key after RoPE.
struct future_queries_t : verb<future_queries_t> {
  static constexpr auto name = "future_queries";
  static void check(lanes const&, query_model const&, future_positions const& to, future_rows const& out) {
    expects(to.offsets >= 1 && to.offsets <= 31, "future_queries", "offsets", to.offsets,
            "they are 1, 2, 4, ..., at most 31 of them");
    expects(out.rows.data != nullptr && out.spread.data != nullptr, "future_queries", "out", "null",
            "a scorer asks its plan for memory by `spare_rows`");
  }
};
inline constexpr future_queries_t future_queries{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

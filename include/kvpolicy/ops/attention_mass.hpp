// SPDX-License-Identifier: Apache-2.0
// Verb: computes the attention that each entry receives from a few query rows.
#pragma once

#include <array>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The keys over which the softmax of a row runs: all keys that the row may see, only those before the first query row
/// (the observation window is left out), or only the candidates, which are the entries whose score is not -inf when the
/// verb is called.
enum class key_domain { all, past, candidates };

/// How several values are reduced to one.
enum class reduction { sum, mean, max, last };

/// Which axis is reduced first, and whether query heads of a GQA group are reduced before the softmax. Methods differ
/// in this order. Lanes of one segment come last, or with `all_heads_then_rows` all query heads of all of them before
/// the rows.
enum class reduction_order { rows_then_group, group_then_rows, group_on_logits, all_heads_then_rows };

[[nodiscard]] constexpr std::array<char const*, 4> names(reduction) { return {"sum", "mean", "max", "last"}; }

/// What the probabilities of a row count, where rows are reduced.
enum class weight_of_row { one, visible, ramp };

/// The weight of row r of R rows that are the last of N entries:
///
/// - `one`: 1.
/// - `visible`: the number N - R + r + 1 - less of entries that it sees, 0 if there are more rows. A mean over rows is
///   then not lower for the reason that the rows see more.
/// - `ramp`: 1 + (last - 1) r / (R - 1), from 1 to `last`; a single row has the weight 1.
struct row_weight {
  weight_of_row by = weight_of_row::one;
  int less = 0;
  float last = 1;

  [[nodiscard]] KVPOLICY_HD bool is_one() const { return by == weight_of_row::one; }
  [[nodiscard]] KVPOLICY_HD float operator()(int row, int rows, int entries) const {
    if (is_one()) return 1;
    if (by == weight_of_row::visible) {
      int const sees = entries - rows + row + 1 - less;
      return sees > 0 ? static_cast<float>(sees) : 0.0f;
    }
    return rows > 1 ? 1 + (last - 1) * static_cast<float>(row) / static_cast<float>(rows - 1) : 1.0f;
  }
};

/// How many of the last rows of a lane are used: a number, or a part of the entries, which may be another one in long
/// lanes.
struct last_rows_used {
  int rows = 0;                ///< 0: all
  double part = 0;             ///< above 0: max(1, floor(part * entries)) rows
  double long_part = 0;        ///< the part of a lane of more than `long_from` entries
  int long_from = 0x7FFFFFFF;  ///< entries

  [[nodiscard]] KVPOLICY_HD constexpr int of(int entries) const {
    if (!(part > 0 || long_part > 0)) return rows;
    int const some = detail::floor_of_part(entries > long_from ? long_part : part, entries);
    return some > 1 ? some : 1;
  }
  /// The most rows of any lane of up to `bound` entries; 0: all.
  [[nodiscard]] KVPOLICY_HD constexpr int most(int bound) const {
    int const short_one = of(bound < long_from ? bound : long_from);
    return of(bound) > short_one ? of(bound) : short_one;
  }
};

/// The reductions, the keys of the softmax, and the order of the reductions.
struct attention_mass_options {
  key_domain domain = key_domain::all;
  reduction rows = reduction::sum;
  reduction group = reduction::mean;
  reduction_order order = reduction_order::rows_then_group;
  reduction lanes = reduction::sum;  ///< where `out` has one row for several lanes: how their masses are reduced
  int last_rows = 0;                 ///< how many of the last rows are used; 0: all
  bool accumulate = false;           ///< adds to `out` instead of overwriting it
  row_weight weight{};               ///< what each row counts
  double last_part = 0;              ///< above 0: so many rows are used as this part of the entries, at least one
  double long_part = 0;              ///< the part in lanes of more than `long_from` entries
  int long_from = 0x7FFFFFFF;

  /// How many of the last rows of a lane are used; 0: all.
  [[nodiscard]] constexpr last_rows_used used() const { return {last_rows, last_part, long_part, long_from}; }
};

namespace ops {

/// `compute_attention_mass(exec, keys, rows, options, out)`: computes softmax(q k / sqrt(D)) of the query rows of each
/// lane's query heads, and reduces it to one number per entry. `keys.logits` names another scale, a soft cap, and sink
/// logits.
///
/// - in: `keys` of `out.lanes`; `rows`, post-RoPE queries with ascending positions. A row sees the entries at positions
///   up to and including its own.
/// - out: float32 [segments, entries]. If a segment has several lanes, their masses are reduced last. An entry that no
///   row sees gets 0. Rows at positions after the newest committed token are ignored.
/// - all heads before rows: the mean (or sum, or maximum) over all query heads of a segment's lanes is taken row by
/// row.
///   These lanes have equally many rows (a device notes a fault if they have not), and heads and lanes are reduced
///   alike. A segment is the work of one worker.
/// - candidates: with this domain, entries of `out` that are -inf are not candidates and stay at -inf, and the mass is
///   added to the other values. A scorer that ranks candidates only therefore starts from zeros.
/// - range: on the host a probability below e^-87 (1.6e-38) of its row's maximum is 0, so entries with such
///   probabilities tie, and the entries with lower ordinals are kept. On a device the exponential may reach smaller
///   values.
/// - NaN: a NaN in a key or a row makes every entry that the row sees NaN in that head. A row that sees no entry adds
///   0.
/// - sinks: a sink takes part in the softmax over any domain. Where the group is reduced before the softmax, its sinks
///   are reduced in the same way. No cap applies to a sink.
/// - LSE: if `rows.lse` is given and the softmax runs over all keys, it replaces the computed log-sum-exp, and the keys
///   are read only once. It is that of the scaled and capped logits, the sink included.
/// - cost: O(group * rows * entries * D) per lane. Scratch per worker: 33 floats per entry (32 rows of one head and
///   their sum), 217 rows of D floats, where D is rounded up to a multiple of 32, and 8 KiB.
/// - throws: `invalid_argument` if head sizes differ, if the group or lanes are reduced by `last`, if lanes of
///   candidates are reduced by `max`, if `accumulate` is set for segments of several lanes, if heads come before rows
///   and heads and lanes are not reduced alike, candidates rank or masses accumulate, if on the host lanes
///   of such a segment have different numbers of rows, if a count is negative, if
///   the scale is not a finite number above 0, if the cap is negative or not finite, if several layers share sinks, or,
///   where the host can read them, if a sink is NaN or +inf. On a device such a sink makes its row NaN.
struct compute_attention_mass_t : verb<compute_attention_mass_t> {
  static constexpr auto name = "compute_attention_mass";
  template <executor Executor>
  void operator()(Executor& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
                  score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<compute_attention_mass_t>::operator()(exec, from, rows, how, out);
  }

  static void check(keys const& from, query_view const& rows, attention_mass_options const& how,
                    score_view const& out) {
    detail::check_readable("compute_attention_mass", "keys", from.rows.element);
    detail::check_logits("compute_attention_mass", "keys.logits", from.logits, out.lanes);
    detail::check_scales("compute_attention_mass", "keys", from.rows);
    detail::check_readable("compute_attention_mass", "queries", rows.element);
    detail::check_not_fp8("compute_attention_mass", "queries", rows.element);
    expects(from.rows.channels == rows.dims, "compute_attention_mass", "queries.dims", rows.dims,
            "keys and queries have one head size");
    expects(rows.rows == 0 || (rows.heads > 0 && rows.heads % out.lanes.heads == 0), "compute_attention_mass",
            "queries.heads", rows.heads, "query heads are shared out evenly among KV heads");
    expects(rows.rows >= 0, "compute_attention_mass", "queries.rows", rows.rows, "a count cannot be negative");
    expects(how.last_rows >= 0, "compute_attention_mass", "last_rows", how.last_rows, "a count cannot be negative");
    expects(how.last_part >= 0 && how.last_part <= 1, "compute_attention_mass", "last_part", how.last_part,
            "a part of the entries, 0 to 1");
    expects(how.long_part >= 0 && how.long_part <= 1, "compute_attention_mass", "long_part", how.long_part,
            "a part of the entries, 0 to 1");
    expects((how.last_part == 0 && how.long_part == 0) || how.last_rows == 0, "compute_attention_mass", "last_rows",
            how.last_rows, "last_part says how many rows are used");
    expects(how.group != reduction::last, "compute_attention_mass", "group", "last", "query heads have no order");
    expects(how.lanes != reduction::last, "compute_attention_mass", "lanes", "last", "lanes have no order");
    expects(how.domain != key_domain::candidates || how.lanes != reduction::max, "compute_attention_mass", "lanes",
            "max", "the mass of candidates is added to what is there");
    expects(!how.accumulate || out.decides == granularity::lane, "compute_attention_mass", "accumulate", "true",
            "mass accumulates lane by lane");
    if (how.order == reduction_order::all_heads_then_rows) check_heads_first(how);
  }

 private:
  static void check_heads_first(attention_mass_options const& how) {
    expects(how.group == how.lanes, "compute_attention_mass", "lanes",
            names(how.lanes)[static_cast<unsigned>(how.lanes)],
            "where all heads come before rows, heads and lanes are reduced alike");
    expects(how.domain != key_domain::candidates, "compute_attention_mass", "domain", "candidates",
            "where all heads come before rows, no mass is added to what is there");
    expects(!how.accumulate, "compute_attention_mass", "accumulate", "true",
            "where all heads come before rows, no mass is added to what is there");
  }
};
inline constexpr compute_attention_mass_t compute_attention_mass{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

// Verb: the attention that each entry receives from a few query rows.
#pragma once

#include <array>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Which keys a row's softmax runs over: all that it may see, only those before the first row (the window left out), or
/// only the candidates: entries whose score is not -inf when the verb is called.
enum class key_domain { all, past, candidates };

/// How several values become one.
enum class reduction { sum, mean, max, last };

/// Which axis is reduced first, and whether the group is reduced before the softmax. The order written is the method.
enum class reduction_order { rows_then_group, group_then_rows, group_on_logits };

[[nodiscard]] constexpr std::array<char const*, 4> names(reduction) { return {"sum", "mean", "max", "last"}; }

/// What is reduced, over which keys and in which order.
struct attention_mass_options {
  key_domain domain = key_domain::all;
  reduction rows = reduction::sum;
  reduction group = reduction::mean;
  reduction_order order = reduction_order::rows_then_group;
  reduction lanes = reduction::sum;  ///< where `out` has one row for many lanes: how their masses become one
  int last_rows = 0;                 ///< use only the last so many rows; 0: all that are there
  bool accumulate = false;           ///< add to `out` instead of overwriting it
};

namespace ops {

/// `attention_mass(exec, keys, rows, options, out)`: softmax(q k / sqrt(D)) of the rows of a lane's query heads,
/// reduced to one number an entry.
///
/// - in: `keys` of `out.lanes`; `rows` post-RoPE queries, ascending in position. A row sees the entries at positions up
/// to its own.
/// - out: float32 [segments, entries]; a segment of several lanes reduces their masses last. Entries that no row sees
/// get 0. Rows after the last committed entry are ignored.
/// - candidates: with that domain `out` says which they are, the others stay at -inf, and the mass is added to what is
///   there: a scorer that ranks candidates only is given zeros.
/// - range: on the host a probability below e^-87 (1.6e-38) of its row's maximum is 0, so that entries of such
///   probabilities tie, and decisions keep the lower ordinals of them. A device's exponential reaches further down.
/// - NaN: a NaN in a key or a row makes every entry that this row sees NaN in that head. A row that sees nothing
///   adds 0.
///   With `rows.lse` given, and the softmax over all keys, it is taken as the sum and the keys are read once.
/// - cost: O(group * rows * entries * D) a lane. Scratch of a worker: 33 floats an entry (32 rows of one head and their
///   sum), 153 rows of D floats and 8 KiB.
/// - throws: `invalid_argument` if head sizes differ, the group or lanes are reduced by `last`, or a count is negative.
struct attention_mass_t : verb<attention_mass_t> {
  static constexpr auto name = "attention_mass";
  template <executor Executor>
  void operator()(Executor& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
                  score_view const& out) const {
    verb<attention_mass_t>::operator()(exec, from, rows, how, out);  // spelt out, so that options may be braces
  }

  static void check(keys const& from, query_view const& rows, attention_mass_options const& how,
                    score_view const& out) {
    detail::check_readable("attention_mass", "keys", from.rows.element);
    detail::check_readable("attention_mass", "queries", rows.element);
    expects(from.rows.dims == rows.dims, "attention_mass", "queries.dims", rows.dims,
            "keys and queries have one head size");
    expects(rows.rows == 0 || (rows.heads > 0 && rows.heads % out.lanes.heads == 0), "attention_mass", "queries.heads",
            rows.heads, "query heads are shared out evenly among KV heads");
    expects(rows.rows >= 0, "attention_mass", "queries.rows", rows.rows, "a count cannot be negative");
    expects(how.last_rows >= 0, "attention_mass", "last_rows", how.last_rows, "a count cannot be negative");
    expects(how.group != reduction::last, "attention_mass", "group", "last", "query heads have no order");
    expects(how.lanes != reduction::last, "attention_mass", "lanes", "last", "lanes have no order");
    expects(how.domain != key_domain::candidates || how.lanes != reduction::max, "attention_mass", "lanes", "max",
            "the mass of candidates is added to what is there");
    expects(!how.accumulate || out.decides == granularity::lane, "attention_mass", "accumulate", "true",
            "mass accumulates lane by lane");
  }
};
inline constexpr attention_mass_t attention_mass{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Explains in one line why an entry stays or goes, and computes the memory that a policy needs before anything runs.
#pragma once

#include <algorithm>
#include <array>
#include <kvpolicy/admission/dual.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// The bytes that a policy needs for one batch. They follow from the bounds of the batch, and nothing is allocated.
struct required {
  std::size_t plan = 0;     ///< scores, keep sets, report
  std::size_t state = 0;    ///< columns of recorders and of appliers
  std::size_t scratch = 0;  ///< of each worker of the executor
  friend bool operator==(required const&, required const&) = default;
};

/// The result of a decision for one entry.
struct verdict {
  kvpolicy::lane lane{};  ///< the first lane of the segment, which stands for all that decide together
  int ordinal = 0;
  int position = 0;
  bool kept = false;
  bool forced = false;
  bool all_kept = false;  ///< the segment dropped nothing
  float score = 0;        ///< NaN ranks below every number
  int rank = 0;  ///< among the segment's candidates; 1 is the best; of equal scores the lower ordinal is better
  int candidates = 0;
  int kept_candidates = 0;
  float cut = 0;  ///< the lowest score of a kept candidate
};

namespace detail {

/// True if a ranks above b. NaN ranks below every number.
inline bool outranks(float a, float b) { return a > b || (a == a && b != b); }

/// The bytes in which rows that count are found. visit_kinds(visit) calls visit(kind) for each kind that is read.
template <class VisitKinds>
std::size_t counted_rows_bytes(cache const& in, VisitKinds const& visit_kinds) {
  std::array<bool, 3> kinds{};
  visit_kinds([&](int kind) { kinds[static_cast<std::size_t>(kind)] = true; });
  auto const numbers = static_cast<std::size_t>(in.lanes.sequences) * (static_cast<std::size_t>(in.lanes.capacity) + 1);
  return static_cast<std::size_t>(std::count(kinds.begin(), kinds.end(), true)) * numbers * sizeof(int);
}

/// The bytes of these columns. Rows of entries are longer than the bound by `slack`, see `state`.
template <class Columns>
std::size_t bytes_of_columns(Columns const& columns, cache const& in, int slack) {
  std::size_t all = 0;
  for (column const& each : columns) {
    int const units = each.units != 0 ? each.units : in.lanes.capacity + slack;
    all += static_cast<std::size_t>(units) * static_cast<std::size_t>(each.bytes) *
           static_cast<std::size_t>(in.lanes.size());
  }
  return all;
}

/// The bytes of the epochs of a state, or of a plan.
inline std::size_t epoch_bytes(cache const& in) {
  return static_cast<std::size_t>(in.lanes.sequences) * static_cast<std::size_t>(in.lanes.layers()) *
         sizeof(std::uint64_t);
}

/// The bytes of the columns of recorders.
template <class... Recorders>
std::size_t column_bytes(std::tuple<Recorders...> const& recorders, cache const& in, int slack) {
  std::size_t all = 0;
  auto const add = [&](auto const& recorder) {
    all += bytes_of_columns(recorder.columns(in.shape, in.lanes.capacity), in, slack);
  };
  std::apply([&](auto const&... each) { (add(each), ...); }, recorders);
  return all + counted_rows_bytes(in, [&](auto const& visit) {
           std::apply([&](auto const&... each) { (visit_kinds_of_rows_of(each, visit), ...); }, recorders);
         });
}

}  // namespace detail

/// Computes the memory that `make_plan` and `make_state` allocate, and the scratch that they reserve.
///
/// - in: after the cache the arguments that are passed to `make_plan`: how much it decides about at once, and the
///   appliers, which are passed to `make_state`, too.
/// - throws: `invalid_argument` if the cache or the policy is not sound, as `make_plan`.
template <executor Executor, entry_decision Policy, class... Appliers>
[[nodiscard]] required required_bytes(Policy const& policy, cache const& in, at_once const& size,
                                      Appliers const&... hows) {
  using backend = typename Executor::backend;
  detail::check_policy("required_bytes", policy, in.shape);
  detail::check_cache("required_bytes", in);
  cache turn = in;
  turn.lanes = detail::first_turn(in.lanes, detail::largest_turn("required_bytes", in.lanes, policy.score.decides,
                                                                 detail::scope_at_once(policy.budget), size));
  auto const bound = static_cast<std::size_t>(in.lanes.capacity);
  auto const segments = static_cast<std::size_t>(kvpolicy::segments(turn.lanes, policy.score.decides));
  auto const spare = static_cast<std::size_t>(detail::spare_rows_of(policy, turn.lanes, in.shape));
  required made;
  made.plan = segments * bound * (sizeof(float) + sizeof(int)) + spare * bound * sizeof(float) +
              (segments + 1) * sizeof(std::int64_t) + segments * sizeof(int) + detail::epoch_bytes(turn) +
              2 * sizeof(report) + sizeof(apply_stats) + detail::counted_rows_bytes(in, [&](auto const& visit) {
                detail::visit_kinds_of_rows_of_scorer(policy.score, visit);
              });
  if (detail::resolve(policy).allots) made.plan += static_cast<std::size_t>(in.lanes.size()) * sizeof(int);
  made.state = detail::epoch_bytes(in) + detail::column_bytes(recorders_of(policy.score), in, 0) +
               (std::size_t{0} + ... + detail::bytes_of_columns(detail::columns_of_applier(hows, in), in, 0));
  made.scratch = std::max({detail::scratch_to_observe<backend>(recorders_of(policy.score), in.shape, in.lanes),
                           detail::scratch_to_decide<backend>(policy, in.shape, turn.lanes),
                           detail::scratch_to_apply<backend, Appliers...>(turn)});
  return made;
}
/// The same for a plan that decides about the whole batch at once.
template <executor Executor, entry_decision Policy, class... Appliers>
[[nodiscard]] required required_bytes(Policy const& policy, cache const& in, Appliers const&... hows) {
  return required_bytes<Executor, Policy>(policy, in, at_once{}, hows...);
}

/// @cond
template <executor Executor, detail::unsound_entry_decision Policy, class... Args>
required required_bytes(Policy const&, cache const&, Args const&...) {
  static_cast<void>(detail::entry_decision_hooks<Policy>::check());  // the one error
  return {};
}
/// @endcond

/// Computes the same for a dual cache: the plan of the window, and the state of both parts.
template <executor Executor, admission_policy Policy>
[[nodiscard]] required required_bytes(Policy const& policy, dual_cache const& both) {
  detail::check_dual("required_bytes", both);
  required made = required_bytes<Executor>(policy, both.window);
  made.plan += 3 * sizeof(int) * static_cast<std::size_t>(both.window.lanes.sequences);
  made.state = detail::epoch_bytes(both.window) + detail::epoch_bytes(both.pages.entries) +
               detail::column_bytes(recorders_of(policy.score), both.window, both.window.lanes.capacity) +
               detail::column_bytes(recorders_of(policy.score), both.pages.entries, 0);
  made.scratch = std::max(made.scratch, detail::scratch_to_promote<typename Executor::backend>(both));
  return made;
}

/// Looks up what the plan's last decision did with one entry of a segment. The cache must not have changed since; for
/// an exit plan the window must not have moved on.
///
/// - in: `forces(entry)`, true for the entries that the policy forces. The plan must be in host memory.
/// - cost: O(entries) of the segment.
/// - throws: `invalid_argument` if the plan holds no decision, or the segment or the ordinal is out of range.
template <executor Executor, class Forces>
[[nodiscard]] verdict judge(plan<Executor>& of, int segment, int ordinal, Forces const& forces) {
  keep_set const& keep = of.keep();
  of.expects_decision("explain");
  expects(segment >= 0 && segment < keep.segments(), "explain", "segment", segment,
          [&] { return "the plan has " + std::to_string(keep.segments()); });
  expects(ordinal >= 0 && ordinal < keep.entry_count[segment], "explain", "ordinal", ordinal,
          [&] { return "the segment decided about " + std::to_string(keep.entry_count[segment]) + " entries"; });
  score_view const scores = of.scores(keep.lanes);
  verdict made{.lane = scores.lane_of(segment), .ordinal = ordinal};
  int const count = keep.entry_count[segment];
  int const* const position = keep.lanes.position.row(made.lane);
  float const* const score = scores.row(segment);
  auto const listed = keep.listed(segment);
  bool const lists_kept = keep.lists == side::kept;
  made.position = position[ordinal];
  made.score = score[ordinal];
  made.all_kept = lists_kept ? std::ssize(listed) == count : listed.empty();
  auto next = listed.begin();
  for (int e = 0; e < count; ++e) {
    bool const named = next != listed.end() && *next == e;
    bool const stays = named == lists_kept;
    if (named) ++next;
    bool const forced = forces(entry{made.lane, e, count, position[e], 0});
    if (e == ordinal) {
      made.kept = stays;
      made.forced = forced;
    }
    if (forced) continue;
    ++made.candidates;
    bool const tie = !detail::outranks(score[e], made.score) && !detail::outranks(made.score, score[e]);
    if (e != ordinal && (detail::outranks(score[e], made.score) || (tie && e < ordinal))) ++made.rank;
    if (!stays) continue;
    made.cut = made.kept_candidates == 0 || detail::outranks(made.cut, score[e]) ? score[e] : made.cut;
    ++made.kept_candidates;
  }
  ++made.rank;
  return made;
}

/// Prints a verdict: "sequence 0, layer 0, head 1, entry 17 at position 17: dropped; score 0.0123 ranks 40 of 168, 28
/// were kept down to 0.0151".
[[nodiscard]] inline std::string print(verdict const& of) {
  auto const number = [](auto value) { return to_string(value); };
  std::string const where = "sequence " + number(of.lane.sequence) + ", layer " + number(of.lane.layer) + ", head " +
                            number(of.lane.head) + ", entry " + number(of.ordinal) + " at position " +
                            number(of.position);
  std::string const fate = where + (of.kept ? ": kept" : ": dropped");
  if (of.forced) return fate + "; forced";
  if (of.all_kept) return fate + ", as all are";
  std::string const ranked =
      fate + "; score " + number(of.score) + " ranks " + number(of.rank) + " of " + number(of.candidates);
  if (of.kept_candidates == 0) return ranked + ", none was kept";
  return ranked + ", " + number(of.kept_candidates) + " were kept down to " + number(of.cut);
}

/// True if a policy forced an entry in the plan's last decision. The cache must not have changed since.
///
/// - throws: `invalid_argument` if the plan holds no decision.
template <executor Executor, entry_decision Policy>
[[nodiscard]] bool forces(Policy const& policy, plan<Executor> const& of, int segment, int ordinal) {
  of.expects_decision("forces");
  if (detail::facts_of(policy.score).ranks_candidates) {
    return of.score(segment, ordinal) == -std::numeric_limits<float>::infinity();  // `decide` marks forced entries so
  }
  keep_set const& keep = of.keep();
  lane const this_lane = keep.lanes.at(first_lane(keep.lanes, keep.decides, segment));
  entry at{.lane = this_lane, .ordinal = ordinal, .count = keep.entry_count[segment]};
  shape const model{of.lanes().layer_end, of.lanes().heads, of.lanes().heads, 1};
  at.budget = of.allots() ? *of.shares().row(at.lane)
                          : detail::in_entries(policy.budget, model, of.entry_bytes())(at.lane, at.count);
  auto const facts = detail::facts_of(policy.score);
  int const size = std::max(facts.block, 1);  // a block with a forced entry is forced
  bool const alone = at.count < size && !facts.fills_beside_forced;
  int const begin = alone ? ordinal : ordinal / size * size;
  int const end = alone ? ordinal + 1 : std::min(begin + size, at.count);
  bool const keeps_tail = facts.fills_beside_forced || detail::resolve(policy).drops_part;
  if (keeps_tail && end - begin < size) return true;
  for (at.ordinal = begin; at.ordinal < end; ++at.ordinal) {
    at.position = keep.lanes.position.row(this_lane)[at.ordinal];
    if (detail::forces_of(policy.score)(at) || policy.protect(at)) return true;
  }
  return false;
}

/// Explains in one line why an entry stays or goes.
///
///     std::puts(kv::explain(policy, plan, segment, ordinal).c_str());
template <executor Executor, entry_decision Policy>
[[nodiscard]] std::string explain(Policy const& policy, plan<Executor>& of, int segment, int ordinal) {
  auto const forced = [&](entry const& at) { return forces(policy, of, segment, at.ordinal); };
  return print(judge(of, segment, ordinal, forced));
}
/// @cond
template <executor Executor, detail::unsound_entry_decision Policy>
std::string explain(Policy const&, plan<Executor>&, int, int) {
  static_cast<void>(detail::entry_decision_hooks<Policy>::check());  // the one error
  return {};
}
/// @endcond

}  // namespace KVPOLICY_NAMESPACE

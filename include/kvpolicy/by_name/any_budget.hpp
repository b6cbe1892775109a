// SPDX-License-Identifier: Apache-2.0
// Budgets whose kind is chosen at run time.
#pragma once

#include <array>
#include <kvpolicy/by_name/any_allotter.hpp>
#include <kvpolicy/by_name/set_fields.hpp>
#include <kvpolicy/by_name/user_parts.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/proportional.hpp>
#include <kvpolicy/parts/ramp.hpp>
#include <kvpolicy/parts/seen.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {

/// How the lanes' shares of a budget differ: not at all, by a `layer_ramp`, by a table of numbers, in proportion to the
/// importance of each layer, by the tokens that a sequence has had, or as an allotter of the registry says.
enum class sharing { fixed, ramp, table, importance, seen, allotted };

[[nodiscard]] constexpr std::array<char const*, 6> names(sharing) {
  return {"fixed", "ramp", "table", "importance", "seen", "allotted"};
}

namespace detail {

/// The share of a lane whose budget is a part of the tokens that its sequence has had: that of a lane that holds all.
template <class Numbers>
struct share_of_seen {
  Numbers limit;
  KVPOLICY_HD constexpr int operator()(lane_entries const& of) const {
    return limit(of.lane, of.order.newest_of(of.position, of.count) + 1);
  }
};

/// The numbers of a budget that is chosen at run time, which a decision copies.
struct budget_numbers {
  enum class amount { tokens, ratio, bytes, unlimited, own };

  amount of = amount::tokens;
  int tokens = 1024;
  int block = 0;  ///< of `tokens` for each lane: the entries of a block, of which whole ones are lost; 0: any number is
  double drop = 0;
  std::int64_t bytes = 0;
  budget_scope shared_by = budget_scope::lane;
  double floor_part = 0;
  int floor_tokens = 0;
  rounding round = rounding::at_least_one;
  bool held = false;        ///< of a ratio: see `drop_ratio`
  bool of_seen = false;     ///< in a decision: the ratio is one of the tokens that a sequence has had
  bool says_lane = false;   ///< print `scope=lane`, because this scorer's budgets are shared unless a spec says so
  bool says_fixed = false;  ///< print `by=fixed`, for a scorer whose budgets an allotter shares out otherwise
  sharing by = sharing::fixed;
  layer_ramp shares{};             ///< of `by = ramp`
  label table{};                   ///< of `by = table` and `by = importance`: its name
  by_lane<int const> in_table{};   ///< one number for each lane: those of the table of that name, or those allotted
  by_lane<float const> weights{};  ///< of `by = importance`: those of the table of that name
  int least = 32;                  ///< of `by = importance`
  double cap = 3;                  ///< the same
  own_budget_calls calls{};        ///< of `own`
  erased_allotter const* allotter = nullptr;  ///< of `by = allotted`, while a decision lasts

  KVPOLICY_HD constexpr int operator()(lane this_lane, int count) const {
    int const usual = average_of(this_lane, count);
    if (by == sharing::ramp)
      return shares(this_lane.layer, usual, count, of == amount::ratio ? count * (1 - drop) : usual);
    bool const in_full = by == sharing::table && count <= usual;  // nothing has to be dropped
    return in_table.data == nullptr || in_full ? usual : *in_table.row(this_lane);
  }
  /// The number of entries of a lane, or the average over the layers.
  [[nodiscard]] KVPOLICY_HD constexpr int average_of(lane this_lane, int count) const {
    if (of == amount::ratio) return drop_ratio{drop, round}(this_lane, count);
    if (of == amount::bytes) return in_bytes{bytes}(this_lane, count);
    if (calls.share.there()) return calls.share(this_lane, count);
    if (block > 0) return whole_blocks_of(tokens, block, count);
    return of == amount::tokens ? tokens : 0x7FFFFFFF;
  }
  [[nodiscard]] KVPOLICY_HD constexpr double dropped_part() const {
    return of == amount::ratio && by == sharing::fixed && !of_seen ? drop : -1;
  }
  [[nodiscard]] KVPOLICY_HD constexpr budget_scope scope() const { return shared_by; }
  [[nodiscard]] KVPOLICY_HD constexpr int floor(int share) const {
    if (calls.floor.there()) return calls.floor(share);
    return greater_floor(floor_of_share(floor_part, round, share), floor_tokens);
  }
  [[nodiscard]] constexpr bool differs_by_layer() const {
    return by == sharing::ramp || by == sharing::table || by == sharing::importance || by == sharing::allotted;
  }

  [[nodiscard]] constexpr average_share average(lanes const& batch) const {
    return {tokens, {drop, round}, of == amount::ratio, of_seen, batch};
  }
  /// The same budget for lanes that share it.
  [[nodiscard]] constexpr budget_numbers pooled(budget_scope scope, sure_part sure) const {
    budget_numbers made = *this;
    made.by = sharing::fixed;
    made.allotter = nullptr;
    made.shared_by = scope;
    made.floor_part = sure.part;
    made.floor_tokens = sure.tokens;
    return made;
  }
  /// The same budget in a decision: see `counted_budget`.
  [[nodiscard]] constexpr budget_numbers counted(bool again) const {
    budget_numbers made = *this;
    made.of_seen = by == sharing::seen || (of == amount::ratio && again && !held);
    return made;
  }
  /// True if a decision asks for the share of every lane.
  [[nodiscard]] constexpr bool is_allotted() const {
    return by == sharing::importance || by == sharing::allotted || of_seen;
  }
  template <class Executor, class SignalSet>
  void share_out(Executor& exec, SignalSet const& in, allotting<Executor>& shown, by_lane<int> const& to) const {
    if (by == sharing::allotted) return allot_erased(exec, *allotter, shown, to);
    if (by != sharing::importance) return ops::map_lanes(exec, in.lanes, share_of_seen<budget_numbers>{*this}, to);
    allot_by_weight(exec, in.lanes, table_of_layers{weights}, shown.average, {least}, cap, to);
  }
  /// The same budget with shares that are allotted.
  [[nodiscard]] constexpr budget_numbers with_shares(by_lane<int> const& allotted) const {
    budget_numbers made = *this;
    made.by = sharing::seen;  // no table, ramp or importance any more: each lane has its number
    made.in_table = {allotted.data, allotted.sequence, allotted.layer, allotted.head, allotted.slots};
    return made;
  }

  friend bool operator==(budget_numbers const& a, budget_numbers const& b) {  // a comparison of tuples compiles slowly
    return a.of == b.of && a.tokens == b.tokens && a.block == b.block && a.drop == b.drop && a.bytes == b.bytes &&
           a.shared_by == b.shared_by && a.says_lane == b.says_lane && a.says_fixed == b.says_fixed &&
           a.floor_part == b.floor_part && a.floor_tokens == b.floor_tokens && a.round == b.round && a.held == b.held &&
           a.by == b.by && a.shares == b.shares && a.table == b.table && a.in_table.data == b.in_table.data &&
           a.weights.data == b.weights.data && a.least == b.least && a.cap == b.cap;
  }
};

}  // namespace detail

/// Any of the shipped budgets: tokens, a ratio or bytes, for each lane, for the lanes of a layer or for all lanes of a
/// sequence; tokens or a ratio on average, whose shares fall from layer to layer, stand in a table, or follow the
/// importance of layers; a part of the tokens seen; on the host also a budget of a program's own. A spec writes it as
/// `budget(1024)`, `budget(256, scope=layer, floor=0.2)`, `budget(ratio=0.5)`, `budget(bytes=67108864)`,
/// `budget(512, by=ramp, beta=20)`, `budget(ratio=0.5, by=seen)` or `unlimited`.
struct any_budget : detail::budget_numbers {
  detail::own_budget own{};  ///< of `own`
  any_allotter sharer{};     ///< of `by = allotted`

  any_budget() = default;
  any_budget(per_lane from) { tokens = from.tokens; }
  any_budget(whole_blocks from) {
    tokens = from.tokens;
    block = from.block;
  }
  any_budget(per_layer from) {
    tokens = from.tokens;
    shared_by = budget_scope::layer;
    floor_part = from.floor_part;
    floor_tokens = from.floor_tokens;
  }
  any_budget(per_sequence from) {
    tokens = from.tokens;
    shared_by = budget_scope::sequence;
    floor_part = from.floor_part;
    floor_tokens = from.floor_tokens;
  }
  any_budget(drop_ratio from) {
    of = amount::ratio;
    tokens = 0;
    drop = from.drop;
    round = from.round;
    held = from.held;
  }
  any_budget(in_bytes from) {
    of = amount::bytes;
    tokens = 0;
    bytes = from.limit;
  }
  any_budget(unlimited) {
    of = amount::unlimited;
    tokens = 0;
  }
  any_budget(ramp from) {
    tokens = from.tokens;
    by = sharing::ramp;
    shares = from.shares;
  }
  any_budget(kvpolicy::seen from) : any_budget(drop_ratio{from.drop, from.round}) { by = sharing::seen; }
  any_budget(proportional<table_of_layers> from) {
    tokens = from.tokens;
    by = sharing::importance;
    weights = from.of.weight;
    least = from.least;
    cap = from.cap;
  }
  template <class By>
  any_budget(shared_out<By> const& from) : any_budget(per_lane{from.tokens}) {
    share(any_allotter::on_host(from.by));
  }
  explicit any_budget(detail::own_budget const& from) : own(from) {
    of = amount::own;
    tokens = 0;
    calls = from.calls;
    shared_by = from.scope;
  }

  static constexpr auto name = "budget";
  /// A budget in the policies of one kind of executor.
  template <executor Executor, class Budget>
  [[nodiscard]] static any_budget on(Budget const& from) {
    any_budget made(from);
    if constexpr (requires { made.share(any_allotter::on<Executor>(from.by)); }) {
      made.share(any_allotter::on<Executor>(from.by));
    }
    return made;
  }
  /// Lets an allotter share it out.
  void share(any_allotter const& as) {
    sharer = as;
    by = sharing::allotted;
    if (shared_by == budget_scope::lane) shared_by = as.shared_by();
  }
  /// True if shares go by the scores of all lanes.
  [[nodiscard]] bool reads_scores() const { return by == sharing::allotted; }
  /// The numbers of each lane that its allotter reads.
  [[nodiscard]] int lane_numbers() const { return by == sharing::allotted ? sharer.get()->lane_numbers() : 0; }
  [[nodiscard]] int spare_rows(lanes const& in) const { return sharer.there() ? sharer.get()->spare_rows(in) : 0; }
  [[nodiscard]] bool compares_layers() const {
    return by == sharing::importance || (by == sharing::allotted && sharer.get()->compares_layers());
  }
  void check(char const* call) const {
    if (of == amount::tokens) per_lane{tokens}.check(call);
    if (of == amount::ratio) drop_ratio{drop, round}.check(call);
    if (of == amount::bytes) in_bytes{bytes}.check(call);
    own.check(call);
    expects(block >= 0, call, "budget.block", block, "a block has at least one entry; 0: entries are not in blocks");
    expects(block == 0 || (of == amount::tokens && by == sharing::fixed && shared_by == budget_scope::lane), call,
            "budget.block", block, "whole blocks are of a number of tokens, the same for every lane");
    detail::check_floor(call, floor_part, floor_tokens);
    char const* const shared = "a lane that shares with nobody has no floor: scope=layer or scope=global";
    expects(floor_part == 0 || shared_by != budget_scope::lane, call, "budget.floor", floor_part, shared);
    expects(floor_tokens == 0 || shared_by != budget_scope::lane, call, "budget.floor_tokens", floor_tokens, shared);
    expects(by == sharing::fixed || shared_by == scope_of_shares(), call, "budget.scope", to_string(shared_by),
            "only lanes that share with nobody have shares that differ");
    expects(
        by == sharing::fixed || is_counted(), call, "budget.by",
        [&] { return by == sharing::allotted ? sharer.name() : std::string(to_string(by)); },
        "a budget of tokens, of a ratio or of bytes is shared out");
    if (by == sharing::ramp) shares.check(call);
    if (by == sharing::importance) detail::check_proportion(call, tokens, least, cap);
    if (by == sharing::allotted) sharer.check(call);
  }
  /// Which lanes share where shares differ.
  [[nodiscard]] budget_scope scope_of_shares() const {
    return sharer.there() ? sharer.shared_by() : budget_scope::lane;
  }
  /// True for tokens, a ratio or bytes.
  [[nodiscard]] bool is_counted() const { return of != amount::unlimited && of != amount::own; }
  /// True for such a number that is the same for all lanes, so that they may share it.
  [[nodiscard]] bool may_be_shared() const { return is_counted() && by == sharing::fixed; }
  /// What a decision calls.
  [[nodiscard]] detail::budget_numbers in_entries(shape const& model, std::int64_t entry_bytes) const {
    detail::budget_numbers counted = *this;
    if (of == amount::bytes) {
      counted.of = amount::tokens;
      counted.tokens = in_bytes{bytes}.in_entries(model, entry_bytes).tokens;
    }
    counted.shares.layers = by == sharing::ramp ? model.layers : 0;
    counted.allotter = sharer.get();
    return counted;
  }
  friend bool operator==(any_budget const& a, any_budget const& b) {
    return static_cast<budget_numbers const&>(a) == static_cast<budget_numbers const&>(b) && a.own == b.own &&
           a.sharer == b.sharer;
  }
};

[[nodiscard]] inline std::string print(any_budget const& limit) {
  if (limit.own.there()) return limit.own.spell();
  if (limit.of == any_budget::amount::unlimited) return to_string(unlimited{});
  std::string text = "budget(";
  if (limit.of == any_budget::amount::tokens) text += to_string(limit.tokens);
  if (limit.block > 0) text += ", block=" + to_string(limit.block);
  if (limit.of == any_budget::amount::ratio) text += "ratio=" + to_string(limit.drop);
  if (limit.of == any_budget::amount::bytes) text += "bytes=" + to_string(limit.bytes);
  if (limit.round != rounding{}) text += ", rounding=" + to_string(limit.round);
  if (limit.held) text += ", held=true";
  if (limit.shared_by != limit.scope_of_shares() || limit.says_lane) text += ", scope=" + to_string(limit.shared_by);
  text += detail::print_floor(limit.floor_part, limit.floor_tokens);
  if (limit.says_fixed || limit.by == sharing::seen) text += ", by=" + to_string(limit.by);
  if (limit.by == sharing::ramp) text += detail::print_ramp(limit.shares);
  if (limit.by == sharing::table) text += ", by=table, table=" + to_string(limit.table);
  if (limit.by == sharing::importance) {
    text += ", by=importance, table=" + to_string(limit.table) + ", least=" + to_string(limit.least) +
            ", cap=" + to_string(limit.cap);
  }
  if (limit.by == sharing::allotted) text += limit.sharer.spell();
  return text + ")";
}

}  // namespace KVPOLICY_NAMESPACE

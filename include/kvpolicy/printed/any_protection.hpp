// Protections and budgets whose kind is chosen at run time. They are plain values and own no memory.
#pragma once

#include <array>
#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/budget/ramp.hpp>
#include <kvpolicy/printed/set_fields.hpp>
#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {

/// Any of the shipped protections, or up to eight of them joined. It protects every entry that one of its parts
/// protects.
struct any_protection {
  enum class kind { none, everything, sinks, recent, span, safe };
  /// One protection: its kind and its parameters.
  struct part {
    kind what = kind::none;
    int first = 0;
    int second = 0;
    friend bool operator==(part const&, part const&) = default;
  };
  static constexpr int most = 8;

  std::array<part, most> parts{};
  int count = 0;

  constexpr any_protection() = default;
  constexpr any_protection(nothing) {}
  constexpr any_protection(kvpolicy::everything) : parts{{{kind::everything, 0, 0}}}, count(1) {}
  constexpr any_protection(kvpolicy::sinks from) : parts{{{kind::sinks, from.tokens, 0}}}, count(1) {}
  constexpr any_protection(kvpolicy::recent from) : parts{{{kind::recent, from.tokens, 0}}}, count(1) {}
  constexpr any_protection(kvpolicy::position_span from) : parts{{{kind::span, from.begin, from.end}}}, count(1) {}
  constexpr any_protection(kvpolicy::safe from) : parts{{{kind::safe, from.sinks, from.recent}}}, count(1) {}
  template <class First, class Second>
  constexpr any_protection(either<First, Second> const& both) : any_protection(both.first) {
    any_protection const more(both.second);
    for (int i = 0; i < more.count; ++i) add(more.parts[static_cast<std::size_t>(i)]);
  }

  constexpr void add(part const& one) {
    expects(count < most, "any_protection", "protections", count + 1, "at most eight are joined");
    parts[static_cast<std::size_t>(count++)] = one;
  }

  void check(char const* call) const {
    for_each([&](auto const& each) {
      if constexpr (requires { each.check(call); }) each.check(call);
    });
  }

  /// Protects the first positions, the last entries and some spans of positions.
  struct ends_and_spans {
    kvpolicy::safe both{0, 0};
    int count = 0;
    part spans[most] = {};
    KVPOLICY_HD constexpr bool operator()(entry at) const {
      if (both(at)) return true;
      for (int i = 0; i < count; ++i) {
        if (at.position >= spans[i].first && at.position < spans[i].second) return true;
      }
      return false;
    }
  };
  [[nodiscard]] constexpr ends_and_spans compiled() const {
    ends_and_spans made;
    for (int i = 0; i < count; ++i) {
      part const& one = parts[static_cast<std::size_t>(i)];
      bool const front = one.what == kind::sinks || one.what == kind::safe;
      int const back = one.what == kind::recent ? one.first : one.what == kind::safe ? one.second : 0;
      if (front && one.first > made.both.sinks) made.both.sinks = one.first;
      if (back > made.both.recent) made.both.recent = back;
      if (one.what == kind::everything) made.both.recent = 0x7FFFFFFF;
      if (one.what == kind::span) made.spans[made.count++] = one;
    }
    return made;
  }
  /// Calls visit with the cheapest typed protection that is equivalent, so that a decision costs no more than with a
  /// typed one: without spans the entries that compete are one run of ordinals, which the decision is told.
  template <class Visit>
  void pick(Visit const& visit) const {
    ends_and_spans const all = compiled();
    if (all.count > 0) return visit(all);
    if (all.both.recent == 0) return visit(kvpolicy::sinks{all.both.sinks});
    visit(all.both);
  }
  constexpr bool operator()(entry at) const { return compiled()(at); }

  /// Calls visit with each part as the shipped protection that it stands for.
  template <class Visit>
  void for_each(Visit const& visit) const {
    for (int i = 0; i < count; ++i) {
      part const& one = parts[static_cast<std::size_t>(i)];
      if (one.what == kind::everything) visit(kvpolicy::everything{});
      if (one.what == kind::sinks) visit(kvpolicy::sinks{one.first});
      if (one.what == kind::recent) visit(kvpolicy::recent{one.first});
      if (one.what == kind::span) visit(kvpolicy::position_span{one.first, one.second});
      if (one.what == kind::safe) visit(kvpolicy::safe{one.first, one.second});
    }
  }

  friend bool operator==(any_protection const&, any_protection const&) = default;
};
static_assert(protection<any_protection>);

[[nodiscard]] inline std::string print(any_protection const& all) {
  std::string text;
  all.for_each([&](auto const& each) { text += (text.empty() ? "" : " | ") + to_string(each); });
  return text;
}

/// How the lanes' shares of a budget differ: not at all, by a `layer_ramp`, or by a table of numbers.
enum class sharing { fixed, ramp, table };

[[nodiscard]] constexpr std::array<char const*, 3> names(sharing) { return {"fixed", "ramp", "table"}; }

/// Any of the shipped budgets: tokens, a ratio or bytes, for each lane, for the lanes of a layer or for all lanes of a
/// sequence, or tokens or a ratio on average, whose shares fall from layer to layer or stand in a table. A spec writes
/// it as `budget(1024)`, `budget(256, scope=layer, floor=0.2)`, `budget(ratio=0.5)`, `budget(bytes=67108864)`,
/// `budget(512, by=ramp, beta=20)` or `unlimited`.
struct any_budget {
  enum class amount { tokens, ratio, bytes, unlimited };

  amount of = amount::tokens;
  int tokens = 1024;
  double drop = 0;
  std::int64_t bytes = 0;
  budget_scope shared_by = budget_scope::lane;
  double floor_part = 0;
  int floor_tokens = 0;
  rounding round = rounding::exact;
  bool says_lane = false;  ///< print `scope=lane`, because this scorer's budgets are shared unless a spec says so
  sharing by = sharing::fixed;
  layer_ramp shares{};            ///< of `by = ramp`
  label table{};                  ///< of `by = table`: its name
  by_lane<int const> in_table{};  ///< one number for each lane of a sequence, which a registry finds by that name

  constexpr any_budget() = default;
  constexpr any_budget(per_lane from) : tokens(from.tokens) {}
  constexpr any_budget(per_layer from)
      : tokens(from.tokens),
        shared_by(budget_scope::layer),
        floor_part(from.floor_part),
        floor_tokens(from.floor_tokens) {}
  constexpr any_budget(per_sequence from)
      : tokens(from.tokens),
        shared_by(budget_scope::global),
        floor_part(from.floor_part),
        floor_tokens(from.floor_tokens) {}
  constexpr any_budget(drop_ratio from) : of(amount::ratio), tokens(0), drop(from.drop), round(from.round) {}
  constexpr any_budget(in_bytes from) : of(amount::bytes), tokens(0), bytes(from.limit) {}
  constexpr any_budget(unlimited) : of(amount::unlimited), tokens(0) {}
  constexpr any_budget(ramp from) : tokens(from.tokens), by(sharing::ramp), shares(from.shares) {}

  static constexpr auto name = "budget";

  void check(char const* call) const {
    if (of == amount::tokens) per_lane{tokens}.check(call);
    if (of == amount::ratio) drop_ratio{drop, round}.check(call);
    if (of == amount::bytes) in_bytes{bytes}.check(call);
    detail::check_floor(call, floor_part, floor_tokens);
    char const* const shared = "a lane that shares with nobody has no floor: scope=layer or scope=global";
    expects(floor_part == 0 || shared_by != budget_scope::lane, call, "budget.floor", floor_part, shared);
    expects(floor_tokens == 0 || shared_by != budget_scope::lane, call, "budget.floor_tokens", floor_tokens, shared);
    if (by == sharing::ramp) shares.check(call);
  }
  KVPOLICY_HD constexpr int operator()(lane this_lane, int count) const {
    int const average = average_of(this_lane, count);
    if (by == sharing::ramp) return shares(this_lane.layer, average, count);
    return by == sharing::fixed || in_table.data == nullptr || count <= average ? average : *in_table.row(this_lane);
  }
  /// The number of entries of a lane, or the average over the layers.
  [[nodiscard]] KVPOLICY_HD constexpr int average_of(lane this_lane, int count) const {
    if (of == amount::ratio) return drop_ratio{drop, round}(this_lane, count);
    if (of == amount::bytes) return in_bytes{bytes}(this_lane, count);
    return of == amount::tokens ? tokens : 0x7FFFFFFF;
  }
  [[nodiscard]] constexpr bool differs_by_layer() const { return by != sharing::fixed; }
  [[nodiscard]] KVPOLICY_HD constexpr budget_scope scope() const { return shared_by; }
  [[nodiscard]] KVPOLICY_HD constexpr int floor(int share) const {
    return detail::greater_floor(detail::floor_of_share(floor_part, round, share), floor_tokens);
  }
  [[nodiscard]] constexpr any_budget in_entries(shape const& model, std::int64_t entry_bytes) const {
    any_budget counted = *this;
    if (of == amount::bytes) {
      counted.of = amount::tokens;
      counted.tokens = in_bytes{bytes}.in_entries(model, entry_bytes).tokens;
    }
    counted.shares.layers = by == sharing::ramp ? model.layers : 0;
    return counted;
  }
  friend bool operator==(any_budget const& a, any_budget const& b) {
    auto const all = [](any_budget const& one) {
      return std::tie(one.of, one.tokens, one.drop, one.bytes, one.shared_by, one.says_lane, one.floor_part,
                      one.floor_tokens, one.round, one.by, one.shares, one.table, one.in_table.data);
    };
    return all(a) == all(b);
  }
};
static_assert(budget<any_budget>);

[[nodiscard]] inline std::string print(any_budget const& limit) {
  if (limit.of == any_budget::amount::unlimited) return to_string(unlimited{});
  std::string text = "budget(";
  if (limit.of == any_budget::amount::tokens) text += to_string(limit.tokens);
  if (limit.of == any_budget::amount::ratio) text += "ratio=" + to_string(limit.drop);
  if (limit.of == any_budget::amount::bytes) text += "bytes=" + to_string(limit.bytes);
  if (limit.round != rounding::exact) text += ", rounding=" + to_string(limit.round);
  if (limit.shared_by != budget_scope::lane || limit.says_lane) text += ", scope=" + to_string(limit.shared_by);
  text += detail::print_floor(limit.floor_part, limit.floor_tokens);
  if (limit.by == sharing::ramp) text += detail::print_ramp(limit.shares);
  if (limit.by == sharing::table) text += ", by=table, table=" + to_string(limit.table);
  return text + ")";
}

}  // namespace KVPOLICY_NAMESPACE

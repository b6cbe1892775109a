// SPDX-License-Identifier: Apache-2.0
// How the budget of a spec is read.
#pragma once

#include <algorithm>
#include <kvpolicy/by_name/known_parts.hpp>
#include <kvpolicy/by_name/spec.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The arguments of `budget` in a spec.
struct budget_arguments {
  int tokens = 0;
  int block = 0;
  double drop = 0;
  std::int64_t bytes = 0;
  budget_scope scope = budget_scope::lane;
  double floor = 0;
  int floor_tokens = 0;
  rounding round = rounding::at_least_one;
  sharing by = sharing::fixed;
  double beta = 20;
  ramp_rule rule = ramp_rule::exact;
  label table{};
  int least = 32;
  double cap = 3;
  bool held = false;
  static constexpr auto fields() {
    return make_fields(field{"tokens", &budget_arguments::tokens}, field{"ratio", &budget_arguments::drop},
                       field{"bytes", &budget_arguments::bytes}, field{"scope", &budget_arguments::scope},
                       field{"floor", &budget_arguments::floor}, field{"rounding", &budget_arguments::round},
                       field{"by", &budget_arguments::by}, field{"beta", &budget_arguments::beta},
                       field{"rule", &budget_arguments::rule}, field{"table", &budget_arguments::table},
                       field{"floor_tokens", &budget_arguments::floor_tokens}, field{"least", &budget_arguments::least},
                       field{"cap", &budget_arguments::cap}, field{"held", &budget_arguments::held},
                       field{"block", &budget_arguments::block});
  }
};

/// The argument of a budget that sets a field. Null: none does.
inline spec_argument const* budget_argument(spec_part const& budget, std::string_view name) {
  return argument_of<budget_arguments>(budget, name);
}

inline void expect_no_argument(spec_part const& from, std::string_view name, char const* why) {
  spec_argument const* const one = budget_argument(from, name);
  if (one != nullptr) refuse_spec(one->name_column, one->name.empty() ? one->value : one->name, why);
}

inline void check_budget_arguments(budget_arguments const& with, spec_part const& from) {
  if (with.by != sharing::ramp) {
    expect_no_argument(from, "beta", "only by=ramp has it");
    expect_no_argument(from, "rule", "only by=ramp has it");
  }
  if (with.by != sharing::importance) {
    expect_no_argument(from, "least", "only by=importance has it");
    expect_no_argument(from, "cap", "only by=importance has it");
    if (with.by != sharing::table) expect_no_argument(from, "table", "only by=table and by=importance have it");
  }
  if (with.by != sharing::fixed && with.scope != budget_scope::lane) {
    refuse_spec(from.column, from.name, "only lanes that share with nobody have shares that differ");
  }
  bool const by_ratio = budget_argument(from, "ratio") != nullptr;
  bool const by_bytes = budget_argument(from, "bytes") != nullptr;
  if (with.by == sharing::seen && !by_ratio) {
    refuse_spec(from.column, from.name, "by=seen counts a part of the tokens: budget(ratio=0.5, by=seen)");
  }
  check_parsed(per_lane{with.tokens}, from.column);
  check_parsed(drop_ratio{with.drop}, from.column);
  check_parsed(in_bytes{with.bytes}, from.column);
  if ((budget_argument(from, "tokens") != nullptr) + by_ratio + by_bytes != 1) {
    refuse_spec(from.column, from.name, "it says how much once: budget(1024), budget(ratio=0.5) or budget(bytes=N)");
  }
}

/// A budget's arguments, and those of the allotter that it names.
struct divided_budget {
  spec_part budget;
  spec_part shares;
  known_allotter const* by = nullptr;  ///< null: it names none
};

/// Divides the arguments of a budget among it and the allotter that it names. Those whose name a field of the allotter
/// has are the allotter's. Of two of one name the one before `by` is the budget's: "ratio=0.5, rounding=exact,
/// by=moments, rounding=release".
inline divided_budget divide_budget(spec_part const& from, known_parts const& known) {
  divided_budget made{from, {from.name, from.column, {}}, nullptr};
  spec_argument const* const by = budget_argument(from, "by");
  if (by == nullptr || by->name.empty()) return made;
  std::vector<std::string> all;
  for (char const* const each : names(sharing{})) all.emplace_back(each);
  all.pop_back();  // `allotted` stands for the names of allotters
  bool const shipped = std::find(all.begin(), all.end(), by->value) != all.end();
  for (known_allotter const& each : known.allotters) all.push_back(each.name);
  made.by = known.allotter_of(by->value);
  if (!shipped && made.by == nullptr) {
    refuse_spec(by->value_column, by->value, accepted("a budget is shared out by", all, by->value));
  }
  if (made.by == nullptr) return made;
  made.shares.name = made.by->name;
  made.budget.arguments.clear();
  for (spec_argument const& each : from.arguments) {
    if (&each == by) continue;
    std::vector<std::string> const& own = made.by->fields;
    bool is_own = !each.name.empty() && std::find(own.begin(), own.end(), each.name) != own.end();
    for (spec_argument const& other : from.arguments)
      is_own = is_own && !(&each < by && by < &other && other.name == each.name);
    (is_own ? made.shares : made.budget).arguments.push_back(each);
  }
  return made;
}

/// An allotter may say which lanes share what it gives. Another scope is refused.
inline void check_scope_of_shares(any_budget const& made, spec_part const& from) {
  spec_argument const* const said = budget_argument(from, "scope");
  if (made.by != sharing::allotted || said == nullptr) return;
  budget_scope const its = made.sharer.shared_by();
  if (its == budget_scope::lane || said->value == to_string(its)) return;
  refuse_spec(said->value_column, said->value,
              "with these shares the lanes of a " + to_string(its) + " have one budget");
}

inline any_budget read_budget(spec_part const& all, known_parts const& known) {
  divided_budget const parts = divide_budget(all, known);
  spec_part const& from = parts.budget;
  budget_arguments with;
  set_fields(with, from);
  check_budget_arguments(with, from);
  bool const by_ratio = budget_argument(from, "ratio") != nullptr;
  bool const by_bytes = budget_argument(from, "bytes") != nullptr;
  any_budget made;
  made.of = by_ratio ? any_budget::amount::ratio : by_bytes ? any_budget::amount::bytes : any_budget::amount::tokens;
  made.tokens = with.tokens;
  made.block = with.block;
  made.drop = with.drop;
  made.bytes = with.bytes;
  made.shared_by = with.scope;
  made.floor_part = with.floor;
  made.floor_tokens = with.floor_tokens;
  bool const is_number = made.of != any_budget::amount::ratio && with.round == rounding::exact;  // nothing is rounded
  made.round = is_number ? rounding{} : with.round;
  made.held = with.held;
  made.by = with.by;
  made.table = with.table;
  made.shares.beta = with.beta;
  made.shares.rule = with.rule;
  made.least = with.least;
  made.cap = with.cap;
  if (parts.by != nullptr) made.share(parts.by->make(parts.shares, known.heads));
  check_scope_of_shares(made, from);
  check_parsed(made, from.column);
  if (made.round != rounding{} && made.of != any_budget::amount::ratio) {
    refuse_spec(from.column, from.name, "only a ratio is rounded");
  }
  if (made.held && (made.of != any_budget::amount::ratio || made.by == sharing::seen)) {
    refuse_spec(from.column, from.name, "held says that a ratio is one of the entries that a lane holds");
  }
  return made;
}

/// Reads a budget. False if the part is none.
inline bool read_limit(any_budget& to, spec_part const& from, known_parts const& known) {
  if (from.name == any_budget::name) {
    to = read_budget(from, known);
  } else if (from.name == unlimited::name) {
    to = read_part<unlimited>(from);
  } else {
    return read_own(known.budgets, from, to);
  }
  return true;
}

}  // namespace KVPOLICY_NAMESPACE::detail

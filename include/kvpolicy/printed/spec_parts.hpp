// The parts of a spec after its scorer, as values, and how they are read.
#pragma once

#include <kvpolicy/printed/any_protection.hpp>
#include <kvpolicy/printed/spec.hpp>
#include <kvpolicy/scorers/put_first.hpp>
#include <kvpolicy/trigger/trigger.hpp>
#include <map>
#include <optional>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// The arguments of `reduce_lanes` in a spec.
struct reduce_lanes_arguments {
  granularity decides = granularity::token;
  reduction how = reduction::sum;
  static constexpr auto fields() {
    return std::tuple{field{"decides", &reduce_lanes_arguments::decides}, field{"how", &reduce_lanes_arguments::how}};
  }
};

/// The arguments of `put_first` in a spec.
struct put_first_arguments {
  int tokens = 0;
  double part = 0;
  rest_order then = rest_order::recency;
  std::uint64_t seed = 42;
  static constexpr auto fields() {
    return std::tuple{field{"tokens", &put_first_arguments::tokens}, field{"part", &put_first_arguments::part},
                      field{"then", &put_first_arguments::then}, field{"seed", &put_first_arguments::seed}};
  }
};

/// The parts of a spec after its scorer.
struct spec_parts {
  any_protection protect{};
  any_budget limit{};
  over_budget trigger{};
  std::optional<reduce_lanes_arguments> reduce{};
  std::optional<put_first_arguments> first{};
  std::optional<at_least> pick{};
  bool limited = false;
  bool scoped = false;                                                ///< the budget says who shares it
  std::map<std::string, by_lane<int const>> const* tables = nullptr;  ///< those of the registry
  int budget_column = 1;
  int reduce_column = 0;
  int first_column = 0;
  int pick_column = 0;
};

namespace detail {

/// The arguments of `span` in a spec.
struct span_arguments {
  int begin = 0;
  int end = 0;
  static constexpr auto fields() {
    return std::tuple{field{"begin", &span_arguments::begin}, field{"end", &span_arguments::end}};
  }
};

inline std::vector<std::string> part_names() {
  return {"reduce_lanes", "sinks",     "recent",      "span",      "safe",    "everything",
          "budget",       "unlimited", "over_budget", "put_first", "at_least"};
}

template <class T>
T read_part(spec_part const& from, T made = {}) {
  set_fields(made, from);
  check_parsed(made, from.column);
  return made;
}

/// Notes the column of a part that a section may have once. `at` is 0 before.
inline void once(int& at, spec_part const& from) {
  if (at != 0) refuse_twice(from.column, from.name, at);
  at = from.column;
}

/// The arguments of `budget` in a spec.
struct budget_arguments {
  int tokens = -1;
  double drop = -1;
  std::int64_t bytes = -1;
  budget_scope scope = budget_scope::lane;
  double floor = 0;
  int floor_tokens = 0;
  rounding round = rounding::exact;
  sharing by = sharing::fixed;
  double beta = 20;
  ramp_rule rule = ramp_rule::exact;
  label table{};
  static constexpr auto fields() {
    return std::tuple{field{"tokens", &budget_arguments::tokens},
                      field{"ratio", &budget_arguments::drop},
                      field{"bytes", &budget_arguments::bytes},
                      field{"scope", &budget_arguments::scope},
                      field{"floor", &budget_arguments::floor},
                      field{"rounding", &budget_arguments::round},
                      field{"by", &budget_arguments::by},
                      field{"beta", &budget_arguments::beta},
                      field{"rule", &budget_arguments::rule},
                      field{"table", &budget_arguments::table},
                      field{"floor_tokens", &budget_arguments::floor_tokens}};
  }
};

inline void expect_no_argument(spec_part const& from, std::string_view name, char const* why) {
  for (auto const& each : from.arguments) {
    if (each.name == name) refuse_spec(each.name_column, each.name, why);
  }
}

inline any_budget read_budget(spec_part const& from) {
  budget_arguments with;
  set_fields(with, from);
  if (with.by != sharing::ramp) {
    expect_no_argument(from, "beta", "only by=ramp has it");
    expect_no_argument(from, "rule", "only by=ramp has it");
  }
  if (with.by != sharing::table) expect_no_argument(from, "table", "only by=table has it");
  if (with.by != sharing::fixed && with.scope != budget_scope::lane) {
    refuse_spec(from.column, from.name, "a ramp and a table are of lanes that share with nobody");
  }
  int const amounts = (with.tokens != -1) + (with.drop != -1) + (with.bytes != -1);
  if (amounts != 1) {
    refuse_spec(from.column, from.name, "it says how much once: budget(1024), budget(ratio=0.5) or budget(bytes=N)");
  }
  any_budget made;
  made.of = with.drop != -1    ? any_budget::amount::ratio
            : with.bytes != -1 ? any_budget::amount::bytes
                               : any_budget::amount::tokens;
  made.tokens = with.tokens != -1 ? with.tokens : 0;
  made.drop = with.drop != -1 ? with.drop : 0;
  made.bytes = with.bytes != -1 ? with.bytes : 0;
  made.shared_by = with.scope;
  made.floor_part = with.floor;
  made.floor_tokens = with.floor_tokens;
  made.round = with.round;
  made.by = with.by;
  made.table = with.table;
  made.shares.beta = with.beta;
  made.shares.rule = with.rule;
  check_parsed(made, from.column);
  if (made.round != rounding::exact && made.of != any_budget::amount::ratio) {
    refuse_spec(from.column, from.name, "only a ratio is rounded");
  }
  return made;
}

/// Adds a protection. False if the part is none.
inline bool add_protection(any_protection& to, spec_part const& from) {
  any_protection more;
  if (from.name == "sinks") {
    more = read_part<sinks>(from);
  } else if (from.name == "recent") {
    more = read_part<recent>(from);
  } else if (from.name == "safe") {
    more = read_part<safe>(from);
  } else if (from.name == "everything") {
    more = read_part<everything>(from);
  } else if (from.name == "span") {
    span_arguments where;
    set_fields(where, from);
    position_span const made{where.begin, where.end};
    check_parsed(made, from.column);
    more = made;
  } else {
    return false;
  }
  if (to.count == any_protection::most) {
    refuse_spec(from.column, from.name, "at most eight protections are joined");
  }
  to.add(more.parts[0]);
  return true;
}

/// True if a budget says who shares it, by name or as its fourth value.
inline bool says_scope(spec_part const& budget) {
  for (std::size_t i = 0; i < budget.arguments.size(); ++i) {
    std::string_view const name = budget.arguments[i].name;
    if (name == "scope" || (name.empty() && i == 3)) return true;
  }
  return false;
}

inline spec_parts read_parts(std::vector<spec_part> const& spec) {
  spec_parts made;
  int limited = 0;
  int triggered = 0;
  for (std::size_t i = 1; i < spec.size(); ++i) {
    spec_part const& from = spec[i];
    if (from.name == "budget" || from.name == "unlimited") {
      once(limited, from);
      made.limited = true;
      made.limit = from.name == "budget" ? read_budget(from) : any_budget(read_part<unlimited>(from));
      made.scoped = says_scope(from);
      made.budget_column = from.column;
    } else if (from.name == "over_budget") {
      once(triggered, from);
      made.trigger = read_part<over_budget>(from);
    } else if (from.name == "reduce_lanes") {
      once(made.reduce_column, from);
      set_fields(made.reduce.emplace(), from);
    } else if (from.name == "put_first") {
      once(made.first_column, from);
      set_fields(made.first.emplace(), from);
    } else if (from.name == at_least::name) {
      once(made.pick_column, from);
      made.pick = read_part<at_least>(from, {.unbounded = true});
    } else if (!add_protection(made.protect, from)) {
      refuse_spec(from.column, from.name, accepted("there are the parts", part_names(), from.name));
    }
  }
  return made;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

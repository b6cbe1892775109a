// The parts of a spec after its scorer, as values, and how they are read.
#pragma once

#include <kvpolicy/printed/any_pick.hpp>
#include <kvpolicy/printed/any_protection.hpp>
#include <kvpolicy/printed/spec.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/stages/put_first.hpp>
#include <kvpolicy/stages/reduce_lanes.hpp>
#include <kvpolicy/trigger/phase.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A stage of a spec: the part that names it, or a stage that a system has.
struct spec_stage {
  spec_part from{};
  std::variant<std::monostate, reduce_lanes<full>, put_first<full>> own{};
};

/// The parts of a spec after its scorer.
struct spec_parts {
  any_protection protect{};
  any_budget limit{};
  any_trigger trigger{};
  any_pick pick{};
  std::vector<spec_stage> stages{};  ///< in the order in which they apply
  bool limited = false;
  bool scoped = false;  ///< the budget says who shares it
  int budget_column = 1;
  int pick_column = 0;
  int trigger_column = 0;
  std::optional<phase> when{};  ///< none: as the scorer says
  int when_column = 0;

  /// The stage of this name, or null.
  [[nodiscard]] spec_stage const* stage(std::string_view name) const {
    for (spec_stage const& each : stages) {
      if (each.from.name == name) return &each;
    }
    return nullptr;
  }
  /// Adds a stage of a system, if the spec does not have it. It applies before those of the spec.
  template <class Stage>
  void add(Stage const& own) {
    if (stage(Stage::name) != nullptr) return;
    auto at = stages.begin();
    while (at != stages.end() && at->own.index() != 0) ++at;
    stages.insert(at, {{Stage::name, 1, {}}, own});
  }
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

/// The argument of `when` in a spec.
struct when_argument {
  phase at = phase::step;
  static constexpr auto fields() { return std::tuple{field{"phase", &when_argument::at}}; }
};

inline std::vector<std::string> part_names() {
  return {"sinks",       "recent",      "span",       "safe",     "everything", "budget", "unlimited",
          "over_budget", "full_buffer", "over_total", "at_least", "lowest_one", "when"};
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

/// Reads a trigger. False if the part is none.
inline bool read_trigger(any_trigger& to, spec_part const& from) {
  auto const one = [&]<class Trigger>(Trigger made) {
    if (from.name != Trigger::name) return false;
    to = read_part(from, made);
    return true;
  };
  return one(over_budget{}) || one(full_buffer{}) || one(over_total{});
}
/// Reads a pick. False if the part is none.
inline bool read_pick(any_pick& to, spec_part const& from) {
  auto const one = [&]<class Pick>(Pick made) {
    if (from.name != Pick::name) return false;
    to = read_part(from, made);
    return true;
  };
  return one(at_least{.unbounded = true}) || one(lowest_one{});
}

/// Reads the parts of an eviction after its scorer. `stages` are the names of the stages that there are.
inline spec_parts read_parts(std::vector<spec_part> const& spec, std::vector<std::string> const& stages) {
  spec_parts made;
  int limited = 0;
  for (std::size_t i = 1; i < spec.size(); ++i) {
    spec_part const& from = spec[i];
    if (from.name == "budget" || from.name == "unlimited") {
      once(limited, from);
      made.limited = true;
      made.limit = from.name == "budget" ? read_budget(from) : any_budget(read_part<unlimited>(from));
      made.scoped = says_scope(from);
      made.budget_column = from.column;
    } else if (std::find(stages.begin(), stages.end(), from.name) != stages.end()) {
      if (spec_stage const* const before = made.stage(from.name))
        refuse_twice(from.column, from.name, before->from.column);
      made.stages.push_back({from, {}});
    } else if (read_trigger(made.trigger, from)) {
      once(made.trigger_column, from);
    } else if (read_pick(made.pick, from)) {
      once(made.pick_column, from);
    } else if (from.name == "when") {
      once(made.when_column, from);
      made.when = read_part<when_argument>(from).at;
    } else if (!add_protection(made.protect, from)) {
      std::vector<std::string> known = stages;
      for (std::string const& each : part_names()) known.push_back(each);
      refuse_spec(from.column, from.name, accepted("there are the parts", known, from.name));
    }
  }
  return made;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

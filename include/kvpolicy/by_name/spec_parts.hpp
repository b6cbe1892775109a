// SPDX-License-Identifier: Apache-2.0
// The parts of a spec after its scorer, as values, and how they are read.
#pragma once

#include <kvpolicy/by_name/read_budget.hpp>
#include <kvpolicy/by_name/spec.hpp>
#include <kvpolicy/parts/phase.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/stages/blocks.hpp>
#include <kvpolicy/scorers/stages/critical.hpp>
#include <kvpolicy/scorers/stages/put_first.hpp>
#include <kvpolicy/scorers/stages/reduce_lanes.hpp>
#include <optional>
#include <string>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A stage of a spec: the part that names it, or one of the stages that systems have.
struct spec_stage {
  spec_part from{};
  std::optional<reduce_lanes<full>> reduces{};
  std::optional<put_first<full>> puts_first{};
  std::optional<blocks<full>> in_blocks{};
  std::optional<critical<full>> is_critical{};

  [[nodiscard]] bool is_of_system() const {
    return reduces.has_value() || puts_first.has_value() || in_blocks.has_value() || is_critical.has_value();
  }
};

/// The parts of a spec after its scorer.
struct spec_parts {
  any_protection protect{};
  any_budget limit{};
  any_trigger trigger{};
  any_pick pick{};
  bool has_budget = false;            ///< a system says itself how many entries stay
  bool shares_if_table = false;       ///< a system's shares by importance are there if the registry has its table
  std::string shared_by{};            ///< the allotter that a system has: "hits"; empty: none
  std::vector<spec_stage> stages{};   ///< in the order in which they apply
  spec_part const* budget = nullptr;  ///< the part that is the budget; null: there is none
  spec_part const* picks = nullptr;   ///< the part that is the pick
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
  void add(spec_stage const& one) {
    if (stage(one.from.name) != nullptr) return;
    auto at = stages.begin();
    while (at != stages.end() && at->is_of_system()) ++at;
    stages.insert(at, one);
  }
  /// Lets an allotter of the registry share the budget out.
  void share(allotter auto const& by) { shared_by = to_string(by); }
  void add(reduce_lanes<full> const& own) { add(spec_stage{{own.name, 1, {}}, own, {}, {}, {}}); }
  /// Adds one whose numbers are those of the system. A spec has no other one beside it.
  void add(put_first<full> const& own) { add_only(spec_stage{{own.name, 1, {}}, {}, own, {}, {}}); }
  void add(blocks<full> const& own) { add_only(spec_stage{{own.name, 1, {}}, {}, {}, own, {}}); }
  void add(critical<full> const& own) { add_only(spec_stage{{own.name, 1, {}}, {}, {}, {}, own}); }

 private:
  void add_only(spec_stage const& own) {
    spec_stage const* const said = stage(own.from.name);
    if (said != nullptr) detail::refuse_spec(said->from.column, said->from.name, "its system has one of its own");
    add(own);
  }
};

namespace detail {

/// The arguments of `span` in a spec.
struct span_arguments {
  int begin = 0;
  int end = 0;
  static constexpr auto fields() {
    return make_fields(field{"begin", &span_arguments::begin}, field{"end", &span_arguments::end});
  }
};

/// The argument of `when` in a spec.
struct when_argument {
  phase at = phase::step;
  static constexpr auto fields() { return make_fields(field{"phase", &when_argument::at}); }
};

inline std::vector<std::string> part_names() {
  return {"sinks",    "recent",         "span",        "safe",        "everything", "prompt", "marks",
          "budget",   "unlimited",      "over_budget", "full_buffer", "over_total", "every",  "top",
          "at_least", "at_least_table", "lowest",      "lowest_one",  "when"};
}

/// Notes the column of a part that a section may have once, or the part. `at` is 0 or null before.
inline void once(int& at, spec_part const& from) {
  if (at != 0) refuse_twice(from.column, from.name, at);
  at = from.column;
}
inline void once(spec_part const*& at, spec_part const& from) {
  if (at != nullptr) refuse_twice(from.column, from.name, at->column);
  at = &from;
}

/// Refuses a part whose table the registry does not have.
inline void expect_table(by_lane<int const> const& table, spec_part const& from, char const* name) {
  if (table.data != nullptr) return;
  refuse_spec(from.column, from.name, std::string("the table ") + name + " is given to the registry by its name");
}

/// Gives a scorer or a system the classes of tokens, if it goes by them: it has `use_classes(by_lane<int const>)`.
template <class Part>
void give_classes([[maybe_unused]] Part& to, [[maybe_unused]] spec_part const& from,
                  [[maybe_unused]] known_parts const& known) {
  if constexpr (requires { to.use_classes(known.token_class); }) {
    expect_table(known.token_class, from, "token_class");
    to.use_classes(known.token_class);
  }
}

/// A part whose parameter prints without a name and may be written by one: every(64) and every(steps=64) are alike.
inline spec_part with_parameter(spec_part from, std::string_view name) {
  bool const named = from.arguments.size() == 1 && from.arguments.front().name == name;
  if (named) from.arguments.front().name = {};
  return from;
}

/// Adds a protection. False if the part is none.
inline bool add_protection(any_protection& to, spec_part const& from, known_parts const& known) {
  any_protection more;
  if (from.name == "sinks") {
    more = read_part<sinks>(with_parameter(from, "tokens"));
  } else if (from.name == "recent") {
    more = read_part<recent>(with_parameter(from, "tokens"));
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
  } else if (from.name == prompt::name) {
    expect_table(known.prompt_end, from, "prompt_end");
    more = read_part(from, prompt{known.prompt_end});
  } else if (from.name == marks::name) {
    expect_table(known.token_class, from, "token_class");
    more = read_part(from, marks{1, known.token_class});
  } else if (!read_own(known.protections, from, more)) {
    return false;
  }
  if (to.count == any_protection::most) {
    refuse_spec(from.column, from.name, "at most eight protections are joined");
  }
  to.add(more);
  return true;
}

/// Reads a trigger. False if the part is none.
inline bool read_trigger(any_trigger& to, spec_part const& from, known_parts const& known) {
  auto const one = [&]<class Trigger>(Trigger made, char const* parameter) {
    if (from.name != Trigger::name) return false;
    to = read_part(with_parameter(from, parameter), made);
    return true;
  };
  return one(over_budget{}, "slack") || one(full_buffer{}, "entries") || one(over_total{}, "entries") ||
         one(every{}, "steps") || read_own(known.triggers, from, to);
}
/// Reads thresholds that a table of the registry has.
inline at_least_table read_thresholds(spec_part const& from, known_parts const& known) {
  at_least_table made;
  set_fields(made, from);
  made.use_table(find_table(known.heads, made.table, from, argument_of<at_least_table>(from, "table")));
  check_parsed(made, from.column);
  return made;
}
/// Reads a pick. False if the part is none.
inline bool read_pick(any_pick& to, spec_part const& from, known_parts const& known) {
  auto const one = [&]<class Pick>(Pick made) {
    if (from.name != Pick::name) return false;
    to = read_part(from, made);
    return true;
  };
  if (from.name == at_least_table::name) {
    to = read_thresholds(from, known);
    return true;
  }
  return one(top{}) || one(at_least{.unbounded = true}) || one(lowest{}) || one(lowest_one{}) ||
         read_own(known.picks, from, to);
}

/// Reads the parts of an eviction after its scorer.
inline spec_parts read_parts(std::vector<spec_part> const& spec, known_parts const& known) {
  std::vector<std::string> const& stages = known.stages;
  spec_parts made;
  for (std::size_t i = 1; i < spec.size(); ++i) {
    spec_part const& from = spec[i];
    if (read_limit(made.limit, from, known)) {
      once(made.budget, from);
    } else if (std::find(stages.begin(), stages.end(), from.name) != stages.end()) {
      if (spec_stage const* const before = made.stage(from.name))
        refuse_twice(from.column, from.name, before->from.column);
      made.stages.push_back({from, {}});
    } else if (read_trigger(made.trigger, from, known)) {
      once(made.trigger_column, from);
    } else if (read_pick(made.pick, from, known)) {
      once(made.picks, from);
    } else if (from.name == "when") {
      once(made.when_column, from);
      made.when = read_part<when_argument>(from).at;
    } else if (!add_protection(made.protect, from, known)) {
      std::vector<std::string> names = known.names();
      for (std::string const& each : part_names()) names.push_back(each);
      refuse_spec(from.column, from.name, accepted("there are the parts", names, from.name));
    }
  }
  return made;
}

/// Refuses parts of a spec that its system, which has joined its own to them, does not do: a pick and shares that the
/// system has itself, and a budget or a pick that leaves nothing to share out.
inline void refuse_replaced(spec_parts const& said, spec_parts const& joined, spec_part const& system) {
  std::string const name(system.name);
  auto const refuse = [&](spec_part const& part, spec_argument const* at, char const* rule) {
    at != nullptr ? refuse_spec(at->value_column, at->value, name + rule)
                  : refuse_spec(part.column, part.name, name + rule);
  };
  if (said.picks != nullptr && !(joined.pick == said.pick)) refuse(*said.picks, nullptr, " has one of its own");
  if (joined.has_budget && said.budget != nullptr) refuse(*said.budget, nullptr, " says itself how many entries stay");
  if (joined.limit == said.limit && joined.shared_by == said.shared_by) return;
  char const* const amount = " shares out a budget of tokens, of a ratio or of bytes";
  if (said.picks != nullptr && said.pick.by_threshold()) refuse(*said.picks, nullptr, amount);
  if (said.budget == nullptr) return;
  any_budget const& limit = said.limit;
  if (!limit.is_counted()) refuse(*said.budget, nullptr, amount);
  if (limit.by != sharing::fixed) refuse(*said.budget, budget_argument(*said.budget, "by"), " has shares of its own");
  if (limit.shared_by == budget_scope::lane) return;
  refuse(*said.budget, budget_argument(*said.budget, "scope"), " has shares that differ, so lanes share with nobody");
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

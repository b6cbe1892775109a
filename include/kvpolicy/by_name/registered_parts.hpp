// SPDX-License-Identifier: Apache-2.0
// The parts that a registry knows by name: scorers, stages, tables.
#pragma once

#include <concepts>
#include <functional>
#include <kvpolicy/by_name/any_admission.hpp>
#include <kvpolicy/by_name/any_scorer.hpp>
#include <kvpolicy/by_name/named_tables.hpp>
#include <kvpolicy/by_name/scorer_info.hpp>
#include <kvpolicy/by_name/set_fields.hpp>
#include <kvpolicy/by_name/spec_parts.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <kvpolicy/parts/phase.hpp>
#include <kvpolicy/scorers/stages/frozen.hpp>
#include <map>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The scorers, stages and tables of a registry, and how they are made from the parts of a spec.
template <executor Executor>
class registered_parts {
 public:
  using any_entry_scorer = basic_any_scorer<Executor>;
  using any_pages_scorer = basic_any_page_scorer<Executor>;
  using make_scorer = std::function<any_entry_scorer(spec_part const&, spec_parts&, registered_parts const&)>;
  using make_page_scorer = std::function<any_pages_scorer(spec_part const&, registered_parts const&)>;
  /// The admission of a system whose fields a part sets, and the system's text.
  using make_admission =
      std::function<std::pair<basic_any_admission<Executor>, std::string>(spec_part const&, registered_parts const&)>;
  using make_stage = std::function<any_entry_scorer(any_entry_scorer const&, spec_part const&)>;

  template <class Make>
  struct named {
    scorer_info info;
    Make make;
    bool is_system = false;
  };
  template <class Make>
  using list_of = std::vector<named<Make>>;

  list_of<make_scorer> scorers;        ///< of evictions and admissions; systems, too
  list_of<make_scorer> admitting;      ///< of admissions only
  list_of<make_admission> admissions;  ///< systems of admissions
  list_of<make_page_scorer> pages;
  std::vector<std::pair<std::string, make_stage>> stages;
  using make_frozen = std::function<any_entry_scorer(spec_part const&, spec_part const&, registered_parts const&)>;
  std::vector<std::pair<std::string, make_frozen>> freezable_scorers;  ///< those that the stage `frozen` may be around
  known_parts others;  ///< the names of the stages, and parts of a program's own
  std::map<std::string, by_lane<int const>> shares;
  std::map<std::string, rows_of_heads> rows;

  /// Refuses a part whose name, fields or values no spec can say, and one whose name another part has.
  template <class Part>
  void expect_new(Part const& defaults) const {
    std::string_view const name = Part::name;
    expects(spec_reader::is_name(name), "registry", "name", quote_of(name), "a name is of letters, digits and _ only");
    with_fields<Part>([&](auto const&... each) {
      (expect_sayable(std::string(name) + "'s field", each.name), ...);
      (expect_sayable(std::string(name) + "." + each.name, to_string(defaults.*each.member)), ...);
    });
    auto const expect = [&](std::string_view other, char const* what) {
      expects(other != name, "registry", "name", name,
              [&] { return std::string("there is a ") + what + " of that name"; });
    };
    for (auto const& each : scorers) expect(each.info.name, "scorer");
    for (auto const& each : admitting) expect(each.info.name, "scorer");
    for (auto const& each : admissions) expect(each.info.name, "system");
    for (auto const& each : pages) expect(each.info.name, "scorer");
    for (auto const& each : stages) expect(each.first, "stage");
    for (auto const& each : others.names()) expect(each, "part");
    for (auto const& each : others.allotters) expect(each.name, "budget's share");
    for (auto const& each : part_names()) expect(each, "part");
  }

  /// The scorer that a part names, in a list, or in another one of its type. The names in all lists are accepted.
  template <class Make, class... Others>
  static named<Make> const& find(char const* what, spec_part const& from, list_of<Make> const& among,
                                 list_of<Others> const&... others) {
    named<Make> const* found = nullptr;
    std::vector<std::string> known;
    auto const look = [&](auto const& list) {
      for (auto const& each : list) {
        if constexpr (std::same_as<decltype(each), named<Make> const&>) {
          if (from.name == each.info.name) found = &each;
        }
        known.push_back(each.info.name);
      }
    };
    look(among);
    (look(others), ...);
    if (found == nullptr) {
      refuse_spec(from.column, from.name,
                  accepted(std::string(what) + " begins with its scorer; there are", known, from.name));
    }
    return *found;
  }
  /// The system of an admission that a part names, or null.
  [[nodiscard]] named<make_admission> const* find_system(spec_part const& from) const {
    for (auto const& each : admissions) {
      if (each.info.name == from.name) return &each;
    }
    return nullptr;
  }

  /// Adds signals to those that a scorer reads.
  template <class Needs>
  static void add_needs(scorer_info& to) {
    each_need<Needs>::visit([&](auto const* signal) {
      to.needs.push_back(signal_name(signal));
      to.tensors.push_back(tensor_name(signal));
    });
  }
  template <class Score>
  static scorer_info describe(Score const& defaults) {
    scorer_info made;
    made.name = Score::name;
    made.fields = list_fields(defaults);
    add_needs<typename Score::needs>(made);
    made.decides = Score::decides;
    made.when = facts_of(defaults).when;
    if constexpr (requires { Score::prompts_only; }) made.prompts_only = Score::prompts_only;
    if constexpr (requires { Score::decodes_only; }) made.decodes_only = Score::decodes_only;
    if constexpr (detail::reads_rows<Score>) made.rows_field = table_field<Score>();
    if constexpr (requires { Score::keeps_prompts; }) made.keeps_prompts = Score::keeps_prompts;
    if constexpr (requires { Score::slack; }) made.slack = Score::slack;
    return made;
  }
  template <class Score>
  static named<make_scorer> scorer_of(Score const& defaults) {
    return {describe(defaults), [defaults](spec_part const& from, spec_parts&, registered_parts const& in) {
              return any_entry_scorer(in.read(defaults, from));
            }};
  }
  template <class Score>
  static named<make_page_scorer> page_scorer_of(Score const& defaults) {
    return {describe(defaults), [defaults](spec_part const& from, registered_parts const& in) {
              return any_pages_scorer(in.read(defaults, from));
            }};
  }

  template <class System>
  static named<make_admission> system_of(System const& defaults) {
    scorer_info info = describe(defaults.admission().score);
    info.name = System::name;
    info.fields = list_fields(defaults);
    return {info, [defaults](spec_part const& from, registered_parts const& in) {
              System const chosen = in.read(defaults, from);
              return std::pair(basic_any_admission<Executor>(chosen.admission()), to_string(chosen));
            }};
  }
  template <class Make>
  static std::vector<scorer_info> infos_of(list_of<Make> const& of) {
    std::vector<scorer_info> made;
    for (auto const& each : of) made.push_back(each.info);
    return made;
  }

  /// A scorer or a system with the fields that a part sets, the table that it names, and the classes of tokens.
  template <class Score>
  [[nodiscard]] Score read(Score score, spec_part const& from) const {
    if constexpr (!reads_a_table<Score>) {
      set_fields(score, from);
    } else if constexpr (described<Score>) {
      set_fields(score, from);
      name_table(score, from, argument_of<Score>(from, table_field<Score>()));
    } else {
      table_argument with{score.table};
      set_fields(with, from);
      score.table = with.table;
      name_table(score, from, argument_of<table_argument>(from, "table"));
    }
    give_classes(score, from, others);
    give_sketch(score, rows);
    check_parsed(score, from.column);
    return score;
  }

  /// Gives a scorer the table that it names, which an argument says if one does.
  template <class Score>
  void name_table(Score& score, spec_part const& from, spec_argument const* said) const {
    if (score.table == label{}) return;
    if constexpr (reads_rows<Score>) {
      score.use_table(find_table(rows, score.table, from, said));
    } else {
      score.use_table(find_table(others.heads, score.table, from, said));
    }
  }

  /// Notes that a scorer or the scorer of a system can be frozen, if it can.
  template <class Part>
  void add_freezable([[maybe_unused]] Part const& defaults) {
    if constexpr (freezable<scorer_inside<Part>>) {
      auto const make = [defaults](spec_part const& from, spec_part const& stage, registered_parts const& in) {
        return with_scorer_of(in.read(defaults, from), [&](auto const& one) { return frozen_by(one, stage); });
      };
      freezable_scorers.emplace_back(Part::name, make);
    }
  }
  template <class Score>
  static any_entry_scorer frozen_by(Score const& one, spec_part const& stage) {
    if constexpr (freezable<Score>) {
      frozen<Score> made{one};
      set_fields(made, stage);
      return any_entry_scorer(made);
    } else {
      refuse_spec(stage.column, stage.name, std::string(Score::name) + " cannot be frozen");
    }
  }
  /// The frozen scorer of a spec whose first stage is `frozen`.
  [[nodiscard]] any_entry_scorer freeze(spec_part const& from, spec_part const& stage) const {
    std::vector<std::string> names;
    for (auto const& [name, make] : freezable_scorers) {
      if (name == from.name) return make(from, stage, *this);
      names.push_back(name);
    }
    refuse_spec(stage.column, stage.name, accepted("the scorers that can be frozen are", names, ""));
  }

  /// A stage of a spec around a scorer.
  [[nodiscard]] any_entry_scorer apply(spec_stage const& stage, any_entry_scorer const& inner) const {
    if (stage.reduces) return any_entry_scorer(stage.reduces->around(inner));
    if (stage.puts_first) return any_entry_scorer(stage.puts_first->around(inner));
    if (stage.in_blocks) return any_entry_scorer(stage.in_blocks->around(inner));
    if (stage.is_critical) return any_entry_scorer(stage.is_critical->around(inner));
    for (auto const& [name, make] : stages) {
      if (name == stage.from.name) return make(inner, stage.from);
    }
    return inner;
  }
  static void expect_sayable(std::string const& what, std::string const& text) {
    expects(sayable(text), "registry", what, quote_of(text), "a spec says texts without blanks and , ( ) | =");
  }
  /// Refuses the name of a table that no spec can say.
  static void expect_table_name(std::string const& name) {
    label said;
    expects(
        read_text(name, said), "registry", "table", [&] { return quote_of(name); },
        "a spec says names of at most 31 characters, without blanks and , ( ) | =");
  }

  /// Adds a part of a program's own.
  template <class Any, class Own, class Part>
  void add_own(parts_of_program<Any>& to, Part const& defaults) {
    expect_new(defaults);
    for (char const* const other : {"window", "cap", "page", "dense", "inherit"}) {
      expects(std::string_view(Part::name) != other, "registry", "name", Part::name,
              "admissions and selections have a part of that name");
    }
    to.emplace_back(Part::name, [defaults](spec_part const& from) { return Any(Own(read_part(from, defaults))); });
  }

  template <allotter By>
  void add_allotter(By const& defaults) {
    expect_new(defaults);
    auto const make = [defaults](spec_part const& from, known_allotter::tables const& heads) {
      By made = defaults;
      set_fields(made, from);
      if constexpr (requires(by_lane<float const> numbers) { made.use_table(numbers); })
        made.use_table(find_table(heads, made.table, from, argument_of<By>(from, "table")));
      check_parsed(made, from.column);
      return any_allotter::on<Executor>(made);
    };
    others.allotters.push_back({By::name, field_names<By>(), make});
  }
  /// The allotter of a system. What is wrong with it is wrong with the system, which stands at `front`.
  [[nodiscard]] any_allotter allotter_of_system(std::string const& text, spec_part const& front) const {
    spec_part by = split_spec(text).front();
    known_allotter const& shipped = *others.allotter_of(by.name);
    say_of_system(by, front);
    return shipped.make(by, others.heads);
  }
  /// Gives a budget the tables, the allotter of its system and the window of its scorer, as far as its shares need
  /// them. `said` is the argument that names a table.
  void bind_shares(any_budget& limit, spec_parts const& with, forced_ends const& ends, spec_part const& front,
                   spec_argument const* said) const {
    if (limit.by == sharing::table) limit.in_table = find_table(shares, limit.table, front, said);
    if (limit.by == sharing::importance && with.shares_if_table && others.heads.count(to_string(limit.table)) == 0) {
      any_budget const usual;
      limit.by = sharing::fixed;
      limit.table = usual.table, limit.least = usual.least, limit.cap = usual.cap;
    }
    if (limit.by == sharing::importance) limit.weights = find_table(others.heads, limit.table, front, said);
    if (!with.shared_by.empty()) {
      limit.share(allotter_of_system(with.shared_by, front));
      if (with.budget != nullptr) check_scope_of_shares(limit, *with.budget);
    }
    if (ends.sinks != 0) return;
    if (limit.by == sharing::ramp) limit.shares.window = ends.recent;
    if (limit.by == sharing::allotted) limit.share(limit.sharer.with_window(ends.recent));
  }
};

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// The registry of the parts of specs, and how a spec becomes a policy.
#pragma once

#include <kvpolicy/by_name/admission_systems.hpp>
#include <kvpolicy/by_name/any_admission.hpp>
#include <kvpolicy/by_name/any_applier.hpp>
#include <kvpolicy/by_name/any_policy.hpp>
#include <kvpolicy/by_name/attention_systems.hpp>
#include <kvpolicy/by_name/prompt_systems.hpp>
#include <kvpolicy/by_name/registered_parts.hpp>
#include <kvpolicy/by_name/systems.hpp>
#include <kvpolicy/by_name/user_parts.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <kvpolicy/scorers/knorm.hpp>

namespace KVPOLICY_NAMESPACE {

/// A registry of the parts of specs by name: scorers of entries and of pages, stages, systems, protections, budgets,
/// picks, triggers and tables. It is a plain value: copy the shipped one, and add a part of your own in one line.
///
///     auto mine = kv::shipped();
///     mine.add(value_aware{});
///     kv::any_policy policy = kv::parse("value_aware | safe(sinks=4, recent=32) | budget(256)", mine);
template <executor Executor>
class basic_registry : public detail::known_appliers<Executor> {
 public:
  using policy = basic_any_policy<Executor>;
  using any_entry_scorer = basic_any_scorer<Executor>;

  /// Adds a scorer under its `name`. A spec sets its fields by the names in `fields()`; a field that a spec does not
  /// set has its value in `defaults`. Evictions and admissions may have a scorer of entries, selections one of pages.
  /// - throws: `invalid_argument` if there is a part of that name.
  template <scorer Score>
  basic_registry& add(Score const& defaults) {
    parts_.expect_new(defaults);
    if constexpr (page_scorer<Score>) {
      parts_.pages.push_back(parts_.page_scorer_of(defaults));
    } else {
      parts_.scorers.push_back(parts_.scorer_of(defaults));
      parts_.add_freezable(defaults);
    }
    return *this;
  }
  /// Adds a scorer of admissions only.
  template <entry_scorer Score>
  basic_registry& add_to_admissions(Score const& defaults) {
    parts_.expect_new(defaults);
    parts_.admitting.push_back(parts_.scorer_of(defaults));
    return *this;
  }

  /// Replaces the defaults of a registered scorer, also of members that a spec cannot set, such as trained weights.
  /// - throws: `invalid_argument` if there is no scorer of that name.
  template <scorer Score>
  basic_registry& set(Score const& defaults) {
    for (auto& each : parts_.scorers) {
      if (each.info.name != Score::name) continue;
      each = parts_.scorer_of(defaults);
      return *this;
    }
    expects(false, "registry", "name", Score::name, "there is no scorer of that name");
    return *this;
  }

  /// Adds a system: a name for a spec, whose fields are those of the scorer and of the budget. It prints as that spec.
  /// - throws: `invalid_argument` if there is a part of that name.
  template <system_of_parts System>
  basic_registry& add(System const& defaults) {
    parts_.expect_new(defaults);
    auto made = parts_.scorer_of(defaults.scorer());
    made.info.name = System::name;
    made.info.fields = list_fields(defaults);
    spec_parts joined;
    defaults.join(joined);
    for (spec_stage const& each : joined.stages) {
      if (each.reduces) made.info.decides = each.reduces->decides;
      if (each.is_critical) parts_.template add_needs<critical<full>::needs>(made.info);
    }
    if constexpr (detail::reads_rows<System>) made.info.rows_field = detail::table_field<System>();
    made.info.has_no_budget = joined.has_budget || joined.pick.has_no_budget();
    if constexpr (requires { System::when; }) made.info.when = System::when;
    if constexpr (requires { System::prompts_only; }) made.info.prompts_only = System::prompts_only;
    made.is_system = true;
    made.make = [defaults](spec_part const& from, spec_parts& with, detail::registered_parts<Executor> const& in) {
      System const chosen = in.read(defaults, from);
      if constexpr (requires { System::adds_protection; }) {
        if (with.protect.count == any_protection::most) {
          detail::refuse_spec(from.column, from.name, "at most eight protections are joined, its own included");
        }
      }
      if constexpr (requires { System::when; }) with.when = with.when.value_or(System::when);
      spec_parts const said = with;
      chosen.join(with);
      detail::refuse_replaced(said, with, from);
      return detail::with_scorer_of(chosen, [](auto const& one) { return any_entry_scorer(one); });
    };
    parts_.scorers.push_back(made);
    if (joined.stages.empty()) parts_.add_freezable(defaults);
    return *this;
  }

  /// Adds a system of an admission, likewise.
  /// - throws: `invalid_argument` if there is a part of that name.
  template <system_of_admission System>
  basic_registry& add(System const& defaults) {
    parts_.expect_new(defaults);
    parts_.admissions.push_back(parts_.system_of(defaults));
    return *this;
  }

  /// Adds a stage under its `name`: a template of a scorer, which has `fields()` and `around(scorer)`. The scorer
  /// inside `defaults` does not matter. A stage of several types has `with_stage(visit)`, which calls visit with the
  /// one that its fields say.
  ///
  ///     mine.add_stage(kv::reduce_lanes<kv::full>{});
  /// - throws: `invalid_argument` if there is a part of that name.
  template <template <class> class Stage, class Inner>
  basic_registry& add_stage(Stage<Inner> const& defaults) {
    parts_.expect_new(defaults);
    parts_.others.stages.emplace_back(Stage<Inner>::name);
    parts_.stages.emplace_back(Stage<Inner>::name, [defaults](any_entry_scorer const& inner, spec_part const& from) {
      Stage<any_entry_scorer> made = defaults.around(inner);
      detail::set_fields(made, from);
      detail::check_parsed(made, from.column);
      auto const erased = [](auto const& one) { return any_entry_scorer(one); };  // for nvcc not in the condition
      if constexpr (requires { made.with_stage(erased); }) {
        return made.with_stage(erased);
      } else {
        return any_entry_scorer(made);
      }
    });
    return *this;
  }

  /// Adds a protection, a budget, a pick by threshold or a trigger of a program's own under its `name`. A spec sets its
  /// fields by the names in `fields()`. It is called on the host.
  ///
  ///     mine.add(every_nth{.n = 8});  // "knorm | every_nth(8) | budget(256)"
  /// - throws: `invalid_argument` if there is a part of that name.
  template <class Part>
    requires(protection<Part> || budget<Part> || threshold<Part> || trigger<Part>) && described<Part> &&
            detail::reads_on_host<typename Executor::backend>
  basic_registry& add(Part const& defaults) {
    detail::known_parts& to = parts_.others;
    if constexpr (protection<Part>)
      parts_.template add_own<any_protection, detail::own_protected>(to.protections, defaults);
    if constexpr (budget<Part>) parts_.template add_own<any_budget, detail::own_budget>(to.budgets, defaults);
    if constexpr (threshold<Part>) parts_.template add_own<any_pick, detail::own_pick>(to.picks, defaults);
    if constexpr (trigger<Part>) parts_.template add_own<any_trigger, detail::own_trigger>(to.triggers, defaults);
    return *this;
  }

  /// Adds an allotter: a budget's `by=NAME`, whose arguments set its fields, too: "budget(512, by=hits)".
  /// - throws: `invalid_argument` if there is a part of that name.
  template <allotter By>
  basic_registry& add(By const& defaults) {
    parts_.add_allotter(defaults);
    return *this;
  }

  /// Adds an applier under its `name`, by which `applier_of` finds it. No spec says it.
  /// - throws: `invalid_argument` if there is an applier of that name.
  template <applier How>
  basic_registry& add(How const& how) {
    return this->add_applier(how), *this;
  }

  /// Gives a name to a table of shares, one for each lane of a sequence, in the executor's memory. Budgets
  /// `by=table, table=NAME` of specs that are parsed later read it, also in decisions. Two names are of other tables:
  /// "prompt_end", the end of each sequence's prompt, which the part `prompt` reads, and "token_class", a row of each
  /// sequence with the class of every position, which `marks` and `fastgen` read.
  /// - throws: `invalid_argument` if no spec can say the name.
  basic_registry& table(std::string const& name, by_lane<int const> shares) {
    parts_.expect_table_name(name);
    parts_.shares.insert_or_assign(name, shares);
    if (name == "prompt_end") parts_.others.prompt_end = shares;
    if (name == "token_class") parts_.others.token_class = shares;
    return *this;
  }
  /// Gives a name to a table of numbers of heads, which `head_table(table=NAME)` of admissions reads.
  /// - throws: as for shares.
  basic_registry& table(std::string const& name, by_lane<float const> heads) {
    parts_.expect_table_name(name);
    parts_.others.heads.insert_or_assign(name, heads);
    return *this;
  }
  /// Gives a name to a table of rows of heads, which scorers such as `q_filters(table=NAME)` read. That of the name
  /// "sketch" has D rows of as many numbers as the sketch has columns, one after the other, for each KV head;
  /// `leverage` and `compactor` read it.
  /// - throws: as for shares.
  basic_registry& table(std::string const& name, rows_of_heads const& rows) {
    parts_.expect_table_name(name);
    parts_.rows.insert_or_assign(name, rows);
    return *this;
  }
  /// Gives the names that they have to all tables of a model. `model` is the name of the model that decides.
  /// - throws: `invalid_argument` if the tables are of another model, or of another shape.
  basic_registry& table(model_tables const& of, std::string_view model, shape const& about) {
    of.check("registry", model, about);
    basic_registry made = *this;
    for (auto const& [name, numbers] : of.heads()) made.table(name, numbers);
    for (auto const& [name, numbers] : of.shares()) made.table(name, numbers);
    for (auto const& [name, numbers] : of.rows()) made.table(name, numbers);
    return *this = std::move(made);
  }

  /// The scorers and systems of evictions.
  [[nodiscard]] std::vector<scorer_info> list() const { return parts_.infos_of(parts_.scorers); }
  /// The systems of admissions.
  [[nodiscard]] std::vector<scorer_info> list_admissions() const { return parts_.infos_of(parts_.admissions); }
  /// The scorers of pages, with which selections begin.
  [[nodiscard]] std::vector<scorer_info> list_selections() const { return parts_.infos_of(parts_.pages); }

  /// Parses a spec: `scorer(field=value, ...) | part | ...`. Stages apply in their order; other parts may come in any
  /// order: `sinks(4)`, `recent(32)`, `span(0, 16)`, `safe(sinks=4, recent=32)`, `everything`, `budget(...)` or
  /// `unlimited`, a trigger such as `over_budget(slack)`, a pick such as `at_least`, and `when(phase)`. The default
  /// budget is 1024 entries for each lane; a scorer that keeps everything is unlimited by default.
  /// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
  [[nodiscard]] policy parse(std::string_view text) const { return eviction_of(split_spec(text)); }

  /// The eviction that the parts of a section describe.
  [[nodiscard]] policy eviction_of(std::vector<spec_part> const& spec) const {
    if (parts_.find_system(spec.front()) != nullptr) {
      detail::refuse_spec(spec.front().column, spec.front().name, "it is a name for the parts of an admission");
    }
    auto const& found = parts_.find("a policy", spec.front(), parts_.scorers);
    spec_parts with = detail::read_parts(spec, parts_.others);
    any_entry_scorer score = found.make(spec.front(), with, parts_);
    for (std::size_t i = 0; i < with.stages.size(); ++i) {
      spec_part const& stage = with.stages[i].from;
      bool const freezes = stage.name == frozen<knorm>::name;
      if (freezes && i > 0) detail::refuse_spec(stage.column, stage.name, "it is the first stage after its scorer");
      score = freezes ? parts_.freeze(spec.front(), stage) : parts_.apply(with.stages[i], score);
    }
    return composed(score, with, spec.front());
  }
  /// The admission that the parts of a section describe.
  [[nodiscard]] basic_any_admission<Executor> admission_of(std::vector<spec_part> const& spec) const {
    spec_part const& from = spec.front();
    auto const* const system = parts_.find_system(from);
    if (system != nullptr) return detail::read_admission(spec, system->make(from, parts_).first, parts_.others, true);
    spec_parts none;
    auto const& found = parts_.find("an admission", from, parts_.admitting, parts_.scorers, parts_.admissions);
    if (found.is_system) detail::refuse_spec(from.column, from.name, "it is a name for the parts of an eviction");
    any_entry_scorer const score = found.make(from, none, parts_);
    return detail::read_admission(spec, detail::admission_by(score, from), parts_.others);
  }
  /// The text of the system of an admission that a part names, with all of its fields:
  /// "kvzap(name=kvzap, window=128, sinks=0, threshold=-4, strict=false)".
  /// - throws: `invalid_argument` if there is no such system, or a field is wrong.
  [[nodiscard]] std::string spell_admission(spec_part const& from) const {
    auto const* const system = parts_.find_system(from);
    if (system == nullptr) detail::refuse_spec(from.column, from.name, "it is no system of an admission");
    return system->make(from, parts_).second;
  }
  /// The selection that the parts of a section describe.
  [[nodiscard]] basic_any_selection<Executor> selection_of(std::vector<spec_part> spec) const {
    detail::move_page(spec);
    auto const& found = parts_.find("a selection", spec.front(), parts_.pages);
    return detail::read_selection(spec, found.make(spec.front(), parts_), parts_.others);
  }

 private:
  [[nodiscard]] policy composed(any_entry_scorer const& score, spec_parts const& with, spec_part const& front) const {
    any_budget limit = with.limit;
    spec_part const& says = with.budget != nullptr ? *with.budget : front;
    auto const said = [&](char const* field) { return detail::budget_argument(says, field); };
    forced_ends const ends = score.forces().ends;
    bool const keeps_all = ends.recent == 0x7FFFFFFF;
    bool const picks_alone = with.pick.has_no_budget();
    if (picks_alone && with.budget != nullptr && limit.of != any_budget::amount::unlimited) {
      char const* const rule = with.pick.by_threshold() ? " keeps however many entries there are"
                                                        : " drops a part of the entries, whatever the budget";
      detail::refuse_spec(says.column, says.name, detail::name_of_pick(with.pick) + rule);
    }
    if (score.facts().first && with.pick.what != any_pick::kind::top) {
      spec_stage const* first = with.stage("put_first");
      if (first == nullptr) first = with.stage("critical");
      spec_part const& puts = first != nullptr && !first->is_of_system() ? first->from : front;
      detail::refuse_spec(puts.column, puts.name, detail::name_of_pick(with.pick) + " has no places");
    }
    if ((keeps_all || picks_alone) && with.budget == nullptr) limit = unlimited{};
    bool const differs = limit.differs_by_layer() || !with.shared_by.empty();
    if (differs && score.decides == granularity::sequence) {
      spec_argument const* const by = said("by");
      detail::refuse_spec(by != nullptr ? by->value_column : says.column, by != nullptr ? by->value : says.name,
                          "layers that decide together have one budget");
    }
    parts_.bind_shares(limit, with, keeps_all ? forced_ends{} : ends, front, said("table"));
    bool const scoped = with.budget != nullptr && said("scope") != nullptr;
    if (auto const pools = score.facts().shares; pools && limit.may_be_shared() && !scoped) limit.shared_by = *pools;
    policy made(score, with.protect, limit, with.pick, with.trigger);
    made.when = with.when.value_or(made.when);
    return made;
  }

  detail::registered_parts<Executor> parts_;
};

}  // namespace KVPOLICY_NAMESPACE

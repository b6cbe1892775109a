// Policies by name: a registry of scorers, and the parser of specs.
#pragma once

#include <functional>
#include <kvpolicy/printed/any_admission.hpp>
#include <kvpolicy/printed/any_policy.hpp>
#include <kvpolicy/printed/set_fields.hpp>
#include <kvpolicy/printed/systems.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/db_trim_kv.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/h2o.hpp>
#include <kvpolicy/scorers/intent_kv.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/lookahead_kv.hpp>
#include <kvpolicy/scorers/not_stale.hpp>
#include <kvpolicy/scorers/observed_attention.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/snapkv.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>
#include <kvpolicy/scorers/tova.hpp>
#include <kvpolicy/scorers/trim_kv.hpp>
#include <map>

namespace KVPOLICY_NAMESPACE {

/// The description of a scorer in a list.
struct scorer_info {
  std::string name;
  std::vector<field_info> fields;
  std::vector<std::string> needs;  ///< the names of the signals that it reads
  granularity decides = granularity::lane;
  bool decodes = true;        ///< false: it decides before the answer, and not in decode steps
  bool prompts_only = false;  ///< it decides once, at the end of a prompt
};

/// A registry of scorers by name. It is a plain value: copy the shipped one, and add a scorer of your own in one line.
///
///     auto mine = kv::shipped();
///     mine.add(value_aware{});
///     kv::any_policy policy = kv::parse("value_aware | safe(sinks=4, recent=32) | budget(256)", mine);
template <executor Executor>
class basic_registry {
 public:
  using policy = basic_any_policy<Executor>;

  /// Adds a scorer under its `name`. A spec sets its fields by the names in `fields()`; a field that a spec does not
  /// set has its value in `defaults`.
  /// - throws: `invalid_argument` if there is a scorer of that name.
  template <scorer Score>
  basic_registry& add(Score const& defaults) {
    expect_new(Score::name);
    all_.push_back(describe(defaults));
    return *this;
  }

  /// Replaces the defaults of a registered scorer, also of members that a spec cannot set, such as trained weights.
  /// - throws: `invalid_argument` if there is no scorer of that name.
  template <scorer Score>
  basic_registry& set(Score const& defaults) {
    for (one& each : all_) {
      if (each.info.name != Score::name) continue;
      each = describe(defaults);
      return *this;
    }
    expects(false, "registry", "name", Score::name, "there is no scorer of that name");
    return *this;
  }

  /// Adds a system: a name for a spec, whose fields are those of the scorer and of the budget. It prints as that spec.
  /// - throws: `invalid_argument` if there is a scorer or a system of that name.
  template <system_of_parts System>
  basic_registry& add(System const& defaults) {
    expect_new(System::name);
    using score_type = decltype(defaults.scorer());
    one made = describe(defaults.scorer());
    made.info.name = System::name;
    made.info.fields = list_fields(defaults);
    parts joined;
    defaults.join(joined);
    if (joined.reduce) made.info.decides = joined.reduce->decides;
    made.info.prompts_only = System::prompts_only;
    made.info.decodes = !System::prompts_only;
    made.make = [defaults](spec_part const& from, parts with) {
      System chosen = defaults;
      detail::set_fields(chosen, from);
      detail::check_parsed(chosen, from.column);
      if constexpr (requires { System::adds_protection; }) {
        if (with.protect.count == any_protection::most) {
          detail::refuse_spec(from.column, from.name, "at most eight protections are joined, its own included");
        }
      }
      auto const own = with.pick;
      chosen.join(with);
      if (own && with.pick != own) {
        detail::refuse_spec(with.pick_column, at_least::name, std::string(System::name) + " has one of its own");
      }
      return make_with<score_type>(chosen.scorer(), with);
    };
    all_.push_back(made);
    return *this;
  }

  /// Gives a name to a table of shares, one for each lane of a sequence, in the executor's memory. Budgets
  /// `by=table, table=NAME` of specs that are parsed later read it, also in decisions.
  basic_registry& table(std::string const& name, by_lane<int const> shares) {
    tables_.insert_or_assign(name, shares);
    return *this;
  }

  /// Gives a name to a table of numbers of heads, which `head_table(table=NAME)` of admissions reads.
  basic_registry& table(std::string const& name, by_lane<float const> heads) {
    heads_.insert_or_assign(name, heads);
    return *this;
  }

  [[nodiscard]] std::vector<scorer_info> list() const {
    std::vector<scorer_info> made;
    for (one const& each : all_) made.push_back(each.info);
    return made;
  }

  /// Parses a spec: `scorer(field=value, ...) | part | ...`. The parts may come in any order: `reduce_lanes(token,
  /// sum)`, `sinks(4)`, `recent(32)`, `span(0, 16)`, `safe(sinks=4, recent=32)`, `everything`, `budget(...)` or
  /// `unlimited`, `over_budget(slack)`, `put_first` and `at_least`. The default budget is 1024 entries for each lane; a
  /// scorer that keeps everything is unlimited by default.
  /// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
  [[nodiscard]] policy parse(std::string_view text) const { return eviction_of(split_spec(text)); }

  /// The eviction that the parts of a section describe.
  [[nodiscard]] policy eviction_of(std::vector<spec_part> const& spec) const {
    std::vector<std::string> known;
    for (one const& each : all_) {
      if (spec.front().name == each.info.name) {
        parts with = detail::read_parts(spec);
        with.tables = &tables_;
        return each.make(spec.front(), with);
      }
      known.push_back(each.info.name);
    }
    detail::refuse_spec(spec.front().column, spec.front().name,
                        detail::accepted("a policy begins with its scorer; there are", known, spec.front().name));
  }

  /// The admission that the parts of a section describe.
  [[nodiscard]] any_admission admission_of(std::vector<spec_part> const& spec) const {
    return detail::read_admission(spec, heads_);
  }

 private:
  using parts = spec_parts;

  struct one {
    scorer_info info;
    std::function<policy(spec_part const&, parts const&)> make;
  };

  void expect_new(char const* name) const {
    for (one const& each : all_) {
      expects(each.info.name != name, "registry", "name", name, "there is a scorer of that name");
    }
  }

  template <scorer Score>
  static one describe(Score const& defaults) {
    std::vector<std::string> needed;
    detail::each_need<typename Score::needs>::visit([&](auto const* signal) { needed.emplace_back(signal->name); });
    one made;
    made.info.name = Score::name;
    made.info.fields = list_fields(defaults);
    made.info.needs = std::move(needed);
    made.info.decides = Score::decides;
    if constexpr (requires { Score::decodes; }) made.info.decodes = Score::decodes;
    if constexpr (requires { Score::prompts_only; }) {
      made.info.prompts_only = Score::prompts_only;
      made.info.decodes = !Score::prompts_only;
    }
    made.make = [defaults](spec_part const& from, parts const& with) { return make(defaults, from, with); };
    return made;
  }

  template <class Score>
  static policy make(Score score, spec_part const& from, parts const& with) {
    detail::set_fields(score, from);
    detail::check_parsed(score, from.column);
    return make_with(score, with);
  }

  /// Scorers of which a spec may put the best entries first.
  template <class Score>
  static constexpr bool can_put_first =
      std::same_as<Score, snapkv> || std::same_as<Score, carried> || std::same_as<Score, external>;

  template <class Score>
  static policy make_with(Score const& score, parts const& with) {
    if (with.first) {
      if constexpr (can_put_first<Score>) {
        put_first<Score> const staged{score, with.first->tokens, with.first->part, with.first->then, with.first->seed};
        detail::check_parsed(staged, with.first_column);
        return make_lowered(staged, with);
      } else {
        detail::refuse_spec(with.first_column, "put_first", "it is of snapkv, carried and external");
      }
    }
    return make_lowered(score, with);
  }

  template <class Score>
  static policy make_lowered(Score const& score, parts const& with) {
    reduce_lanes<Score> lowered{score, Score::decides, reduction::sum};
    if (with.reduce) {
      lowered.decides = with.reduce->decides;
      lowered.how = with.reduce->how;
      detail::check_parsed(lowered, with.reduce_column);
      if (lowered.decides == Score::decides) lowered.how = reduction::sum;  // there is nothing to reduce
    }
    any_budget limit = with.limit;
    using forced_type = decltype(detail::forces_of(score));
    if constexpr (std::same_as<forced_type, everything>) {
      if (!with.limited) limit = unlimited{};
    }
    if (limit.by != sharing::fixed && lowered.decides == granularity::token) {
      detail::refuse_spec(with.budget_column, to_string(limit.by), "layers that decide together have one budget");
    }
    if (limit.by == sharing::table) limit.in_table = find_table(limit.table, with);
    if constexpr (std::same_as<forced_type, recent>)
      limit.shares.window = limit.by == sharing::ramp ? score.forces().tokens : 0;
    if constexpr (requires { Score::pools; }) {
      bool const shares = limit.by == sharing::fixed && limit.of != any_budget::amount::unlimited;
      if (shares && !with.scoped) limit.shared_by = Score::pools;
    }
    return with.pick ? pick_alone(lowered, with) : policy(lowered, with.protect, limit, with.trigger);
  }

  /// Scorers of which a spec may keep every entry from a threshold on: their scores mean something by themselves.
  template <class Score>
  static constexpr bool can_pick_alone =
      std::same_as<Score, not_stale> || std::same_as<Score, carried> || std::same_as<Score, external>;

  template <class Score>
  static policy pick_alone(reduce_lanes<Score> const& lowered, parts const& with) {
    if (with.limited && with.limit.of != any_budget::amount::unlimited) {
      detail::refuse_spec(with.budget_column, "budget", "at_least keeps however many entries there are");
    }
    if (with.first) detail::refuse_spec(with.first_column, "put_first", "at_least has no places");
    if constexpr (can_pick_alone<Score>) {
      return policy(lowered, with.protect, any_budget(unlimited{}), with.trigger, *with.pick);
    } else {
      detail::refuse_spec(with.pick_column, at_least::name, "it is of not_stale, carried and external");
    }
  }

  static by_lane<int const> find_table(label const& name, parts const& with) {
    auto const found = with.tables->find(name.text);
    if (found == with.tables->end()) {
      detail::refuse_spec(with.budget_column, to_string(name), "a table is given to the registry by its name");
    }
    return found->second;
  }

  std::vector<one> all_;
  std::map<std::string, by_lane<int const>> tables_;
  std::map<std::string, by_lane<float const>> heads_;
};

/// A registry of scorers for the host.
using registry = basic_registry<host_executor>;

/// The registry of the scorers that the library ships.
template <executor Executor = host_executor>
[[nodiscard]] basic_registry<Executor> shipped() {
  basic_registry<Executor> all;
  all.add(full{})
      .add(streaming_llm{})
      .add(snapkv{})
      .add(h2o{})
      .add(tova{})
      .add(knorm{})
      .add(random_scores{})
      .add(external{});
  all.add(intent_kv{}).add(trim_kv{}).add(observed_attention{}).add(carried{});
  all.add(fast_kvzip{}).add(lookahead_kv{}).add(dapq{});
  all.add(not_stale{}).add(db_trim_kv{});
  all.add(pyramid_kv{}).add(nacl{}).add(sir_llm{}).add(locret{}).add(lu_kv{}).add(side_quest{});
  return all;
}

/// Parses the policy that a spec describes. Parsing the text that `print` returns for it gives an equal policy.
///
///     kv::any_policy policy = kv::parse("snapkv(window=32, pool=max:7) | sinks(4) | budget(1024)");
/// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
template <executor Executor = host_executor>
[[nodiscard]] basic_any_policy<Executor> parse(std::string_view text,
                                               basic_registry<Executor> const& known = shipped<Executor>()) {
  return known.parse(text);
}

}  // namespace KVPOLICY_NAMESPACE

// Policies by name: a registry of scorers, and the parser of specs.
#pragma once

#include <functional>
#include <kvpolicy/printed/any_policy.hpp>
#include <kvpolicy/printed/set_fields.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/h2o.hpp>
#include <kvpolicy/scorers/intent_kv.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/snapkv.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>
#include <kvpolicy/scorers/tova.hpp>
#include <kvpolicy/scorers/trim_kv.hpp>

namespace KVPOLICY_NAMESPACE {

/// The description of a scorer in a list.
struct scorer_info {
  std::string name;
  std::vector<field_info> fields;
  std::vector<std::string> needs;  ///< the names of the signals that it reads
  granularity decides = granularity::lane;
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
    for (one const& each : all_) {
      expects(each.info.name != Score::name, "registry", "name", Score::name, "there is a scorer of that name");
    }
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

  [[nodiscard]] std::vector<scorer_info> list() const {
    std::vector<scorer_info> made;
    for (one const& each : all_) made.push_back(each.info);
    return made;
  }

  /// Parses a spec: `scorer(field=value, ...) | part | ...`. The parts may come in any order: `reduce_lanes(token,
  /// sum)`, `sinks(4)`, `recent(32)`, `span(0, 16)`, `safe(sinks=4, recent=32)`, `everything`, `budget(...)` or
  /// `unlimited`, and `over_budget(slack)`. The default budget is 1024 entries for each lane; a scorer that keeps
  /// everything is unlimited by default.
  /// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
  [[nodiscard]] policy parse(std::string_view text) const {
    std::vector<spec_part> const spec = split_spec(text);
    std::vector<std::string> known;
    for (one const& each : all_) {
      if (spec.front().name == each.info.name) return each.make(spec.front(), read_parts(spec));
      known.push_back(each.info.name);
    }
    detail::refuse_spec(spec.front().column, spec.front().name,
                        detail::accepted("a policy begins with its scorer; there are", known, spec.front().name));
  }

 private:
  /// The parts of a spec after its scorer.
  struct parts {
    any_protection protect{};
    any_budget limit{};
    over_budget trigger{};
    bool limited = false;
    bool triggered = false;
    spec_part const* reduce = nullptr;
  };

  struct one {
    scorer_info info;
    std::function<policy(spec_part const&, parts const&)> make;
  };

  template <scorer Score>
  static one describe(Score const& defaults) {
    std::vector<std::string> needed;
    detail::each_need<typename Score::needs>::visit([&](auto const* signal) { needed.emplace_back(signal->name); });
    one made;
    made.info.name = Score::name;
    made.info.fields = list_fields(defaults);
    made.info.needs = std::move(needed);
    made.info.decides = Score::decides;
    made.make = [defaults](spec_part const& from, parts const& with) { return make(defaults, from, with); };
    return made;
  }

  /// The arguments of reduce_lanes.
  struct reduction_by {
    granularity decides = granularity::token;
    reduction how = reduction::sum;
    static constexpr auto fields() {
      return std::tuple{field{"decides", &reduction_by::decides}, field{"how", &reduction_by::how}};
    }
  };

  /// The arguments of `span` in a spec.
  struct span_arguments {
    int begin = 0;
    int end = 0;
    static constexpr auto fields() {
      return std::tuple{field{"begin", &span_arguments::begin}, field{"end", &span_arguments::end}};
    }
  };

  static std::vector<std::string> part_names() {
    return {"reduce_lanes", "sinks", "recent", "span", "safe", "everything", "budget", "unlimited", "over_budget"};
  }

  template <class T>
  static T read_part(spec_part const& from, T made = {}) {
    detail::set_fields(made, from);
    detail::check_parsed(made, from.column);
    return made;
  }

  static void once(bool& given, spec_part const& from) {
    if (given) detail::refuse_spec(from.column, from.name, "there is one before");
    given = true;
  }

  static parts read_parts(std::vector<spec_part> const& spec) {
    parts made;
    for (std::size_t i = 1; i < spec.size(); ++i) {
      spec_part const& from = spec[i];
      if (from.name == "budget" || from.name == "unlimited") {
        once(made.limited, from);
        made.limit = from.name == "budget" ? read_budget(from) : any_budget(read_part<unlimited>(from));
      } else if (from.name == "over_budget") {
        once(made.triggered, from);
        made.trigger = read_part<over_budget>(from);
      } else if (from.name == "reduce_lanes") {
        bool given = made.reduce != nullptr;
        once(given, from);
        made.reduce = &from;
      } else {
        add_protection(made.protect, from);
      }
    }
    return made;
  }

  static void add_protection(any_protection& to, spec_part const& from) {
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
      detail::set_fields(where, from);
      position_span const made{where.begin, where.end};
      detail::check_parsed(made, from.column);
      more = made;
    } else {
      detail::refuse_spec(from.column, from.name, detail::accepted("there are the parts", part_names(), from.name));
    }
    if (to.count == any_protection::most) {
      detail::refuse_spec(from.column, from.name, "at most eight protections are joined");
    }
    to.add(more.parts[0]);
  }

  static any_budget read_budget(spec_part const& from) {
    budget_arguments with;
    detail::set_fields(with, from);
    int const amounts = (with.tokens != -1) + (with.drop != -1) + (with.bytes != -1);
    if (amounts != 1) {
      detail::refuse_spec(from.column, from.name,
                          "it says how much once: budget(1024), budget(ratio=0.5) or budget(bytes=N)");
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
    made.round = with.round;
    detail::check_parsed(made, from.column);
    if (made.round != rounding::exact && made.of != any_budget::amount::ratio) {
      detail::refuse_spec(from.column, from.name, "only a ratio is rounded");
    }
    return made;
  }

  /// The arguments of `budget` in a spec.
  struct budget_arguments {
    int tokens = -1;
    double drop = -1;
    std::int64_t bytes = -1;
    budget_scope scope = budget_scope::lane;
    double floor = 0;
    rounding round = rounding::exact;
    static constexpr auto fields() {
      return std::tuple{field{"tokens", &budget_arguments::tokens}, field{"ratio", &budget_arguments::drop},
                        field{"bytes", &budget_arguments::bytes},   field{"scope", &budget_arguments::scope},
                        field{"floor", &budget_arguments::floor},   field{"rounding", &budget_arguments::round}};
    }
  };

  template <class Score>
  static policy make(Score score, spec_part const& from, parts const& with) {
    detail::set_fields(score, from);
    detail::check_parsed(score, from.column);
    reduce_lanes<Score> lowered{score, Score::decides, reduction::sum};
    if (with.reduce != nullptr) {
      reduction_by by;
      detail::set_fields(by, *with.reduce);
      lowered.decides = by.decides;
      lowered.how = by.how;
      detail::check_parsed(lowered, with.reduce->column);
      if (lowered.decides == Score::decides) lowered.how = reduction::sum;  // there is nothing to reduce
    }
    any_budget limit = with.limit;
    if constexpr (std::same_as<decltype(detail::forces_of(score)), everything>) {
      if (!with.limited) limit = unlimited{};
    }
    return policy(lowered, with.protect, limit, with.trigger);
  }

  std::vector<one> all_;
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
  all.add(intent_kv{}).add(trim_kv{});
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

// SPDX-License-Identifier: Apache-2.0
// What an erased scorer asks of the typed scorer inside.
#pragma once

#include <algorithm>
#include <kvpolicy/by_name/any_observed.hpp>
#include <kvpolicy/by_name/any_pick.hpp>
#include <kvpolicy/by_name/any_recorders.hpp>
#include <kvpolicy/by_name/any_signals.hpp>
#include <kvpolicy/by_name/forced_entries.hpp>
#include <kvpolicy/decision/decision_checks.hpp>
#include <kvpolicy/decision/describe.hpp>
#include <kvpolicy/decision/first.hpp>
#include <kvpolicy/decision/rule.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/scorer_verbs.hpp>
#include <kvpolicy/scorers/stages/put_first.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE::detail {

/// What an erased scorer reads in a call. The scorer inside makes its own set of them.
template <executor Executor>
struct seen_by_scorer {
  any_signals const& given;
  state<Executor> const& recorded;
  std::size_t first;  ///< the index in the state of the scorer's first column
  lanes const& among;
  by_lane<int const> allowed;
};

/// What a scorer reads, records and forces, by name.
struct scorer_text {
  std::vector<std::string> reads;    ///< signals
  std::vector<std::string> given;    ///< those of them that no recorder keeps
  std::vector<std::string> records;  ///< what recorders keep: "recent_queries from queries"
  std::vector<std::string> forced;
};

/// A scorer behind an interface: what is the same for all calls is data.
template <executor Executor>
struct scorer_interface {
  using seen = seen_by_scorer<Executor>;
  using forced_type = forced_entries<reads_on_host<typename Executor::backend>>;
  using observed_type = any_observed<reads_on_host<typename Executor::backend>>;
  any_recorders<Executor> recorders;
  scorer_facts facts;
  any_trigger trigger;         ///< its own one
  unsigned kinds_of_rows = 0;  ///< bit i is set if it reads rows of kind i: see `visit_kinds_of_rows`

  scorer_interface(any_recorders<Executor> const& all, scorer_facts const& says, any_trigger const& own)
      : recorders(all), facts(says), trigger(own) {}
  scorer_interface(scorer_interface const&) = delete;
  scorer_interface& operator=(scorer_interface const&) = delete;
  virtual ~scorer_interface() = default;
  [[nodiscard]] virtual void const* type() const = 0;
  [[nodiscard]] virtual bool equals(scorer_interface const& other) const = 0;
  [[nodiscard]] virtual std::string spell() const = 0;
  [[nodiscard]] virtual std::optional<std::string> field_text(std::string_view) const = 0;
  [[nodiscard]] virtual scorer_text text() const = 0;
  virtual void check(char const* call, shape const* model) const = 0;  ///< without the checks of a model, if null
  [[nodiscard]] virtual int spare_rows(lanes const&, shape const&) const = 0;
  [[nodiscard]] virtual std::size_t scratch(shape const&, lanes const&) const = 0;
  [[nodiscard]] virtual forced_type forces() const = 0;
  [[nodiscard]] virtual forced_type forces(seen const&) const = 0;
  [[nodiscard]] virtual put_first_rest rest_scores(lanes const&, score_view const&) const = 0;
  virtual void refuse_given(char const* call, any_signals const&) const = 0;
  virtual void refuse(Executor&, seen const&) const = 0;
  [[nodiscard]] virtual observed_type observed(seen const&) const = 0;
  virtual void score(Executor&, seen const&, score_view const& out) const = 0;
  virtual void rank_again(Executor&, seen const&, score_view const& competing, score_view const& scores,
                          score_view const& ranks, by_lane<int> const& kept) const = 0;
};

/// The text of a scorer's field, or of the scorer inside a stage.
template <class Score>
std::optional<std::string> field_text_of(Score const& score, std::string_view name) {
  using text = std::optional<std::string>;
  return ask(score, [&]<class S>(S const& one) -> std::enable_if_t<!stage<S>, text> {
    if constexpr (erased<S>) {
      return one.field_text(name);
    } else {
      text found;
      auto const look = [&](auto const& each) {
        if (each.name == name) found = to_string(one.*each.member);
      };
      with_fields<S>([&](auto const&... each) { (look(each), ...); });
      return found;
    }
  });
}

/// True for a stage around an erased scorer: that scorer answers, and `needs` are those of the stage itself.
template <class Score>
concept around_erased = stage<Score> && erased<typename Score::wraps>;

template <executor Executor, class Score>
struct scorer_model final : scorer_interface<Executor> {
  using backend = typename Executor::backend;
  using seen = seen_by_scorer<Executor>;
  using typename scorer_interface<Executor>::forced_type;
  using typename scorer_interface<Executor>::observed_type;
  using one_type = observed_one<reads_on_host<backend>>;
  using recorders_type = decltype(recorders_of(std::declval<Score const&>()));
  using signal_set_type = signal_set<any_signals, recorders_type, state<Executor>>;

  explicit scorer_model(Score const& from)
      : scorer_interface<Executor>(recorders_in(from), facts_in(from), trigger_in(from)), typed(from) {
    auto const look = [&](int kind) { this->kinds_of_rows |= 1u << kind; };
    if constexpr (around_erased<Score>) {
      inside().visit_kinds_of_rows(look);
    } else {
      visit_kinds_of_rows_of_scorer(typed, look);
    }
  }
  Score typed;

  static constexpr char tag = 0;

  [[nodiscard]] void const* type() const override { return &tag; }
  [[nodiscard]] bool equals(scorer_interface<Executor> const& other) const override {
    return other.type() == type() && static_cast<scorer_model const&>(other).typed == typed;
  }
  [[nodiscard]] std::string spell() const override { return to_string(typed); }
  [[nodiscard]] std::optional<std::string> field_text(std::string_view name) const override {
    return field_text_of(typed, name);
  }
  [[nodiscard]] scorer_text text() const override {
    scorer_text made{signals_read(typed), {}, signals_recorded(typed), forced_by_scorer(typed)};
    if constexpr (around_erased<Score>) made.given = inside().text().given;
    each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
      bool const is_known = std::find(made.given.begin(), made.given.end(), signal_name(signal)) != made.given.end();
      if constexpr (!signal_set_type::template recorded<Signal>) {
        if (!is_known) made.given.push_back(signal_name(signal));
      }
    });
    return made;
  }
  void check(char const* call, shape const* model) const override {
    if constexpr (!detail::ranks_again<Score>) {
      expects(
          !this->facts.ranks_again, call, "score", [&] { return to_string(typed); },
          "its scorer ranks blocks again, and no stage may be around it");
    }
    if constexpr (!puts_first<Score>) refuse_rest_in_plan(call, "score", typed);
    if (model != nullptr) return check_scorer_values(call, typed, *model);
    if constexpr (around_erased<Score>) inside().check(call);
    check_part(call, typed);
  }
  [[nodiscard]] int spare_rows(lanes const& batch, shape const& model) const override {
    return detail::spare_rows(typed, batch, model);
  }
  [[nodiscard]] std::size_t scratch(shape const& model, lanes const& batch) const override {
    return scratch_of_scorer<backend>(typed, model, batch);
  }
  [[nodiscard]] forced_type forces() const override { return erased_forces(forces_of(typed)); }
  [[nodiscard]] forced_type forces(seen const& in) const override {
    return with_signal_set(in, [&](signal_set_type const& all) { return erased_forces(forces_of(typed, all)); });
  }
  [[nodiscard]] put_first_rest rest_scores(lanes const& among, score_view const& scores) const override {
    put_first_rest found{};
    struct in_lanes {
      kvpolicy::lanes const& lanes;
    };
    with_first_of(typed, [&](auto const& first) { found = rest_scores_of(first, in_lanes{among}, scores); });
    return found;
  }
  void refuse_given(char const* call, any_signals const& in) const override {
    if constexpr (around_erased<Score>) inside().refuse_given(call, in);
    each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
      if constexpr (!signal_set_type::template recorded<Signal>) {
        refuse_missing(call, name_of_reader().c_str(), in, signal);
      }
    });
    if constexpr (!around_erased<Score>) detail::refuse_given<backend>(call, typed, in);
  }
  void refuse(Executor& exec, seen const& in) const override {
    refuse_given("decide", in.given);
    with_signal_set(in, [&](signal_set_type const& all) { refuse_data(typed, exec, all); });
  }
  [[nodiscard]] observed_type observed(seen const& in) const override {
    return with_signal_set(in, [&](signal_set_type const& all) {
      if constexpr (around_erased<Score>) {
        return inside().observed(all);  // a stage does not make a lane that was not observed one that was
      } else {
        using list = typename signals_read_by<typename Score::needs, decltype(own_recorders_of(typed))>::type;
        observed_type made{all.lanes};
        each_need<list>::visit([&]<class Signal>(Signal const*) {
          auto const one = observed_signal_of<Score, Signal>(all);
          if (one.is_checked) made.add(erased_observed(one.from));
        });
        return made;
      }
    });
  }
  void score(Executor& exec, seen const& in, score_view const& out) const override {
    if constexpr (fits<deciding_hooks<Score, Executor, signal_set_type, score_view const&>>()) {
      with_signal_set(in, [&](signal_set_type const& all) { typed.score(exec, all, out); });
    }
  }
  void rank_again([[maybe_unused]] Executor& exec, [[maybe_unused]] seen const& in,
                  [[maybe_unused]] score_view const& competing, [[maybe_unused]] score_view const& scores,
                  [[maybe_unused]] score_view const& ranks, [[maybe_unused]] by_lane<int> const& kept) const override {
    if constexpr (detail::ranks_again<Score>) {
      with_signal_set(in, [&](auto const& all) { typed.rank_again(exec, all, competing, scores, ranks, kept); });
    }
  }

 private:
  /// The erased scorer inside a stage.
  [[nodiscard]] auto const& inside() const { return inner_of(typed); }
  /// Who needs what `needs` lists.
  [[nodiscard]] std::string name_of_reader() const {
    if constexpr (around_erased<Score> && requires { std::string(Score::name); }) return Score::name;
    return std::string(this->facts.name);
  }
  static scorer_facts facts_in(Score const& from) {
    scorer_facts made = facts_of(from);
    if constexpr (requires(signal_set_type const& in) { from.entry_scores(in); }) {
      using scores_type = decltype(from.entry_scores(std::declval<signal_set_type const&>()));
      made.any_order = !requires { scores_type::ascends_in_position; };
    }
    return made;
  }
  static any_trigger trigger_in(Score const& from) {
    return with_own_trigger(from, [](auto const& own) { return any_trigger(own); }, any_trigger{});
  }
  static any_recorders<Executor> recorders_in(Score const& from) {
    if constexpr (around_erased<Score>) {
      return std::get<0>(recorders_of(from));
    } else {
      return any_recorders<Executor>(recorders_of(from), std::string(detail::facts_of(from).name));
    }
  }
  template <class Visit>
  auto with_signal_set(seen const& in, Visit const& visit) const {
    auto const all = recorders_of(typed);
    signal_set_type made(in.given, all, in.recorded, in.first, in.among);
    made.allowed = in.allowed;
    return visit(made);
  }
  template <class Forces>
  static forced_type erased_forces(Forces const& from) {
    if constexpr (std::same_as<Forces, forced_type>) {  // what an erased scorer inside forces
      return from;
    } else if constexpr (forced_by_shipped<Forces>) {
      return forced_type(from);
    } else if constexpr (std::is_convertible_v<Forces, any_protection>) {
      forced_type made;
      made.join(any_protection(from));
      return made;
    } else {
      static_assert(reads_on_host<backend>,
                    "kvpolicy: a scorer that a device runs by name forces what a protection of the library forces");
      return forced_type(own_protection<reads_on_host<backend>>(from));
    }
  }
  template <class Signal>
  static one_type erased_observed(Signal const& from) {
    if constexpr (observed_by_shipped<Signal>) {
      return one_type(from);
    } else {
      static_assert(reads_on_host<backend>,
                    "kvpolicy: a scorer that a device runs by name reads signals whose `observed` is the library's");
      return one_type(std::in_place, from);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

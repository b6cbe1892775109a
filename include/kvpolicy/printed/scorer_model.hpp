// What an erased scorer asks of the typed scorer inside.
#pragma once

#include <kvpolicy/decision/check.hpp>
#include <kvpolicy/decision/describe.hpp>
#include <kvpolicy/decision/rule.hpp>
#include <kvpolicy/ops/host/add_probabilities.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/count_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/feature_sums.hpp>
#include <kvpolicy/ops/host/fold.hpp>
#include <kvpolicy/ops/host/key_sums.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/pool.hpp>
#include <kvpolicy/ops/host/residual.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/host/update_query_memory.hpp>
#include <kvpolicy/printed/any_observed.hpp>
#include <kvpolicy/printed/any_pick.hpp>
#include <kvpolicy/printed/any_recorders.hpp>
#include <kvpolicy/printed/any_signals.hpp>
#include <kvpolicy/printed/forced_entries.hpp>
#include <kvpolicy/stages/put_first.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE::detail {

/// What an erased scorer reads in a call. The scorer inside makes a bag of it.
template <executor Executor>
struct seen_by_scorer {
  any_signals const& given;
  state<Executor> const& recorded;
  std::size_t first;  ///< the index in the state of the scorer's first column
  lanes const& among;
};

template <executor Executor>
struct scorer_interface {
  using seen = seen_by_scorer<Executor>;
  using forced_type = forced_entries<reads_on_host<typename Executor::backend>>;
  using observed_type = any_observed<reads_on_host<typename Executor::backend>>;
  any_recorders<Executor> recorders;

  explicit scorer_interface(any_recorders<Executor> const& all) : recorders(all) {}
  scorer_interface(scorer_interface const&) = delete;
  scorer_interface& operator=(scorer_interface const&) = delete;
  virtual ~scorer_interface() = default;
  [[nodiscard]] virtual void const* type() const = 0;
  [[nodiscard]] virtual bool equals(scorer_interface const& other) const = 0;
  [[nodiscard]] virtual std::string spell() const = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::optional<std::string> field_text(std::string_view) const = 0;
  [[nodiscard]] virtual std::vector<std::string> reads() const = 0;
  [[nodiscard]] virtual std::vector<std::string> records() const = 0;
  [[nodiscard]] virtual std::vector<std::string> forced() const = 0;
  [[nodiscard]] virtual std::vector<std::string> given_signals() const = 0;
  virtual void check(char const* call, shape const& model) const = 0;
  virtual void check(char const* call) const = 0;
  [[nodiscard]] virtual bool ranks() const = 0;
  [[nodiscard]] virtual bool reads_any_order() const = 0;
  [[nodiscard]] virtual bool reduces_ranks() const = 0;
  [[nodiscard]] virtual int spare_rows(lanes const&, shape const&) const = 0;
  [[nodiscard]] virtual std::size_t scratch(shape const&, lanes const&) const = 0;
  [[nodiscard]] virtual bool reads_rows(int kind) const = 0;
  [[nodiscard]] virtual any_trigger triggers() const = 0;
  [[nodiscard]] virtual forced_type forces() const = 0;
  [[nodiscard]] virtual forced_type forces(seen const&) const = 0;
  [[nodiscard]] virtual bool puts_first() const = 0;
  [[nodiscard]] virtual first_places places() const = 0;
  [[nodiscard]] virtual put_first_rest rest_scores(lanes const&) const = 0;
  [[nodiscard]] virtual std::optional<budget_scope> shares() const = 0;
  [[nodiscard]] virtual phase when() const = 0;
  virtual void refuse_given(char const* call, any_signals const&) const = 0;
  virtual void refuse(Executor&, seen const&) const = 0;
  [[nodiscard]] virtual observed_type observed(seen const&) const = 0;
  virtual void score(Executor&, seen const&, score_view const& out) const = 0;
};

/// The text of a scorer's field, or of the scorer inside a stage.
template <class Score>
std::optional<std::string> field_text_of(Score const& score, std::string_view name) {
  if constexpr (erased<Score>) {
    return score.field_text(name);
  } else if constexpr (stage<Score>) {
    return field_text_of(inner_of(score), name);
  } else {
    std::optional<std::string> found;
    auto const look = [&](auto const& each) {
      if (each.name == name) found = to_string(score.*each.member);
    };
    with_fields<Score>([&](auto const&... each) { (look(each), ...); });
    return found;
  }
}

/// True for a stage around an erased scorer: that scorer answers.
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
  using bag_type = bag<any_signals, recorders_type, state<Executor>>;

  explicit scorer_model(Score const& from) : scorer_interface<Executor>(recorders_in(from)), typed(from) {}
  Score typed;

  static constexpr char tag = 0;

  [[nodiscard]] void const* type() const override { return &tag; }
  [[nodiscard]] bool equals(scorer_interface<Executor> const& other) const override {
    return other.type() == type() && static_cast<scorer_model const&>(other).typed == typed;
  }
  [[nodiscard]] std::string spell() const override { return to_string(typed); }
  [[nodiscard]] std::string_view name() const override { return name_of_scorer(typed); }
  [[nodiscard]] std::optional<std::string> field_text(std::string_view name) const override {
    return field_text_of(typed, name);
  }
  [[nodiscard]] std::vector<std::string> reads() const override { return signals_read(typed); }
  [[nodiscard]] std::vector<std::string> records() const override { return signals_recorded(typed); }
  [[nodiscard]] std::vector<std::string> forced() const override { return forced_by_scorer(typed); }
  [[nodiscard]] std::vector<std::string> given_signals() const override {
    if constexpr (around_erased<Score>) {
      return inner_of(typed).given_signals();
    } else {
      std::vector<std::string> names;
      each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
        if constexpr (!bag_type::template recorded<Signal>) names.push_back(signal_name(signal));
      });
      return names;
    }
  }
  void check(char const* call, shape const& model) const override { check_scorer_values(call, typed, model); }
  void check(char const* call) const override {
    if constexpr (around_erased<Score>) inner_of(typed).check(call);
    check_part(call, typed);
  }
  [[nodiscard]] bool ranks() const override { return ranks_candidates_of(typed); }
  [[nodiscard]] bool reads_any_order() const override {
    if constexpr (requires(bag_type const& in) { typed.entry_scores(in); }) {
      using scores_type = decltype(typed.entry_scores(std::declval<bag_type const&>()));
      return !requires { scores_type::ascends_in_position; };
    } else {
      return detail::reads_any_order<Score>;
    }
  }
  [[nodiscard]] bool reduces_ranks() const override { return detail::reduces_ranks(typed); }
  [[nodiscard]] int spare_rows(lanes const& batch, shape const& model) const override {
    return detail::spare_rows(typed, batch, model);
  }
  [[nodiscard]] std::size_t scratch(shape const& model, lanes const& batch) const override {
    return scratch_of_scorer<backend>(typed, model, batch);
  }
  [[nodiscard]] bool reads_rows(int kind) const override {
    bool found = false;
    auto const look = [&](int one) { found = found || one == kind; };
    if constexpr (around_erased<Score>) {
      inner_of(typed).visit_kinds_of_rows(look);
    } else {
      visit_kinds_of_rows_of_scorer(typed, look);
    }
    return found;
  }
  [[nodiscard]] any_trigger triggers() const override {
    return with_own_trigger(typed, [](auto const& own) { return any_trigger(own); }, any_trigger{});
  }
  [[nodiscard]] forced_type forces() const override { return erased_forces(forces_of(typed)); }
  [[nodiscard]] forced_type forces(seen const& in) const override {
    return with_bag(in, [&](bag_type const& all) { return erased_forces(forces_of(typed, all)); });
  }
  [[nodiscard]] bool puts_first() const override {
    bool found = false;
    with_first_of(typed, [&](auto const&) { found = true; });
    return found;
  }
  [[nodiscard]] first_places places() const override {
    first_places found{};
    with_first_of(typed, [&](auto const& first) { found = first.places(); });
    return found;
  }
  [[nodiscard]] put_first_rest rest_scores(lanes const& among) const override {
    put_first_rest found{};
    struct in_lanes {
      kvpolicy::lanes const& lanes;
    };
    with_first_of(typed, [&](auto const& first) { found = first.rest_scores(in_lanes{among}); });
    return found;
  }
  [[nodiscard]] std::optional<budget_scope> shares() const override { return shares_of(typed); }
  [[nodiscard]] phase when() const override { return phase_of(typed); }
  void refuse_given(char const* call, any_signals const& in) const override {
    if constexpr (around_erased<Score>) {
      inner_of(typed).refuse_given(call, in);
    } else {
      each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
        if constexpr (!bag_type::template recorded<Signal>)
          refuse_missing(call, std::string(name_of_scorer(typed)).c_str(), in, signal);
      });
      detail::refuse_given<backend>(call, typed, in);
    }
  }
  void refuse(Executor& exec, seen const& in) const override {
    refuse_given("decide", in.given);
    with_bag(in, [&](bag_type const& all) { refuse_data(typed, exec, all); });
  }
  [[nodiscard]] observed_type observed(seen const& in) const override {
    return with_bag(in, [&](bag_type const& all) {
      if constexpr (around_erased<Score>) {
        return inner_of(typed).observed(all);
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
    if constexpr (fits<deciding_hooks<Score, Executor, bag_type, score_view const&>>()) {
      with_bag(in, [&](bag_type const& all) { typed.score(exec, all, out); });
    }
  }

 private:
  static any_recorders<Executor> recorders_in(Score const& from) {
    if constexpr (around_erased<Score>) {
      return std::get<0>(recorders_of(from));
    } else {
      return any_recorders<Executor>(recorders_of(from), std::string(name_of_scorer(from)));
    }
  }
  template <class Visit>
  auto with_bag(seen const& in, Visit const& visit) const {
    auto const all = recorders_of(typed);
    return visit(bag_type(in.given, all, in.recorded, in.first, in.among));
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

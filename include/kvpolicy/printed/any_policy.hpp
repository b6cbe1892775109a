// A type-erased policy, which is chosen at run time.
#pragma once

#include <kvpolicy/accounting/explain.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/eviction/eviction.hpp>
#include <kvpolicy/ops/host/add_probabilities.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/count_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/feature_sums.hpp>
#include <kvpolicy/ops/host/fold.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/key_sums.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/pool.hpp>
#include <kvpolicy/ops/host/residual.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/host/select_if.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/ops/host/update_query_memory.hpp>
#include <kvpolicy/printed/any_protection.hpp>
#include <kvpolicy/printed/any_recorders.hpp>
#include <kvpolicy/printed/any_signals.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/reduce_lanes.hpp>
#include <memory>

namespace KVPOLICY_NAMESPACE {

/// Any eviction, type-erased, for one kind of executor. It is a value like every policy; copies share an immutable
/// object. Its state and plan have the same types as those of a typed policy. Construct it from a typed eviction, or
/// call `parse`.
///
/// It can hold every eviction that a spec can describe: any scorer, the shipped protections and budgets, the picks
/// `top` and `at_least`, and the trigger `over_budget`.
template <executor Executor>
class basic_any_policy {
 public:
  /// The full cache, which drops nothing.
  basic_any_policy() : basic_any_policy(eviction<full, nothing, unlimited>{}) {}

  template <scorer Score, class Protect, class Budget, class Pick>
    requires std::same_as<Pick, top> || std::same_as<Pick, at_least>
  basic_any_policy(eviction<Score, Protect, Budget, Pick, over_budget> const& from)
      : basic_any_policy(lowered(from.score), any_protection(from.protect), any_budget(from.budget), from.trigger,
                         from.pick) {}

  template <scorer Score, class Pick = top>
  basic_any_policy(reduce_lanes<Score> const& score, any_protection const& protect, any_budget const& limit,
                   over_budget trigger, Pick pick = {})
      : inner_(std::make_shared<model<Score, Pick>>(
            typename model<Score, Pick>::policy_type{score, protect, said_by<Score>(limit), pick, trigger})) {}

  /// Which lanes decide together.
  [[nodiscard]] granularity decides() const { return inner_->decides(); }
  /// Which lanes share a budget. If it is more than decide together, lanes may keep different numbers of entries.
  [[nodiscard]] budget_scope scope() const { return inner_->scope(); }

  /// How many entries are kept.
  [[nodiscard]] any_budget const& budget() const { return inner_->budget(); }

  /// The names of the signals that the engine gives: those from which recorders record, in `observe`, and those that
  /// the scorer reads and no recorder keeps, in `decide`.
  [[nodiscard]] std::vector<std::string> needs() const { return inner_->needs(); }

  friend bool operator==(basic_any_policy const& a, basic_any_policy const& b) { return a.inner_->equals(*b.inner_); }
  friend std::string print(basic_any_policy const& policy) { return policy.inner_->spell(); }

  /// These members do the same as the free functions of the same names do for a typed policy. The free functions for an
  /// erased policy call them.
  [[nodiscard]] state<Executor> make_state(Executor& exec, cache const& in, int slack = 0) const {
    return inner_->make_state(exec, in, slack);
  }
  [[nodiscard]] plan<Executor> make_plan(Executor& exec, cache const& in, at_once const& size = {}) const {
    return inner_->make_plan(exec, in, size);
  }
  void observe(Executor& exec, any_signals const& in, state<Executor>& state) const {
    inner_->observe(exec, in, state);
  }
  void decide(Executor& exec, any_signals const& in, state<Executor> const& state, plan<Executor>& into) const {
    inner_->decide(exec, in, state, into);
  }
  [[nodiscard]] std::string explain(plan<Executor>& of, int segment, int ordinal) const {
    return inner_->explain(of, segment, ordinal);
  }
  /// True if the policy forced an entry in the plan's last decision. The cache must not have changed since.
  [[nodiscard]] bool forces(plan<Executor> const& of, int segment, int ordinal) const {
    return inner_->forces(of, segment, ordinal);
  }
  [[nodiscard]] required required_bytes(cache const& in, at_once const& size = {}) const {
    return inner_->required_bytes(in, size);
  }

  /// These members are the eviction of a `cache_policy`, whose state also has the columns of other parts.
  /// The scorer's recorders: their columns are the first of the state.
  [[nodiscard]] any_recorders<Executor> const& recorders() const { return inner_->recorders(); }
  /// Checks the policy, the plan and the signals, before anything is changed.
  void check_beside(char const* call, Executor const& exec, any_signals const& in, cache const& pages,
                    plan<Executor> const& into) const {
    inner_->check_beside(call, exec, in, pages, into);
  }
  /// Decides, after `check_beside`.
  void decide_beside(Executor& exec, any_signals const& in, state<Executor> const& state, plan<Executor>& into) const {
    inner_->decide_beside(exec, in, state, into);
  }

 private:
  struct interface {
    virtual ~interface() = default;
    [[nodiscard]] virtual granularity decides() const = 0;
    [[nodiscard]] virtual budget_scope scope() const = 0;
    [[nodiscard]] virtual any_budget const& budget() const = 0;
    [[nodiscard]] virtual std::vector<std::string> needs() const = 0;
    [[nodiscard]] virtual std::string spell() const = 0;
    [[nodiscard]] virtual void const* type() const = 0;
    [[nodiscard]] virtual bool equals(interface const& other) const = 0;
    [[nodiscard]] virtual state<Executor> make_state(Executor&, cache const&, int slack) const = 0;
    [[nodiscard]] virtual plan<Executor> make_plan(Executor&, cache const&, at_once const&) const = 0;
    virtual void observe(Executor&, any_signals const&, state<Executor>&) const = 0;
    virtual void decide(Executor&, any_signals const&, state<Executor> const&, plan<Executor>&) const = 0;
    [[nodiscard]] virtual std::string explain(plan<Executor>&, int segment, int ordinal) const = 0;
    [[nodiscard]] virtual bool forces(plan<Executor> const&, int segment, int ordinal) const = 0;
    [[nodiscard]] virtual required required_bytes(cache const&, at_once const&) const = 0;
    [[nodiscard]] virtual any_recorders<Executor> const& recorders() const = 0;
    virtual void check_beside(char const* call, Executor const&, any_signals const&, cache const&,
                              plan<Executor> const&) const = 0;
    virtual void decide_beside(Executor&, any_signals const&, state<Executor> const&, plan<Executor>&) const = 0;
  };

  template <class Score, class Pick>
  struct model final : interface {
    using policy_type = eviction<reduce_lanes<Score>, any_protection, any_budget, Pick, over_budget>;
    using bag_type = detail::bag_of<policy_type, any_signals, Executor>;

    explicit model(policy_type const& from) : policy(from), recorders_(recorders_of(policy.score), scorer_name()) {}
    policy_type policy;
    any_recorders<Executor> recorders_;

    static constexpr char tag = 0;

    [[nodiscard]] granularity decides() const override { return policy.score.decides; }
    [[nodiscard]] budget_scope scope() const override { return policy.budget.scope(); }
    [[nodiscard]] any_budget const& budget() const override { return policy.budget; }
    [[nodiscard]] std::vector<std::string> needs() const override {
      std::vector<std::string> names = recorders_.signals();
      detail::each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
        if constexpr (!bag_type::template recorded<Signal>) names.push_back(detail::signal_name(signal));
      });
      return names;
    }
    [[nodiscard]] std::string spell() const override { return to_string(policy); }
    [[nodiscard]] void const* type() const override { return &tag; }
    [[nodiscard]] bool equals(interface const& other) const override {
      return other.type() == type() && static_cast<model const&>(other).policy == policy;
    }
    [[nodiscard]] state<Executor> make_state(Executor& exec, cache const& in, int slack) const override {
      return kvpolicy::make_state(exec, policy, in, slack);
    }
    [[nodiscard]] plan<Executor> make_plan(Executor& exec, cache const& in, at_once const& size) const override {
      return kvpolicy::make_plan(exec, policy, in, size);
    }
    void observe(Executor& exec, any_signals const& in, state<Executor>& state) const override {
      std::apply(
          [&]<class... Recorders>(Recorders const&...) {
            (detail::refuse_unrecordable<Recorders>("observe", scorer_name(), in), ...);
          },
          recorders_of(policy.score));
      detail::observe_given(exec, policy, in, state);
    }
    void decide(Executor& exec, any_signals const& in, state<Executor> const& state,
                plan<Executor>& into) const override {
      refuse_undecidable("decide", in);
      detail::decide_given(exec, policy, in, state, into);
    }
    [[nodiscard]] std::string explain(plan<Executor>& of, int segment, int ordinal) const override {
      return kvpolicy::explain(policy, of, segment, ordinal);
    }
    [[nodiscard]] bool forces(plan<Executor> const& of, int segment, int ordinal) const override {
      return kvpolicy::forces(policy, of, segment, ordinal);
    }
    [[nodiscard]] required required_bytes(cache const& in, at_once const& size) const override {
      return kvpolicy::required_bytes<Executor>(policy, in, size);
    }

    [[nodiscard]] any_recorders<Executor> const& recorders() const override { return recorders_; }
    void check_beside(char const* call, Executor const& exec, any_signals const& in, cache const& pages,
                      plan<Executor> const& into) const override {
      detail::check_policy(call, policy, pages.shape);
      detail::check_plan(call, exec, policy, pages.lanes, pages.shape, into);
      detail::check_reserved(
          call, exec, detail::scratch_to_decide<typename Executor::backend, policy_type>(pages.shape, pages.lanes));
      refuse_undecidable(call, in);
    }
    void decide_beside(Executor& exec, any_signals const& in, state<Executor> const& state,
                       plan<Executor>& into) const override {
      auto const recorders = recorders_of(policy.score);
      detail::decide_checked(exec, policy, bag_type(in, recorders, state), state.model(), into);
    }

    /// Refuses a missing signal that the scorer reads and no recorder keeps.
    static void refuse_undecidable(char const* call, any_signals const& in) {
      detail::each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
        if constexpr (!bag_type::template recorded<Signal>) detail::refuse_missing(call, scorer_name(), in, signal);
      });
    }
    static char const* scorer_name() {
      if constexpr (requires { std::string(Score::name); }) {
        return Score::name;
      } else {
        return "the scorer";
      }
    }
  };

  /// Of a scorer whose budgets are shared unless a spec says otherwise, a budget says that it is not.
  template <class Score>
  static any_budget said_by(any_budget limit) {
    if constexpr (requires { Score::pools; }) {
      bool const shares = limit.by == sharing::fixed && limit.of != any_budget::amount::unlimited;
      limit.says_lane = shares && limit.shared_by == budget_scope::lane;
    }
    return limit;
  }
  template <scorer Score>
  static reduce_lanes<Score> lowered(Score const& score) {
    return {score, Score::decides, reduction::sum};
  }
  template <scorer Score>
  static reduce_lanes<Score> lowered(reduce_lanes<Score> const& score) {
    return score;
  }

  std::shared_ptr<interface const> inner_;
};

/// A type-erased policy for the host.
using any_policy = basic_any_policy<host_executor>;

/// Makes a state, as for a typed policy.
template <executor Executor>
[[nodiscard]] state<Executor> make_state(Executor& exec, basic_any_policy<Executor> const& policy, cache const& in,
                                         int slack = 0) {
  return policy.make_state(exec, in, slack);
}

/// Makes a plan, as for a typed policy.
template <executor Executor, class... Appliers>
[[nodiscard]] plan<Executor> make_plan(Executor& exec, basic_any_policy<Executor> const& policy, cache const& in,
                                       at_once const& size, Appliers const&...) {
  plan<Executor> made = policy.make_plan(exec, in, size);
  cache turn = in;
  turn.lanes = detail::first_turn(in.lanes, made.turn());
  exec.reserve(detail::scratch_to_apply<typename Executor::backend, Appliers...>(turn));
  return made;
}
/// The same for the whole batch at once.
template <executor Executor, class... Appliers>
[[nodiscard]] plan<Executor> make_plan(Executor& exec, basic_any_policy<Executor> const& policy, cache const& in,
                                       Appliers const&... hows) {
  return make_plan(exec, policy, in, at_once{}, hows...);
}

/// Explains in one line why an entry stays or goes, as for a typed policy.
template <executor Executor>
[[nodiscard]] std::string explain(basic_any_policy<Executor> const& policy, plan<Executor>& of, int segment,
                                  int ordinal) {
  return policy.explain(of, segment, ordinal);
}

/// Computes the bytes that the policy needs, as for a typed policy.
template <executor Executor>
[[nodiscard]] required required_bytes(basic_any_policy<Executor> const& policy, cache const& in,
                                      at_once const& size = {}) {
  return policy.required_bytes(in, size);
}

/// Observes a step, as for a typed policy.
///
/// - throws: also `invalid_argument` that names the signal, if a recorder needs a signal that is not given.
template <executor Executor>
void observe(Executor& exec, basic_any_policy<Executor> const& policy, any_signals const& in, state<Executor>& state) {
  policy.observe(exec, in, state);
}

/// Decides, as for a typed policy.
///
/// - throws: also `invalid_argument` that names the signal, if the scorer needs a signal that is not given.
template <executor Executor>
void decide(Executor& exec, basic_any_policy<Executor> const& policy, any_signals const& in,
            state<Executor> const& state, plan<Executor>& into) {
  policy.decide(exec, in, state, into);
}

}  // namespace KVPOLICY_NAMESPACE

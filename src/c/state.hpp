// SPDX-License-Identifier: Apache-2.0
// What the calls of C do, over the memory of an executor.
#pragma once

#include <kvpolicy/c/kvpolicy.h>

#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/ops/cuda/fetched_keep.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "views.hpp"

struct kvpolicy_policy {
  kvpolicy::any_policy value;
};

/// The calls about a state. Each throws as the functions of the library do.
struct kvpolicy_state {
  kvpolicy_state() = default;
  kvpolicy_state(kvpolicy_state const&) = delete;
  kvpolicy_state& operator=(kvpolicy_state const&) = delete;
  virtual ~kvpolicy_state() = default;

  virtual void append(int sequence, int tokens, int position) = 0;
  virtual void truncate(int sequence, int position) = 0;
  virtual void reset(int sequence) = 0;
  virtual void observe(kvpolicy_signals const* signals) = 0;
  /// Returns why the decision rests on nothing; empty if it rests on something, or if that is not known yet.
  virtual std::string decide(kvpolicy_signals const* signals) = 0;
  [[nodiscard]] virtual kvpolicy_report reported() const = 0;
  [[nodiscard]] virtual std::span<int const> kept(int sequence, int layer, int kv_head) const = 0;
  virtual void apply(kvpolicy_stats* stats) = 0;
  virtual void synchronize() = 0;
};

namespace kvpolicy_c {

/// A state over the memory of `Executor`. What a device decided is fetched once, when it is asked for.
template <class Executor>
class state_on final : public kvpolicy_state {
 public:
  template <class... Arguments>
  state_on(char const* call, kvpolicy_policy const& policy, kvpolicy_cache const& from, Arguments&&... arguments)
      : exec_(std::forward<Arguments>(arguments)...),
        policy_(for_executor(policy.value)),
        cache_(cache_of(from)),
        list_(table_of(from.slots, cache_.shape, from.capacity)),
        recorded_(made(call, policy.value, exec_, policy_, cache_)),
        plan_(list_.data != nullptr ? kv::make_plan(exec_, policy_, cache_, kv::list_rewrite<>{.list = list_})
                                    : kv::make_plan(exec_, policy_, cache_, kv::compact{})),
        counted_(exec_, 1) {}

  void append(int sequence, int tokens, int position) override {
    kv::append(exec_, cache_, recorded_, {.sequence = sequence, .tokens = tokens, .position = position});
  }
  void truncate(int sequence, int position) override { kv::truncate(exec_, cache_, recorded_, sequence, position); }
  void reset(int sequence) override { kv::reset(exec_, cache_, recorded_, sequence); }

  void observe(kvpolicy_signals const* signals) override {
    given_signals const in(cache_, signals, "kvpolicy_observe");
    if constexpr (on_host) kv::refuse_missed_rows("kvpolicy_observe", policy_, in.view, recorded_, true);
    kv::observe(exec_, policy_, in.view, recorded_);
  }

  std::string decide(kvpolicy_signals const* signals) override {
    char const* const call = "kvpolicy_decide";
    given_signals const in(cache_, signals, call);
    if constexpr (on_host) kv::refuse_missed_rows(call, policy_, in.view, recorded_, false);
    fetched_.reset();
    kv::decide(exec_, policy_, in.view, recorded_, plan_);
    if constexpr (on_host) {
      return kv::detail::why_unobserved(call, policy_, plan_.report());
    } else {
      return {};
    }
  }

  [[nodiscard]] kvpolicy_report reported() const override {
    plan_.expects_decision("kvpolicy_reported");
    kv::report const& of = decided().report();
    return {of.nan_scores, of.forced_over_budget, of.triggered, of.unobserved, of.over_budget, of.emptied};
  }

  [[nodiscard]] std::span<int const> kept(int sequence, int layer, int kv_head) const override {
    char const* const call = "kvpolicy_kept";
    plan_.expects_decision(call);
    kv::lanes const& batch = cache_.lanes;
    kv::expects(sequence >= 0 && sequence < batch.sequences, call, "sequence", sequence,
                [&] { return "there are " + std::to_string(batch.sequences) + " sequences"; });
    kv::expects(layer >= 0 && layer < batch.layer_end, call, "layer", layer,
                [&] { return "there are " + std::to_string(batch.layer_end) + " layers"; });
    kv::expects(kv_head >= 0 && kv_head < batch.heads, call, "kv_head", kv_head,
                [&] { return "there are " + std::to_string(batch.heads) + " KV heads"; });
    kv::keep_set const& keep = plan_.keep();
    return decided().listed(kv::segment_of(keep.lanes, keep.decides, keep.lanes.index({sequence, layer, kv_head})));
  }

  void apply(kvpolicy_stats* stats) override {
    kv::apply_stats* const counted = stats != nullptr ? counted_.data() : nullptr;
    if (list_.data != nullptr) {
      kv::apply(exec_, kv::list_rewrite<>{.list = list_}, plan_, cache_, recorded_, counted);
    } else {
      kv::apply(exec_, kv::compact{}, plan_, cache_, recorded_, counted);
    }
    if (stats == nullptr) return;
    synchronize();
    kv::apply_stats now;
    if constexpr (on_host) {
      now = *counted;
    } else {
      exec_.fetch(&now, counted, 1);
    }
    *stats = {now.logical_kept, now.physical_freed, now.attended_length};
  }

  void synchronize() override {
    if constexpr (!on_host) exec_.check();
  }

 private:
  static constexpr bool on_host = kv::detail::reads_on_host<typename Executor::backend>;
  using policy_type = kv::basic_any_policy<Executor>;

  /// The decision of a host's plan, as `fetched_keep` gives that of a device.
  struct on_the_host {
    kv::plan<Executor> const& of;
    [[nodiscard]] kv::report const& report() const { return of.report(); }
    [[nodiscard]] std::span<int const> listed(int segment) const { return of.keep().listed(segment); }
  };
  [[nodiscard]] decltype(auto) decided() const {
    if constexpr (on_host) {
      return on_the_host{plan_};
    } else {
      if (!fetched_) fetched_.emplace(exec_, plan_.keep());
      return (*fetched_);
    }
  }

  /// The policy for this executor: the parts of its text.
  static policy_type for_executor(kv::any_policy const& policy) {
    if constexpr (std::same_as<policy_type, kv::any_policy>) {
      return policy;
    } else {
      return kv::parse<Executor>(to_string(policy));
    }
  }

  static kv::state<Executor> made(char const* call, kv::any_policy const& said, Executor& exec,
                                  policy_type const& policy, kv::cache const& in) {
    kv::detail::refuse_needs_beyond(call, policy, {"keys", "values", "queries", "attention_mass", "external"},
                                    "kvpolicy_signals does");
    kv::expects(
        policy.pick.what != kv::any_pick::kind::lowest_one, call, "policy", [&] { return kv::to_string(said); },
        "lowest_one lists what is dropped, and kvpolicy_apply carries out what is kept");
    return kv::make_state(exec, policy, in);
  }

  mutable Executor exec_;
  policy_type policy_;
  kv::cache cache_;
  kv::by_lane<int> list_;
  kv::state<Executor> recorded_;
  kv::plan<Executor> plan_;
  typename Executor::template buffer<kv::apply_stats> counted_;
  mutable std::optional<kv::fetched_keep> fetched_;  ///< of a device
};

/// Makes a state, whose executor is made of `arguments`.
template <class Executor, class... Arguments>
kvpolicy_status make_state(char const* call, kvpolicy_policy const* policy, kvpolicy_cache const* cache,
                           kvpolicy_state** state, Arguments&&... arguments) {
  return guarded(call, [&] {
    given(state, call, "state");
    *state = nullptr;
    given(policy, call, "policy");
    given(cache, call, "cache");
    *state = new state_on<Executor>(call, *policy, *cache, std::forward<Arguments>(arguments)...);
  });
}

}  // namespace kvpolicy_c

// SPDX-License-Identifier: Apache-2.0
// Consumer 9: a type-erased, stateful policy. What is behind it is chosen at run time; its state is erased with it.
#pragma once

#include <memory>

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// Signals of an engine that always has the same ones.
using engine_signals = kv::signals<kv::keys, kv::queries>;

/// An eviction with its state and its plan behind one door.
class any_session {
 public:
  template <kv::eviction_policy Policy>
    requires kv::can_decide<Policy, engine_signals, kv::host_executor>
  any_session(kv::host_executor& exec, Policy const& policy, kv::cache& cache)
      : inner_(std::make_unique<model<Policy>>(exec, policy, cache)) {}

  void append(kv::append_request const& new_tokens) { inner_->append(new_tokens); }
  void observe(engine_signals const& in) { inner_->observe(in); }
  void decide(engine_signals const& in) { inner_->decide(in); }
  void apply() { inner_->apply(); }
  [[nodiscard]] std::string name() const { return inner_->name(); }

 private:
  struct interface {
    virtual ~interface() = default;
    virtual void append(kv::append_request const&) = 0;
    virtual void observe(engine_signals const&) = 0;
    virtual void decide(engine_signals const&) = 0;
    virtual void apply() = 0;
    [[nodiscard]] virtual std::string name() const = 0;
  };

  template <class Policy>
  struct model final : interface {
    model(kv::host_executor& on, Policy const& what, kv::cache& of)
        : exec(on), policy(what), cache(of), state(kv::make_state(on, what, of)), plan(kv::make_plan(on, what, of)) {}
    void append(kv::append_request const& new_tokens) override { kv::append(exec, cache, state, new_tokens); }
    void observe(engine_signals const& in) override { kv::observe(exec, policy, in, state); }
    void decide(engine_signals const& in) override { kv::decide(exec, policy, in, state, plan); }
    void apply() override { kv::apply(exec, kv::compact{}, plan, cache, state); }
    [[nodiscard]] std::string name() const override { return kv::to_string(policy); }

    kv::host_executor& exec;
    Policy policy;
    kv::cache& cache;
    kv::state<kv::host_executor> state;
    kv::plan<kv::host_executor> plan;
  };

  std::unique_ptr<interface> inner_;
};

}  // namespace vocabulary

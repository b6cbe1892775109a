// SPDX-License-Identifier: Apache-2.0
// The model with the memory of its caches, and a prompt that was read in the ways that the contenders need.
#pragma once

#include <kvpolicy/io/gate_files.hpp>
#include <kvpolicy/io/residual_file.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "../tinylm/cache_session.hpp"
#include "../tinylm/session.hpp"
#include "contender.hpp"
#include "query_profile.hpp"

namespace tinylm {
class prompt_signals;  ///< what only some methods ask of a prompt (prompt_signals.hpp)
}

namespace demo {

/// The weights, read once. Engines copy those of the model, and refer to those of the gates.
class model_files {
 public:
  model_files(std::string const& folder, trained_parts const& needed)
      : model_(tinylm::read_weights(folder + "/weights.safetensors")) {
    if (needed.gates) {
      write_.emplace(kv::safetensors_reader(folder + "/write_gate.safetensors"));
      retention_.emplace(kv::safetensors_reader(folder + "/retention_gate.safetensors"));
    }
    if (needed.residual) {
      residual_.emplace(kv::safetensors_reader(folder + "/../../agent_replay/weights/residual.safetensors"));
    }
    if (needed.profile) profile_.emplace(folder + "/query_profile.safetensors", model_.about.shape());
  }
  [[nodiscard]] tinylm::weights const& model() const { return model_; }
  [[nodiscard]] query_profile const* profile() const { return profile_ ? &*profile_ : nullptr; }
  [[nodiscard]] tinylm::gate_weights gates() const {
    return write_ ? tinylm::gate_weights{write_->weights(), retention_->weights()} : tinylm::gate_weights{};
  }
  [[nodiscard]] kv::residual_head residual() const { return residual_ ? residual_->head() : kv::residual_head{}; }

 private:
  tinylm::weights model_;
  std::optional<kv::write_gate_file> write_;
  std::optional<kv::retention_gate_file> retention_;
  std::optional<kv::residual_weights> residual_;
  std::optional<query_profile> profile_;
};

/// An engine, which reads and writes one prompt at a time. Several prompts at once need as many engines.
class engine {
 public:
  engine(std::shared_ptr<model_files const> files, engine_options const& with);

  [[nodiscard]] tinylm::model& model() { return model_; }
  [[nodiscard]] kv::host_executor& exec() { return exec_; }
  [[nodiscard]] tinylm::kv_pool& pool() { return pool_; }
  [[nodiscard]] tinylm::layout lay() const { return lay_; }
  [[nodiscard]] kv::any_applier const& own() const { return with_.own; }
  [[nodiscard]] int bound() const { return with_.bound; }
  [[nodiscard]] int context() const { return with_.context; }
  [[nodiscard]] tinylm::gate_weights gates() const { return files_->gates(); }
  [[nodiscard]] kv::residual_head residual() const { return files_->residual(); }
  [[nodiscard]] query_profile const* profile() const { return files_->profile(); }

  /// A pool whose units hold a token of all lanes, with a dead slot: for policies that drop whole tokens in place.
  [[nodiscard]] tinylm::kv_pool& pool_of_tokens();

 private:
  std::shared_ptr<model_files const> files_;
  engine_options with_;
  tinylm::layout lay_ = tinylm::layout::compact;
  tinylm::model model_;
  kv::host_executor exec_;
  tinylm::kv_pool pool_;
  std::optional<tinylm::kv_pool> pool_of_tokens_;
};

/// A prompt that was read with the full cache, and under the mask of each admission. It is read once in each way, for
/// all contenders.
class reading {
 public:
  reading(engine& on, bytes const& text)
      : text_(text), whole_(tinylm::read_prompt(on.model(), on.exec(), on.pool(), text_, on.bound())) {}

  [[nodiscard]] tinylm::prompt const& whole() const { return whole_; }

  /// The prompt that was read with the full cache, copied into the pool of tokens.
  [[nodiscard]] tinylm::prompt const& whole_in_tokens(engine& on);

  /// What `told` has made of the prompt, or null.
  [[nodiscard]] std::shared_ptr<tinylm::prompt_signals const>& more() { return more_; }

  /// The prompt as read under the mask of the policy's admission. Without an admission all entries are seen.
  template <class Policy>
  [[nodiscard]] tinylm::read_text& under(engine& on, Policy const& policy) {
    std::string const key = kv::to_string(kv::cache_policy{.admit = policy.admit});
    auto found = seen_.find(key);
    if (found == seen_.end()) {
      using session = tinylm::cache_session<Policy>;
      found = seen_.emplace(key, session::read_once(on.model(), on.exec(), text_, policy, on.gates())).first;
    }
    return found->second;
  }

 private:
  bytes text_;
  tinylm::prompt whole_;
  std::optional<tinylm::prompt> in_tokens_;
  std::shared_ptr<tinylm::prompt_signals const> more_;
  std::map<std::string, tinylm::read_text> seen_;
};

[[nodiscard]] inline costs costs_of(tinylm::session_counters const& from) {
  return {from.steps, from.entries_read, from.model_seconds, from.policy_seconds};
}

template <class Policy>
class session_reader final : public reader {
 public:
  explicit session_reader(tinylm::session<Policy> on) : on_(std::move(on)) {}
  std::span<float const> step(std::uint8_t byte) override { return on_.step(byte); }
  [[nodiscard]] std::span<float const> logits() const override { return on_.logits(); }
  [[nodiscard]] costs spent() const override { return costs_of(on_.counters()); }
  [[nodiscard]] std::int64_t live_entries() const override { return on_.entries().live_entries(); }
  [[nodiscard]] std::int64_t live_bytes() const override { return on_.entries().live_bytes(); }
  [[nodiscard]] std::vector<kv::lanes> lanes() override { return {on_.view().lanes}; }

 private:
  tinylm::session<Policy> on_;
};

/// Makes a contender whose policy is `compose(budget)`. `decide` says when it decides: SnapKV and the scorers of keys
/// decide once, at the end of the prefill; StreamingLLM and H2O are defined as deciding after every forward. A policy
/// that observes turns must not observe every decoded token as one.
template <class Compose>
contender contestant(std::string name, tinylm::when decide, Compose compose, bool observe_steps = true) {
  contender made{.name = std::move(name)};
  made.spell = [compose](int budget, int) { return kv::to_string(compose(budget)); };
  made.start = [compose, decide, observe_steps](engine& on, reading& from, int budget) -> std::unique_ptr<reader> {
    auto const policy = compose(budget);
    tinylm::session_options const options{
        .bound = on.bound(), .decide = decide, .lay = on.lay(), .own = on.own(), .observe_steps = observe_steps};
    return std::make_unique<session_reader<std::remove_const_t<decltype(policy)>>>(
        tinylm::session(on.model(), on.exec(), from.whole(), policy, options));
  };
  return made;
}

/// Makes a contender whose policy is `compose(budget, residual)`. It decides once after the prompt, for all lanes
/// together, and drops tokens in place: their positions name the dead slot, and no row moves.
template <class Compose>
contender contestant_in_place(std::string name, Compose compose) {
  contender made{.name = std::move(name), .needs = {.residual = true}};
  made.spell = [compose](int budget, int) { return kv::to_string(compose(budget, kv::residual_head{})); };
  made.start = [compose](engine& on, reading& from, int budget) -> std::unique_ptr<reader> {
    auto const policy = compose(budget, on.residual());
    tinylm::session_options const options{
        .bound = on.bound(), .lay = tinylm::layout::dead_slot, .observe_steps = false};
    return std::make_unique<session_reader<std::remove_const_t<decltype(policy)>>>(
        tinylm::session(on.model(), on.exec(), from.whole_in_tokens(on), policy, options));
  };
  return made;
}

/// Makes a contender whose policy is `compose(budget, profile)`; without a profile, null, it is only printed.
template <class Compose>
contender contestant_by_profile(std::string name, tinylm::when decide, Compose compose) {
  contender made{.name = std::move(name), .needs = {.profile = true}};
  made.spell = [compose](int budget, int) { return kv::to_string(compose(budget, nullptr)); };
  made.start = [compose, decide](engine& on, reading& from, int budget) -> std::unique_ptr<reader> {
    auto const policy = compose(budget, on.profile());
    tinylm::session_options const options{.bound = on.bound(), .decide = decide, .lay = on.lay()};
    return std::make_unique<session_reader<std::remove_const_t<decltype(policy)>>>(
        tinylm::session(on.model(), on.exec(), from.whole(), policy, options));
  };
  return made;
}

template <class Policy>
class cache_reader final : public reader {
 public:
  cache_reader(engine& on, reading& from, Policy const& policy)
      : on_(on.model(), on.exec(), from.under(on, policy), policy,
            {.bound = on.bound(), .chunk = 1, .gates = on.gates()}) {}
  std::span<float const> step(std::uint8_t byte) override { return on_.step(byte); }
  [[nodiscard]] std::span<float const> logits() const override { return on_.logits(); }
  [[nodiscard]] costs spent() const override { return costs_of(on_.counters()); }
  [[nodiscard]] std::int64_t live_entries() const override { return on_.live_entries(); }
  [[nodiscard]] std::int64_t live_bytes() const override { return on_.live_bytes(); }
  [[nodiscard]] std::vector<kv::lanes> lanes() override { return on_.lanes(); }

 private:
  tinylm::cache_session<Policy> on_;
};

/// Makes a contender whose policy is the `kvpolicy::cache_policy` that `compose(budget, context)` returns.
template <class Compose>
contender cache_contestant(std::string name, bool gated, Compose compose) {
  contender made{.name = std::move(name), .needs = {.gates = gated}};
  made.spell = [compose](int budget, int context) { return kv::to_string(compose(budget, context)); };
  made.start = [compose](engine& on, reading& from, int budget) -> std::unique_ptr<reader> {
    auto const policy = compose(budget, on.context());
    return std::make_unique<cache_reader<std::remove_const_t<decltype(policy)>>>(on, from, policy);
  };
  return made;
}

}  // namespace demo

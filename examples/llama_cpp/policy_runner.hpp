// SPDX-License-Identifier: Apache-2.0
// A policy with its state and its decisions about the sequences of a context of llama.cpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/kvpolicy.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "context.hpp"
#include "policy_fit.hpp"
#include "sequence_tables.hpp"
#include "stored_decision.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

/// The query rows of a sequence in the last decode.
struct decoded_rows {
  int first = 0;
  int rows = 0;
  bool turn = false;  ///< they are the last ones of a prefill
};

/// The library's calls about the sequences of a context: the tables, the policy's state, and its plan.
///
/// - throws: `kvpolicy::invalid_argument` from the constructor if the policy does not fit into llama.cpp, or needs a
///   signal that the context does not give.
template <class Policy>
class policy_runner {
 public:
  policy_runner(Policy const& policy, context& with, int threads)
      : policy_(policy),
        context_(&with),
        exec_(threads),
        tables_(with.shape(), with.sequences(), with.cells()),
        parts_(static_cast<std::size_t>(with.sequences())),
        slots_(parts_.size()) {
    std::iota(slots_.begin(), slots_.end(), 0);
    detail::check_policy(policy_, all(), with.cells());
    state_.emplace(kv::make_state(exec_, policy_, all()));
    plan_.emplace(kv::make_plan(exec_, policy_, all(), kv::at_once{.sequences = 1}, kv::compact{}));
    observe(0);  // nothing is in the cache: this names a signal that is missing
    decide(0);
  }
  policy_runner(policy_runner const&) = delete;
  policy_runner& operator=(policy_runner const&) = delete;

  [[nodiscard]] Policy const& policy() const { return policy_; }
  [[nodiscard]] sequence_tables& tables() { return tables_; }
  [[nodiscard]] sequence_tables const& tables() const { return tables_; }
  [[nodiscard]] kv::report const& report() const { return plan_->report(); }
  [[nodiscard]] kv::apply_stats const& stats() const { return stats_; }

  /// The cache of one sequence, until the next call. The list of slots that it refers to belongs to this object.
  [[nodiscard]] kv::cache part(int sequence) { return kv::only(all(), {.slots = slots_.data() + sequence, .size = 1}); }

  /// Forgets the query rows of the decode before.
  void begin_decode() { parts_.assign(parts_.size(), {}); }
  void note(int sequence, decoded_rows const& rows) { parts_[static_cast<std::size_t>(sequence)] = rows; }
  void append(int sequence, int tokens, int position) {
    kv::cache cache = part(sequence);
    kv::append(exec_, cache, *state_, {.sequence = 0, .tokens = tokens, .position = position, .in_flight = false});
  }

  void observe(int sequence) {
    visit_signals(sequence, [&](auto const& in) { kv::observe(exec_, policy_, in, *state_); });
  }
  void decide(int sequence) {
    visit_signals(sequence, [&](auto const& in) { kv::decide(exec_, policy_, in, *state_, *plan_); });
  }
  /// Decides about a sequence, and refuses what `apply` would refuse. The decision is carried out later: see `apply`.
  [[nodiscard]] stored_decision decide_for_later(int sequence) {
    decide(sequence);
    kv::cache const one = part(sequence);
    static_cast<void>(kv::detail::refuse_apply(exec_, applier(), *plan_, one, *state_));
    return stored_decision(plan_->keep());
  }
  /// Moves the kept rows of a sequence together, as decided.
  void apply(int sequence) {
    kv::cache one = part(sequence);
    kv::apply(exec_, applier(), *plan_, one, *state_, &stats_);
  }
  void apply(int sequence, stored_decision const& decided) {
    decided.put_back(*plan_, state_->epochs(part(sequence).lanes.slots));
    apply(sequence);
  }

  /// What the policy knows of a sequence and its entries, without their rows.
  [[nodiscard]] std::vector<std::byte> remember(int sequence) {
    std::vector<std::byte> made(kv::saved_bytes(exec_, all(), *state_, sequence, kv::rows::leave));
    kv::save(exec_, all(), *state_, sequence, made, kv::rows::leave);
    return made;
  }
  /// Forgets the tokens that were added since `remember`, of which the sequence had `length`. It was not evicted since.
  void restore(int sequence, int length, std::span<std::byte const> from) {
    if (tables_.length(sequence) > length) tables_.cut(sequence, length);
    kv::cache cache = all();
    kv::reset(exec_, cache, *state_, sequence);
    kv::load(exec_, cache, *state_, sequence, from, kv::rows::leave);
    note(sequence, {});
  }

  void reset(int sequence) {
    kv::cache cache = all();
    kv::reset(exec_, cache, *state_, sequence);
    tables_.clear(sequence);
    note(sequence, {});
  }
  void truncate(int sequence, int position) {
    kv::cache one = part(sequence);
    kv::truncate(exec_, one, *state_, 0, position);
    tables_.cut(sequence, position);
    note(sequence, {});
  }
  void fork(int from, int to) {
    kv::cache cache = all();
    kv::fork(exec_, cache, *state_, from, to);
    note(to, parts_[static_cast<std::size_t>(from)]);
  }
  [[nodiscard]] std::size_t saved_bytes(int sequence) { return kv::saved_bytes(exec_, all(), *state_, sequence); }
  void save(int sequence, std::span<std::byte> to) { kv::save(exec_, all(), *state_, sequence, to); }
  void load(int sequence, std::span<std::byte const> from) {
    kv::cache cache = all();
    kv::load(exec_, cache, *state_, sequence, from);
  }

 private:
  [[nodiscard]] kv::engines::bound_policy<kv::engines::llama_cpp, Policy, kv::compact> applier() const {
    return {policy_, {}};
  }
  [[nodiscard]] kv::cache all() { return context_->view(tables_.lanes(), tables_.cell_table()); }

  /// Calls visit(signals) with the signals that the context has: rows that are quantised are not among them. A prefill
  /// is a turn, whose span is unknown: the rows of its last decode stand for it. Other decodes are turns without rows.
  template <class Visit>
  void visit_signals(int sequence, Visit const& visit) {
    kv::cache const one = part(sequence);
    decoded_rows const rows = parts_[static_cast<std::size_t>(sequence)];
    kv::queries const queries = context_->queries(rows.first, rows.rows);
    kv::turn_queries const turn{context_->queries(rows.first, rows.turn ? rows.rows : 0)};
    kv::keys const keys = context_->keys_of(one);
    kv::values const values = kv::values_of(one);
    if constexpr (std::same_as<Policy, kv::any_policy>) {
      kv::any_signals in(one.lanes);
      if (keys.rows.element != kv::codec::opaque) in.add(keys);
      if (values.rows.element != kv::codec::opaque) in.add(values);
      if (context_->has_queries()) {
        in.add(queries);
        in.add(turn);
      }
      visit(in);
    } else {
      visit(kv::signals{one.lanes, keys, values, queries, turn});
    }
  }

  Policy policy_;
  context* context_;
  kv::host_executor exec_;
  sequence_tables tables_;
  std::vector<decoded_rows> parts_;  ///< [sequence]
  std::vector<int> slots_;           ///< 0, 1, 2, ...
  std::optional<kv::state<kv::host_executor>> state_;
  std::optional<kv::plan<kv::host_executor>> plan_;
  kv::apply_stats stats_{};
};

}  // namespace llama_cpp

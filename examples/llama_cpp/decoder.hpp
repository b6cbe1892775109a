// SPDX-License-Identifier: Apache-2.0
// The sequences of a context under a policy: what their calls check, and one decode of some of them.
#pragma once

#include <llama.h>

#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch_check.hpp"
#include "context.hpp"
#include "engine_options.hpp"
#include "policy_runner.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

/// A context, the tables of its sequences and the states that a policy has of them, which change together.
template <class Policy>
class decoder {
 public:
  decoder(llama_model* with, Policy const& policy, engine_options const& options)
      : context_(with, options.context), policy_(policy, context_, options.policy_threads) {}
  decoder(decoder const&) = delete;
  decoder& operator=(decoder const&) = delete;

  [[nodiscard]] llama_cpp::context& context() { return context_; }
  [[nodiscard]] llama_cpp::context const& context() const { return context_; }
  [[nodiscard]] policy_runner<Policy>& policy() { return policy_; }
  [[nodiscard]] policy_runner<Policy> const& policy() const { return policy_; }
  [[nodiscard]] sequence_tables& tables() { return policy_.tables(); }
  [[nodiscard]] sequence_tables const& tables() const { return policy_.tables(); }
  /// The logits of the last decode.
  [[nodiscard]] std::vector<float> const& logits() const { return logits_; }

  /// Refuses a sequence that there is not.
  void check_sequence(char const* call, int sequence) const {
    kv::expects(sequence >= 0 && sequence < context_.sequences(), call, "sequence", sequence,
                [&] { return "the engine has " + std::to_string(context_.sequences()) + " sequences"; });
  }
  /// Refuses also one whose cells somebody else has changed.
  void check_untouched(char const* call, int sequence) const {
    check_sequence(call, sequence);
    context_.check_untouched(call, sequence, tables().claimed(sequence));
  }
  /// Refuses a slot that a sequence has.
  void check_empty(char const* call, char const* name, int sequence) const {
    check_sequence(call, sequence);
    kv::expects(tables().length(sequence) == 0, call, name, sequence, "it is in use: reset it before");
    check_untouched(call, sequence);
  }

  /// Refuses more tokens than there are free cells.
  void check_room(char const* call, int tokens) const {
    kv::expects(tokens <= tables().free_count(), call, "tokens", tokens,
                [&] { return "the cache has " + std::to_string(tables().free_count()) + " free cells"; });
  }
  /// Refuses what `forward` cannot decode. Nothing is changed.
  void check_forward(char const* call, std::span<sequence_rows const> batch) const {
    for (sequence_rows const& one : batch) check_untouched(call, one.sequence);
    check_room(call, detail::check_batch(call, context_, batch));
  }

  /// Decodes a batch that was checked, then adds its tokens to the tables and lets the policy observe them.
  ///
  /// - throws: some of the tokens may be in the cache then.
  void forward(char const* call, std::span<sequence_rows const> batch, bool every_logit,
               detail::decode_kind const& kind) {
    context_.clear_batch();
    policy_.begin_decode();
    for (sequence_rows const& one : batch)
      context_.add(one.sequence, tables().length(one.sequence), one.rows.tokens, one.rows.embeddings, every_logit);
    if (!context_.decode(kind.observed))
      throw std::runtime_error(std::string(call) + ": llama_decode failed; the sequences are as they were before");
    context_.take_logits(logits_);
    note(batch, kind.ends_turn);
    if (kind.observed) {
      for (sequence_rows const& one : batch) policy_.observe(one.sequence);
    }
  }

  /// Takes the tokens back that were added since a sequence had `length`. It was not evicted since. The attention that
  /// they paid to other entries stays recorded.
  void take_back(int sequence, int length) {
    context_.remove(sequence, length, -1);
    if (tables().length(sequence) > length) policy_.truncate(sequence, length);
  }

  /// Ends the request of a sequence: its cells are free, and its state is that of a new one.
  void reset(int sequence) {
    context_.remove(sequence, -1, -1);
    policy_.reset(sequence);
  }

  /// Gives cells to a sequence that has none, for the last `count` of `length` tokens, and lets fill() write their rows
  /// and entries.
  template <class Fill>
  void begin(char const* call, int sequence, sequence_size const& of, Fill const& fill) {
    check_room(call, of.count);
    try {
      context_.occupy(call, sequence, of.length - of.count, of.count, tables().cells(sequence));
      fill();
    } catch (...) {
      reset(sequence);
      throw;
    }
    tables().set(sequence, of);
  }

 private:
  /// Adds the tokens of the last decode to counts, positions and state, in the cells where llama.cpp has put them.
  void note(std::span<sequence_rows const> batch, bool ends_turn) {
    int first = 0;
    for (sequence_rows const& one : batch) {
      int const s = one.sequence;
      int const tokens = context_.tokens_of("step", one.rows.tokens, one.rows.embeddings);
      int const position = tables().length(s);
      tables().add(
          s,
          std::span(context_.new_cells()).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens)));
      policy_.append(s, tokens, position);
      policy_.note(s, {first, tokens, ends_turn});
      first += tokens;
    }
  }

  llama_cpp::context context_;
  policy_runner<Policy> policy_;
  std::vector<float> logits_;
};

}  // namespace llama_cpp

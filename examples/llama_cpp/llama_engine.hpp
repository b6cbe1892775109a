// SPDX-License-Identifier: Apache-2.0
// A llama.cpp context whose KV cache is kept small by a policy of kvpolicy, without a change of llama.cpp.
//
//     llama_cpp::engine engine(model, kv::parse("snapkv | budget(1024)"), {.context = {.cells = 8192}});
//     std::span<float const> logits = engine.prefill(0, {.tokens = prompt});  // reads, decides, frees cells
//     while (...) logits = engine.step(0, {.tokens = {&token, 1}});
//
// The cache of llama.cpp is made of cells. A cell has a position, holds one token of all layers and heads, and belongs
// to sequences. After an eviction the lanes of a sequence hold different tokens in the same cells, so that the
// positions of the cells mean nothing but an order: this engine knows which lane holds which token.
#pragma once

#include <llama.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "engine_options.hpp"
#include "free_cells.hpp"
#include "saved_sequence.hpp"
#include "stored_decision.hpp"

namespace llama_cpp {

/// A context and the states of its sequences. Each sequence has a slot from its first token until `reset`.
///
/// - throws: `kvpolicy::invalid_argument`, one line; `std::runtime_error` if llama.cpp fails. After any exception the
///   sequences are as before the call: what it has read is taken back.
template <class Policy>
class engine {
 public:
  /// - in: `with` must outlive the engine.
  /// - throws: also if the model or the policy cannot be served: see `context` and `policy_fit.hpp`.
  engine(llama_model* with, Policy const& policy, engine_options const& options = {})
      : options_(options), decoder_(with, policy, options) {}
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  /// Reads tokens in chunks, lets the policy observe each, and at the end decide, unless it decides by hand. A sequence
  /// may be read in several prefills: the turns of a conversation.
  ///
  /// - in: visit(position, logits), if given, is called for each chunk with logits [token][vocabulary]. It may throw to
  ///   cancel the prefill.
  /// - returns: the logits of the last token, valid until the next call.
  template <class Visit>
  std::span<float const> prefill(int sequence, token_rows const& from, Visit const& visit) {
    return read(sequence, from, true, visit);
  }
  std::span<float const> prefill(int sequence, token_rows const& from) {
    return read(sequence, from, false, [](int, std::span<float const>) {});
  }

  /// Reads one token of a sequence, and returns the logits of the next.
  std::span<float const> step(int sequence, token_rows const& from) {
    sequence_rows const one{sequence, from};
    return step(std::span(&one, 1));
  }

  /// Reads one token, or a few, of several sequences in one decode. Returns logits [sequence of the batch][vocabulary].
  std::span<float const> step(std::span<sequence_rows const> batch) {
    decoder_.check_forward("step", batch);
    std::vector<int> lengths;
    for (sequence_rows const& one : batch) lengths.push_back(length(one.sequence));
    std::int64_t read = 0;
    try {
      decoder_.forward("step", batch, false, {.observed = options_.observe_steps});
      for (sequence_rows const& one : batch) read += count(one.sequence);
      if (options_.decide == when::every_decode) evict_each(batch);
    } catch (...) {
      for (std::size_t i = 0; i < batch.size(); ++i) decoder_.take_back(batch[i].sequence, lengths[i]);
      throw;
    }
    rows_read_ += read;
    return decoder_.logits();
  }

  /// Lets the policy decide about a sequence by the query rows of its last decode, and carries the decision out: kept
  /// rows move together, and the cells behind them are free.
  ///
  /// - throws: also if lanes would keep different numbers of entries.
  void evict(int sequence) {
    decoder_.check_untouched("evict", sequence);
    if (count(sequence) == 0) return;
    seconds_ = {};
    detail::timed(seconds_.decide, [&] { decoder_.policy().decide(sequence); });
    carry_out(sequence, [&] { decoder_.policy().apply(sequence); });
  }

  /// Ends the request of a sequence: its cells are free, and its state is that of a new one.
  void reset(int sequence) {
    decoder_.check_sequence("reset", sequence);
    decoder_.reset(sequence);
  }

  /// Rolls a sequence back to its first `position` tokens. Entries that were evicted stay evicted.
  ///
  /// - throws: also if the position is before the last eviction, where the lanes hold different tokens.
  void truncate(int sequence, int position) {
    decoder_.check_sequence("truncate", sequence);
    kv::expects(position >= 0 && position <= length(sequence), "truncate", "position", position,
                [&] { return "the sequence has " + std::to_string(length(sequence)) + " tokens"; });
    kv::expects(position >= tables().evicted_at(sequence), "truncate", "position", position, [&] {
      return "the lanes hold different tokens since the eviction at " + std::to_string(tables().evicted_at(sequence));
    });
    decoder_.check_untouched("truncate", sequence);
    if (position == length(sequence)) return;
    decoder_.policy().truncate(sequence, position);
    decoder_.context().remove(sequence, position, -1);
  }

  /// Copies a sequence to bytes: its rows, which tokens its lanes hold, and the state of the policy. The sequence
  /// stays.
  [[nodiscard]] std::vector<std::byte> save(int sequence) {
    decoder_.check_untouched("save", sequence);
    return detail::pack(decoder_.context().options(), tables().size_of(sequence),
                        decoder_.policy().saved_bytes(sequence),
                        [&](std::span<std::byte> to) { decoder_.policy().save(sequence, to); });
  }

  /// Brings a saved sequence back, into any slot that was reset, of any engine of the same model, policy and types. It
  /// goes on as if it had never left. This costs a copy of the rows, and the start of a decode for each chunk.
  ///
  /// - throws: also if the slot is in use, or the bytes are not those of such a sequence. Any bit that has changed
  ///   since `save` is noticed.
  void load(int sequence, std::span<std::byte const> from) {
    decoder_.check_empty("load", "sequence", sequence);
    sequence_size const header = detail::unpack("load", decoder_.context().options(), from);
    decoder_.begin("load", sequence, header, [&] {
      decoder_.policy().load(sequence, from.subspan(sizeof(detail::saved_header)));
      kv::expects(count(sequence) == header.count, "load", "bytes", "damaged",
                  [&] { return "the header says " + std::to_string(header.count) + " entries"; });
    });
  }

  /// Makes sequence `to` a copy of sequence `from`, for several answers to one prompt: it has cells and a state of its
  /// own, and both go on as if alone.
  ///
  /// - throws: also if `to` is in use, or there are fewer free cells than `from` has.
  void fork(int from, int to) {
    decoder_.check_sequence("fork", from);
    decoder_.check_sequence("fork", to);
    kv::expects(from != to, "fork", "to", to, "it is the sequence that is copied");
    decoder_.check_empty("fork", "to", to);
    decoder_.check_untouched("fork", from);
    decoder_.begin("fork", to, tables().size_of(from), [&] { decoder_.policy().fork(from, to); });
  }

  /// Begins a sequence with `tokens` tokens whose rows the caller writes, instead of a prefill: rows that another
  /// process has computed, or those of a benchmark. The policy observes none of them. write(cache) gets the cache of
  /// the sequence, whose lanes have an entry for each token.
  ///
  /// - throws: also if the sequence is in use, or there are not enough free cells.
  template <class Write>
  void adopt(int sequence, int tokens, Write const& write) {
    decoder_.check_empty("adopt", "sequence", sequence);
    kv::expects(tokens >= 1, "adopt", "tokens", tokens, "at least one token is adopted");
    decoder_.begin("adopt", sequence, {tokens, tokens, 0},
                   [&] { decoder_.policy().append(sequence, tokens, 0), write(decoder_.policy().part(sequence)); });
  }

  /// The cache of a sequence as the library sees it, until the next call.
  [[nodiscard]] kv::cache view(int sequence) { return decoder_.policy().part(sequence); }
  /// The number of tokens that were read, which is the position of the next one.
  [[nodiscard]] int length(int sequence) const { return tables().length(sequence); }
  /// The number of cells that a sequence has, which is the number of entries of each of its lanes.
  [[nodiscard]] int count(int sequence) const { return tables().count(sequence); }
  /// The number of cells that no sequence has.
  [[nodiscard]] int free_count() const { return tables().free_count(); }
  /// The highest cell that a sequence has; -1 if no cell is used. Attention reads all cells up to it.
  [[nodiscard]] int highest_cell() const { return tables().highest_cell(); }
  /// The positions of the tokens that a lane holds, ascending.
  [[nodiscard]] std::span<int const> positions(kv::lane of) const { return tables().positions(of); }
  /// The cache rows of a layer that decoded tokens have read so far, those of all sequences together.
  [[nodiscard]] std::int64_t rows_read() const { return rows_read_; }
  [[nodiscard]] kv::shape const& shape() const { return decoder_.context().shape(); }
  [[nodiscard]] kv::report const& report() const { return decoder_.policy().report(); }
  /// The statistics of the last decision that was carried out.
  [[nodiscard]] kv::apply_stats const& stats() const { return decoder_.policy().stats(); }
  [[nodiscard]] eviction_seconds const& seconds() const { return seconds_; }
  [[nodiscard]] Policy const& policy() const { return decoder_.policy().policy(); }
  [[nodiscard]] llama_context* get() const { return decoder_.context().get(); }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] sequence_tables& tables() { return decoder_.tables(); }
  [[nodiscard]] sequence_tables const& tables() const { return decoder_.tables(); }

  template <class Visit>
  std::span<float const> read(int sequence, token_rows const& from, bool every_logit, Visit const& visit) {
    int const tokens = decoder_.context().tokens_of("prefill", from.tokens, from.embeddings);
    decoder_.check_untouched("prefill", sequence);
    kv::expects(tokens > 0, "prefill", "tokens", tokens, "at least one token is read");
    decoder_.context().check_ids("prefill", from.tokens);
    if (options_.decide != when::every_decode) decoder_.check_room("prefill", tokens);
    int const chunks = (tokens + decoder_.context().chunk() - 1) / decoder_.context().chunk();
    memory const before = remember(sequence, options_.decide == when::every_decode && chunks > 1);
    try {
      int at = 0;
      for (int i = 0; i < chunks; ++i) {
        int const some = (tokens - at + chunks - i - 1) / (chunks - i);  // chunks of nearly equal lengths
        sequence_rows const one{sequence, decoder_.context().slice(from, at, some)};
        int const position = length(sequence);
        decoder_.check_forward("prefill", {&one, 1});
        decoder_.forward("prefill", {&one, 1}, every_logit, {.observed = true, .ends_turn = i == chunks - 1});
        visit(position, std::span<float const>(decoder_.logits()));
        if (options_.decide == when::every_decode) evict(sequence);
        at += some;
      }
      if (options_.decide == when::after_prefill) evict(sequence);
    } catch (...) {
      take_back(sequence, before);
      throw;
    }
    return std::span<float const>(decoder_.logits()).last(size(decoder_.context().vocabulary()));
  }

  /// What a prefill takes a sequence back to if it fails.
  struct memory {
    int length = 0;
    bool rows = false;               ///< `bytes` are those of `save`; else what the policy knows
    std::vector<std::byte> bytes{};  ///< empty if the sequence is
  };
  /// - in: `evicted` says that evictions may come before the failure, so that rows move.
  [[nodiscard]] memory remember(int sequence, bool evicted) {
    if (length(sequence) == 0) return {};
    return {length(sequence), evicted, evicted ? save(sequence) : decoder_.policy().remember(sequence)};
  }
  void take_back(int sequence, memory const& before) {
    if (before.length == 0) return reset(sequence);
    if (!before.rows) {
      decoder_.context().remove(sequence, before.length, -1);
      return decoder_.policy().restore(sequence, before.length, before.bytes);
    }
    reset(sequence);
    try {
      load(sequence, before.bytes);
    } catch (std::exception const& error) {
      throw std::runtime_error("prefill: it failed, and the sequence is reset, because it could not be restored: " +
                               std::string(error.what()));
    }
  }

  /// Decides about each sequence of a batch, and carries out nothing before all decisions are there.
  void evict_each(std::span<sequence_rows const> batch) {
    if (batch.size() == 1) return evict(batch.front().sequence);
    seconds_ = {};
    std::vector<stored_decision> decided;
    detail::timed(seconds_.decide, [&] {
      for (sequence_rows const& one : batch) decided.push_back(decoder_.policy().decide_for_later(one.sequence));
    });
    for (std::size_t i = 0; i < batch.size(); ++i)
      carry_out(batch[i].sequence, [&] { decoder_.policy().apply(batch[i].sequence, decided[i]); });
  }
  /// Calls apply(), which moves the kept rows of a sequence together, and frees the cells behind them.
  template <class Apply>
  void carry_out(int sequence, Apply const& apply) {
    int const before = count(sequence);
    detail::timed(seconds_.apply, apply);
    if (int const kept = count(sequence); kept < before) {
      detail::timed(seconds_.cells, [&] { free_cells(decoder_.context(), tables(), sequence, kept, before); });
      tables().evicted_at(sequence) = length(sequence);
    }
  }

  engine_options options_;
  decoder<Policy> decoder_;
  eviction_seconds seconds_{};
  std::int64_t rows_read_ = 0;
};

}  // namespace llama_cpp

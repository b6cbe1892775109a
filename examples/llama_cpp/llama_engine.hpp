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
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "context.hpp"
#include "engine_options.hpp"
#include "free_cells.hpp"
#include "policy_runner.hpp"
#include "saved_sequence.hpp"

namespace llama_cpp {

/// A context and the states of its sequences. Each sequence has a slot from its first token until `reset`.
///
/// - throws: `kvpolicy::invalid_argument`, one line, before anything was changed; `std::runtime_error` if llama.cpp
///   fails. The tokens of a failed decode are removed again.
template <class Policy>
class engine {
 public:
  /// - in: `with` must outlive the engine.
  /// - throws: also if the model or the policy cannot be served: see `context` and `policy_fit.hpp`.
  engine(llama_model* with, Policy const& policy, engine_options const& options = {})
      : options_(options), context_(with, options.context), policy_(policy, context_, options.policy_threads) {}
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  /// Reads tokens in chunks, lets the policy observe each, and at the end decide, unless it decides by hand. A sequence
  /// may be read in several prefills: the turns of a conversation.
  ///
  /// - in: visit(position, logits), if given, is called for each chunk with logits [token][vocabulary].
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
    forward("step", batch, false, {.observed = options_.observe_steps});
    for (sequence_rows const& one : batch) rows_read_ += count(one.sequence);
    if (options_.decide == when::every_decode) {
      for (sequence_rows const& one : batch) evict(one.sequence);
    }
    return logits_;
  }

  /// Lets the policy decide about a sequence by the query rows of its last decode, and carries the decision out: kept
  /// rows move together, and the cells behind them are free.
  ///
  /// - throws: also if lanes would keep different numbers of entries.
  void evict(int sequence) {
    check_untouched("evict", sequence);
    int const before = count(sequence);
    if (before == 0) return;
    seconds_ = {};
    detail::timed(seconds_.decide, [&] { policy_.decide(sequence); });
    detail::timed(seconds_.apply, [&] { policy_.apply(sequence); });
    if (int const kept = count(sequence); kept < before) {
      detail::timed(seconds_.cells, [&] { free_cells(context_, tables(), sequence, kept, before); });
      tables().evicted_at(sequence) = length(sequence);
    }
  }

  /// Ends the request of a sequence: its cells are free, and its state is that of a new one.
  void reset(int sequence) {
    check_sequence("reset", sequence);
    context_.remove(sequence, -1, -1);
    policy_.reset(sequence);
  }

  /// Rolls a sequence back to its first `position` tokens. Entries that were evicted stay evicted.
  ///
  /// - throws: also if the position is before the last eviction, where the lanes hold different tokens.
  void truncate(int sequence, int position) {
    check_sequence("truncate", sequence);
    kv::expects(position >= 0 && position <= length(sequence), "truncate", "position", position,
                [&] { return "the sequence has " + std::to_string(length(sequence)) + " tokens"; });
    kv::expects(position >= tables().evicted_at(sequence), "truncate", "position", position, [&] {
      return "the lanes hold different tokens since the eviction at " + std::to_string(tables().evicted_at(sequence));
    });
    check_untouched("truncate", sequence);
    if (position == length(sequence)) return;
    context_.remove(sequence, position, -1);
    policy_.truncate(sequence, position);
  }

  /// Copies a sequence to bytes: its rows, which tokens its lanes hold, and the state of the policy. The sequence
  /// stays.
  [[nodiscard]] std::vector<std::byte> save(int sequence) {
    check_untouched("save", sequence);
    return detail::pack(context_.options(), tables().size_of(sequence), policy_.saved_bytes(sequence),
                        [&](std::span<std::byte> to) { policy_.save(sequence, to); });
  }

  /// Brings a saved sequence back, into any slot that was reset, of any engine of the same model, policy and types. It
  /// goes on as if it had never left. This costs a copy of the rows, and the start of a decode for each chunk.
  ///
  /// - throws: also if the slot is in use, or the bytes are not those of such a sequence.
  void load(int sequence, std::span<std::byte const> from) {
    check_sequence("load", sequence);
    kv::expects(length(sequence) == 0, "load", "sequence", sequence, "it is in use: reset it before");
    check_untouched("load", sequence);
    sequence_size const header = detail::unpack("load", context_.options(), from);
    begin("load", sequence, header, [&] {
      policy_.load(sequence, from.subspan(sizeof(detail::saved_header)));
      kv::expects(count(sequence) == header.count, "load", "bytes", "damaged",
                  [&] { return "the header says " + std::to_string(header.count) + " entries"; });
    });
  }

  /// Makes sequence `to` a copy of sequence `from`, for several answers to one prompt: it has cells and a state of its
  /// own, and both go on as if alone.
  ///
  /// - throws: also if `to` is in use, or there are fewer free cells than `from` has.
  void fork(int from, int to) {
    check_sequence("fork", from);
    check_sequence("fork", to);
    kv::expects(from != to, "fork", "to", to, "it is the sequence that is copied");
    kv::expects(length(to) == 0, "fork", "to", to, "it is in use: reset it before");
    check_untouched("fork", to);
    check_untouched("fork", from);
    begin("fork", to, tables().size_of(from), [&] { policy_.fork(from, to); });
  }

  /// Begins a sequence with `tokens` tokens whose rows the caller writes, instead of a prefill: rows that another
  /// process has computed, or those of a benchmark. The policy observes none of them. write(cache) gets the cache of
  /// the sequence, whose lanes have an entry for each token.
  ///
  /// - throws: also if the sequence is in use, or there are not enough free cells.
  template <class Write>
  void adopt(int sequence, int tokens, Write const& write) {
    check_sequence("adopt", sequence);
    kv::expects(length(sequence) == 0, "adopt", "sequence", sequence, "it is in use: reset it before");
    check_untouched("adopt", sequence);
    kv::expects(tokens >= 1, "adopt", "tokens", tokens, "at least one token is adopted");
    begin("adopt", sequence, {tokens, tokens, 0},
          [&] { policy_.append(sequence, tokens, 0), write(policy_.part(sequence)); });
  }

  /// The cache of a sequence as the library sees it, until the next call.
  [[nodiscard]] kv::cache view(int sequence) { return policy_.part(sequence); }
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
  [[nodiscard]] kv::shape const& shape() const { return context_.shape(); }
  [[nodiscard]] kv::report const& report() const { return policy_.report(); }
  /// The statistics of the last decision that was carried out.
  [[nodiscard]] kv::apply_stats const& stats() const { return policy_.stats(); }
  [[nodiscard]] eviction_seconds const& seconds() const { return seconds_; }
  [[nodiscard]] Policy const& policy() const { return policy_.policy(); }
  [[nodiscard]] llama_context* get() const { return context_.get(); }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] sequence_tables& tables() { return policy_.tables(); }
  [[nodiscard]] sequence_tables const& tables() const { return policy_.tables(); }

  void check_sequence(char const* call, int sequence) const {
    kv::expects(sequence >= 0 && sequence < context_.sequences(), call, "sequence", sequence,
                [&] { return "the engine has " + std::to_string(context_.sequences()) + " sequences"; });
  }
  void check_untouched(char const* call, int sequence) const {
    check_sequence(call, sequence);
    context_.check_untouched(call, sequence, tables().claimed(sequence));
  }

  template <class Visit>
  std::span<float const> read(int sequence, token_rows const& from, bool every_logit, Visit const& visit) {
    int const tokens = context_.tokens_of("prefill", from.tokens, from.embeddings);
    check_sequence("prefill", sequence);
    kv::expects(tokens > 0, "prefill", "tokens", tokens, "at least one token is read");
    if (options_.decide != when::every_decode) check_room("prefill", tokens);
    int const chunks = (tokens + context_.chunk() - 1) / context_.chunk();
    int at = 0;
    for (int i = 0; i < chunks; ++i) {
      int const some = (tokens - at + chunks - i - 1) / (chunks - i);  // chunks of nearly equal lengths
      sequence_rows const one{sequence, context_.slice<token_rows>(from, at, some)};
      int const position = length(sequence);
      forward("prefill", {&one, 1}, every_logit, {.observed = true, .ends_turn = i == chunks - 1});
      visit(position, std::span<float const>(logits_));
      if (options_.decide == when::every_decode) evict(sequence);
      at += some;
    }
    if (options_.decide == when::after_prefill) evict(sequence);
    return std::span<float const>(logits_).last(size(context_.vocabulary()));
  }

  void check_room(char const* call, int tokens) const {
    kv::expects(tokens <= free_count(), call, "tokens", tokens,
                [&] { return "the cache has " + std::to_string(free_count()) + " free cells"; });
  }

  /// Decodes a batch, then adds its tokens to the tables and lets the policy observe them.
  void forward(char const* call, std::span<sequence_rows const> batch, bool every_logit,
               detail::decode_kind const& kind) {
    int total = 0;
    std::vector<bool> listed(size(context_.sequences()));
    context_.clear_batch();
    for (sequence_rows const& one : batch) {
      check_untouched(call, one.sequence);
      kv::expects(!listed[size(one.sequence)], call, "sequence", one.sequence, "a sequence is in a batch once");
      listed[size(one.sequence)] = true;
      int const tokens = context_.tokens_of(call, one.rows.tokens, one.rows.embeddings);
      kv::expects(tokens > 0, call, "tokens", tokens, "a decode reads at least one token of each sequence");
      total += tokens;
      kv::expects(total <= context_.chunk(), call, "tokens", total,
                  [&] { return "a decode has at most " + std::to_string(context_.chunk()) + " tokens"; });
      context_.add(one.sequence, length(one.sequence), one.rows.tokens, one.rows.embeddings, every_logit);
    }
    check_room(call, total);
    if (!context_.decode(kind.observed)) {
      for (sequence_rows const& one : batch) context_.remove(one.sequence, length(one.sequence), -1);
      throw std::runtime_error(std::string(call) + ": llama_decode failed; the sequences are as they were before");
    }
    context_.take_logits(logits_);
    note(batch, kind.ends_turn);
    if (kind.observed) {
      for (sequence_rows const& one : batch) policy_.observe(one.sequence);
    }
  }

  /// Adds the tokens of the last decode to counts, positions and state, in the cells where llama.cpp has put them.
  void note(std::span<sequence_rows const> batch, bool ends_turn) {
    policy_.begin_decode();
    int first = 0;
    for (sequence_rows const& one : batch) {
      int const s = one.sequence;
      int const tokens = context_.tokens_of("step", one.rows.tokens, one.rows.embeddings);
      int const position = length(s);
      tables().add(s, std::span(context_.new_cells()).subspan(size(first), size(tokens)));
      policy_.append(s, tokens, position);
      policy_.note(s, {first, tokens, ends_turn});
      first += tokens;
    }
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

  engine_options options_;
  context context_;
  policy_runner<Policy> policy_;
  std::vector<float> logits_;
  eviction_seconds seconds_{};
  std::int64_t rows_read_ = 0;
};

}  // namespace llama_cpp

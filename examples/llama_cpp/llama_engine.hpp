// A llama.cpp context whose KV cache is kept small by a policy of kvpolicy, without a change of llama.cpp.
//
//     llama_cpp::engine<kv::any_policy> engine(model, kv::parse("snapkv | budget(1024)"), {.context = 8192});
//     std::span<float const> logits = engine.prefill(0, {.tokens = prompt});  // reads, decides, frees cells
//     while (...) logits = engine.step(0, {.tokens = {&token, 1}});
//
// The cache of llama.cpp is made of cells. A cell has a position, holds one token of all layers and heads, and belongs
// to sequences. After an eviction the lanes of a sequence hold different tokens in the same cells, so that the
// positions of the cells mean nothing but an order: this engine knows which lane holds which token.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "context.hpp"
#include "decode_watch.hpp"

namespace llama_cpp {

/// When the policy decides: only in `evict`, once after each prefill, or after every decode.
enum class when { by_hand, after_prefill, every_decode };

struct engine_options {
  context_options context{};
  when decide = when::after_prefill;
  bool observe_steps = true;  ///< let the policy observe decoded tokens; false for policies that observe prompts only
  int policy_threads = 1;     ///< of the policy
};

/// New tokens of a sequence: their ids, or the rows of their embeddings.
struct token_rows {
  std::span<llama_token const> tokens{};
  std::span<float const> embeddings{};  ///< [token][width of the embeddings], used if there are no ids
};

/// New tokens of one of several sequences.
struct sequence_rows {
  int sequence = 0;
  token_rows rows{};
};

/// A context and the states of its sequences. Each sequence has a slot from its first token until `reset`.
///
/// - throws: `kvpolicy::invalid_argument`, one line, before anything was changed; `std::runtime_error` if llama.cpp
/// fails.
///   The tokens of a failed decode are removed again.
template <class Policy>
class engine {
 public:
  /// - in: `with` must outlive the engine.
  /// - throws: also if the model or the policy cannot be served: see `context`, and `check_policy`.
  engine(llama_model* with, Policy const& policy, engine_options const& options = {})
      : options_(options),
        policy_(policy),
        context_(with, options.context),
        exec_(options.policy_threads),
        counts_(size(context_.sequences()) * lanes_each()),
        positions_(counts_.size() * size(context_.cells())),
        cells_(size(context_.sequences()) * size(context_.cells())),
        claimed_(size(context_.sequences())),
        lengths_(size(context_.sequences())),
        evicted_at_(size(context_.sequences())),
        parts_(size(context_.sequences())),
        slots_(size(context_.sequences())) {
    std::iota(slots_.begin(), slots_.end(), 0);
    check_policy();
    state_.emplace(kv::make_state(exec_, policy_, all()));
    plan_.emplace(kv::make_plan(exec_, policy_, all(), kv::at_once{.sequences = 1}, kv::compact{}));
    check_signals();
  }
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  /// Reads tokens in chunks, lets the policy observe each, and at the end decide, unless it decides by hand. A sequence
  /// may be read in several prefills: the turns of a conversation.
  ///
  /// - in: `visit(position, logits)`, if it is given, is called for each chunk with logits [token][vocabulary].
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

  /// Reads one token, or a few, of several sequences in one decode. Returns the logits [sequence of the
  /// batch][vocabulary] of the last token of each.
  std::span<float const> step(std::span<sequence_rows const> batch) {
    forward("step", batch, false, options_.observe_steps);
    for (sequence_rows const& one : batch) rows_read_ += count(one.sequence);
    if (options_.decide == when::every_decode) {
      for (sequence_rows const& one : batch) evict(one.sequence);
    }
    return logits_;
  }

  /// Lets the policy decide about a sequence by the query rows of its last decode, and carries the decision out: the
  /// kept rows move together, and the cells behind them are free for new tokens.
  ///
  /// - throws: also if lanes would keep different numbers of entries.
  void evict(int sequence) {
    check_sequence("evict", sequence);
    context_.check_untouched("evict", sequence, last_claimed(sequence));
    kv::cache one = part(sequence);
    int const before = count(sequence);
    if (before == 0) return;
    rows_of_decode const rows = parts_[size(sequence)];
    auto const queries = context_.queries(rows.first, rows.rows);
    decide(one, queries);
    kv::engines::bound_policy<kv::engines::llama_cpp, Policy, kv::compact> const how{policy_, {}};
    kv::apply(exec_, how, *plan_, one, *state_, &stats_);
    if (int const kept = count(sequence); kept < before) {
      free_cells(sequence, kept, before);
      evicted_at_[size(sequence)] = length(sequence);
    }
  }

  /// Ends the request of a sequence: its cells are free, and its state is that of a new one.
  void reset(int sequence) {
    check_sequence("reset", sequence);
    context_.remove(sequence, -1, -1);
    kv::cache cache = all();
    kv::reset(exec_, cache, *state_, sequence);
    claimed_[size(sequence)].clear();
    lengths_[size(sequence)] = 0;
    evicted_at_[size(sequence)] = 0;
    parts_[size(sequence)] = {};
  }

  /// Rolls a sequence back to its first `position` tokens. Entries that were evicted stay evicted.
  ///
  /// - throws: also if the position is before the last eviction, where the lanes hold different tokens.
  void truncate(int sequence, int position) {
    check_sequence("truncate", sequence);
    kv::expects(position >= 0 && position <= length(sequence), "truncate", "position", position,
                [&] { return "the sequence has " + std::to_string(length(sequence)) + " tokens"; });
    kv::expects(position >= evicted_at_[size(sequence)], "truncate", "position", position, [&] {
      return "the lanes hold different tokens since the eviction at " + std::to_string(evicted_at_[size(sequence)]);
    });
    context_.check_untouched("truncate", sequence, last_claimed(sequence));
    if (position == length(sequence)) return;
    int const gone = length(sequence) - position;
    context_.remove(sequence, position, -1);
    kv::cache one = part(sequence);
    kv::truncate(exec_, one, *state_, 0, position);
    auto& claimed = claimed_[size(sequence)];
    claimed.resize(claimed.size() - size(gone));
    lengths_[size(sequence)] = position;
    parts_[size(sequence)] = {};
  }

  /// Copies a sequence to bytes: its rows, which tokens its lanes hold, and the state of the policy. The sequence
  /// stays.
  [[nodiscard]] std::vector<std::byte> save(int sequence) {
    check_sequence("save", sequence);
    context_.check_untouched("save", sequence, last_claimed(sequence));
    saved_sequence const header{length(sequence), count(sequence), evicted_at_[size(sequence)]};
    std::vector<std::byte> made(sizeof header + kv::saved_bytes(exec_, all(), *state_, sequence));
    std::memcpy(made.data(), &header, sizeof header);
    kv::save(exec_, all(), *state_, sequence, std::span(made).subspan(sizeof header));
    return made;
  }

  /// Brings a saved sequence back, into any slot that was reset, of any engine of the same model, policy and types. It
  /// goes on as if it had never left. llama.cpp gives cells to decoded tokens only, so this costs a prefill of as many
  /// tokens as the sequence has cells.
  ///
  /// - throws: also if the slot is in use, or the bytes are not those of such a sequence.
  void load(int sequence, std::span<std::byte const> from) {
    check_sequence("load", sequence);
    kv::expects(length(sequence) == 0, "load", "sequence", sequence, "it is in use: reset it before");
    saved_sequence header{};
    kv::expects(from.size() >= sizeof header, "load", "bytes", from.size(), "they end within the header");
    std::memcpy(&header, from.data(), sizeof header);
    bool const sound = header.count >= 0 && header.count <= header.length && header.evicted_at >= 0 &&
                       header.evicted_at <= header.length;
    kv::expects(sound, "load", "bytes", "damaged", "the header's numbers contradict each other");
    check_room("load", header.count);
    try {
      context_.occupy(sequence, header.length - header.count, header.count, cells_of(sequence));
      kv::cache cache = all();
      kv::load(exec_, cache, *state_, sequence, from.subspan(sizeof header));
      kv::expects(count(sequence) == header.count, "load", "bytes", "damaged",
                  [&] { return "the header says " + std::to_string(header.count) + " entries"; });
    } catch (...) {
      reset(sequence);
      throw;
    }
    lengths_[size(sequence)] = header.length;
    evicted_at_[size(sequence)] = header.evicted_at;
    claimed_[size(sequence)].resize(size(header.count));
    std::iota(claimed_[size(sequence)].begin(), claimed_[size(sequence)].end(), header.length - header.count);
  }

  /// The number of tokens that were read, which is the position of the next one.
  [[nodiscard]] int length(int sequence) const { return lengths_[size(sequence)]; }
  /// The number of cells that a sequence has, which is the number of entries of each of its lanes.
  [[nodiscard]] int count(int sequence) const { return counts_[size(sequence) * lanes_each()]; }
  /// The number of cells that no sequence has.
  [[nodiscard]] int free_count() const {
    int used = 0;
    for (int s = 0; s < context_.sequences(); ++s) used += count(s);
    return context_.cells() - used;
  }
  /// The highest cell that a sequence has; -1 if no cell is used. Attention reads all cells up to it.
  [[nodiscard]] int highest_cell() const {
    int highest = -1;
    for (int s = 0; s < context_.sequences(); ++s) {
      int const* const of = cells_.data() + size(s) * size(context_.cells());
      for (int i = 0; i < count(s); ++i) highest = std::max(highest, of[i]);
    }
    return highest;
  }
  /// The positions of the tokens that a lane holds, ascending.
  [[nodiscard]] std::span<int const> positions(kv::lane of) const {
    std::size_t const lane =
        (size(of.sequence) * size(context_.shape().layers) + size(of.layer)) * size(context_.shape().kv_heads) +
        size(of.head);
    return {positions_.data() + lane * size(context_.cells()), size(counts_[lane])};
  }
  /// The cache rows of a layer that decoded tokens have read so far, those of all sequences together.
  [[nodiscard]] std::int64_t rows_read() const { return rows_read_; }
  [[nodiscard]] kv::shape const& shape() const { return context_.shape(); }
  [[nodiscard]] kv::report const& report() const { return plan_->report(); }
  /// The statistics of the last decision that was carried out.
  [[nodiscard]] kv::apply_stats const& stats() const { return stats_; }
  [[nodiscard]] Policy const& policy() const { return policy_; }
  [[nodiscard]] llama_context* get() const { return context_.get(); }

 private:
  /// The query rows of a sequence in the last decode.
  struct rows_of_decode {
    int first = 0;
    int rows = 0;
  };

  /// What `save` writes before the bytes of the library.
  struct saved_sequence {
    int length = 0;
    int count = 0;
    int evicted_at = 0;
  };

  [[nodiscard]] int* cells_of(int sequence) { return cells_.data() + size(sequence) * size(context_.cells()); }
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::size_t lanes_each() const {
    return size(context_.shape().layers) * size(context_.shape().kv_heads);
  }

  /// All lanes of a sequence have the same cells, and each holds its own tokens in them.
  [[nodiscard]] kv::cache all() {
    kv::shape const& model = context_.shape();
    std::int64_t const cells = context_.cells();
    std::int64_t const lanes = model.layers * model.kv_heads;
    kv::lanes const batch{.sequences = context_.sequences(),
                          .layer_begin = 0,
                          .layer_end = model.layers,
                          .heads = model.kv_heads,
                          .bound = context_.cells(),
                          .count = {counts_.data(), lanes, model.kv_heads, 1},
                          .position = {positions_.data(), lanes * cells, model.kv_heads * cells, cells}};
    return context_.view(batch, {cells_.data(), cells, 0, 0});
  }
  /// The cache of one sequence. The list of slots that it refers to must outlive it.
  [[nodiscard]] kv::cache part(int sequence) { return kv::only(all(), {.slots = slots_.data() + sequence, .size = 1}); }

  void check_sequence(char const* call, int sequence) const {
    kv::expects(sequence >= 0 && sequence < context_.sequences(), call, "sequence", sequence,
                [&] { return "the engine has " + std::to_string(context_.sequences()) + " sequences"; });
  }

  /// Refuses policies whose lanes would keep different numbers of entries, because lanes share their cells, and
  /// policies that read rows which are quantised.
  void check_policy() const {
    kv::budget_scope scope = kv::budget_scope::lane;
    if constexpr (requires { policy_.budget; }) {
      scope = kv::detail::scope_of(policy_.budget);
    } else {
      std::string const spelled = to_string(policy_);
      if (spelled.find("scope=layer") != std::string::npos) scope = kv::budget_scope::layer;
      if (spelled.find("scope=global") != std::string::npos || spelled.find("budget(bytes=") != std::string::npos)
        scope = kv::budget_scope::global;
    }
    kv::granularity decides{};
    if constexpr (requires { policy_.score; }) {
      decides = policy_.score.decides;
    } else {
      decides = policy_.decides();
    }
    kv::engines::check(kv::engines::llama_cpp::can, decides, "compact", kv::codec::f32, scope);
  }

  /// Refuses a policy that needs a signal which this context does not give, by a decision about nothing.
  void check_signals() {
    observe(0);
    decide(part(0), context_.queries(0, 0));
  }

  template <class Visit>
  std::span<float const> read(int sequence, token_rows const& from, bool every_logit, Visit const& visit) {
    int const tokens = context_.tokens_of("prefill", from.tokens, from.embeddings);
    check_sequence("prefill", sequence);
    if (options_.decide != when::every_decode) check_room("prefill", tokens);
    for (int at = 0; at < tokens; at += context_.chunk()) {
      int const some = std::min(context_.chunk(), tokens - at);
      sequence_rows const one{sequence, context_.slice<token_rows>(from, at, some)};
      int const position = length(sequence);
      forward("prefill", {&one, 1}, every_logit, true);
      visit(position, std::span<float const>(logits_));
      if (options_.decide == when::every_decode) evict(sequence);
    }
    if (options_.decide == when::after_prefill) evict(sequence);
    return std::span<float const>(logits_).last(size(context_.vocabulary()));
  }

  void check_room(char const* call, int tokens) const {
    kv::expects(tokens <= free_count(), call, "tokens", tokens,
                [&] { return "the cache has " + std::to_string(free_count()) + " free cells"; });
  }

  /// Decodes a batch, then adds its tokens to the tables and lets the policy observe them.
  void forward(char const* call, std::span<sequence_rows const> batch, bool every_logit, bool observed) {
    int total = 0;
    std::vector<bool> listed(size(context_.sequences()));
    context_.clear_batch();
    for (sequence_rows const& one : batch) {
      check_sequence(call, one.sequence);
      kv::expects(!listed[size(one.sequence)], call, "sequence", one.sequence, "a sequence is in a batch once");
      listed[size(one.sequence)] = true;
      context_.check_untouched(call, one.sequence, last_claimed(one.sequence));
      int const tokens = context_.tokens_of(call, one.rows.tokens, one.rows.embeddings);
      kv::expects(tokens > 0, call, "tokens", tokens, "a decode reads at least one token of each sequence");
      total += tokens;
      kv::expects(total <= context_.chunk(), call, "tokens", total,
                  [&] { return "a decode has at most " + std::to_string(context_.chunk()) + " tokens"; });
      context_.add(one.sequence, length(one.sequence), one.rows.tokens, one.rows.embeddings, every_logit);
    }
    check_room(call, total);
    bool const decoded = context_.decode(observed);
    if (!decoded) {
      for (sequence_rows const& one : batch) context_.remove(one.sequence, length(one.sequence), -1);
      throw std::runtime_error(std::string(call) + ": llama_decode failed; the sequences are as they were before");
    }
    context_.take_logits(logits_);
    note(batch);
    if (observed) {
      for (sequence_rows const& one : batch) observe(one.sequence);
    }
  }

  /// Adds the tokens of the last decode to counts, positions and state, in the cells where llama.cpp has put them.
  void note(std::span<sequence_rows const> batch) {
    std::fill(parts_.begin(), parts_.end(), rows_of_decode{});
    int first = 0;
    for (sequence_rows const& one : batch) {
      int const s = one.sequence;
      int const tokens = context_.tokens_of("step", one.rows.tokens, one.rows.embeddings);
      int const before = count(s);
      for (int i = 0; i < tokens; ++i) {
        cells_of(s)[before + i] = context_.new_cells()[size(first + i)];
        claimed_[size(s)].push_back(length(s) + i);
      }
      kv::cache cache = part(s);
      kv::append(exec_, cache, *state_, {.sequence = 0, .tokens = tokens, .position = length(s), .in_flight = false});
      lengths_[size(s)] += tokens;
      parts_[size(s)] = {first, tokens};
      first += tokens;
    }
  }

  void observe(int sequence) {
    kv::cache const one = part(sequence);
    rows_of_decode const rows = parts_[size(sequence)];
    visit_signals(one, context_.queries(rows.first, rows.rows),
                  [&](auto const& in) { kv::observe(exec_, policy_, in, *state_); });
  }
  void decide(kv::cache const& one, kv::queries const& queries) {
    visit_signals(one, queries, [&](auto const& in) { kv::decide(exec_, policy_, in, *state_, *plan_); });
  }

  /// Calls visit(signals) with the signals that this context has: rows that are quantised are not among them. As
  /// queries of a turn the rows are one turn, whose span is unknown.
  template <class Visit>
  void visit_signals(kv::cache const& one, kv::queries const& queries, Visit const& visit) {
    kv::turn_queries const turn{queries};
    kv::keys const keys = context_.keys_of(one);
    kv::values const values = kv::values_of(one);
    if constexpr (std::same_as<Policy, kv::any_policy>) {
      kv::any_signals in(one.lanes);
      if (keys.rows.element != kv::codec::opaque) in.add(keys);
      if (values.rows.element != kv::codec::opaque) in.add(values);
      if (context_.has_queries()) {
        in.add(queries);
        in.add(turn);
      }
      visit(in);
    } else {
      visit(kv::signals{one.lanes, keys, values, queries, turn});
    }
  }

  /// The position that llama.cpp knows of the last cell of a sequence; -1 if the sequence has none.
  [[nodiscard]] llama_pos last_claimed(int sequence) const {
    return claimed_[size(sequence)].empty() ? -1 : claimed_[size(sequence)].back();
  }

  /// Gives all cells back but `kept`. llama.cpp wants the next token right behind the last cell's position, so that the
  /// newest cell stays, and takes the rows of the last kept entries.
  void free_cells(int sequence, int kept, int before) {
    auto& claimed = claimed_[size(sequence)];
    int* const cells = cells_of(sequence);
    if (kept == 0) {
      context_.remove(sequence, -1, -1);
      claimed.clear();
      return;
    }
    context_.copy_rows(cells[kept - 1], cells[before - 1]);
    context_.remove(sequence, claimed[size(kept - 1)], claimed[size(before - 1)]);
    cells[kept - 1] = cells[before - 1];
    claimed[size(kept - 1)] = claimed[size(before - 1)];
    claimed.resize(size(kept));
    // Attention reads all cells up to the highest one that is used, in steps of 256: one cell far above the others
    // would cost as much as those that were freed.
    int const newest = cells[kept - 1];
    cells[kept - 1] = 0;
    int const others = highest_cell();
    cells[kept - 1] =
        newest / 256 > others / 256 ? context_.move_newest_down(sequence, claimed.back(), newest) : newest;
  }

  engine_options options_;
  Policy policy_;
  context context_;
  kv::host_executor exec_;
  std::vector<int> counts_;                      ///< [sequence][layer][KV head]
  std::vector<int> positions_;                   ///< [sequence][layer][KV head][entry]
  std::vector<int> cells_;                       ///< [sequence][entry], those of all lanes of the sequence
  std::vector<std::vector<llama_pos>> claimed_;  ///< [sequence][entry]: the positions of the cells in llama.cpp
  std::vector<int> lengths_;                     ///< [sequence]
  std::vector<int> evicted_at_;                  ///< [sequence]: its length at the last eviction, 0 if there was none
  std::vector<rows_of_decode> parts_;            ///< [sequence]: its rows of the last decode
  std::vector<int> slots_;                       ///< 0, 1, 2, ...
  std::optional<kv::state<kv::host_executor>> state_;
  std::optional<kv::plan<kv::host_executor>> plan_;
  std::vector<float> logits_;
  kv::apply_stats stats_{};
  std::int64_t rows_read_ = 0;
};

}  // namespace llama_cpp

// SPDX-License-Identifier: Apache-2.0
// A sequence that the model reads and writes while a policy decides which entries its cache keeps.
#pragma once

#include <array>
#include <kvpolicy/kvpolicy.hpp>
#include <string>

#include "../executor.hpp"
#include "kv_pool.hpp"
#include "model.hpp"
#include "sampling.hpp"
#include "timed.hpp"

namespace tinylm {

/// When a session lets its policy decide: only when the caller asks, once after a prefill, or after every forward.
enum class when { by_hand, after_prefill, every_forward };

/// How a session applies its policy's decisions. The pool must be made for that layout (`pool_for`).
enum class layout { compact, list_rewrite, dead_slot, mask, overwrite };

[[nodiscard]] constexpr std::array<char const*, 5> names(layout) {
  return {"compact", "list_rewrite", "dead_slot", "mask", "overwrite"};
}

/// The options of a pool for a layout. With `whole_tokens` all lanes have one list, which needs a policy that decides
/// for all lanes together.
[[nodiscard]] constexpr pool_options pool_for(layout how, bool whole_tokens = false) {
  bool const paged = how == layout::compact && !whole_tokens;
  return {.unit_tokens = paged ? kv_pool::page_tokens : 1,
          .whole_tokens = whole_tokens,
          .mapped = how == layout::dead_slot || how == layout::mask};
}

struct session_options {
  int bound = 4096;  ///< the largest number of entries of a lane, those of a chunk included
  int chunk = 256;   ///< tokens of one forward in a prefill
  when decide = when::after_prefill;
  layout lay = layout::compact;
  kv::any_applier own{};          ///< on the host: an applier of the caller's for the pool of `lay`, or none
  bool observe_by_layer = false;  ///< let the policy observe each layer when it is done, not all layers at the end
  bool observe_steps = true;      ///< let the policy observe decoded tokens; false for policies that observe turns only
  kv::by_lane<std::uint8_t const> hidden{};  ///< see attention_call; for tests
};

/// Counts of a session's work, and the time that it took.
struct session_counters {
  std::int64_t steps = 0;         ///< tokens that were decoded one at a time
  std::int64_t entries_read = 0;  ///< entries of all lanes that these steps attended to
  std::int64_t evictions = 0;     ///< decisions that were applied
  double model_seconds = 0;
  double policy_seconds = 0;
};

/// A text that was read with the full cache, and all signals that policies may need. Several sessions may continue it.
struct prompt {
  std::vector<std::uint8_t> text;
  kv_sequence entries;
  query_rows queries;         ///< of all rows
  std::vector<float> logits;  ///< of the last row
};

/// One sequence: model, pages, policy and text. The logical length is that of the text, and never follows from counts.
/// The policy runs on the executor, the model's forward on the host.
template <class Policy, kv::executor Executor = kv::host_executor>
  requires kv::eviction_policy<Policy> || std::same_as<Policy, kv::basic_any_policy<Executor>>
class session {
 public:
  /// An empty sequence in `pool`.
  session(model& with, Executor& exec, kv_pool& pool, Policy const& policy, session_options const& options = {})
      : session(with, exec, kv_sequence(pool, options.bound), policy, options) {}

  /// Continues a prompt in pages of its own. The policy observes all rows at once, then decides unless `by_hand`.
  /// Methods that decide between chunks see the whole prompt instead. `more` are signals that only this decision gets.
  template <class... More>
  session(model& with, Executor& exec, prompt const& from, Policy const& policy, session_options const& options = {},
          More const&... more)
      : session(with, exec, from.entries.fork(options.bound), policy, options) {
    text_ = from.text;
    logits_ = from.logits;
    timed(counters_.policy_seconds,
          [&] { kv::observe(*exec_, policy_, signals_of(entries_.view(), from.queries), state_); });
    if (options_.decide != when::by_hand) decide_by(from.queries, more...);
  }

  /// Reads bytes in chunks. For each chunk it calls `visit(position, logits)` with the logits [rows][vocab]; the first
  /// row is that of `position`.
  template <class Visit>
  void prefill(std::span<std::uint8_t const> bytes, Visit const& visit) {
    for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(options_.chunk)) {
      auto const chunk = bytes.subspan(at, std::min(bytes.size() - at, static_cast<std::size_t>(options_.chunk)));
      int const position = length();
      visit(position, forward(chunk));
      if (options_.decide == when::every_forward) evict();
    }
    if (options_.decide == when::after_prefill) evict();
  }
  void prefill(std::span<std::uint8_t const> bytes) {
    prefill(bytes, [](int, std::span<float const>) {});
  }

  /// Lets the policy decide by the rows of the last forward, and applies the decision. Freed pages go back to the pool.
  void evict() { decide_by(queries_); }

  /// Reads one byte, and returns the logits of the next.
  std::span<float const> step(std::uint8_t byte) {
    forward({&byte, 1}, options_.observe_steps);
    ++counters_.steps;
    counters_.entries_read += entries_.live_entries();
    if (options_.decide == when::every_forward) evict();
    return logits_;
  }

  /// Generates up to `bytes` bytes. The same seed gives the same text.
  std::string generate(int bytes, sampling const& how = {}) {
    kv::expects(!logits_.empty(), "generate", "text", "empty or just cut",
                "there are no logits: prefill or step first");
    std::mt19937_64 random(how.seed);
    std::string out;
    while (std::ssize(out) < bytes) {
      std::uint8_t const byte = choose(logits_, how, random);
      out.push_back(static_cast<char>(byte));
      step(byte);
      if (byte == how.stop) break;
    }
    return out;
  }

  /// Rolls the text back to `position` bytes. Entries that were evicted before stay evicted.
  void truncate(int position) {
    kv::expects(position >= 0 && position <= length(), "session::truncate", "position", position,
                "the text has " + std::to_string(length()) + " bytes");
    if (position == length()) return;
    kv::cache cache = entries_.view();
    kv::truncate(*exec_, cache, state_, 0, position);
    examples::settle(*exec_);
    show_again(entries_.cut(position));
    text_.resize(static_cast<std::size_t>(position));
    queries_.clear();
    logits_.clear();
  }

  [[nodiscard]] int length() const { return static_cast<int>(text_.size()); }
  [[nodiscard]] std::vector<std::uint8_t> const& text() const { return text_; }
  [[nodiscard]] std::span<float const> logits() const { return logits_; }
  [[nodiscard]] Policy const& policy() const { return policy_; }
  [[nodiscard]] kv_sequence const& entries() const { return entries_; }
  [[nodiscard]] query_rows const& queries() const { return queries_; }  ///< the rows of the last forward
  [[nodiscard]] kv::cache view() { return entries_.view(); }
  [[nodiscard]] kv::report const& report() const { return plan_.report(); }
  [[nodiscard]] session_counters const& counters() const { return counters_; }
  /// The statistics of the last decision that was applied.
  [[nodiscard]] kv::apply_stats const& told() const { return stats_.front(); }
  [[nodiscard]] std::string explain(int lane, int ordinal) {
    return kv::explain(policy_, plan_, kv::segment_of(plan_.keep().lanes, plan_.keep().decides, lane), ordinal);
  }

 private:
  session(model& with, Executor& exec, kv_sequence entries, Policy const& policy, session_options const& options)
      : model_(&with),
        exec_(&exec),
        policy_(policy),
        options_(options),
        entries_(std::move(entries)),
        queries_(with.about().shape(), std::max(1, options.chunk)),
        state_(kv::make_state(exec, policy, entries_.view(), options.own)),
        plan_(kv::make_plan(exec, policy, entries_.view())) {
    kv::expects(options.chunk >= 1, "session", "chunk", options.chunk, "a forward has at least one token");
    pool_options const& pool = entries_.pool().how();
    pool_options const wanted = pool_for(options.lay, pool.whole_tokens);
    kv::expects(pool.unit_tokens == wanted.unit_tokens && pool.mapped >= wanted.mapped, "session", "lay",
                kv::to_string(options.lay), "the pool is cut for another layout: pool_for");
    if (options.lay != layout::mask) return;
    int const rows = pool.whole_tokens ? 1 : with.about().layers * with.about().kv_heads;
    std::int64_t const row = std::int64_t{entries_.pool().pages()} * 4;
    mask_memory_.resize(static_cast<std::size_t>(rows * entries_.pool().pages()));
    std::int64_t const heads = pool.whole_tokens ? 0 : row;
    mask_ = {.rows = {reinterpret_cast<std::byte*>(mask_memory_.data()), 0, heads * with.about().kv_heads, heads},
             .form = kv::mask_form::additive_f32,
             .units = entries_.pool().pages()};
  }

  template <class... More>
  void decide_by(query_rows const& rows, More const&... more) {
    timed(counters_.policy_seconds, [&] {
      kv::cache cache = entries_.view();
      kv::decide(*exec_, policy_, signals_of(cache, rows).with(cache.lanes, more...), state_, plan_);
      examples::settle(*exec_);
      apply(cache);
    });
    ++counters_.evictions;
  }

  /// Applies the plan, and gives freed units back to the pool.
  void apply(kv::cache& cache) {
    if constexpr (std::same_as<Executor, kv::host_executor>) {
      if (options_.own.there()) return apply_own(cache);
    }
    switch (options_.lay) {
      case layout::compact:
        kv::apply(*exec_, kv::compact{}, plan_, cache, state_, stats_.data());
        return entries_.release();
      case layout::list_rewrite:
        kv::apply(*exec_, kv::list_rewrite<>{.list = entries_.list(), .freed = entries_.freed()}, plan_, cache, state_,
                  stats_.data());
        return entries_.release_freed();
      case layout::dead_slot:
        kv::apply(*exec_,
                  kv::dead_slot<>{.list = entries_.list(),
                                  .map = entries_.map(),
                                  .dead = entries_.pool().dead(),
                                  .freed = entries_.freed()},
                  plan_, cache, state_, stats_.data());
        return entries_.release_freed();
      case layout::mask:
        kv::apply(*exec_, kv::mask{entries_.list(), mask_}, plan_, cache, state_, stats_.data());
        return entries_.keep_hidden();
      case layout::overwrite:
        kv::apply(*exec_, kv::overwrite{entries_.list()}, plan_, cache, state_, stats_.data());
        return entries_.release();
    }
  }

  /// Applies the plan by the applier of the caller's.
  void apply_own(kv::cache& cache) {
    bool const listed = options_.own.takes_list();
    kv::apply(*exec_, listed ? options_.own.on_list(entries_.list()) : options_.own, plan_, cache, state_,
              stats_.data());
    entries_.release();
  }

  /// Unmasks units that went back to the pool, so that attention reads the entries that are written there next.
  void show_again(std::vector<std::pair<int, int>> const& shown) {
    int const heads = model_->about().shape().kv_heads;
    for (auto const& [row, unit] : shown) mask_.set({0, row / heads, row % heads}, unit, true);
  }

  /// The signals of rows. As queries of a turn the rows are one turn, whose span is unknown.
  static auto signals_of(kv::cache const& cache, query_rows const& rows) {
    return kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), rows.signal(),
                       kv::turn_queries{rows.signal()}};
  }

  /// Reserves units first, then edits counts, then writes rows, so that nothing has changed if the pool is full.
  std::span<float const> forward(std::span<std::uint8_t const> fresh, bool observed_by_policy = true) {
    int const tokens = static_cast<int>(fresh.size());
    kv::cache cache{};
    timed(counters_.policy_seconds, [&] {
      entries_.reserve(tokens);
      cache = entries_.view();
      kv::append(*exec_, cache, state_, {.sequence = 0, .tokens = tokens, .position = length(), .in_flight = false});
      examples::settle(*exec_);
      entries_.note(length(), tokens);
    });
    text_.insert(text_.end(), fresh.begin(), fresh.end());
    queries_.clear();
    double observed = 0;
    auto const observe = [&](int begin, int end) {
      cache.lanes = entries_.view().lanes.layers_only(begin, end);
      timed(observed, [&] { kv::observe(*exec_, policy_, signals_of(cache, queries_), state_); });
    };
    bool const masked = options_.lay == layout::mask;
    forward_hooks hooks{.hidden = options_.hidden, .mask = masked ? &mask_ : nullptr};
    if (options_.observe_by_layer && observed_by_policy)
      hooks.after_layer = [&](int layer) { observe(layer, layer + 1); };
    std::span<float const> rows;
    timed(counters_.model_seconds, [&] {
      kv::cache const seen = masked ? entries_.everything() : entries_.view();
      rows = model_->forward(examples::host_of(*exec_), text_, tokens, seen, queries_, hooks);
    });
    counters_.model_seconds -= observed;
    if (!options_.observe_by_layer && observed_by_policy) observe(0, cache.shape.layers);
    counters_.policy_seconds += observed;
    auto const last = rows.last(static_cast<std::size_t>(model_->about().vocab));
    logits_.assign(last.begin(), last.end());
    return rows;
  }

  model* model_;
  Executor* exec_;
  Policy policy_;
  session_options options_;
  std::vector<std::uint8_t> text_;
  kv_sequence entries_;
  query_rows queries_;  ///< the rows of the last forward
  kv::state<Executor> state_;
  kv::plan<Executor> plan_;
  std::vector<float> logits_;
  session_counters counters_;
  std::vector<kv::apply_stats> stats_ = std::vector<kv::apply_stats>(1);  ///< on the heap, where a device may write it
  std::vector<float> mask_memory_;                                        ///< [rows][units of the pool]
  kv::mask_rows mask_;
};

/// Reads a text with the full cache, once for many policies.
template <kv::executor Executor>
[[nodiscard]] prompt read_prompt(model& with, Executor& exec, kv_pool& pool, std::span<std::uint8_t const> text,
                                 int bound = 4096, int chunk = 256) {
  kv::expects(!text.empty() && chunk >= 1, "read_prompt", "text", static_cast<long long>(text.size()),
              "at least one byte is read, at least one at a time");
  prompt all{.text = {text.begin(), text.end()},
             .entries = kv_sequence(pool, bound),
             .queries = query_rows(with.about().shape(), static_cast<int>(text.size())),
             .logits = {}};
  auto const policy = kv::policies::full();
  auto held = kv::make_state(exec, policy, all.entries.view());
  std::span<float const> rows;
  for (std::size_t at = 0; at < text.size(); at += static_cast<std::size_t>(chunk)) {
    int const num_new_tokens = static_cast<int>(std::min(text.size() - at, static_cast<std::size_t>(chunk)));
    all.entries.reserve(num_new_tokens);
    kv::cache cache = all.entries.view();
    kv::append(exec, cache, held,
               {.sequence = 0, .tokens = num_new_tokens, .position = static_cast<int>(at), .in_flight = false});
    all.entries.note(static_cast<int>(at), num_new_tokens);
    rows = with.forward(examples::host_of(exec), text.first(at + static_cast<std::size_t>(num_new_tokens)),
                        num_new_tokens, cache, all.queries);
  }
  auto const last = rows.last(static_cast<std::size_t>(with.about().vocab));
  all.logits.assign(last.begin(), last.end());
  return all;
}

}  // namespace tinylm

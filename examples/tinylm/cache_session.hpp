// SPDX-License-Identifier: Apache-2.0
// A sequence that the model reads and writes under a cache policy of admission, selection and eviction.
#pragma once

#include <algorithm>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "cache_parts.hpp"
#include "session.hpp"

namespace tinylm {

struct cache_options {
  int bound = 4096;  ///< entries that a lane may hold in pages
  int chunk = 256;   ///< tokens of one forward in a prefill
  gate_weights gates{};
};

/// A text that the model has read under the mask of a policy's admission, and that is in no cache yet. Several sessions
/// may continue it, if they admit the same entries.
struct read_text {
  std::vector<std::uint8_t> text;
  fresh_tokens rows;
  std::vector<float> logits;  ///< of the last row
  double policy_seconds = 0;  ///< the time spent on the admission, without that of the gates, which `rows` measures
};

/// One sequence under a `kvpolicy::cache_policy`: the model, the policy's cache, and the text.
///
/// A prefill reads chunks under the exact mask of the window and the admitted entries, then moves each chunk into the
/// cache as a whole. A decode step is `kvpolicy::step`: promote, append, run the forward, evict, refresh bounds. In the
/// forward each layer observes its gates, selects pages, and attends to them and to the window.
template <class Policy, kv::executor Executor = kv::host_executor>
class cache_session {
 public:
  static constexpr bool admits = kv::admission_policy<decltype(Policy::admit)>;
  static constexpr bool selects = kv::selection_policy<decltype(Policy::select)>;

  /// An empty sequence.
  /// - throws: `invalid_argument` if the policy needs a gate that is missing, or a gate belongs to another model.
  cache_session(model& with, Executor& exec, Policy const& policy, cache_options const& options = {})
      : cache_session(with, exec, policy, options, asked(policy, options.gates)) {}

  /// Continues a text that was read under the same admission.
  cache_session(model& with, Executor& exec, read_text& from, Policy const& policy, cache_options const& options = {})
      : cache_session(with, exec, policy, options) {
    text_ = from.text;
    logits_ = from.logits;
    counters_.policy_seconds = from.policy_seconds + (asks_write(policy) ? from.rows.write_seconds() : 0) +
                               (asks_retention(policy) ? from.rows.retention_seconds() : 0);
    timed(counters_.policy_seconds, [&] {
      cache_.begin(from.rows);
      cache_.ingest(from.rows);
    });
  }
  cache_session(cache_session const&) = delete;
  cache_session& operator=(cache_session const&) = delete;

  /// Reads bytes in chunks. For each chunk it calls `visit(position, logits)` with the logits [rows][vocab]; the first
  /// row is that of `position`.
  template <class Visit>
  void prefill(std::span<std::uint8_t const> bytes, Visit const& visit) {
    for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(chunk_)) {
      int const position = length();
      visit(position, read(bytes.subspan(at, std::min(bytes.size() - at, static_cast<std::size_t>(chunk_)))));
      timed(counters_.policy_seconds, [&] { cache_.ingest(fresh_); });
    }
  }
  void prefill(std::span<std::uint8_t const> bytes) {
    prefill(bytes, [](int, std::span<float const>) {});
  }

  /// Reads one byte, and returns the logits of the next.
  std::span<float const> step(std::uint8_t byte) {
    session_counters const before = counters_;
    double all = 0;
    timed(all, [&] {
      cache_.step({.tokens = 1, .position = length()}, [&] {
        fresh_.begin(1, length());
        cache_.list(rows_);
        forward({&byte, 1}, std::nullopt, [&](layer_rows const& rows) { hear_in_step(rows); });
      });
    });
    counters_.policy_seconds = before.policy_seconds + all - (counters_.model_seconds - before.model_seconds);
    counters_.entries_read += rows_.entries();
    ++counters_.steps;
    return logits_;
  }

  [[nodiscard]] int length() const { return static_cast<int>(text_.size()); }
  [[nodiscard]] std::span<float const> logits() const { return logits_; }
  [[nodiscard]] session_counters const& counters() const { return counters_; }
  [[nodiscard]] std::int64_t live_entries() const { return cache_.memory().live_entries(); }
  [[nodiscard]] std::int64_t live_bytes() const { return cache_.memory().live_bytes(); }
  /// The parts of the cache, pages before the window.
  [[nodiscard]] std::vector<kv::lanes> lanes() { return cache_.lanes(); }
  /// The lanes that the last forward read.
  [[nodiscard]] kv::lanes seen() { return rows_.view().lanes; }

  /// Reads a text at once and computes all of its gates, for sessions that continue it.
  [[nodiscard]] static read_text read_once(model& with, Executor& exec, std::span<std::uint8_t const> text,
                                           Policy const& policy, gate_weights const& gates = {}) {
    int const all = static_cast<int>(text.size());
    cache_session reader(with, exec, policy, {.bound = 1, .chunk = all}, gates);
    reader.read(text);
    double const heard = reader.fresh_.write_seconds() + reader.fresh_.retention_seconds();
    return {std::move(reader.text_), std::move(reader.fresh_), std::move(reader.logits_),
            reader.counters_.policy_seconds - heard};
  }

 private:
  using cache_type = std::conditional_t<admits, admitting_cache<Policy, Executor>, plain_cache<Policy, Executor>>;

  /// True if a part scores by `Score`. An erased scorer has the signals that `Score` records.
  template <class Score, class Part>
  static bool scores_by([[maybe_unused]] Part const& part, [[maybe_unused]] char const* signal) {
    if constexpr (requires { part.score.signals(); }) {
      auto const names = part.score.signals();
      return std::find(names.begin(), names.end(), signal) != names.end();
    } else {
      return requires { requires std::same_as<std::remove_cvref_t<decltype(part.score)>, Score>; };
    }
  }
  static bool asks_write(Policy const& policy) { return scores_by<kv::write_gate>(policy.admit, kv::gate::name); }
  static bool asks_retention(Policy const& policy) { return scores_by<kv::trim_kv>(policy.evict, kv::log_beta::name); }

  cache_session(model& with, Executor& exec, Policy const& policy, cache_options const& options,
                gate_weights const& gates)
      : model_(&with),
        exec_(&exec),
        cache_(exec, policy, with.about().shape(), options.bound),
        chunk_(options.chunk),
        fresh_(exec, with.about().shape(), options.chunk, gates),
        rows_(with.about().shape(), room_for(policy) + options.bound + options.chunk),
        queries_(with.about().shape(), options.chunk) {
    kv::expects(gates.write.there() || !asks_write(policy), "cache_session", "gates.write", "none",
                "the policy admits by it");
    kv::expects(gates.retention.there() || !asks_retention(policy), "cache_session", "gates.retention", "none",
                "the policy evicts by it");
  }

  /// The gates that the policy needs.
  static gate_weights asked(Policy const& policy, gate_weights const& all) {
    return {asks_write(policy) ? all.write : kv::write_gate_weights{},
            asks_retention(policy) ? all.retention : kv::retention_gate_weights{}};
  }
  static int room_for(Policy const& policy) {
    if constexpr (admits) {
      return policy.admit.window;
    } else {
      static_cast<void>(policy);
      return 0;
    }
  }

  /// Reads a chunk, whose rows are then only in `fresh_`.
  std::span<float const> read(std::span<std::uint8_t const> bytes) {
    timed(counters_.policy_seconds, [&] {
      fresh_.begin(static_cast<int>(bytes.size()), length());
      cache_.list(rows_);
      kv::cache const rows = fresh_.view();
      for (int i = 0; i < rows.lanes.size(); ++i) rows_.add(rows, rows.lanes.at(i), false);
      cache_.begin(fresh_);
    });
    return forward(bytes, cache_.mask(rows_), [&](layer_rows const& rows) {
      fresh_.hear(*exec_, rows);
      cache_.hear(fresh_, rows.layer, rows_);
    });
  }

  void hear_in_step(layer_rows const& rows) {
    fresh_.hear(*exec_, rows);
    cache_.observe(fresh_, rows.layer);
    if constexpr (selects) cache_.select(queries_.signal(), rows.layer, rows_);
  }

  template <class Hear>
  std::span<float const> forward(std::span<std::uint8_t const> bytes, std::optional<vertical_slash> const& slash,
                                 Hear const& hear) {
    text_.insert(text_.end(), bytes.begin(), bytes.end());
    queries_.clear();
    double heard = 0;
    forward_hooks hooks{.slash = slash ? &*slash : nullptr};
    hooks.before_attention = [&](layer_rows const& rows) { timed(heard, [&] { hear(rows); }); };
    std::span<float const> logits;
    timed(counters_.model_seconds, [&] {
      logits = model_->forward(examples::host_of(*exec_), text_, static_cast<int>(bytes.size()), rows_.view(), queries_,
                               hooks);
    });
    counters_.model_seconds -= heard;
    counters_.policy_seconds += heard;
    auto const last = logits.last(static_cast<std::size_t>(model_->about().vocab));
    logits_.assign(last.begin(), last.end());
    return logits;
  }

  model* model_;
  Executor* exec_;
  cache_type cache_;
  int chunk_;
  fresh_tokens fresh_;  ///< the tokens of the last forward
  row_list rows_;       ///< the rows that the last forward read
  query_rows queries_;
  std::vector<std::uint8_t> text_;
  std::vector<float> logits_;
  session_counters counters_;
};

}  // namespace tinylm

// SPDX-License-Identifier: Apache-2.0
// The signals that a trace provides for one step.
#pragma once

#include "birth_numbers.hpp"
#include "memory.hpp"
#include "query_profile.hpp"

namespace kvreplay {

/// Offers every signal that the trace has. A signal in the trace comes before one that could be computed.
class offers {
 public:
  offers(options const& with, trace const& of, any_policy const& policy, memory& held)
      : with_(with), trace_(of), policy_(policy), memory_(held) {
    if (trace_.row_lse) lse_ = floats_of(trace_.row_lse);
    if (trace_.query_lse) external_lse_ = floats_of(trace_.query_lse);
    std::vector<std::string> const reads = policy.needs();
    reads_queries_ = std::find(reads.begin(), reads.end(), kv::queries::name) != reads.end();
    std::vector<std::string> const given = policy.score.text().given;
    every_row_ = decides_by_queries_ = std::find(given.begin(), given.end(), kv::queries::name) != given.end();
    bool const born = std::find(reads.begin(), reads.end(), kv::birth_score::name) != reads.end();
    if (born) birth_.read(of, policy.score.field_text("name").value_or(""));
    profile_.look_at(of, policy, reads);
  }

  /// Finds out from the state's columns which query rows the policy needs: a number of last rows, the rows of every
  /// forward, or those of a turn's span.
  void look_at(kv::state<executor> const& state) {
    for (kv::recorded_column const& each : state.columns()) {
      if (each.about.extent == kv::column_extent::window_row) window_ = std::max(window_, each.about.units);
      if (each.about.extent == kv::column_extent::lane_entry && reads_queries_) every_row_ = true;
      if (each.about.extent == kv::column_extent::session) span_ = true;
    }
  }

  /// Lets a policy that observes rows once, for a prompt, observe the last ones of a trace that has no others.
  void take_recent_rows() { takes_recent_ = !trace_.queries && trace_.recent_queries; }

  /// The signals of a forward with the query rows [begin, end). `held` has the trace's ordinal of each entry of a
  /// segment.
  kv::any_signals offer(int begin, int end, std::vector<std::vector<int>> const& held) {
    kv::any_signals all(memory_.view().lanes);
    if (trace_.keys) all.add(keys_ = kv::keys{memory_.rows(true), trace_.logits()});
    if (trace_.values) all.add(values_ = kv::values{memory_.rows(false)});
    bool const given_mass = trace_.attention_mass && with_.how == mode::prefill;
    if (trace_.queries && (!given_mass || decides_by_queries_)) offer_queries(all, begin, end);
    if (trace_.queries) offer_turn(all, begin, end, held);
    if (takes_recent_) {
      auto const rows = static_cast<int>(trace_.recent_queries.shape[2]);
      check_rows(trace_.recent_queries, 0, rows);
      all.add(queries_ = {rows_of(trace_.recent_queries, 0, rows, end - rows)});
    }
    if (trace_.log_beta) all.add(log_beta_ = {numbers_of(trace_.log_beta, begin, end)});
    if (birth_.there()) all.add(born_ = {birth_.numbers(begin, end)});
    if (!trace_.stale_begin.empty()) offer_stale(all);
    bool const in_chunks =
        with_.how == mode::chunks && trace_.row_begin.empty();  // spans are of a whole prompt's entries
    if (trace_.query_rows && (in_chunks || with_.how == mode::prefill)) offer_external_rows(all);
    if (profile_.is_given()) all.add(profile_.model());
    if (profile_.is_computed()) {
      check_rows(trace_.pre_rope_queries, 0, end);
      before_rope_ = {rows_of(trace_.pre_rope_queries, 0, end, 0), trace_.rope()};
      all.add(before_rope_);
    }
    if (trace_.pre_rope_keys && with_.how == mode::prefill) all.add(unturned_ = keys_before_rope());
    if (trace_.output_projection) all.add(projection_ = projection());
    if (trace_.value_norms) all.add(norms_ = {of_entries(trace_.value_norms, norm_values_, held)});
    if (end == trace_.entries() && with_.how == mode::prefill) offer_recent(all);
    if (given_mass) all.add(mass_ = {lane_mass()});
    if (array const* const scores = external_of(); scores != nullptr) {
      all.add(external_ = {of_entries(*scores, lane_values_, held)});
    }
    return all;
  }

  /// Warnings about signals that do not quite meet the policy's needs.
  [[nodiscard]] std::vector<std::string> warnings() const {
    if (trace_.queries || !trace_.recent_queries ||
        trace_.recent_queries.shape[2] >= std::min(window_, trace_.entries()))
      return {};
    return {"tensor recent_queries has " + std::to_string(trace_.recent_queries.shape[2]) +
            " rows, and the policy looks with " + std::to_string(window_)};
  }

 private:
  static std::vector<float> floats_of(array const& from) {
    std::vector<float> made;
    for (std::int64_t i = 0; i < from.count(); ++i) made.push_back(from.value(i));
    return made;
  }
  void offer_queries(kv::any_signals& to, int begin, int end) {
    int const first = every_row_ ? begin : std::max(begin, end - window_);
    if (with_.how != mode::prefill || every_row_) check_rows(trace_.queries, first, end);
    queries_ = {rows_of(trace_.queries, begin, end - begin, begin)};
    to.add(queries_);
  }

  /// Offers all rows so far, and the span of the turn that ends here. A decode step is no turn. A span of which no
  /// entry is left offers no rows.
  void offer_turn(kv::any_signals& to, int begin, int end, std::vector<std::vector<int>> const& held) {
    bool const is_turn = with_.how != mode::decode || begin == 0;
    turn_rows_ = {rows_of(trace_.queries, 0, is_turn ? end : 0, 0)};
    auto const turn = std::find(trace_.turn_end.begin(), trace_.turn_end.end(), end) - trace_.turn_end.begin();
    if (is_turn && turn < std::ssize(trace_.span_begin)) {
      turn_rows_.span_begin = &trace_.span_begin[size(turn)];
      turn_rows_.span_end = &trace_.span_end[size(turn)];
    }
    kv::ordinal_range const span = turn_rows_.span({}, field_of("tail", 0));
    if (span_ && span.begin < span.end) check_rows(trace_.queries, span.begin, span.end);
    auto const lives = [&](std::vector<int> const& one) {
      auto const at = std::lower_bound(one.begin(), one.end(), span.begin);
      return at != one.end() && *at < span.end;
    };
    if (std::none_of(held.begin(), held.end(), lives)) turn_rows_ = {rows_of(trace_.queries, 0, 0, 0)};
    to.add(turn_rows_);
  }

  /// Offers as many of the trace's last rows as the policy needs, and their log-sum-exp if the trace has it.
  void offer_recent(kv::any_signals& to) {
    array const& from = trace_.queries ? trace_.queries : trace_.recent_queries;
    if (!from) return;
    int const last = trace_.entries();
    auto const there = static_cast<int>(from.shape[2]);
    int const rows = std::min(std::max(window_, 1), there);
    if (trace_.queries) check_rows(trace_.queries, last - rows, last);
    recent_ = {rows_of(from, there - rows, rows, last - rows)};
    if (trace_.row_lse && trace_.row_lse.shape[2] >= rows) {
      std::int64_t const known = trace_.row_lse.shape[2];
      recent_.lse = {lse_.data() + (known - rows), 0, known * trace_.shape().query_heads, known};
    }
    to.add(recent_);
  }

  void offer_stale(kv::any_signals& to) {
    stale_ = {.begin = trace_.stale_begin.data(),
              .end = trace_.stale_end.data(),
              .count = static_cast<int>(trace_.stale_begin.size())};
    to.add(stale_);
  }

  /// Offers the query rows that belong to no entry, with their log-sum-exp, the entries that they are about and their
  /// own keys, as far as the trace has them.
  void offer_external_rows(kv::any_signals& to) {
    auto const rows = static_cast<int>(trace_.query_rows.shape[2]);
    external_rows_ = {rows_of(trace_.query_rows, 0, rows, 0)};
    external_rows_.position = {};
    if (!external_lse_.empty()) {
      external_rows_.lse = {external_lse_.data(), 0, std::int64_t{rows} * trace_.shape().query_heads, rows};
    }
    if (!trace_.row_begin.empty()) {
      external_rows_.spans.begin = {trace_.row_begin.data()};
      external_rows_.spans.end = {trace_.row_end.data()};
    } else if (policy_.score.name_inside() == kv::kvzip::name || policy_.score.name_inside() == kv::kvzip_plus::name) {
      refuse("row_begin", "missing", "kvzip scores the entries that rows repeat");
    }
    if (trace_.query_hidden_norm) {
      hidden_norm_ = floats_of(trace_.query_hidden_norm);
      external_rows_.hidden_norm = {hidden_norm_.data(), 0, rows};
    } else if (policy_.score.name_inside() == kv::kvzip_plus::name) {
      refuse("query_hidden_norm", "missing", "kvzip with plus divides by the norm of each row's hidden state");
    }
    if (trace_.query_keys) {
      external_rows_.spans.keys = rows_of(trace_.query_keys, 0, rows, 0);
      external_rows_.spans.keys.position = {};
      external_rows_.spans.keys.heads = trace_.shape().kv_heads;
    }
    to.add(external_rows_);
  }

  [[nodiscard]] kv::query_view rows_of(array const& from, int first, int rows, int entry) const {
    return {.base = from.data + first * from.stride(2),
            .element = from.element,
            .dims = trace_.shape().head_dim,
            .layer = from.stride(0),
            .head = from.stride(1),
            .row = from.stride(2),
            .heads = trace_.shape().query_heads,
            .rows = rows,
            .position = {trace_.positions.data() + entry}};
  }

  [[nodiscard]] kv::pre_rope_keys keys_before_rope() const {
    array const& from = trace_.pre_rope_keys;
    return {{{.base = from.data,
              .element = from.element,
              .channels = trace_.shape().head_dim,
              .layer_stride = from.stride(0),
              .token_stride = from.stride(2),
              .head_stride = from.stride(1),
              .channel_stride = kv::bytes_of(from.element)},
             kv::identity_map(trace_.entries())}};
  }

  [[nodiscard]] kv::output_projection projection() const {
    array const& from = trace_.output_projection;
    return {.base = from.data,
            .element = from.element,
            .dims = trace_.value_dim(),
            .width = static_cast<int>(from.shape[1]),
            .heads = trace_.shape().query_heads,
            .layer = from.stride(0),
            .channel = from.stride(1)};
  }

  /// The attention mass by lane and ordinal. A mass of query heads is reduced by the policy's field `group`.
  kv::by_lane<float const> lane_mass() {
    std::int64_t const entries = trace_.entries();
    array const& from = trace_.attention_mass;
    std::int64_t const group = from.shape[1] / trace_.shape().kv_heads;
    bool const there =
        group == 1 && from.element == kv::codec::f32 && reinterpret_cast<std::uintptr_t>(from.data) % 4 == 0;
    if (there) return {reinterpret_cast<float const*>(from.data), 0, entries * trace_.shape().kv_heads, entries};
    kv::reduction const how = field_of("group", kv::reduction::sum);
    lane_values_.resize(size(memory_.lanes()) * size(entries));
    for (std::int64_t i = 0; i < memory_.lanes() * group; ++i) {
      float* const to = lane_values_.data() + size(i / group * entries);
      for (std::int64_t e = 0; e < entries; ++e) {
        float const value = from.value(i * entries + e);
        if (i % group == 0) {
          to[e] = value;
        } else {
          to[e] = how == kv::reduction::max ? std::max(to[e], value) : to[e] + value;
        }
        if (how == kv::reduction::mean && i % group == group - 1) to[e] /= static_cast<float>(group);
      }
    }
    return {lane_values_.data(), 0, entries * trace_.shape().kv_heads, entries};
  }

  /// A field of the policy's scorer.
  template <class T>
  [[nodiscard]] T field_of(std::string_view name, T otherwise) const {
    if (auto const text = policy_.score.field_text(name)) kv::detail::read_value(*text, otherwise);
    return otherwise;
  }

  [[nodiscard]] array const* external_of() const {
    if (policy_.score.name_inside() != kv::external::name) return nullptr;
    std::string const name = policy_.score.field_text("name").value_or("");
    auto const found = trace_.external.find(name);
    if (found == trace_.external.end()) refuse("external." + name, "missing", "the policy is told by it: --set name=");
    return &found->second;
  }

  /// A number of each entry by lane and ordinal, in the memory `to`. It follows its entry when that moves.
  kv::by_lane<float const> of_entries(array const& from, std::vector<float>& to,
                                      std::vector<std::vector<int>> const& held) {
    kv::lanes const batch = memory_.view().lanes;
    std::int64_t const entries = trace_.entries();
    to.resize(size(memory_.lanes()) * size(entries));
    for (int i = 0; i < memory_.lanes(); ++i) {
      std::int64_t const row = from.shape.size() == 1 ? 0 : i * entries;
      std::vector<int> const& entry = held[size(kv::segment_of(batch, policy_.decides(), i))];
      for (std::size_t e = 0; e < entry.size(); ++e) to[size(i * entries) + e] = from.value(row + entry[e]);
    }
    return {to.data(), 0, entries * trace_.shape().kv_heads, entries};
  }

  options const& with_;
  trace const& trace_;
  any_policy const& policy_;
  memory& memory_;
  int window_ = 0;                   ///< the number of last query rows that the policy needs
  bool every_row_ = false;           ///< it needs all rows
  bool reads_queries_ = false;       ///< a recorder of the policy reads the rows of every forward
  bool decides_by_queries_ = false;  ///< its scorer reads the rows of all entries
  bool takes_recent_ = false;        ///< see `take_recent_rows`
  bool span_ = false;                ///< it needs the rows of a turn's span
  std::vector<float> lse_;
  std::vector<float> lane_values_;
  kv::keys keys_;
  kv::values values_;
  kv::queries queries_;
  kv::recent_queries recent_;
  kv::turn_queries turn_rows_;
  kv::attention_mass mass_;
  kv::external_scores external_;
  kv::log_beta log_beta_;
  kv::external_queries external_rows_;
  profile_of_queries profile_;
  kv::pre_rope_queries before_rope_;
  kv::pre_rope_keys unturned_;
  kv::output_projection projection_;
  kv::value_norms norms_;
  std::vector<float> norm_values_;
  kv::birth_score born_;
  kv::stale_spans stale_;
  std::vector<float> external_lse_;
  std::vector<float> hidden_norm_;
  birth_numbers birth_;
};

}  // namespace kvreplay

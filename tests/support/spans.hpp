// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reference/spans.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// A batch of keys and rows, the spans that rows are about, and the keys of the rows themselves.
class spans_case {
 public:
  spans_case(mock_options const& shape, kv::codec queries_of, int rows, int capacity)
      : cache(shape),
        queries(cache, queries_of, rows, capacity),
        capacity_(capacity),
        begin_(as_size(shape.sequences * capacity)),
        end_(begin_) {
    fill(cache, true);
    fill(queries, cache, content::smooth);
  }

  /// Draws spans of at most `longest` entries, most of which several rows in a row are about, and keys for rows.
  void draw(int longest, kv::codec element, bool own) {
    dice& random = cache.random();
    for (int s = 0; s < cache.options().sequences; ++s) {
      int least = cache.options().bound;
      for (int i = 0; i < cache.lane_count(); ++i) {
        if (cache.lane_at(i).sequence == s) least = std::min(least, cache.committed(cache.lane_at(i)));
      }
      for (int r = 0, first = 0, last = 0; r < queries.valid(s); ++r) {
        if (r == 0 || random.chance(25)) {
          first = random.below(least + 1);
          last = std::min(least, first + random.below(longest + 1));
        }
        set(s, r, first, last);
      }
    }
    if (own) draw_keys(element);
  }
  void set(int sequence, int row, int begin, int end) {
    int const at = sequence * capacity_ + stored(sequence, row);
    begin_[as_size(at)] = begin, end_[as_size(at)] = end;
  }
  /// Gives keys to rows: [sequence][layer][head][row].
  void draw_keys(kv::codec element) {
    element_ = element;
    int const dims = cache.model().head_dim;
    keys_.resize(as_size(cache.lane_count() * capacity_ * dims * kv::bytes_of(element)));
    for (std::size_t at = 0; at < keys_.size(); at += as_size(kv::bytes_of(element))) {
      kv::store(element, static_cast<float>(cache.random().real(2)), keys_.data() + at);
    }
  }
  void say_spans(bool said) { said_ = said; }

  [[nodiscard]] kv::row_spans spans() const {
    kv::row_spans made;
    if (said_) made.begin = {begin_.data(), capacity_, 0, 0}, made.end = {end_.data(), capacity_, 0, 0};
    if (keys_.empty()) return made;
    std::int64_t const row = std::int64_t{cache.model().head_dim} * kv::bytes_of(element_), head = row * capacity_;
    made.keys = {.base = keys_.data(), .element = element_, .dims = cache.model().head_dim};
    made.keys.row = row, made.keys.head = head, made.keys.layer = head * cache.model().kv_heads;
    made.keys.sequence = made.keys.layer * cache.model().layers;
    made.keys.heads = cache.model().kv_heads, made.keys.rows = capacity_;
    return made;
  }

  /// What the reference is told of a lane.
  [[nodiscard]] reference::lane_attention lane(kv::lane one) { return all_rows_of(cache, queries, one); }
  [[nodiscard]] std::vector<reference::row_span> spans_of(kv::lane one) const {
    std::vector<reference::row_span> made;
    for (int r = 0; r < queries.valid(one.sequence); ++r) {
      auto const at = as_size(one.sequence * capacity_ + stored(one.sequence, r));
      made.push_back({begin_[at], end_[at]});
    }
    return made;
  }
  [[nodiscard]] reference::matrix own_of(kv::lane one) const {
    reference::matrix made;
    for (int r = 0; r < queries.valid(one.sequence) && !keys_.empty(); ++r) {
      reference::row& key = made.emplace_back();
      kv::query_view const from = spans().keys;
      for (int d = 0; d < from.dims; ++d) {
        key.push_back(decoded(from.element, from.at(one, one.head, stored(one.sequence, r)) +
                                                std::ptrdiff_t{d} * kv::bytes_of(from.element)));
      }
    }
    return made;
  }

  /// Calls the verb, with the scratch that it asks for. A device's faults are thrown.
  template <class Executor>
  void attend(Executor& exec, kv::keys const& keys, int sinks, kv::score_view const& out) {
    using backend = typename Executor::backend;
    exec.reserve(kv::detail::scratch_of_verb<kv::ops::span_attention_t, backend>(cache.model(), cache.lanes()));
    kv::ops::span_attention(exec, keys, queries.view(), spans(), {.sinks = sinks}, out);
    if constexpr (requires { exec.check(); }) exec.check();
  }
  template <class Executor>
  std::vector<float> attention(Executor& exec, kv::keys const& keys, int sinks) {
    owned_scores out(cache.lanes());
    attend(exec, keys, sinks, out.view());
    return out.all();
  }

  /// The same in chunks of entries, of which the rows are those of the newest.
  template <class Executor>
  std::vector<float> attention_in(Executor& exec, kv::keys const& keys, kv::entry_chunks const& chunks) {
    using backend = typename Executor::backend;
    exec.reserve(kv::detail::scratch_of_verb<kv::ops::span_attention_t, backend>(cache.model(), cache.lanes()));
    owned_scores out(cache.lanes());
    kv::ops::span_attention(exec, keys, queries.view(), {}, {.chunks = chunks}, out.view());
    if constexpr (requires { exec.check(); }) exec.check();
    return out.all();
  }

  mock_cache cache;
  mock_queries queries;

 private:
  [[nodiscard]] int stored(int sequence, int row) const { return queries.view().stored({sequence, 0, 0}, row); }

  int capacity_;
  std::vector<int> begin_, end_;
  std::vector<std::byte> keys_;
  kv::codec element_ = kv::codec::f32;
  bool said_ = true;
};

}  // namespace kvpolicy_test

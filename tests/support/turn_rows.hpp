// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reference/intent_kv.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// The query rows of each sequence's turn in an engine's memory, a ring that begins anywhere, and which of them are the
/// span. A sequence without rows has no turn. Rows are never fp8, but f32 instead.
class turn_rows {
 public:
  turn_rows(kv::shape const& model, int sequences, int capacity, kv::codec element = kv::codec::f32)
      : model_(model),
        element_(kv::is_fp8(element) ? kv::codec::f32 : element),
        capacity_(capacity),
        cursor_(as_size(2 * sequences), 0) {
    position_.assign(as_size(sequences * capacity), -5);
    begin_.assign(as_size(sequences), 0);
    end_.assign(as_size(sequences), 0);
    memory_.assign(as_size(sequences * model.layers * model.query_heads * capacity * model.head_dim *
                           static_cast<int>(kv::bytes_of(element_))),
                   std::byte{0x5A});
  }

  /// A sequence's turn: its rows stand at these positions, [begin, end) of them are the span; begin == end: unresolved.
  void turn(int sequence, std::vector<int> const& positions, int begin, int end, int first = 0) {
    cursor_[as_size(2 * sequence)] = first;
    cursor_[as_size(2 * sequence + 1)] = static_cast<int>(positions.size());
    begin_[as_size(sequence)] = begin;
    end_[as_size(sequence)] = end;
    for (std::size_t r = 0; r < positions.size(); ++r) {
      position_[as_size(sequence * capacity_ + stored(sequence, static_cast<int>(r)))] = positions[r];
    }
  }
  void write(kv::lane this_lane, int query_head, int row, reference::row const& values) {
    for (std::size_t d = 0; d < values.size(); ++d) encode(element_, values[d], element(this_lane, query_head, row, d));
  }
  void fill(dice& random, double size) {
    for (std::size_t i = 0; i < memory_.size(); i += as_size(kv::bytes_of(element_))) {
      encode(element_, random.real(size), memory_.data() + i);
    }
  }

  [[nodiscard]] kv::turn_queries view(bool resolved = true) const {
    std::int64_t const row = std::int64_t{model_.head_dim} * kv::bytes_of(element_);
    std::int64_t const layer = row * model_.query_heads * capacity_;
    kv::turn_queries made;
    made.base = memory_.data();
    made.element = element_;
    made.dims = model_.head_dim;
    made.sequence = layer * model_.layers;
    made.layer = layer;
    made.head = row;
    made.row = row * model_.query_heads;
    made.heads = model_.query_heads;
    made.rows = capacity_;
    made.position = {position_.data(), capacity_, 0, 0};
    made.valid_rows = {cursor_.data() + 1, 2, 0, 0};
    made.first_row = {cursor_.data(), 2, 0, 0};
    made.span_begin = resolved ? begin_.data() : nullptr;
    made.span_end = resolved ? end_.data() : nullptr;
    return made;
  }

  // --- What the reference sees ---------------------------------------------------------------------------------------

  [[nodiscard]] int rows(int sequence) const { return cursor_[as_size(2 * sequence + 1)]; }
  /// Where a sequence's ring begins.
  [[nodiscard]] int first(int sequence) const { return cursor_[as_size(2 * sequence)]; }
  /// Rows [begin, end) that are the span, the last `tail` where none was resolved.
  [[nodiscard]] std::pair<int, int> span(int sequence, int tail) const {
    if (begin_[as_size(sequence)] != end_[as_size(sequence)])
      return {begin_[as_size(sequence)], end_[as_size(sequence)]};
    return {rows(sequence) > tail ? rows(sequence) - tail : 0, rows(sequence)};
  }
  [[nodiscard]] int position(int sequence, int row) const {
    return position_[as_size(sequence * capacity_ + stored(sequence, row))];
  }
  /// [layers][query heads][rows of the span][D].
  [[nodiscard]] reference::head_matrices span_rows(int sequence, int tail) {
    auto const [first, last] = span(sequence, tail);
    reference::head_matrices all(as_size(model_.layers), std::vector<reference::matrix>(as_size(model_.query_heads)));
    for (int i = 0; i < model_.layers * model_.query_heads; ++i) {
      int const layer = i / model_.query_heads, head = i % model_.query_heads;
      for (int r = first; r < last; ++r) {
        reference::row values;
        for (std::size_t d = 0; d < as_size(model_.head_dim); ++d)
          values.push_back(decoded(element_, element({sequence, layer, 0}, head, r, d)));
        all[as_size(layer)][as_size(head)].push_back(values);
      }
    }
    return all;
  }

 private:
  [[nodiscard]] int stored(int sequence, int row) const { return (cursor_[as_size(2 * sequence)] + row) % capacity_; }
  std::byte* element(kv::lane this_lane, int query_head, int row, std::size_t dim) {
    int const before =
        (this_lane.sequence * model_.layers + this_lane.layer) * capacity_ + stored(this_lane.sequence, row);
    return memory_.data() + (as_size((before * model_.query_heads + query_head) * model_.head_dim) + dim) *
                                as_size(kv::bytes_of(element_));
  }

  kv::shape model_;
  kv::codec element_;
  int capacity_;
  std::vector<int> cursor_, position_, begin_, end_;
  std::vector<std::byte> memory_;
};

}  // namespace kvpolicy_test

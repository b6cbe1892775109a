// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the last query rows, even if each forward brings only a few.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/ring_append.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps the last `rows` query rows of every lane as floats in a ring, so that an observation window can span the
/// chunks of a prefill. Rows belong to positions, not to ordinals, so they stay where they are when entries move.
struct query_ring {
  int rows = 32;

  using needs = kvpolicy::needs<queries>;
  using provides = recent_queries;

  [[nodiscard]] std::array<column, 3> columns(shape const& model, int) const {
    int const row = model.group() * model.head_dim * static_cast<int>(sizeof(float));
    return {column{"query_ring.rows", column_extent::window_row, on_move::stay, row, rows},
            column{"query_ring.position", column_extent::window_row, on_move::stay, sizeof(int), rows},
            column{"query_ring.cursor", column_extent::lane, on_move::stay, 2 * sizeof(int), 1}};
  }

  [[nodiscard]] recent_queries view(recorded_columns const& recorded) const {
    std::int64_t const row = std::int64_t{recorded.model.head_dim} * 4;
    by_lane<int const> const first = recorded.table<int const>(2);
    by_lane<int const> valid = first;
    valid.data += 1;
    return {{.base = reinterpret_cast<std::byte const*>(recorded[0].rows.data),
             .element = codec::f32,
             .dims = recorded.model.head_dim,
             .sequence = recorded[0].rows.sequence,
             .layer = recorded[0].rows.layer,
             .head = row * rows,
             .row = row,
             .heads = recorded.model.query_heads,
             .rows = rows,
             .position = recorded.table<int const>(1),
             .valid_rows = valid,
             .first_row = first,
             .slots = recorded.slots}};
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::ring_append(exec, in.lanes, in.template get<queries>(), ring_of(recorded));
  }

  void forget(auto& exec, lanes const& batch, recorded_columns const& recorded, int sequence, int position) const {
    ops::ring_truncate(exec, batch, ring_of(recorded), sequence, position);
  }

  friend bool operator==(query_ring const&, query_ring const&) = default;

 private:
  [[nodiscard]] query_ring_view ring_of(recorded_columns const& recorded) const {
    return {rows,
            recorded.model.group(),
            recorded.model.head_dim,
            recorded.table<float>(0),
            recorded.table<int>(1),
            recorded.table<int>(2)};
  }
};

}  // namespace KVPOLICY_NAMESPACE

// Recorder: the last query rows, however few of them a forward brings.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/ring_append.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps the last `rows` query rows of every lane as floats, so that a window survives chunked prefill. Rows stay where
/// they are when entries move: they belong to positions, not to ordinals.
struct query_ring {
  int rows = 32;

  using needs = kvpolicy::needs<queries>;
  using provides = recent_queries;

  [[nodiscard]] std::array<column, 3> columns(shape const& model, int) const {
    int const row = model.group() * model.head_dim * static_cast<int>(sizeof(float));
    return {column{"query_ring.rows", per::window_row, on_move::stay, row, rows},
            column{"query_ring.position", per::window_row, on_move::stay, sizeof(int), rows},
            column{"query_ring.cursor", per::lane, on_move::stay, 2 * sizeof(int), 1}};
  }

  [[nodiscard]] recent_queries view(held_columns const& held) const {
    std::int64_t const row = std::int64_t{held.model.head_dim} * 4;
    return {{reinterpret_cast<std::byte const*>(held[0].rows.data), codec::f32, held.model.head_dim,
             held[0].rows.sequence, held[0].rows.layer, row * rows, row, held.model.query_heads, rows,
             held.table<int const>(1), held.table<int const>(2)}};
  }

  void observe(auto& exec, auto const& in, held_columns const& held) const {
    ops::ring_append(exec, in.who, in.template get<queries>(), ring_of(held));
  }

  void forget(auto& exec, lanes const& who, held_columns const& held, int sequence, int position) const {
    ops::ring_truncate(exec, who, ring_of(held), sequence, position);
  }

  friend bool operator==(query_ring const&, query_ring const&) = default;

 private:
  [[nodiscard]] query_ring_view ring_of(held_columns const& held) const {
    return {
        rows, held.model.group(), held.model.head_dim, held.table<float>(0), held.table<int>(1), held.table<int>(2)};
  }
};
static_assert(recorder<query_ring>);

}  // namespace KVPOLICY_NAMESPACE

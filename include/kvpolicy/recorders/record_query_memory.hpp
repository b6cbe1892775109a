// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps a decaying mean of a session's queries, one row for each layer and query head.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the query memory of a session, one row for each layer and query head. A row has no position, and it sees
/// every entry.
struct query_memory : query_view {
  static constexpr auto name = "query_memory";
  /// True if the memory of any query head of the lane is not empty.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    int const group = among.heads > 0 ? heads / among.heads : 0;
    for (int h = 0; h < group; ++h) {
      if (detail::any_recorded(reinterpret_cast<float const*>(at(this_lane, this_lane.head * group + h, 0)), dims))
        return true;
    }
    return false;
  }
};

/// Adds each turn to the session's query memory (IntentKV, arXiv:2606.09916, section 3.2):
///
///     M <- unit(keep M + mean of the span's query rows)          for each layer and query head
///
/// It takes L Hq D floats for each sequence. Appliers do not move it. It is made of rotated rows, so it is only valid
/// while entries keep their positions, and does not fit re-rotated keys. `state::save_session` copies it out between
/// requests.
struct record_query_memory {
  float keep = 0.60653066f;         ///< e^-lambda; 0: only the last turn counts
  bool normalize_encoding = false;  ///< scale a turn's mean to a unit vector before adding it
  int tail = 32;                    ///< how many of the last rows replace a span that is not known

  using needs = kvpolicy::needs<turn_queries>;
  using provides = query_memory;
  using verbs = kvpolicy::verbs<ops::update_query_memory_t>;

  [[nodiscard]] static std::array<column, 1> columns(shape const& model, int) {
    int const row = model.group() * model.head_dim * static_cast<int>(sizeof(float));
    return {column{"query_memory", column_extent::session, on_move::stay, row, 1}};
  }

  [[nodiscard]] static query_memory view(recorded_columns const& recorded) {
    std::int64_t const row = std::int64_t{recorded.model.head_dim} * 4;
    return {{.base = reinterpret_cast<std::byte const*>(recorded[0].rows.data),
             .element = codec::f32,
             .dims = recorded.model.head_dim,
             .sequence = recorded[0].rows.sequence,
             .layer = recorded[0].rows.layer,
             .head = row,
             .row = row,
             .heads = recorded.model.query_heads,
             .rows = 1,
             .slots = recorded.slots}};
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::update_query_memory(exec, in.lanes, in.template get<turn_queries>(),
                             query_memory_update{keep, normalize_encoding, tail}, recorded.table<float>(0));
  }

  friend bool operator==(record_query_memory const&, record_query_memory const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE

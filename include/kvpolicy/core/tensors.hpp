// SPDX-License-Identifier: Apache-2.0
// Describes the dense tensors of an engine in one call each: a contiguous cache, query rows, probabilities, gates.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <kvpolicy/core/attention_probabilities.hpp>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/query_view.hpp>
#include <kvpolicy/core/signals.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// The order of the axes of a tensor, the slowest first: N token (or row), H head, D channel.
enum class axis_order { nhd, hnd };

/// The memory of a contiguous cache. Each of K and V is one tensor, [layer, sequence, token, KV head, channel] in order
/// `nhd`, [layer, sequence, KV head, token, channel] in order `hnd`.
struct contiguous_memory {
  void* k = nullptr;
  void* v = nullptr;           ///< null: values are the first `shape.value_dim` channels of a row of k (a latent cache)
  codec element = codec::f32;  ///< of K and of V
  kvpolicy::shape shape{};
  int sequences = 1;
  int capacity = 0;          ///< tokens for which each sequence has memory
  int* counts = nullptr;     ///< [sequence, layer, KV head]: the entries of each lane, 0 at first
  int* positions = nullptr;  ///< [sequence, layer, KV head, capacity]: the position of each entry
  axis_order order = axis_order::nhd;
  lane_order* lane_orders = nullptr;  ///< [sequence, layer, KV head], zeros at first: see `lanes::order`. Null: none
};

namespace detail {

/// A plane of contiguous memory, with `unit` bytes between two units.
[[nodiscard]] constexpr plane contiguous_plane(contiguous_memory const& of, void* base, int dims, bool slots) {
  std::int64_t const row = std::int64_t{dims} * bytes_of(of.element);
  bool const by_token = of.order == axis_order::nhd;
  std::int64_t const sequence = row * of.shape.kv_heads * of.capacity;
  std::int64_t const token = by_token ? row * of.shape.kv_heads : row;
  return {.base = static_cast<std::byte*>(base),
          .element = of.element,
          .channels = dims,
          .layer_stride = sequence * of.sequences,
          .unit_stride = slots ? token : sequence,
          .token_stride = slots ? 0 : token,
          .head_stride = by_token ? row : row * of.capacity,
          .channel_stride = bytes_of(of.element)};
}

/// Refuses a tensor of 2^60 or more elements, whose strides would not fit.
inline void check_extents(char const* call, char const* name, std::initializer_list<int> extents) {
  double elements = 1;
  for (int const each : extents) elements *= each != 0 ? each : 1;
  expects(elements < 0x1p60 && elements > -0x1p60, call, name, "2^60 elements or more", "it is a tensor in memory");
}

inline void check_contiguous(char const* call, contiguous_memory const& of) {
  expects(of.k != nullptr, call, "k", "null", "a cache is the engine's memory");
  expects(of.v != nullptr || of.shape.value_dim != 0, call, "v", "null",
          "a cache is the engine's memory: of one with keys only, shape.value_dim says which channels are values");
  expects(of.counts != nullptr, call, "counts", "null", "every lane says how many entries it holds");
  expects(of.positions != nullptr, call, "positions", "null", "every entry says its position");
  expects(of.sequences > 0, call, "sequences", of.sequences, "a batch has at least one sequence");
  expects(of.capacity > 0, call, "capacity", of.capacity, "each sequence has memory for at least one token");
  expects(of.element != codec::opaque, call, "element", "opaque", "rows of opaque bytes need a plane of their own");
  for (int const channels : {of.shape.head_dim, of.shape.value_dim != 0 ? of.shape.value_dim : 1}) {
    check_extents(call, "k", {of.shape.layers, of.sequences, of.capacity, of.shape.kv_heads, channels});
  }
}

[[nodiscard]] inline cache view_of(contiguous_memory const& of, locator const& where, bool slots) {
  int const value_dim = of.shape.value_dim != 0 ? of.shape.value_dim : of.shape.head_dim;
  std::int64_t const lanes_of_sequence = std::int64_t{of.shape.layers} * of.shape.kv_heads;
  cache made{.shape = of.shape,
             .k = contiguous_plane(of, of.k, of.shape.head_dim, slots),
             .v = of.v != nullptr ? contiguous_plane(of, of.v, value_dim, slots) : plane{},
             .where = where};
  made.lanes = {.sequences = of.sequences,
                .layer_end = of.shape.layers,
                .heads = of.shape.kv_heads,
                .capacity = of.capacity,
                .count = {of.counts, lanes_of_sequence, of.shape.kv_heads, 1},
                .position = {of.positions, lanes_of_sequence * of.capacity,
                             std::int64_t{of.shape.kv_heads} * of.capacity, of.capacity}};
  if (of.lane_orders != nullptr) made.lanes.order = {of.lane_orders, lanes_of_sequence, of.shape.kv_heads, 1};
  return made;
}

}  // namespace detail

/// A contiguous cache: entry i of a lane is row i of its sequence. Use it with `compact`, which moves rows.
///
/// - throws: `invalid_argument` if a pointer is null or a size is not positive.
[[nodiscard]] inline cache contiguous_cache(contiguous_memory const& of) {
  detail::check_contiguous("contiguous_cache", of);
  return detail::view_of(of, identity_map(of.capacity, of.sequences), false);
}

/// The same for floats of one sequence.
[[nodiscard]] inline cache contiguous_cache(float* k, float* v, shape const& model, int capacity, int* counts,
                                            int* positions) {
  return contiguous_cache(
      {.k = k, .v = v, .shape = model, .capacity = capacity, .counts = counts, .positions = positions});
}

/// The same memory as slots: every lane has a list that says in which row each of its entries is. Use it to drop
/// entries while decoding: `overwrite` and `list_rewrite` then edit the list, and few or no rows move. The engine reads
/// entry i of a lane from row `cache.where.at(lane, i).unit`, and writes a new entry into the row that the list names
/// after the lane's last entry.
///
/// - out: `slots` [sequence, layer, KV head, capacity] receives the rows in their order. So call it once, before the
///   first token; copies of the returned view may be kept.
/// - throws: `invalid_argument` if a pointer is null or a size is not positive, or for several sequences in order
///   `hnd`, because one stride does not lead from slot to slot there.
[[nodiscard]] inline cache contiguous_cache_as_slots(contiguous_memory const& of, int* slots) {
  char const* const call = "contiguous_cache_as_slots";
  detail::check_contiguous(call, of);
  expects(slots != nullptr, call, "slots", "null", "every lane has a list of its slots");
  expects(of.order == axis_order::nhd || of.sequences == 1, call, "order", "hnd", [&] {
    return "one stride leads from slot to slot, and there are " + std::to_string(of.sequences) + " sequences: use nhd";
  });
  int const lanes_of_sequence = of.shape.layers * of.shape.kv_heads;
  for (int i = 0; i < of.sequences * lanes_of_sequence; ++i) {
    int const first = i / lanes_of_sequence * of.capacity;
    for (int e = 0; e < of.capacity; ++e) slots[std::int64_t{i} * of.capacity + e] = first + e;
  }
  by_lane<int const> const table{slots, std::int64_t{lanes_of_sequence} * of.capacity,
                                 std::int64_t{of.shape.kv_heads} * of.capacity, of.capacity};
  return detail::view_of(of, slot_map(table, std::int64_t{of.sequences} * of.capacity), true);
}

/// The same for floats of one sequence.
[[nodiscard]] inline cache contiguous_cache_as_slots(float* k, float* v, shape const& model, int capacity, int* counts,
                                                     int* positions, int* slots) {
  return contiguous_cache_as_slots(
      {.k = k, .v = v, .shape = model, .capacity = capacity, .counts = counts, .positions = positions}, slots);
}

/// The table that a cache's locator reads, as the writable list that an applier takes. `slots` is its memory.
///
/// - throws: `invalid_argument` if the cache's locator reads another table.
[[nodiscard]] inline by_lane<int> list_of(cache const& in, int* slots) {
  by_lane<int const> const& table = in.where.table;
  expects(slots == table.data, "list_of", "slots", slots == nullptr ? "null" : "another table",
          "it is the memory of the table that the cache's locator reads");
  return {slots, table.sequence, table.layer, table.head, table.slots};
}

/// How the tensors of query rows or of attention probabilities are laid out, and how many rows are valid.
struct row_batch {
  int sequences = 1;
  int const* valid_rows = nullptr;     ///< [sequence]: the number of valid rows, if sequences differ; null: all of them
  axis_order order = axis_order::nhd;  ///< of query rows; probabilities are always [query head, row, entry]
};

/// Describes the query rows of a forward, after RoPE.
///
/// - in: `data` is one tensor, [layer, sequence, row, query head, channel] in order `nhd`, [layer, sequence, query
/// head,
///   row, channel] in order `hnd`. `rows` is the largest number of rows of a sequence. `positions` [sequence, rows] is
///   the position of each row in its sequence.
/// - A sequence with fewer rows than `rows` has them at the front, and `valid_rows` says how many.
[[nodiscard]] inline queries queries_of(void const* data, codec element, shape const& model, int rows,
                                        int const* positions, row_batch const& batch = {}) {
  detail::check_extents("queries_of", "data", {model.layers, batch.sequences, rows, model.query_heads, model.head_dim});
  std::int64_t const row = std::int64_t{model.head_dim} * bytes_of(element);
  std::int64_t const sequence = row * model.query_heads * rows;
  bool const by_token = batch.order == axis_order::nhd;
  queries made{};
  made.base = static_cast<std::byte const*>(data);
  made.element = element;
  made.dims = model.head_dim;
  made.sequence = sequence;
  made.layer = sequence * batch.sequences;
  made.head = by_token ? row : row * rows;
  made.row = by_token ? row * model.query_heads : row;
  made.heads = model.query_heads;
  made.rows = rows;
  made.position = {positions, rows, 0, 0};
  if (batch.valid_rows != nullptr) made.valid_rows = {batch.valid_rows, 1, 0, 0};
  return made;
}
/// The same for floats.
[[nodiscard]] inline queries queries_of(float const* data, shape const& model, int rows, int const* positions,
                                        row_batch const& batch = {}) {
  return queries_of(data, codec::f32, model, rows, positions, batch);
}

/// Describes one number for each new token of each lane: the gates (`kv::gate{kv::entry_numbers_of(...)}`) or the log
/// retentions (`kv::log_beta{...}`) of a forward.
///
/// - in: `data` is one tensor [layer, sequence, KV head, token]. `tokens` is the largest number of new tokens of a
///   sequence. A sequence with fewer has them at the front, and `batch.valid_rows` says how many.
[[nodiscard]] inline entry_numbers entry_numbers_of(void const* data, codec element, shape const& model, int tokens,
                                                    row_batch const& batch = {}) {
  detail::check_extents("entry_numbers_of", "data", {model.layers, batch.sequences, model.kv_heads, tokens});
  std::int64_t const number = bytes_of(element);
  std::int64_t const sequence = number * tokens * model.kv_heads;
  entry_numbers made{.base = static_cast<std::byte const*>(data),
                     .element = element,
                     .sequence = sequence,
                     .layer = sequence * batch.sequences,
                     .head = number * tokens,
                     .entry = number,
                     .entries = tokens};
  if (batch.valid_rows != nullptr && tokens > 0) made.counts = {batch.valid_rows, 1, 0, 0};
  return made;
}
/// The same for floats.
[[nodiscard]] inline entry_numbers entry_numbers_of(float const* data, shape const& model, int tokens,
                                                    row_batch const& batch = {}) {
  return entry_numbers_of(data, codec::f32, model, tokens, batch);
}

/// Describes the attention probabilities of a forward.
///
/// - in: `data` is one tensor [layer, sequence, query head, row, entry]. `entries` is the length of a row, which is at
///   least the number of entries of every lane. `rows` and `positions` are as for `queries_of`.
[[nodiscard]] inline attention_probabilities probabilities_of(void const* data, codec element, shape const& model,
                                                              int rows, int entries, int const* positions,
                                                              row_batch const& batch = {}) {
  detail::check_extents("probabilities_of", "data", {model.layers, batch.sequences, model.query_heads, rows, entries});
  std::int64_t const row = std::int64_t{entries} * bytes_of(element);
  std::int64_t const sequence = row * rows * model.query_heads;
  attention_probabilities made{.base = static_cast<std::byte const*>(data),
                               .element = element,
                               .sequence = sequence,
                               .layer = sequence * batch.sequences,
                               .head = row * rows,
                               .row = row,
                               .heads = model.query_heads,
                               .rows = rows,
                               .entries = entries,
                               .position = {positions, rows, 0, 0}};
  if (batch.valid_rows != nullptr) made.valid_rows = {batch.valid_rows, 1, 0, 0};
  return made;
}
/// The same for floats.
[[nodiscard]] inline attention_probabilities probabilities_of(float const* data, shape const& model, int rows,
                                                              int entries, int const* positions,
                                                              row_batch const& batch = {}) {
  return probabilities_of(data, codec::f32, model, rows, entries, positions, batch);
}

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// The structs of C as views of the library.
#pragma once

#include <kvpolicy/c/kvpolicy.h>

#include <kvpolicy/kvpolicy.hpp>
#include <limits>

#include "errors.hpp"

namespace kvpolicy_c {

inline kv::codec codec_of(kvpolicy_element element, char const* call, char const* name) {
  kv::expects(element >= KVPOLICY_F32 && element <= KVPOLICY_OPAQUE, call, name, static_cast<int>(element),
              "it is one of kvpolicy_element");
  return static_cast<kv::codec>(element);
}
static_assert(static_cast<int>(kv::codec::f32) == KVPOLICY_F32 && static_cast<int>(kv::codec::f16) == KVPOLICY_F16 &&
              static_cast<int>(kv::codec::bf16) == KVPOLICY_BF16 &&
              static_cast<int>(kv::codec::opaque) == KVPOLICY_OPAQUE);

inline kv::plane plane_of(kvpolicy_plane const& from, char const* name) {
  return {.base = static_cast<std::byte*>(from.data),
          .element = codec_of(from.element, "kvpolicy_make", name),
          .channels = from.channels,
          .layer_stride = from.layer_stride,
          .unit_stride = from.unit_stride,
          .token_stride = from.token_stride,
          .head_stride = from.head_stride,
          .channel_stride = from.channel_stride};
}

/// A table [sequence][layer][KV head][width].
template <class T>
kv::by_lane<T> table_of(T* data, kv::shape const& model, int width) {
  std::int64_t const layer = std::int64_t{model.kv_heads} * width;
  return {data, layer * model.layers, layer, width};
}

inline kv::cache cache_of(kvpolicy_cache const& from) {
  char const* const call = "kvpolicy_make";
  kv::expects(from.capacity > 0, call, "cache.capacity", from.capacity, "a lane has room for at least one entry");
  std::int64_t const row = std::int64_t{from.kv_heads} * from.capacity;
  kv::expects(from.layers <= 0 || row <= std::numeric_limits<std::int64_t>::max() / from.layers, call, "cache.layers",
              from.layers, "the tables of a sequence have less than 2^63 numbers");
  kv::cache made;
  made.shape = {from.layers, from.query_heads, from.kv_heads, from.head_dim, from.value_dim};
  made.lanes.sequences = from.sequences;
  made.lanes.layer_end = from.layers;
  made.lanes.heads = from.kv_heads;
  made.lanes.capacity = from.capacity;
  made.lanes.count = table_of(from.counts, made.shape, 1);
  made.lanes.position = table_of(from.positions, made.shape, from.capacity);
  made.k = plane_of(from.keys, "cache.keys.element");
  made.v = plane_of(from.values, "cache.values.element");
  kv::expects(from.slots == nullptr || from.blocks == nullptr, call, "cache.blocks", "given beside slots",
              "entries are in slots or in blocks");
  if (from.blocks != nullptr) {
    kv::expects(from.block_size > 0, call, "cache.block_size", from.block_size, "a block has at least one token");
    kv::expects(from.block_count > 0, call, "cache.block_count", from.block_count, "a pool has at least one block");
    int const of_sequence = (from.capacity - 1) / from.block_size + 1;
    made.where = kv::block_table({from.blocks, of_sequence}, from.block_size, from.block_count);
  } else if (from.slots != nullptr) {
    made.where = kv::slot_map(table_of<int const>(from.slots, made.shape, from.capacity), from.slot_count);
  } else {
    made.where = kv::identity_map(from.capacity, from.sequences);
  }
  return made;
}

/// The signals of a call, alive as long as the view of them.
class given_signals {
 public:
  given_signals(kv::cache const& of, kvpolicy_signals const* from, char const* call)
      : keys_(kv::keys_of(of)), values_(kv::values_of(of)), view(of.lanes) {
    view.add(keys_);
    view.add(values_);
    if (from == nullptr) return;
    kv::shape const& model = of.shape;
    if (from->queries != nullptr) {
      kvpolicy_queries const& rows = *from->queries;
      queries_.base = static_cast<std::byte const*>(rows.data);
      queries_.element = codec_of(rows.element, call, "signals.queries.element");
      queries_.dims = model.head_dim;
      queries_.sequence = rows.sequence_stride;
      queries_.layer = rows.layer_stride;
      queries_.head = rows.head_stride;
      queries_.row = rows.row_stride;
      queries_.heads = model.query_heads;
      queries_.rows = rows.rows;
      queries_.position = {rows.positions, rows.rows, 0, 0};
      if (rows.valid_rows != nullptr) queries_.valid_rows = {rows.valid_rows, 1, 0, 0};
      view.add(queries_);
    }
    int const capacity = of.lanes.capacity;
    mass_.mass = table_of(from->attention_mass, model, capacity);
    external_.score = table_of(from->external, model, capacity);
    if (from->attention_mass != nullptr) view.add(mass_);
    if (from->external != nullptr) view.add(external_);
  }
  given_signals(given_signals const&) = delete;
  given_signals& operator=(given_signals const&) = delete;

 private:
  kv::keys keys_;
  kv::values values_;
  kv::queries queries_{};
  kv::attention_mass mass_{};
  kv::external_scores external_{};

 public:
  kv::any_signals view;
};

}  // namespace kvpolicy_c

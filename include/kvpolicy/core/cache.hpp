// SPDX-License-Identifier: Apache-2.0
// Views of the engine's memory: planes of keys and values, a locator that finds entries in them, and lanes. None of
// these types owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/core/logit_options.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// The place of an entry in memory: a unit of the pool (a slot, a page, or a sequence's row) and a token inside it.
struct place {
  std::int64_t unit = 0;
  int token = 0;
  friend bool operator==(place const&, place const&) = default;
};

/// A table of base pointers, for a plane that is not one tensor. It has a pointer for each layer (one tensor a layer),
/// for each unit (block stacks, pools in several pieces), for each head, or for several of them. A stride of 0 shares
/// the pointer along that axis. The plane's own strides are added to the pointer.
struct base_table {
  std::byte* const* data = nullptr;  ///< null: the plane has one base
  std::int64_t layer = 0;            ///< strides of the table, in pointers
  std::int64_t unit = 0;
  std::int64_t head = 0;
  int alignment = 0;  ///< every pointer is a multiple of this many bytes, and device kernels load up to 16 bytes at
                      ///< once; 0: pointers are aligned to an element only
};

/// What the elements of a plane are multiplied by, for elements of fp8: value = element x scale. A stride of 0 shares
/// the number along that axis, so one description covers a scale for a tensor (all strides 0), for a head, for a token,
/// or for each row.
///
/// Appliers move rows as bytes. So where tokens have scales of their own, the scales are a plane of `cache.more` too
/// (of one f32 element, in the same memory, with the same strides), and move with their rows.
struct element_scales {
  float const* data = nullptr;  ///< null: every scale is 1
  std::int64_t layer = 0;       ///< strides in floats, as those of the plane are in bytes
  std::int64_t unit = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;

  /// The scale of a row.
  [[nodiscard]] KVPOLICY_HD constexpr float at(int in_layer, place where, int of_head) const {
    if (data == nullptr) return 1.0f;
    return data[in_layer * layer + where.unit * unit + where.token * token + of_head * head];
  }
  friend bool operator==(element_scales const&, element_scales const&) = default;
};

/// The keys *or* the values of a model: named axes with signed strides in bytes. Layouts such as NHD, HND, packed K/V
/// and transposed V differ in strides only. A layer or head stride of 0 describes a pool in which a unit belongs to the
/// lane whose table names it.
struct plane {
  std::byte* base = nullptr;
  codec element = codec::f32;
  int channels = 0;               ///< elements of a row
  std::int64_t layer_stride = 0;  ///< bytes between two layers; the next four are strides in bytes as well
  std::int64_t unit_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t channel_stride = 0;
  base_table bases{};       ///< used instead of `base` if its `data` is not null
  element_scales scales{};  ///< of fp8 elements; other elements have none

  [[nodiscard]] KVPOLICY_HD constexpr std::byte* row(int in_layer, place at, int of_head) const {
    std::byte* const from =
        bases.data != nullptr ? bases.data[in_layer * bases.layer + at.unit * bases.unit + of_head * bases.head] : base;
    return from + in_layer * layer_stride + at.unit * unit_stride + at.token * token_stride + of_head * head_stride;
  }
  [[nodiscard]] KVPOLICY_HD constexpr bool contiguous() const { return channel_stride == bytes_of(element); }
};

/// The kinds of a locator: see `locator`.
enum class locating { identity, slot_map, block_table, ring, csr_pages };

/// Maps the ordinal of an entry in its lane to its place. A table with stride 0 along an axis is shared by the lanes of
/// that axis, so one slot map can serve all lanes, or each lane can have its own.
///
/// - identity: unit = sequence, token = ordinal. Contiguous caches use it.
/// - slot_map: unit = table[ordinal], token = 0.
/// - block_table: unit = table[ordinal / unit_tokens], token = ordinal % unit_tokens.
/// - csr_pages: as block_table, but the lane's pages begin at table[begin]. One list serves the whole batch.
/// - ring: unit = sequence, token = (table[0] + ordinal) % unit_tokens. The newest row overwrites the oldest.
struct locator {
  locating kind = locating::identity;
  by_lane<int const> table{};
  int unit_tokens = 1;
  std::int64_t units = 0;      ///< units in the pool; the locator does not check that table entries are below it
  by_lane<int const> begin{};  ///< of csr_pages: where a lane's pages begin in its table row
  int const* slots = nullptr;  ///< of identity and ring: the unit of each sequence; null: sequence s has unit s

  /// The unit of a sequence whose entries are all in one unit.
  [[nodiscard]] KVPOLICY_HD constexpr int unit_of(int sequence) const { return slot_of(slots, sequence); }
  /// The units of a lane, in the order of its entries.
  [[nodiscard]] KVPOLICY_HD constexpr int const* list(lane this_lane) const {
    return table.row(this_lane) + (begin.data != nullptr ? *begin.row(this_lane) : 0);
  }

  [[nodiscard]] KVPOLICY_HD constexpr place at(lane this_lane, int ordinal) const {
    switch (kind) {
      case locating::slot_map:
        return {table.row(this_lane)[ordinal], 0};
      case locating::block_table:
        return {table.row(this_lane)[ordinal / unit_tokens], ordinal % unit_tokens};
      case locating::ring:
        return {unit_of(this_lane.sequence), (*table.row(this_lane) + ordinal) % unit_tokens};
      case locating::csr_pages:
        return {list(this_lane)[ordinal / unit_tokens], ordinal % unit_tokens};
      default:
        return {unit_of(this_lane.sequence), ordinal};
    }
  }
};

/// A locator of contiguous rows: each of `sequences` sequences has `capacity` tokens.
[[nodiscard]] constexpr locator identity_map(int capacity, int sequences = 1) {
  return {.kind = locating::identity, .unit_tokens = capacity, .units = sequences};
}

/// A locator whose table has one slot number for each entry. `slots` is the size of the pool.
[[nodiscard]] constexpr locator slot_map(by_lane<int const> table, std::int64_t slots) {
  return {.kind = locating::slot_map, .table = table, .unit_tokens = 1, .units = slots};
}

/// A locator whose table has one page number for every `page` entries. `pages` is the size of the pool.
[[nodiscard]] constexpr locator block_table(by_lane<int const> table, int page, std::int64_t pages) {
  return {.kind = locating::block_table, .table = table, .unit_tokens = page, .units = pages};
}

/// A locator of FlashInfer's arrays: one list has the pages of the whole batch, and those of sequence s begin at
/// indices[indptr[s]]. `page` is the number of entries of a page, `pages` the size of the pool.
[[nodiscard]] constexpr locator csr_pages(by_lane<int const> indices, by_lane<int const> indptr, int page,
                                          std::int64_t pages) {
  return {.kind = locating::csr_pages, .table = indices, .unit_tokens = page, .units = pages, .begin = indptr};
}

/// A view of a KV cache: its keys and values, the locator that finds an entry in them, and its lanes. Appliers edit it.
///
/// A latent cache (DeepSeek's MLA) has rows that are keys and values at once: the values are the first
/// `shape.value_dim` channels of the keys' rows. It has one KV head, and says so by a `v` without memory, or by a `v`
/// inside of the rows of `k`. Its rows are moved once.
struct cache {
  kvpolicy::shape shape{};
  kvpolicy::lanes lanes{};
  plane k{};
  plane v{};  ///< no memory (`base` and `bases.data` are null): a part of the keys' rows, see above
  locator where{};
  std::span<plane const> more{};  ///< planes that move with K and V: scales of a quantised pool, an indexer's keys
  logit_options logits{};         ///< the model's attention scale, soft cap and sink logits
};

namespace detail {

/// The channels of a row of keys that are its values. There are none if `end` is 0.
struct value_channels {
  int begin = 0;
  int end = 0;
};

[[nodiscard]] constexpr bool has_memory(plane const& rows) {
  return rows.base != nullptr || rows.bases.data != nullptr;
}

/// True if rows of both planes are the same distances apart, and a table of pointers is the same one.
[[nodiscard]] constexpr bool same_rows(plane const& a, plane const& b) {
  bool const strides = a.layer_stride == b.layer_stride && a.unit_stride == b.unit_stride &&
                       a.token_stride == b.token_stride && a.head_stride == b.head_stride;
  bool const tables = a.bases.data == b.bases.data && a.bases.layer == b.bases.layer && a.bases.unit == b.bases.unit &&
                      a.bases.head == b.bases.head;
  return strides && tables && a.element == b.element && a.channel_stride == b.channel_stride;
}

/// The channels of the keys' rows that are the values of a latent cache. Both forms of `cache` are understood. Without
/// `shape.value_dim` there are none, so that a plane that was forgotten, or given twice, is an error.
[[nodiscard]] constexpr value_channels values_in_keys(cache const& in) {
  if (in.shape.value_dim == 0) return {};
  if (!has_memory(in.v)) return {0, in.k.element == codec::opaque ? in.k.channels : in.shape.value_dim};
  if (!same_rows(in.k, in.v) || in.v.channels > in.k.channels || in.k.channel_stride == 0) return {};
  if (in.k.bases.data != nullptr) return {0, in.v.channels};
  std::int64_t const first = (in.v.base - in.k.base) / in.k.channel_stride;
  bool const inside =
      first >= 0 && first + in.v.channels <= in.k.channels && in.k.base + first * in.k.channel_stride == in.v.base;
  return inside ? value_channels{static_cast<int>(first), static_cast<int>(first) + in.v.channels} : value_channels{};
}

/// True if the cache is latent: moving the rows of the keys moves the values.
[[nodiscard]] constexpr bool is_latent(cache const& in) { return values_in_keys(in).end > 0; }

/// Calls visit(plane) for each plane whose rows move with an entry: keys, values unless they are in the keys' rows, and
/// the planes in `more`.
template <class Visit>
constexpr void for_each_moved_plane(cache const& in, Visit const& visit) {
  visit(in.k);
  if (!is_latent(in)) visit(in.v);
  for (plane const& each : in.more) visit(each);
}

}  // namespace detail

/// The plane of the values: `v`, or of a cache with keys only the first `shape.value_dim` channels of their rows.
[[nodiscard]] constexpr plane value_plane(cache const& from) {
  if (detail::has_memory(from.v) || !detail::is_latent(from)) return from.v;
  plane made = from.k;
  made.channels = detail::values_in_keys(from).end;
  return made;
}

/// The bytes that one entry of one lane takes in K, V and the planes in `more`. Rows that are both count once.
[[nodiscard]] inline std::int64_t entry_bytes(cache const& in) {
  std::int64_t bytes = 0;
  detail::for_each_moved_plane(
      in, [&](plane const& rows) { bytes += std::int64_t{rows.channels} * bytes_of(rows.element); });
  return bytes;
}

}  // namespace KVPOLICY_NAMESPACE

// The engine's memory as kvpolicy sees it: planes, a locator, lanes. Views all of them; nothing here owns anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// Where an entry lives: a unit of the pool (a slot, a page, a sequence's row) and a token inside it.
struct place {
  std::int64_t unit = 0;
  int token = 0;
  friend bool operator==(place const&, place const&) = default;
};

/// Where a plane begins, if one base does not do: a table of pointers, for each layer (a tensor of its own), each unit
/// (block stacks, pools in several pieces) or both. A stride of 0 shares the pointer; the plane's strides are added.
struct base_table {
  std::byte* const* data = nullptr;  ///< null: the plane has one base
  std::int64_t layer = 0;            ///< strides of the table, in pointers
  std::int64_t unit = 0;
  std::int64_t head = 0;
  int alignment =
      0;  ///< bytes that all pointers are multiples of: up to 16, a device reads as many at once. 0: an element's
};

/// Keys *or* values of a model, named axes with signed byte strides. NHD, HND, packed K/V and transposed V are strides.
/// A layer or head stride of 0 is a pool whose units belong to whichever lane's table names them.
struct plane {
  std::byte* base = nullptr;
  codec element = codec::f32;
  int dims = 0;            ///< elements of a row
  std::int64_t layer = 0;  ///< bytes between layers, and so on
  std::int64_t unit = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
  std::int64_t dim = 0;
  base_table bases{};  ///< instead of `base`

  [[nodiscard]] KVPOLICY_HD constexpr std::byte* row(int in_layer, place at, int of_head) const {
    std::byte* const from =
        bases.data != nullptr ? bases.data[in_layer * bases.layer + at.unit * bases.unit + of_head * bases.head] : base;
    return from + in_layer * layer + at.unit * unit + at.token * token + of_head * head;
  }
  [[nodiscard]] KVPOLICY_HD constexpr bool contiguous() const { return dim == bytes_of(element); }
};

/// Which table, if any, turns an ordinal into a place.
enum class locating { identity, slot_map, block_table, ring, csr_pages };

/// Logical entry -> place. A stride of 0 in the table shares it: one slot map for all lanes, or one for each.
///
/// - identity: unit = sequence, token = ordinal. Contiguous caches.
/// - slot_map: unit = table[ordinal]. One token a unit.
/// - block_table: unit = table[ordinal / unit_tokens], token = ordinal % unit_tokens.
/// - csr_pages: as block_table, the lane's pages beginning at table[begin]: one list for a whole batch.
/// - ring: unit = sequence, token = (table[0] + ordinal) % unit_tokens. A window that overwrites its oldest row.
struct locator {
  locating kind = locating::identity;
  by_lane<int const> table{};
  int unit_tokens = 1;
  std::int64_t units = 0;      ///< units in the pool; a table that names others is not noticed
  by_lane<int const> begin{};  ///< csr_pages: where a lane's pages begin in its table row

  /// The lane's units, in order.
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
        return {this_lane.sequence, (*table.row(this_lane) + ordinal) % unit_tokens};
      case locating::csr_pages:
        return {list(this_lane)[ordinal / unit_tokens], ordinal % unit_tokens};
      default:
        return {this_lane.sequence, ordinal};
    }
  }
};

/// Contiguous rows: `capacity` tokens for each of `sequences` sequences.
[[nodiscard]] constexpr locator identity_map(int capacity, int sequences = 1) {
  return {.kind = locating::identity, .unit_tokens = capacity, .units = sequences};
}

/// One slot number an entry; `slots` is the size of the pool.
[[nodiscard]] constexpr locator slot_map(by_lane<int const> table, std::int64_t slots) {
  return {.kind = locating::slot_map, .table = table, .unit_tokens = 1, .units = slots};
}

/// One page number every `page` entries; `pages` is the size of the pool.
[[nodiscard]] constexpr locator block_table(by_lane<int const> table, int page, std::int64_t pages) {
  return {.kind = locating::block_table, .table = table, .unit_tokens = page, .units = pages};
}

/// The pages of a batch in one list: those of sequence s are indices[indptr[s]] and on. FlashInfer's arrays.
[[nodiscard]] constexpr locator csr_pages(by_lane<int const> indices, by_lane<int const> indptr, int page,
                                          std::int64_t pages) {
  return {.kind = locating::csr_pages, .table = indices, .unit_tokens = page, .units = pages, .begin = indptr};
}

/// The view that appliers edit: K and V, where an entry lives, and who is there.
struct cache {
  kvpolicy::shape shape{};
  kvpolicy::lanes lanes{};
  plane k{};
  plane v{};
  locator where{};
  std::span<plane const> more{};  ///< what else moves with a row: the scales of a quantised pool, an indexer's keys
};

/// Bytes of keys and values that one entry of one lane takes.
[[nodiscard]] inline std::int64_t entry_bytes(cache const& in) {
  std::int64_t bytes = 0;
  auto const add = [&](plane const& rows) { bytes += std::int64_t{rows.dims} * bytes_of(rows.element); };
  add(in.k);
  add(in.v);
  for (plane const& each : in.more) add(each);
  return bytes;
}

}  // namespace KVPOLICY_NAMESPACE

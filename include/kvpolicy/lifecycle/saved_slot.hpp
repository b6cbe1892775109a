// SPDX-License-Identifier: Apache-2.0
// The bytes of a saved slot: a header, numbers, recorded columns and rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/state.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace KVPOLICY_NAMESPACE::detail {

/// The first bytes of a saved slot. The others follow in this order: the newest observed row of each layer, the count
/// of each lane, the turns of each lane if keys were turned, the positions of each lane (once where lanes share them),
/// the recorded columns lane by lane, the rows of K, V and the further planes.
struct saved_header {
  std::array<char, 8> magic{'k', 'v', 's', 'l', 'o', 't', '\n', '\0'};
  std::uint32_t version = 1;
  std::uint32_t byte_order = 0x01020304;
  std::uint64_t bytes = 0;              ///< of everything
  std::uint64_t columns = 0;            ///< a hash of the columns, which says what policy they are of
  std::array<std::int32_t, 7> model{};  ///< layers, query heads, KV heads, channels of K, of V, layers begin and end
  std::int32_t drafts = 0;
  std::uint64_t planes = 0;        ///< a hash of the element types and sizes of rows; 0: rows were left
  std::int32_t used = 0;           ///< 1: a request uses the slot, + 2: the turns of its lanes follow
  std::int32_t by_token = 0;       ///< 1: the rows are [layer][entry][head], 0: [layer][head][entry]
  std::int32_t own_positions = 0;  ///< 1: layers have rows of positions of their own, 2: heads have, 3: both
  std::int32_t own_counts = 0;     ///< the same for counts
  std::uint64_t sum = 0;           ///< a hash of everything before the rows

  friend bool operator==(saved_header const&, saved_header const&) = default;
};
static_assert(std::is_trivially_copyable_v<saved_header> && std::has_unique_object_representations_v<saved_header>);

/// FNV-1a over bytes.
class hash_of_parts {
 public:
  void add(std::string_view text) {
    for (char const each : text) value_ = (value_ ^ static_cast<unsigned char>(each)) * 0x100000001B3u;
  }
  void add(std::int64_t number) { add(std::to_string(number).append(";")); }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

/// A hash of bytes, eight at a time. It finds damage, not forgery.
[[nodiscard]] inline std::uint64_t sum_of(std::span<std::byte const> bytes, std::uint64_t sum = 0xCBF29CE484222325u) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    sum = (sum ^ word) * 0x100000001B3u;
    sum ^= sum >> 29;
  }
  return sum;
}

/// The sum of a header, without the sum that it holds, and of the numbers and columns that follow it.
[[nodiscard]] inline std::uint64_t sum_of(saved_header header, std::span<std::byte const> before_rows) {
  header.sum = 0;
  return sum_of(before_rows.subspan(sizeof header), sum_of(std::as_bytes(std::span(&header, 1))));
}

[[nodiscard]] inline std::uint64_t hash_of(std::vector<recorded_column> const& columns) {
  hash_of_parts hash;
  for (recorded_column const& each : columns) {
    hash.add(each.about.name);
    hash.add(static_cast<std::int64_t>(each.about.extent));
    hash.add(static_cast<std::int64_t>(each.about.rule));
    hash.add(each.about.bytes);
    hash.add(each.about.page > 0 ? each.about.page : each.about.units);  // the number of pages follows from the bound
  }
  return hash.value();
}

[[nodiscard]] inline std::uint64_t hash_of_planes(cache const& in) {
  hash_of_parts hash;
  auto const add = [&](plane const& rows) {
    hash.add(static_cast<std::int64_t>(rows.element));
    hash.add(rows.channels);
  };
  for_each_moved_plane(in, add);
  return hash.value();
}

/// The header of a slot of this cache and state, without what differs between requests.
template <class State>
[[nodiscard]] saved_header header_of(cache const& all, State const& state, bool with_rows) {
  shape const& model = all.shape;
  saved_header made;
  made.columns = hash_of(state.columns());
  made.model = {model.layers,    model.query_heads,     model.kv_heads,     model.head_dim,
                model.value_dim, all.lanes.layer_begin, all.lanes.layer_end};
  made.planes = with_rows ? hash_of_planes(all) : 0;
  auto const own = [](by_lane<int> const& table) { return (table.layer != 0 ? 1 : 0) + (table.head != 0 ? 2 : 0); };
  made.own_positions = own(all.lanes.position);
  made.own_counts = own(all.lanes.count);
  return made;
}

/// Reads a saved slot piece by piece.
///
/// - throws: `invalid_argument` if the bytes end before a piece.
class saved_reader {
 public:
  saved_reader(char const* call, std::span<std::byte const> bytes) : call_(call), bytes_(bytes) {}

  [[nodiscard]] std::byte const* take(std::size_t count) {
    expects(count <= bytes_.size() - at_, call_, "bytes", bytes_.size(),
            [&] { return "the saved slot is truncated: it goes on after byte " + std::to_string(at_); });
    at_ += count;
    return bytes_.data() + at_ - count;
  }
  template <class T>
  [[nodiscard]] T take() {
    T made;
    std::memcpy(&made, take(sizeof(T)), sizeof(T));
    return made;
  }
  template <class T>
  [[nodiscard]] std::vector<T> take_many(std::size_t count) {
    std::vector<T> made(count);
    std::byte const* const from = take(count * sizeof(T));
    if (count > 0) std::memcpy(made.data(), from, count * sizeof(T));
    return made;
  }

  /// How many bytes were taken.
  [[nodiscard]] std::size_t at() const { return at_; }

 private:
  char const* call_;
  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
};

/// Refuses a header of another version, policy or model.
inline void check_header(char const* call, saved_header const& found, saved_header const& wanted, std::size_t bytes) {
  expects(found.magic == wanted.magic, call, "bytes", "no saved slot", "kvpolicy::save writes them");
  expects(found.byte_order == wanted.byte_order, call, "bytes", "of another byte order",
          "a slot is loaded on a machine of the same byte order");
  expects(found.version == wanted.version, call, "version", found.version,
          [&] { return "this library reads version " + std::to_string(wanted.version); });
  expects(found.bytes == bytes, call, "bytes", bytes,
          [&] { return "the saved slot has " + std::to_string(found.bytes) + ": it is truncated, or more follows"; });
  expects(found.model == wanted.model, call, "model", "another one", [&] {
    return "it was saved with " + std::to_string(found.model[0]) + " layers of " + std::to_string(found.model[2]) +
           " KV heads with " + std::to_string(found.model[3]) + " channels, layers " + std::to_string(found.model[5]) +
           " to " + std::to_string(found.model[6]);
  });
  expects(found.columns == wanted.columns, call, "state", "another policy's",
          "the slot was saved with the columns of another policy");
  expects(found.own_counts == wanted.own_counts, call, "lanes.count", "shared by other lanes",
          "counts are shared by the same lanes as when the slot was saved");
  expects(found.own_positions == wanted.own_positions, call, "lanes.position", "shared by other lanes",
          "positions are shared by the same lanes as when the slot was saved");
  expects((found.planes != 0) == (wanted.planes != 0), call, "rows", wanted.planes != 0 ? "copy" : "leave",
          found.planes != 0 ? "the slot was saved with its rows" : "the slot was saved without its rows");
  expects(found.planes == wanted.planes, call, "rows", "of another type or size", "rows are copied byte by byte");
}

}  // namespace KVPOLICY_NAMESPACE::detail

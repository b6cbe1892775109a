// SPDX-License-Identifier: Apache-2.0
// Marks for the units of a pool, and rows of tables, for the list verbs of the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// One bit for every unit of a pool.
class unit_marks {
 public:
  explicit unit_marks(std::uint64_t* words) : words_(words) {}
  static std::size_t words_for(std::int64_t units) { return static_cast<std::size_t>((units + 63) / 64); }
  [[nodiscard]] bool has(int unit) const { return (word(unit) >> (unit & 63) & 1u) != 0; }
  void set(int unit) { word(unit) |= std::uint64_t{1} << (unit & 63); }
  void clear(int unit) { word(unit) &= ~(std::uint64_t{1} << (unit & 63)); }
  /// Sets the marks of `count` units. Returns false if one was set before, or if a unit is named twice. Neighbours in a
  /// list are often neighbours in the pool, whose marks share a word. So eight parts of the list are marked in turn:
  /// otherwise each mark would wait for the one before it.
  [[nodiscard]] bool set_all(int const* units, int count) {
    constexpr int parts = 8;
    int const each = count / parts;
    std::uint64_t again = 0;
    auto const mark = [&](int unit) {
      std::uint64_t& of = word(unit);
      std::uint64_t const bit = std::uint64_t{1} << (unit & 63);
      again |= of & bit;
      of |= bit;
    };
    for (int i = 0; i < each; ++i) {
      for (int p = 0; p < parts; ++p) mark(units[p * each + i]);
    }
    for (int i = parts * each; i < count; ++i) mark(units[i]);
    return again == 0;
  }
  void clear_all(std::int64_t units) { std::fill_n(words_, words_for(units), 0); }

 private:
  [[nodiscard]] std::uint64_t& word(int unit) const { return words_[static_cast<std::size_t>(unit) / 64]; }
  std::uint64_t* words_;
};

/// The number of lanes that share one row of this table.
template <class T>
std::int64_t lanes_of_row(by_lane<T> const& table, lanes const& batch) {
  return std::int64_t{table.layer != 0 ? 1 : batch.layers()} * (table.head != 0 ? 1 : batch.heads);
}

/// "lane (0, 1, 2)"
inline std::string spell_lane(lane this_lane) {
  return "lane (" + std::to_string(this_lane.sequence) + ", " + std::to_string(this_lane.layer) + ", " +
         std::to_string(this_lane.head) + ")";
}

}  // namespace KVPOLICY_NAMESPACE::detail

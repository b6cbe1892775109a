// Checks of the rows behind a signal: whether they can be read, and whether anything was recorded in them.
#pragma once

#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// True if any of `count` floats differs from +0, the initial value of a recorded column. It reads 16 at a time, so
/// that the loads are independent.
[[nodiscard]] KVPOLICY_HD inline bool any_recorded(float const* row, int count) {
  constexpr int at_once = 16;
  for (int first = 0; first < count; first += at_once) {
    std::uint32_t bits = 0;
    for (int e = first; e < first + at_once && e < count; ++e) bits |= same_bits<std::uint32_t>(row[e]);
    if (bits != 0) return true;
  }
  return false;
}

/// Refuses opaque rows, because a verb computes with these.
inline void check_readable(char const* call, char const* name, codec element) {
  expects(element != codec::opaque, call, name, "opaque rows", "only their engine can read them");
}

/// Refuses a signal of one number for each entry whose pointer is null.
template <class T>
void check_numbers_given(char const* call, char const* name, by_lane<T> const& table) {
  expects(table.data != nullptr, call, name, "null", "a signal is the engine's memory");
}

}  // namespace KVPOLICY_NAMESPACE::detail

// Rows on the host: any element type as floats, and dot products of them.
#pragma once

#include <kvpolicy/core/signals.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// `dims` elements, `step` bytes apart, as floats.
inline void load_row(codec element, std::byte const* from, std::int64_t step, int dims, float* to) {
  if (element == codec::f32 && step == 4) {
    std::memcpy(to, from, static_cast<std::size_t>(dims) * sizeof(float));
    return;
  }
  for (int d = 0; d < dims; ++d) to[d] = load(element, from + d * step);
}

/// A row as floats: the engine's own memory where it holds aligned floats side by side, else converted into `room`.
inline float const* row_as_float(row_view const& from, lane who, int ordinal, float* room) {
  std::byte const* const row = from.row(who, ordinal);
  bool const aligned = reinterpret_cast<std::uintptr_t>(row) % alignof(float) == 0;
  if (from.rows.element == codec::f32 && from.rows.contiguous() && aligned) return reinterpret_cast<float const*>(row);
  load_row(from.rows.element, row, from.rows.dim, from.rows.dims, room);
  return room;
}

/// Sixteen partial sums, so that a compiler may keep them in vector registers without reordering anything.
inline float dot(float const* a, float const* b, int dims) {
  constexpr int width = 16;
  float part[width] = {};
  int d = 0;
  for (; d + width <= dims; d += width) {
    for (int i = 0; i < width; ++i) part[i] += a[d + i] * b[d + i];
  }
  float sum = 0;
  for (; d < dims; ++d) sum += a[d] * b[d];
  for (int i = 0; i < width / 2; ++i) part[i] += part[i + width / 2];
  for (int i = 0; i < width / 2; ++i) sum += part[i];
  return sum;
}

}  // namespace KVPOLICY_NAMESPACE::detail

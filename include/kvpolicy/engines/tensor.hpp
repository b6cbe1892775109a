// SPDX-License-Identifier: Apache-2.0
// Describes dense tensors as planes: computes byte strides from the order of the axes.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <string_view>

namespace KVPOLICY_NAMESPACE::engines {

/// The extents of the axes of a tensor of keys and values. An order of axes is written in letters, the slowest axis
/// first: L layer, B block (page, slot, cell), S keys or values, H head, N token in a block, D channel.
struct extents {
  std::int64_t layers = 1;
  std::int64_t blocks = 1;
  std::int64_t heads = 1;
  std::int64_t tokens = 1;
  std::int64_t dims = 1;

  [[nodiscard]] constexpr std::int64_t along(char axis) const {
    switch (axis) {
      case 'L':
        return layers;
      case 'B':
        return blocks;
      case 'S':
        return 2;
      case 'H':
        return heads;
      case 'N':
        return tokens;
      default:
        return dims;
    }
  }
};

/// The bytes between neighbours along an axis of a dense tensor; 0 if the tensor has no such axis.
[[nodiscard]] constexpr std::int64_t stride_along(char axis, std::string_view order, extents const& of, int element) {
  std::size_t const at = order.find(axis);
  if (at == std::string_view::npos) return 0;
  std::int64_t bytes = element;
  for (char const inner : order.substr(at + 1)) bytes *= of.along(inner);
  return bytes;
}

/// True if each letter of an order names an axis, none appears twice, and B, H, N and D are among them.
[[nodiscard]] constexpr bool is_order(std::string_view order) {
  for (char const axis : order) {
    if (std::string_view("LBSHND").find(axis) == std::string_view::npos) return false;
    if (order.find(axis) != order.rfind(axis)) return false;
  }
  for (char const axis : std::string_view("BHND")) {
    if (order.find(axis) == std::string_view::npos) return false;
  }
  return true;
}

/// The address of a plane: that of one allocation, or one pointer for each layer.
struct origin {
  std::byte* base = nullptr;
  std::byte* const* layers = nullptr;  ///< the beginning of each layer's plane; used instead of `base` unless null
};

/// The plane of the keys (side 0) or values (side 1) of a dense tensor. Pointers of layers must point to the beginning
/// of that side.
[[nodiscard]] constexpr plane dense_plane(std::string_view order, extents const& of, codec element, origin at,
                                          int side = 0) {
  int const width = bytes_of(element);
  plane made{.base = at.base,
             .element = element,
             .channels = static_cast<int>(of.dims),
             .layer_stride = stride_along('L', order, of, width),
             .unit_stride = stride_along('B', order, of, width),
             .token_stride = stride_along('N', order, of, width),
             .head_stride = stride_along('H', order, of, width),
             .channel_stride = stride_along('D', order, of, width)};
  if (at.layers != nullptr) {
    made.bases = {.data = at.layers, .layer = 1};
  } else if (at.base != nullptr) {
    made.base += side * stride_along('S', order, of, width);
  }
  return made;
}

namespace detail {

/// The number of elements of a row: its channels, or its bytes if it is opaque.
inline int row_dims(char const* call, codec element, int dims, int row_bytes) {
  if (element != codec::opaque) return dims;
  expects(row_bytes > 0, call, "row_bytes", row_bytes, "an opaque row says how many bytes a head's row has");
  return row_bytes;
}

/// Refuses head sizes of K and V that differ, for engines that hold both in one tensor.
inline void check_packed(char const* call, shape const& model) {
  expects(model.value_dim == 0 || model.value_dim == model.head_dim, call, "shape.value_dim", model.value_dim,
          "keys and values of one tensor have equally many channels");
}

[[nodiscard]] constexpr int value_dim(shape const& model) {
  return model.value_dim != 0 ? model.value_dim : model.head_dim;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE::engines

// SPDX-License-Identifier: Apache-2.0
// Arrays of NumPy, PyTorch and JAX as rows and numbers. They arrive by DLPack, and nothing is copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "rows.hpp"

namespace kvpolicy_python {

namespace nb = nanobind;

/// Any array that can be read. In whose memory it may be is checked by the evictor that reads it.
using array = nb::ndarray<nb::ro>;

/// The device of an array, as PyTorch names it.
inline std::string device_of(array const& of) {
  int const type = of.device_type();
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) return "cpu";
  std::string const index = ":" + std::to_string(of.device_id());
  return type == nb::device::cuda::value || type == nb::device::cuda_managed::value
             ? "cuda" + index
             : "device type " + std::to_string(type) + index;
}

/// The shape of an array as Python prints it: "(2, 3)".
inline std::string shape_text(array const& of) {
  std::string text = "(";
  for (std::size_t i = 0; i < of.ndim(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(of.shape(i));
  return text + (of.ndim() == 1 ? ",)" : ")");
}

/// The element type of an array.
inline kv::codec codec_of(char const* call, std::string const& name, array const& of) {
  nb::dlpack::dtype const type = of.dtype();
  auto const is = [&](nb::dlpack::dtype_code code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return kv::codec::f32;
  if (is(nb::dlpack::dtype_code::Float, 16)) return kv::codec::f16;
  bool const brain = is(nb::dlpack::dtype_code::Bfloat, 16);
  kv::expects(brain, call, name + ".dtype",
              std::to_string(type.bits) + " bits, DLPack type " + std::to_string(type.code),
              "the arrays are float32, float16 or bfloat16");
  return kv::codec::bf16;
}

/// Describes an array [sequence, head, row, channel].
///
/// - throws: `invalid_argument` for another number of axes, or other element types.
inline rows rows_of(char const* call, std::string const& name, array const& of) {
  kv::expects(
      of.ndim() == 4, call, name + ".shape", [&] { return shape_text(of); },
      "the axes are sequence, head, row and channel");
  kv::codec const element = codec_of(call, name, of);
  std::int64_t const bytes = kv::bytes_of(element);
  auto const size = [&](std::size_t axis) { return static_cast<std::int64_t>(of.shape(axis)); };
  auto const stride = [&](std::size_t axis) { return of.stride(axis) * bytes; };
  return {.data = static_cast<std::byte const*>(of.data()),
          .element = element,
          .sequences = size(0),
          .heads = size(1),
          .count = size(2),
          .channels = size(3),
          .sequence = stride(0),
          .head = stride(1),
          .row = stride(2),
          .channel = stride(3),
          .device = device_of(of)};
}

/// Describes float32 numbers.
///
/// - throws: `invalid_argument` for another element type.
inline numbers numbers_of(char const* call, std::string const& name, array const& of) {
  kv::expects(codec_of(call, name, of) == kv::codec::f32, call, name + ".dtype", "16 bits", name + " are float32");
  numbers made{.data = static_cast<float const*>(of.data()), .size = {}, .stride = {}, .device = device_of(of)};
  for (std::size_t axis = 0; axis < of.ndim(); ++axis) {
    made.size.push_back(static_cast<std::int64_t>(of.shape(axis)));
    made.stride.push_back(of.stride(axis));
  }
  return made;
}

/// Describes numbers of any of the element types of rows.
///
/// - throws: `invalid_argument` for another element type.
inline tensor tensor_of(char const* call, std::string const& name, array const& of) {
  tensor made{.data = static_cast<std::byte const*>(of.data()),
              .element = codec_of(call, name, of),
              .size = {},
              .stride = {},
              .device = device_of(of)};
  for (std::size_t axis = 0; axis < of.ndim(); ++axis) {
    made.size.push_back(static_cast<std::int64_t>(of.shape(axis)));
    made.stride.push_back(of.stride(axis) * kv::bytes_of(made.element));
  }
  return made;
}

/// Describes the blocks of sequences.
///
/// - throws: `invalid_argument` for another element type, or another number of axes.
inline block_lists blocks_of(char const* call, array const& of) {
  nb::dlpack::dtype const type = of.dtype();
  bool const is_int = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) && type.bits == 32;
  kv::expects(is_int && type.lanes == 1, call, "blocks.dtype", std::to_string(type.bits) + " bits", "blocks are int32");
  kv::expects(
      of.ndim() == 2 && of.stride(1) == 1, call, "blocks.shape", [&] { return shape_text(of); },
      "the axes are sequence and block, which is contiguous");
  return {.data = static_cast<int const*>(of.data()),
          .sequences = static_cast<std::int64_t>(of.shape(0)),
          .width = static_cast<std::int64_t>(of.shape(1)),
          .sequence = of.stride(0),
          .device = device_of(of)};
}

}  // namespace kvpolicy_python

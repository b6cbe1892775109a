// Arrays of NumPy, PyTorch and JAX as planes and query rows of kvpolicy. They arrive by DLPack, and nothing is copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <vector>

namespace kvpolicy_python {

namespace kv = kvpolicy;
namespace nb = nanobind;

/// Any array that can be read. Whether it is in host memory is checked by `rows_of`.
using array = nb::ndarray<nb::ro>;

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

/// The rows of one layer: [sequence, head, row, channel], in host memory.
struct rows {
  std::byte const* data = nullptr;
  kv::codec element = kv::codec::f32;
  std::int64_t sequences = 0;
  std::int64_t heads = 0;
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t sequence = 0;  ///< strides in bytes
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t channel = 0;
};

/// Describes an array [sequence, head, row, channel].
///
/// - throws: `invalid_argument` for another number of axes, other element types, or memory of a device.
inline rows rows_of(char const* call, std::string const& name, array const& of) {
  kv::expects(
      of.ndim() == 4, call, name + ".shape", [&] { return shape_text(of); },
      "the axes are sequence, head, row and channel");
  kv::expects(of.device_type() == nb::device::cpu::value, call, name + ".device", "not the CPU",
              "kvpolicy decides in host memory: copy the array to the CPU");
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
          .channel = stride(3)};
}

inline bool same_layout(rows const& a, rows const& b) {
  return a.element == b.element && a.sequences == b.sequences && a.heads == b.heads && a.count == b.count &&
         a.channels == b.channels && a.head == b.head && a.row == b.row && a.channel == b.channel;
}

/// Keys or values of several layers, each an array of its own, as a signal's rows.
///
/// The entries of a sequence are the *last* rows of an array: a sequence that is shorter than others has unused rows in
/// front, as padding on the left leaves them. Where the heads of a layer hold unequal numbers, all begin where the
/// longest one does.
class layer_rows {
 public:
  layer_rows() = default;

  /// - in: `layers` has the rows of each layer, `longest` the entries of the longest head, [layer, sequence].
  /// - throws: `invalid_argument` if layers have different layouts, or a sequence has more entries than rows.
  layer_rows(char const* call, std::string const& name, std::vector<rows> const& layers,
             std::vector<int> const& longest) {
    std::size_t const sequences = longest.size() / layers.size();
    rows const& first = layers.front();
    for (std::size_t l = 0; l < layers.size(); ++l) {
      rows const& one = layers[l];
      kv::expects(same_layout(one, first), call, name + " of layer " + std::to_string(l), "another shape or layout",
                  "all layers have the shape, the element type and the strides of layer 0");
      for (std::size_t s = 0; s < sequences; ++s) {
        int const held = longest[l * sequences + s];
        kv::expects(held <= one.count, call, name + ".shape", one.count,
                    [&] { return "sequence " + std::to_string(s) + " has " + std::to_string(held) + " entries"; });
        std::int64_t const unused = one.count - held;
        bases_.push_back(const_cast<std::byte*>(one.data) + static_cast<std::int64_t>(s) * one.sequence +
                         unused * one.row);
      }
    }
    auto const of_layer = static_cast<std::int64_t>(sequences);
    view_.rows = {.element = first.element,
                  .dims = static_cast<int>(first.channels),
                  .token = first.row,
                  .head = first.head,
                  .dim = first.channel,
                  .bases = {.data = bases_.data(), .layer = layers.size() > 1 ? of_layer : 0, .unit = 1}};
    view_.where = kv::identity_map(static_cast<int>(first.count), static_cast<int>(sequences));
  }

  layer_rows(layer_rows const&) = delete;  // the view points into its own table
  layer_rows& operator=(layer_rows const&) = delete;

  [[nodiscard]] kv::row_view const& view() const { return view_; }

 private:
  std::vector<std::byte*> bases_;
  kv::row_view view_{};
};

}  // namespace kvpolicy_python

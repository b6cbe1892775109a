// Rows and numbers that a caller gives, in the memory of the host or of a device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvpolicy_python {

namespace kv = kvpolicy;

/// The rows of one layer: [sequence, head, row, channel].
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
  std::string device = "cpu";  ///< whose memory it is, as PyTorch names it
};

/// float32 numbers of entries: the sizes and the strides, in numbers, of three or four axes.
struct numbers {
  float const* data = nullptr;
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> stride;
  std::string device = "cpu";

  /// The sizes as Python prints them: "(2, 3)".
  [[nodiscard]] std::string shape() const {
    std::string text = "(";
    for (std::size_t i = 0; i < size.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(size[i]);
    return text + (size.size() == 1 ? ",)" : ")");
  }
};

/// Memory of an executor for the tables of one call. Of the host's, it is the table itself.
template <class Executor>
class tables_of_call {
 public:
  explicit tables_of_call(Executor& exec) : exec_(exec) {}
  tables_of_call(tables_of_call const&) = delete;
  tables_of_call& operator=(tables_of_call const&) = delete;

  /// A copy of `from` that the executor can read until this object ends.
  template <class T>
  [[nodiscard]] T* put(std::vector<T> const& from) {
    auto& held = held_.emplace_back(exec_, from.size() * sizeof(T));
    exec_.copy(held.data(), reinterpret_cast<std::byte const*>(from.data()), held.size());
    return reinterpret_cast<T*>(held.data());
  }

 private:
  Executor& exec_;
  std::vector<typename Executor::template buffer<std::byte>> held_;
};

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
  /// - in: `layers` has the rows of each layer, `longest` the entries of the longest head, [layer, sequence].
  /// - throws: `invalid_argument` if layers have different layouts, or a sequence has more entries than rows.
  template <class Executor>
  layer_rows(char const* call, std::string const& name, std::vector<rows> const& layers,
             std::vector<int> const& longest, tables_of_call<Executor>& memory) {
    std::vector<std::byte*> bases;
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
        bases.push_back(const_cast<std::byte*>(one.data) + static_cast<std::int64_t>(s) * one.sequence +
                        unused * one.row);
      }
    }
    auto const of_layer = static_cast<std::int64_t>(sequences);
    view_.rows = kv::plane{.element = first.element,
                           .dims = static_cast<int>(first.channels),
                           .token = first.row,
                           .head = first.head,
                           .dim = first.channel,
                           .bases = {.data = memory.put(bases), .layer = layers.size() > 1 ? of_layer : 0, .unit = 1}};
    view_.where = kv::identity_map(static_cast<int>(first.count), static_cast<int>(sequences));
  }

  [[nodiscard]] kv::row_view const& view() const { return view_; }

 private:
  kv::row_view view_{};
};

}  // namespace kvpolicy_python

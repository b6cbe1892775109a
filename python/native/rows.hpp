// SPDX-License-Identifier: Apache-2.0
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

/// Numbers of any element type: the sizes, and the strides in bytes, of every axis.
struct tensor {
  std::byte const* data = nullptr;
  kv::codec element = kv::codec::f32;
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> stride;
  std::string device = "cpu";

  [[nodiscard]] std::string shape() const { return numbers{.size = size, .stride = {}}.shape(); }
};

/// The blocks of a pool that sequences hold, in their order: int32 [sequence, block].
struct block_lists {
  int const* data = nullptr;
  std::int64_t sequences = 0;
  std::int64_t width = 0;
  std::int64_t sequence = 0;  ///< the stride of an axis, in numbers; blocks of a sequence are contiguous
  std::string device = "cpu";
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
                           .channels = static_cast<int>(first.channels),
                           .token_stride = first.row,
                           .head_stride = first.head,
                           .channel_stride = first.channel,
                           .bases = {.data = memory.put(bases), .layer = layers.size() > 1 ? of_layer : 0, .unit = 1}};
    view_.where = kv::identity_map(static_cast<int>(first.count), static_cast<int>(sequences));
  }

  [[nodiscard]] kv::row_view const& view() const { return view_; }

 private:
  kv::row_view view_{};
};

/// Keys or values in the blocks of a pool, of several layers, as a signal's rows. The axes of an array are block,
/// token, KV head and channel; entry e of a sequence is token e mod size of its block e / size.
///
/// - in: `longest` are the entries of the longest head, [layer, sequence].
/// - throws: `invalid_argument` if layers have different layouts, or a sequence has more entries than rows in its
/// blocks,
///   or, of lists in host memory, if a block is not one of the pool.
template <class Executor>
[[nodiscard]] kv::row_view rows_in_blocks(char const* call, std::string const& name, std::vector<rows> const& layers,
                                          block_lists const& blocks, std::vector<int> const& longest,
                                          tables_of_call<Executor>& memory) {
  rows const& first = layers.front();
  std::int64_t const pool = first.sequences, size = first.heads;
  std::vector<std::byte*> bases;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    kv::expects(same_layout(layers[l], first) && layers[l].sequence == first.sequence, call,
                name + " of layer " + std::to_string(l), "another shape or layout",
                "all layers have the shape, the element type and the strides of layer 0");
    bases.push_back(const_cast<std::byte*>(layers[l].data));
  }
  for (std::size_t i = 0; i < longest.size(); ++i) {
    auto const s = static_cast<std::int64_t>(i) % blocks.sequences;
    std::int64_t const used = (longest[i] + size - 1) / size;
    kv::expects(used <= blocks.width, call, "blocks.shape", std::to_string(blocks.width) + " blocks",
                [&] { return "sequence " + std::to_string(s) + " has " + std::to_string(longest[i]) + " entries"; });
    for (std::int64_t b = 0; b < used && blocks.device == "cpu"; ++b) {
      int const block = blocks.data[s * blocks.sequence + b];
      kv::expects(block >= 0 && block < pool, call, "blocks", block,
                  [&] { return "the pool has " + std::to_string(pool) + " blocks"; });
    }
  }
  return {.rows = kv::plane{.element = first.element,
                            .channels = static_cast<int>(first.channels),
                            .unit_stride = first.sequence,
                            .token_stride = first.head,
                            .head_stride = first.row,
                            .channel_stride = first.channel,
                            .bases = {.data = memory.put(bases), .layer = layers.size() > 1 ? 1 : 0}},
          .where = kv::block_table({blocks.data, blocks.sequence}, static_cast<int>(size), pool)};
}

}  // namespace kvpolicy_python

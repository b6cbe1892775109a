// SPDX-License-Identifier: Apache-2.0
// Device implementation of quadratic_form: tiles of keys and rows of the matrix, whose products are multiplied by the
// keys again.
#pragma once

#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/quadratic_form.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One block for each piece of a lane. The same thread always has the same entries.
template <class Combine>
struct quadratic_form_kernel {
  score_view out;
  row_view from;
  query_view square;
  fma_product product;
  Combine combine;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  [[nodiscard]] static std::size_t shared(fma_product const& product) {
    return attention_storage::bytes() + shared_arena::bytes_of_piece<float>(tile_entries) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / pieces;
    lane const one = out.lane_of(segment);
    float* const row = out.row(segment);
    shared_arena arena(block);
    attention_storage const storage(arena, from.rows.scales.data != nullptr);
    auto* const total = arena.take<float>(tile_entries);
    int const begin = block.index() % pieces * entries;
    int const committed = out.lanes.committed(one);
    int const end = begin + entries < committed ? begin + entries : committed;
    for (int e = begin; e < end; e += tile_entries) {
      block.sync();
      take_keys(block, storage, one, e, end, total);
      for (int base = 0; base < square.dims; base += tile_rows) {
        int const count = square.dims - base < tile_rows ? square.dims - base : tile_rows;
        block.sync();
        for (int i = block.thread(); i < tile_rows; i += block.threads()) {
          bool const there = i < count;
          storage.query[i] = there ? square.at(one, one.head, square.stored(one, base + i)) : nullptr;
        }
        product.run(block, {}, {}, one, storage, arena, base, count);
        block.sync();
        add(block, storage, base, count, total);
      }
      for (int k = block.thread(); k < tile_entries && e + k < end; k += block.threads()) {
        row[e + k] = combine(row[e + k], total[k]);
      }
    }
  }

 private:
  template <class Block>
  KVPOLICY_HD void take_keys(Block& block, attention_storage const& storage, lane one, int begin, int end,
                             float* total) const {
    for (int i = block.thread(); i < tile_entries; i += block.threads()) {
      bool const there = begin + i < end;
      storage.key[i] = there ? from.row(one, begin + i) : nullptr;
      if (storage.key_scale != nullptr) storage.key_scale[i] = there ? from.scale(one, begin + i) : 1.0f;
      total[i] = 0;
    }
  }

  /// Adds the products with rows [base, base + count), times the channels of the same numbers, one thread for each key.
  template <class Block>
  KVPOLICY_HD void add(Block& block, attention_storage const& storage, int base, int count, float* total) const {
    for (int k = block.thread(); k < tile_entries; k += block.threads()) {
      if (storage.key[k] == nullptr) continue;
      float sum = 0;
      for (int i = 0; i < count; i += 4) {
        four_floats const key = product.keys.at(storage.key[k], base + i);
        for (int j = 0; j < 4 && i + j < count; ++j) sum += storage.logits[(i + j) * tile_pitch + k] * key.of[j];
      }
      total[k] += storage.key_scale != nullptr ? sum * storage.key_scale[k] : sum;
    }
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::quadratic_form_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, keys const& from, query_view const& square, Combine const& combine,
                  score_view const& out) {
    detail::check_aligned("quadratic_form", "keys", from.rows);
    detail::check_aligned("quadratic_form", square);
    constexpr int tile = detail::tile_entries;
    int const entries = (exec.config().entries_of_a_block + tile - 1) / tile * tile;
    int const pieces = (out.lanes.capacity + entries - 1) / entries;
    detail::fma_product const product{detail::reader_of(from.rows), detail::reader_of(square),
                                      from.rows.scales.data != nullptr};
    exec.launch(launch_shape{out.segments() * pieces, detail::at_most<tile>(exec.threads().entry),
                             detail::quadratic_form_kernel<Combine>::shared(product)},
                detail::quadratic_form_kernel<Combine>{out, from, square, product, combine, pieces, entries});
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Device implementation of projected_norm: tiles of values and rows of the projection, multiplied as for attention and
// reduced at once.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/attention/mass_stats.hpp>
#include <kvpolicy/ops/cuda/attention/mma.hpp>
#include <kvpolicy/ops/projected_norm.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One block for each piece of a lane. The same thread always has the same entries.
template <class Product, class Combine>
struct projected_norm_kernel {
  attention_task task;
  Product product;
  bool squares;
  Combine combine;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  [[nodiscard]] static std::size_t shared(Product const& product) {
    return attention_storage::bytes() + shared_arena::bytes_of_piece<float>(tile_entries) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / pieces;
    lane const this_lane = task.scores.lane_of(segment);
    float* const out = task.scores.row(segment);
    shared_arena arena(block);
    attention_storage const temp_storage(arena, task.scaled());
    auto* const total = arena.take<float>(tile_entries);
    used_rows const used = used_rows_of(block, task, this_lane);
    int const all = used.count * task.group;
    int const begin = block.index() % pieces * entries;
    int const end = begin + entries < used.entries ? begin + entries : used.entries;
    block.sync();
    if (begin < end) product.prepare(block, task, used, this_lane, arena, all);
    for (int e = begin; e < end; e += tile_entries) {
      block.sync();
      temp_storage.take_entries(block, task, used, this_lane, e, end);
      for (int k = block.thread(); k < tile_entries; k += block.threads()) total[k] = temp_storage.inner[k] = 0;
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        temp_storage.take_rows(block, task, used, this_lane, base, count, no_sums{});
        product.run(block, task, used, this_lane, temp_storage, arena, base, count);
        block.sync();
        add_rows(block, temp_storage, used.count, base, count, total);
      }
      for (int k = block.thread(); k < tile_entries && e + k < end; k += block.threads()) {
        out[e + k] = combine(out[e + k], total[k] / static_cast<float>(task.group));
      }
    }
  }

 private:
  /// Adds the rows of the tile, one thread for each entry: those of a query head so far are in `inner`, and heads that
  /// are complete in `total`. What a tile has of a head is added up by itself, so that sums of many rows lose little.
  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, attention_storage const& temp_storage, int width, int base, int count,
                            float* total) const {
    for (int e = block.thread(); e < tile_entries; e += block.threads()) {
      float sum = 0;
      int at = base % width;
      for (int i = 0; i < count; ++i) {
        float const made = temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i];
        sum += squares ? made * made : ::fabsf(made);
        if (++at < width) continue;
        float const whole = temp_storage.inner[e] + sum;
        total[e] += squares ? ::sqrtf(whole) : whole;
        temp_storage.inner[e] = sum = 0;
        at = 0;
      }
      temp_storage.inner[e] += sum;
    }
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::projected_norm_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, values const& from, output_projection const& by, projected_norm_options const& how,
                  Combine const& combine, score_view const& out) {
    query_view const rows = by.rows();
    detail::check_aligned("projected_norm", "values", from.rows);
    detail::check_aligned("projected_norm", rows, "output_projection");
    detail::attention_task task;
    task.from = from;
    task.rows = rows;
    task.scores = out;
    task.group = by.heads / out.lanes.heads;
    task.most_rows = std::numeric_limits<int>::max();
    bool const squares = how.norm == norm_of_row::l2;
    if (detail::mma_product::takes(from.rows)) {
      std::size_t const others =
          detail::attention_storage::bytes() + detail::shared_arena::bytes_of_piece<float>(detail::tile_entries);
      std::size_t const shared = static_cast<std::size_t>(exec.config().shared_bytes) - others;
      launch(exec, task, detail::mma_product::of(from.rows, rows, rows.rows * task.group, shared), squares, combine);
    } else {
      detail::fma_product const product{detail::reader_of(from.rows), detail::reader_of(rows), task.scaled()};
      launch(exec, task, product, squares, combine);
    }
  }

 private:
  template <class Executor, class Product, class Combine>
  static void launch(Executor& exec, detail::attention_task const& task, Product const& product, bool squares,
                     Combine const& combine) {
    constexpr int tile = detail::tile_entries;
    int const entries = (exec.config().entries_of_a_block + tile - 1) / tile * tile;
    int const pieces = (task.scores.lanes.capacity + entries - 1) / entries;
    detail::projected_norm_kernel<Product, Combine> const kernel{task, product, squares, combine, pieces, entries};
    exec.launch(launch_shape{task.scores.segments() * pieces, detail::at_most<tile>(exec.threads().entry),
                             kernel.shared(product)},
                kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE

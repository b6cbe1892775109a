// SPDX-License-Identifier: Apache-2.0
// Device implementation of logits: tiles of keys and rows, multiplied as for attention and reduced at once.
#pragma once

#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/attention/mass_stats.hpp>
#include <kvpolicy/ops/cuda/attention/mma.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One block for each piece of a lane. The same thread always has the same entries.
template <class Product, class Combine>
struct logits_kernel {
  attention_task task;
  Product product;
  logits_options how;
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
    if (begin < end && all > 0) product.prepare(block, task, used, this_lane, arena, all);
    for (int e = begin; e < end; e += tile_entries) {
      block.sync();
      temp_storage.take_entries(block, task, used, this_lane, e, end);
      for (int k = block.thread(); k < tile_entries; k += block.threads()) total[k] = 0;
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        temp_storage.take_rows(block, task, used, this_lane, base, count, no_sums{});
        product.run(block, task, used, this_lane, temp_storage, arena, base, count);
        block.sync();
        add_rows(block, temp_storage, used, base, count, total);
      }
      for (int k = block.thread(); k < tile_entries && e + k < end; k += block.threads()) {
        out[e + k] = combine(out[e + k], total[k] / static_cast<float>(shares(used)));
      }
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD int shares(used_rows const& used) const {
    return (how.rows == reduction::mean && used.count > 0 ? used.count : 1) *
           (how.group == reduction::mean ? task.group : 1);
  }

  /// Adds the rows of the tile in their order, one thread for each entry. The reduction over neighbouring rows goes to
  /// `inner`, the other one to `total`.
  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, attention_storage const& temp_storage, used_rows const& used, int base,
                            int count, float* total) const {
    int const series = task.rows_apart ? used.count : task.group;
    bool const inner_maximum = (task.rows_apart ? how.rows : how.group) == reduction::max;
    bool const outer_maximum = (task.rows_apart ? how.group : how.rows) == reduction::max;
    for (int e = block.thread(); e < tile_entries; e += block.threads()) {
      int at = base % series;
      for (int i = 0; i < count; ++i) {
        float const logit = temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i];
        fold_into(temp_storage.inner[e], logit, inner_maximum, at == 0);
        if (++at < series) continue;
        fold_into(total[e], temp_storage.inner[e], outer_maximum, base + i < series);
        at = 0;
      }
    }
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::logits_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, keys const& from, query_view const& rows, logits_options const& how,
                  Combine const& combine, score_view const& out) {
    detail::check_aligned("logits", "keys", from.rows);
    if (rows.rows > 0) detail::check_aligned("logits", rows);
    detail::attention_task const task = task_of(from, rows, how, out);
    if (rows.rows > 0 && detail::mma_product::takes(from.rows)) {
      std::size_t const others =
          detail::attention_storage::bytes() + detail::shared_arena::bytes_of_piece<float>(detail::tile_entries);
      std::size_t const shared = static_cast<std::size_t>(exec.config().shared_bytes) - others;
      launch(exec, task, detail::mma_product::of(from.rows, rows, rows.rows * task.group, shared), how, combine);
    } else {
      launch(exec, task, detail::fma_product{detail::reader_of(from.rows), detail::reader_of(rows), task.scaled()}, how,
             combine);
    }
  }

 private:
  static detail::attention_task task_of(keys const& from, query_view const& rows, logits_options const& how,
                                        score_view const& out) {
    detail::attention_task task;
    task.from = from;
    task.rows = rows;
    task.rows.position = {};
    task.scores = out;
    task.group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    task.scale = how.scale.has_value() ? *how.scale : detail::scale_of(from.logits, from.rows.channels);
    task.used = {how.last_rows};
    task.only_last = how.rows == reduction::last;
    task.rows_apart = how.order == reduction_order::rows_then_group || task.group == 1;
    task.most_rows = std::numeric_limits<int>::max();
    return task;
  }

  template <class Executor, class Product, class Combine>
  static void launch(Executor& exec, detail::attention_task const& task, Product const& product,
                     logits_options const& how, Combine const& combine) {
    constexpr int tile = detail::tile_entries;
    int const entries = (exec.config().entries_of_a_block + tile - 1) / tile * tile;
    int const pieces = (task.scores.lanes.capacity + entries - 1) / entries;
    detail::logits_kernel<Product, Combine> const kernel{task, product, how, combine, pieces, entries};
    exec.launch(launch_shape{task.scores.segments() * pieces, detail::at_most<tile>(exec.threads().entry),
                             kernel.shared(product)},
                kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE

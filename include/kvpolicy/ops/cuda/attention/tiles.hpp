// SPDX-License-Identifier: Apache-2.0
// The frame of kernels that multiply entries and rows: a block takes a piece of a lane, tile by tile of entries and
// then of rows, and a reduction says what becomes of the logits.
#pragma once

#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/attention/mma.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A tile of a lane, and what computes its logits.
template <class Product>
struct lane_product : lane_tile {
  Product const& product;
  shared_arena arena;  ///< the memory of the product

  /// Computes the logits of the tile's entries and some rows, for tile after tile of rows [first, last), and calls
  /// take(base, count) for each. The statistics of rows come from `sums_of`. The caller ends with a barrier.
  template <class Block, class Sums, class Take>
  KVPOLICY_HD void each_tile(Block& block, int first, int last, Sums const& sums_of, Take const& take) const {
    for (int base = first; base < last; base += product.tile()) {
      int const some = min_op{}(last - base, product.tile());
      block.sync();
      tile.take_rows(block, *this, base, some, sums_of);
      product.run(block, *this, arena, base, some);
      block.sync();
      tile.apply_cap(block, task, some);
      take(base, some);
    }
  }
};

/// Reduces entries [begin, begin + entries) of a lane, each by one thread, in memory of the arena. `Reduction` has a
/// type `entry_total`, which an entry begins with, and
///
/// - sums: where the statistics of rows come from;
/// - prepare(block, tile, part), if it has that: handles the rows of the tile together, and ends with a barrier;
/// - add(tile, part, k, total): adds the rows of the tile to those before of its entry k;
/// - put(tile, e, total): writes what all rows make of entry e of the lane.
template <class Block, class Product, class Reduction>
KVPOLICY_HD void reduce_piece(Block& block, attention_task const& task, Product const& product, lane one, int begin,
                              int entries, Reduction const& reduction, shared_arena arena) {
  using total_of = typename Reduction::entry_total;
  auto* const tile = arena.take<attention_storage>(1);
  auto* const total = arena.take<total_of>(tile_entries);
  lane_product<Product> const of{{used_rows_of(block, task, one), *tile}, product, arena};
  int const end = min_op{}(begin + entries, of.entries);
  block.sync();
  if (begin < end && of.rows() > 0) product.prepare(block, of, arena);
  int const overlap = product.overlap(), step = tile_entries - 2 * overlap;
  for (int e = begin; e < end; e += step) {
    tile_part const part{max_op{}(e - overlap, 0), e, min_op{}(e + step, end)};
    auto const each = [&](auto const& visit) {
      for (int k = e - part.first + block.thread(); k < part.end - part.first; k += block.threads()) visit(k, total[k]);
    };
    block.sync();
    tile->take_entries(block, of, part.first, of.entries);
    each([](int, total_of& all) { all = total_of{}; });
    of.each_tile(block, 0, of.rows(), reduction.sums, [&](int base, int count) {
      tile_part const at{part.first, part.begin, part.end, base, count};
      if constexpr (requires { reduction.prepare(block, of, at); }) reduction.prepare(block, of, at);
      each([&](int k, total_of& all) { reduction.add(of, at, k, all); });
    });
    each([&](int k, total_of const& all) { reduction.put(of, part.first + k, all); });
  }
}

/// The shared memory of `reduce_piece` without that of the product.
template <class Reduction>
[[nodiscard]] constexpr std::size_t shared_of_reduction() {
  return sizeof(attention_storage) + shared_arena::bytes_of_piece<typename Reduction::entry_total>(tile_entries);
}

/// One block for each piece of a lane.
template <class Product, class Reduction>
struct reduction_kernel {
  attention_task task;
  Product product;
  Reduction reduction;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = task.scores.lane_of(block.index() / pieces);
    reduce_piece(block, task, product, one, block.index() % pieces * entries, entries, reduction, shared_arena(block));
  }
};

[[nodiscard]] inline int whole_tiles(int entries) { return (entries + tile_entries - 1) / tile_entries * tile_entries; }

/// Reduces all lanes of the task in pieces of `entries`, a multiple of tile_entries.
template <class Executor, class Product, class Reduction>
void launch_reduction(Executor& exec, attention_task const& task, Product const& product, Reduction const& reduction,
                      int entries) {
  int const pieces = (task.scores.lanes.capacity + entries - 1) / entries;
  exec.launch(launch_shape{task.scores.segments() * pieces, at_most<tile_entries>(exec.threads().entry),
                           shared_of_reduction<Reduction>() + product.bytes()},
              reduction_kernel<Product, Reduction>{task, product, reduction, pieces, entries});
}

/// The same for all rows at once, by the product that is fastest for these keys.
template <class Executor, class Reduction>
void launch_reduction(Executor& exec, attention_task const& task, Reduction const& reduction) {
  int const entries = whole_tiles(exec.config().entries_of_a_block);
  plane const& from = task.from.rows;
  if (task.rows.rows > 0 && mma_product::takes(from)) {
    std::size_t const shared = static_cast<std::size_t>(exec.config().shared_bytes) - shared_of_reduction<Reduction>();
    launch_reduction(exec, task, mma_product::of(from, task.rows, task.rows.rows * task.group, shared), reduction,
                     entries);
  } else {
    launch_reduction(exec, task, fma_product::of(from, task.rows), reduction, entries);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail

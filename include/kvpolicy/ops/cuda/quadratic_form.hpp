// SPDX-License-Identifier: Apache-2.0
// Device implementation of quadratic_form: tiles of keys and rows of the matrix, whose products are multiplied by the
// keys again.
#pragma once

#include <kvpolicy/ops/cuda/attention/tiles.hpp>
#include <kvpolicy/ops/quadratic_form.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds up the products with the rows of the matrix, times the channels of the same numbers.
template <class Combine>
struct quadratic_form_reduction {
  using entry_total = float;

  float4_reader keys;
  Combine combine;
  no_sums sums{};

  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, float& total) const {
    attention_storage const& tile = of.tile;
    if (tile.key[k] == nullptr) return;
    float sum = 0;
    for (int i = 0; i < at.count; i += 4) {
      four_floats const key = keys.at(tile.key[k], at.base + i);
      for (int j = 0; j < 4 && i + j < at.count; ++j) sum += tile.logits[(i + j) * tile_pitch + k] * key.of[j];
    }
    total += of.task.scaled() ? sum * tile.key_scale[k] : sum;
  }
  KVPOLICY_HD void put(lane_tile const& of, int e, float total) const {
    float& to = of.task.scores.rows.row(of.lane)[e];
    to = combine(to, total);
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
    detail::attention_task task;
    task.from = from;
    task.rows = square;
    task.rows.position = task.rows.valid_rows = {};
    task.scores = out;
    detail::fma_product const product = detail::fma_product::of(from.rows, square);
    detail::launch_reduction(exec, task, product, detail::quadratic_form_reduction<Combine>{product.keys, combine},
                             detail::whole_tiles(exec.config().entries_of_a_block));
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Device implementation of pooled_attention. The statistics of rows include the mass that pools have before and after;
// tiles of entries overlap by half a pool on either side.
#pragma once

#include <kvpolicy/ops/cuda/attention_mass.hpp>
#include <kvpolicy/ops/pooled_attention.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The running statistics of a row: those of its softmax, and the masses of e^(logit - row_max) before the tail, as
/// they are and pooled.
struct pooled_sum {
  running_sum softmax;
  float mass, pooled;

  [[nodiscard]] KVPOLICY_HD static pooled_sum nothing() { return {running_sum::nothing(), 0, 0}; }
  [[nodiscard]] KVPOLICY_HD static pooled_sum of_sink(float logit) { return {running_sum::of_sink(logit), 0, 0}; }
  [[nodiscard]] KVPOLICY_HD pooled_sum with(pooled_sum const& more) const {
    running_sum const both = softmax.with(more.softmax);
    float const zero = running_sum::exp_offset(both.row_max);
    float const a = ::expf(softmax.row_max - zero), b = ::expf(more.softmax.row_max - zero);
    return {both, mass * a + more.mass * b, pooled * a + more.pooled * b};
  }
  struct whole {
    row_sums softmax;
    float factor;  ///< of pools
  };
  [[nodiscard]] KVPOLICY_HD whole finished() const { return {softmax.finished(), restored(mass, pooled)}; }
};

/// Products of float32, and how rows are pooled.
struct pooled_product : fma_product {
  static constexpr int widest = 65;
  pooled_attention_options how;

  /// How many neighbours on either side an entry of a pool needs.
  [[nodiscard]] KVPOLICY_HD int overlap() const { return how.pool.width / 2; }
  /// The pool around number k of a row, of which the first `count` are pooled. It is not divided by the width.
  [[nodiscard]] KVPOLICY_HD float pool(float const* row, int k, int count) const {
    int const end = k + overlap() < count ? k + overlap() + 1 : count;
    int i = k < overlap() ? 0 : k - overlap();
    float all = row[i];
    for (++i; i < end; ++i) fold_into(all, row[i], how.pool.how == pooling::kind::max, false);
    return all;
  }
};

/// Computes the statistics of one stretch of one lane, one block each. The heads of a row are neighbours in `task`.
struct pooled_sums_kernel {
  attention_task task;
  pooled_product product;
  storage_of_rows<pooled_sum, pooled_sum::whole> to;

  [[nodiscard]] std::size_t shared() const { return shared_of_stretch(product, to); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    sum_stretch(block, task, product, to, [&](lane_tile const& of, tile_part const& at, pooled_sum* sums) {
      int const pooled = product.how.pooled(of.entries) - at.first;
      for (int i = warp_id(block); i < at.count; i += block.threads() / warp_size)
        add_row(block, of.tile, i, at, pooled, sums + at.base + i);
    });
  }

 private:
  /// Adds a row of the tile, whose first `pooled` numbers are pooled, by one warp.
  template <class Block>
  KVPOLICY_HD void add_row(Block& block, attention_storage& tile, int row, tile_part const& at, int pooled,
                           pooled_sum* sum) const {
    float* const numbers = tile.logits + row * tile_pitch;
    float row_max = running_sum::lowest();
    for (int k = lane_id(block); k < tile_entries; k += warp_size) {
      float const logit = tile.logit(row, k);
      if (tile.sees(row, k) && logit > row_max) row_max = logit;
    }
    row_max = block.reduce_warp(row_max, max_op{});
    float const zero = running_sum::exp_offset(row_max);
    for (int k = lane_id(block); k < tile_entries; k += warp_size) {
      numbers[k] = tile.sees(row, k) ? ::expf(tile.logit(row, k) - zero) : 0;
    }
    block.sync_warp();
    float all = 0, before = 0, of_pools = 0;
    for (int k = at.begin - at.first + lane_id(block); k < at.end - at.first; k += warp_size) {
      all += numbers[k];
      if (k >= pooled) continue;
      before += numbers[k];
      of_pools += product.pool(numbers, k, pooled);
    }
    all = block.reduce_warp(all, plus_op{});
    before = block.reduce_warp(before, plus_op{});
    of_pools = block.reduce_warp(of_pools, plus_op{});
    if (lane_id(block) == 0) *sum = sum->with({{row_max, all}, before, of_pools});
  }
};

template <>
struct mass_kernels<pooled_product> {
  using storage = storage_of_rows<pooled_sum, pooled_sum::whole>;
  using sums = pooled_sums_kernel;
  using finalize = finalize_body<storage>;
  static constexpr bool packs = false;
};

/// Adds up what rows give to each entry, and finds the most that any of them gives when it is pooled. The heads of a
/// row are neighbours in the task.
struct pooled_reduction {
  struct entry_total {
    float sum, high;
  };
  struct known_sums {
    mass_kernels<pooled_product>::storage from;

    [[nodiscard]] KVPOLICY_HD pooled_sum::whole const* of(used_rows const& used) const {
      return from.whole_of(used.task.scores.lanes.index(used.lane));
    }
    KVPOLICY_HD row_sums operator()(used_rows const& used, query_row const& row) const {
      return of(used)[row.number * used.task.group + row.head].softmax;
    }
  };

  known_sums sums;
  pooled_product product;
  by_lane<float> mean;

  /// Turns the logits of the tile's rows into probabilities.
  template <class Block>
  KVPOLICY_HD void prepare(Block& block, lane_tile const& of, tile_part const& at) const {
    for (int i = block.thread(); i < at.count * tile_entries; i += block.threads()) {
      int const row = i / tile_entries, k = i % tile_entries;
      of.tile.logits[row * tile_pitch + k] = of.tile.probability(row, k);
    }
    block.sync();
  }
  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, entry_total& all) const {
    pooled_sum::whole const* const rows = sums.of(of) + at.base;
    int const pooled = product.how.pooled(of.entries) - at.first;
    for (int i = 0; i < at.count; ++i) {
      float const* const numbers = of.tile.logits + i * tile_pitch;
      all.sum += numbers[k];
      if (k < pooled) fold_into(all.high, product.pool(numbers, k, pooled) * rows[i].factor, true, false);
    }
  }
  KVPOLICY_HD void put(lane_tile const& of, int e, entry_total const& all) const {
    mean.row(of.lane)[e] = of.rows() > 0 ? all.sum / static_cast<float>(of.rows()) : 0;
    of.task.scores.rows.row(of.lane)[e] = all.high;
  }
};

}  // namespace detail

/// Takes three launches for 256 rows of a lane's heads, and two for each 256 more. It takes up to 1024 rows.
template <kernel_backend Backend>
struct implementation<ops::pooled_attention_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return detail::bytes_of_sums<detail::pooled_product>(model.group(), batch);
  }

  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view rows, pooled_attention_options const& how,
                  by_lane<float> const& mean, score_view const& out) {
    rows.lse = {};
    detail::mass_call const call("pooled_attention", from, rows, {.last_rows = how.last_rows}, out);
    expects(how.pool.width <= detail::pooled_product::widest, "pooled_attention", "pool", how.pool.width, [] {
      return "a device takes pools of up to " + std::to_string(detail::pooled_product::widest) + " entries";
    });
    call.check_rows_at_once();
    if (out.segments() == 0) return;
    detail::pooled_product const product{detail::fma_product::of(from.rows, rows), how};
    detail::mass_launches launches(exec, call, product);
    if (call.rows() > 0) launches.sums(0);
    launches.reduce(call.part(0, detail::sums_storage::most_rows, false),
                    detail::pooled_reduction{{launches.storage()}, product, mean});
  }
};

}  // namespace KVPOLICY_NAMESPACE

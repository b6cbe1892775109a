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

  /// How many entries of a tile have their whole pools in the tile.
  [[nodiscard]] KVPOLICY_HD int step() const { return tile_entries - how.pool.width + 1; }
  /// The first entry of the tile that has the pools of entries from `e` on.
  [[nodiscard]] KVPOLICY_HD int first(int e) const { return e < how.pool.width / 2 ? 0 : e - how.pool.width / 2; }
  /// The pool around number k of a row, of which the first `count` are pooled. It is not divided by the width.
  [[nodiscard]] KVPOLICY_HD float pool(float const* row, int k, int count) const {
    int const half = how.pool.width / 2;
    int const end = k + half < count ? k + half + 1 : count;
    int i = k < half ? 0 : k - half;
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

  template <class Storage>
  [[nodiscard]] static std::size_t shared(pooled_product const& product, Storage const& to) {
    return attention_storage::bytes() + shared_arena::bytes_of_piece<pooled_sum>(to.slots) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / to.stretches, number = block.index() % to.stretches;
    lane const one = task.scores.lanes.at(index);
    shared_arena arena(block);
    attention_storage const tile(arena, task.scaled());
    auto* const sums = arena.take<pooled_sum>(to.slots);
    for (int i = block.thread(); i < to.slots; i += block.threads()) sums[i] = pooled_sum::nothing();
    used_rows const used = used_rows_of(block, task, one);
    int const all = used.count * task.group, begin = number * to.stretch;
    int const end = begin + to.stretch < used.entries ? begin + to.stretch : used.entries;
    for (int e = begin; e < end && all > 0; e += product.step()) {
      int const first = product.first(e), stop = e + product.step() < end ? e + product.step() : end;
      block.sync();
      tile.take_entries(block, task, used, one, first, used.entries);
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        tile.take_rows(block, task, used, one, base, count, no_sums{});
        product.run(block, task, used, one, tile, arena, base, count);
        block.sync();
        tile.apply_cap(block, task, count);
        for (int i = warp_id(block); i < count; i += block.threads() / warp_size) {
          add_row(block, tile, i, e - first, stop - first, product.how.pooled(used.entries) - first, sums + base + i);
        }
      }
    }
    block.sync();
    for (int i = block.thread(); i < to.slots; i += block.threads()) to.part_of(index, number)[i] = sums[i];
  }

 private:
  /// Adds numbers [begin, end) of a row of the tile, whose first `pooled` numbers are pooled, by one warp.
  template <class Block>
  KVPOLICY_HD void add_row(Block& block, attention_storage const& tile, int row, int begin, int end, int pooled,
                           pooled_sum* sum) const {
    float* const numbers = tile.logits + row * tile_pitch;
    float row_max = running_sum::lowest();
    for (int k = lane_id(block); k < tile_entries; k += warp_size) {
      float const logit = numbers[k] * tile.scale[row];
      if (tile.sees(row, k) && logit > row_max) row_max = logit;
    }
    row_max = block.reduce_warp(row_max, max_op{});
    float const zero = running_sum::exp_offset(row_max);
    for (int k = lane_id(block); k < tile_entries; k += warp_size) {
      numbers[k] = tile.sees(row, k) ? ::expf(numbers[k] * tile.scale[row] - zero) : 0;
    }
    block.sync_warp();
    float all = 0, before = 0, of_pools = 0;
    for (int k = begin + lane_id(block); k < end; k += warp_size) {
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

/// One block for each piece of a lane. The heads of a row are neighbours in `task`.
struct pooled_masses_kernel {
  attention_task task;
  pooled_product product;
  mass_kernels<pooled_product>::storage sums;
  by_lane<float> mean;
  int pieces;
  int entries;  ///< entries of a piece

  [[nodiscard]] static std::size_t shared(pooled_product const& product) {
    return attention_storage::bytes() + 2 * shared_arena::bytes_of_piece<float>(tile_entries) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / pieces, begin = block.index() % pieces * entries;
    lane const one = task.scores.lane_of(segment);
    shared_arena arena(block);
    attention_storage const tile(arena, task.scaled());
    auto *const sum = arena.take<float>(tile_entries), *const high = arena.take<float>(tile_entries);
    used_rows const used = used_rows_of(block, task, one);
    pooled_sum::whole const* const rows = sums.whole_of(task.scores.lanes.index(one));
    int const all = used.count * task.group;
    int const end = begin + entries < used.entries ? begin + entries : used.entries;
    auto const of_row = [&](auto const&, lane, int head, int row, int) {
      return rows[row * task.group + head].softmax;
    };
    for (int e = begin; e < end; e += product.step()) {
      int const first = product.first(e), pooled = product.how.pooled(used.entries) - first;
      int const count_of_step = end - e < product.step() ? end - e : product.step();
      block.sync();
      tile.take_entries(block, task, used, one, first, used.entries);
      for (int k = block.thread(); k < tile_entries; k += block.threads()) sum[k] = high[k] = 0;
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        tile.take_rows(block, task, used, one, base, count, of_row);
        product.run(block, task, used, one, tile, arena, base, count);
        block.sync();
        tile.apply_cap(block, task, count);
        make_probabilities(block, tile, count);
        block.sync();
        for (int j = block.thread(); j < count_of_step; j += block.threads()) {
          fold_rows(tile, rows + base, count, e - first + j, pooled, sum[j], high[j]);
        }
      }
      for (int j = block.thread(); j < count_of_step; j += block.threads()) {
        mean.row(one)[e + j] = all > 0 ? sum[j] / static_cast<float>(all) : 0;
        task.scores.row(segment)[e + j] = high[j];
      }
    }
  }

 private:
  /// Turns the logits of a tile's rows into probabilities.
  template <class Block>
  KVPOLICY_HD static void make_probabilities(Block& block, attention_storage const& tile, int count) {
    for (int i = block.thread(); i < count * tile_entries; i += block.threads()) {
      int const row = i / tile_entries, k = i % tile_entries;
      float& number = tile.logits[row * tile_pitch + k];
      number = probability(tile, row, k, number * tile.scale[row]);
    }
  }
  /// Adds what a tile's rows give to its entry `k`, and finds the most that any of them gives when it is pooled.
  KVPOLICY_HD void fold_rows(attention_storage const& tile, pooled_sum::whole const* rows, int count, int k, int pooled,
                             float& sum, float& high) const {
    for (int i = 0; i < count; ++i) {
      float const* const numbers = tile.logits + i * tile_pitch;
      sum += numbers[k];
      if (k < pooled) fold_into(high, product.pool(numbers, k, pooled) * rows[i].factor, true, false);
    }
  }
};

/// The launches of one call.
template <class Executor>
class pooled_launches : mass_launches<Executor, pooled_product> {
 public:
  using mass_launches<Executor, pooled_product>::mass_launches;

  void run(by_lane<float> const& mean) {
    int const entries = this->entries_of_piece();
    int const pieces = (this->scores_.lanes.capacity + entries - 1) / entries;
    if (this->call_.rows() > 0) this->sums(0);
    attention_task const task = this->call_.part(0, sums_storage::most_rows, false);
    pooled_masses_kernel const kernel{task, this->product_, this->storage_, mean, pieces, entries};
    this->exec_.launch(launch_shape{this->scores_.segments() * pieces, this->threads(), kernel.shared(this->product_)},
                       kernel);
  }
};

}  // namespace detail

/// Takes three launches for 256 rows of a lane's heads, and two for each 256 more. It takes up to 1024 rows.
template <kernel_backend Backend>
struct implementation<ops::pooled_attention_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return storage_of(model.group(), batch).bytes(batch.size());
  }

  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view rows, pooled_attention_options const& how,
                  by_lane<float> const& mean, score_view const& out) {
    rows.lse = {};
    detail::check_aligned("pooled_attention", "keys", from.rows);
    if (rows.rows > 0) detail::check_aligned("pooled_attention", rows);
    expects(how.pool.width <= detail::pooled_product::widest, "pooled_attention", "pool", how.pool.width, [] {
      return "a device takes pools of up to " + std::to_string(detail::pooled_product::widest) + " entries";
    });
    detail::mass_call const call(from, rows, {.last_rows = how.last_rows}, out);
    expects(call.rows() <= detail::sums_storage::most_rows, "pooled_attention", "queries.rows", call.rows(),
            [] { return "a device takes " + std::to_string(detail::sums_storage::most_rows) + " rows at once"; });
    if (out.segments() == 0) return;
    if (call.rows() > 0) {
      detail::check_scratch("pooled_attention", exec, storage_of(call.task().group, out.lanes).bytes(out.lanes.size()));
    }
    detail::pooled_product const product{
        {detail::reader_of(from.rows), detail::reader_of(rows), from.rows.scales.data != nullptr}, how};
    detail::pooled_launches<Executor>(exec, call, product).run(mean);
  }

 private:
  static detail::mass_kernels<detail::pooled_product>::storage storage_of(int group, lanes const& batch) {
    return {group, batch.capacity, batch.size(), nullptr};
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Device implementation of query_moments and future_moments.
#pragma once

#include <kvpolicy/ops/cuda/attention/query_rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/query_moments.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// What both launches share.
struct query_moments_task {
  kvpolicy::lanes lanes;
  query_view rows;
  int sinks;
  int group;
  moments_of_queries out;

  [[nodiscard]] KVPOLICY_HD int count(lane one) const { return rows.rows > 0 ? rows.valid(one) : 0; }
  /// Row r of a query head, or null if it does not count.
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane one, int head, int r) const {
    int const stored = rows.stored(one, r);
    int const position = rows.position.data != nullptr ? rows.position.row(one)[stored] : r;
    return position >= sinks ? rows.at(one, one.head * group + head, stored) : nullptr;
  }
};

/// One block for the mean of 32 channels of a query head. Warps add up every so many rows, so that a sum has the same
/// bits for the same number of threads; their sums are added in the order of the warps.
struct query_means_kernel : query_moments_task {
  [[nodiscard]] static std::size_t shared(int threads) {
    return shared_arena::bytes_of_piece<double>(threads) + shared_arena::bytes_of_piece<int>(threads);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const tiles = (rows.dims + warp_size - 1) / warp_size;
    int const head = block.index() / tiles % group;
    lane const one = lanes.at(block.index() / tiles / group);
    int const d = block.index() % tiles * warp_size + lane_id(block);
    int const warps = block.threads() / warp_size;
    shared_arena arena(block);
    auto* const sums = arena.take<double>(block.threads());
    auto* const counts = arena.take<int>(block.threads());
    double sum = 0;
    int counted = 0;
    for (int r = warp_id(block); r < count(one); r += warps) {
      std::byte const* const row = at(one, head, r);
      if (row == nullptr) continue;
      ++counted;
      if (d < rows.dims) sum += static_cast<double>(element_at(rows.element, row + d * bytes_of(rows.element)));
    }
    sums[block.thread()] = sum;
    counts[block.thread()] = counted;
    block.sync();
    if (warp_id(block) != 0 || d >= rows.dims) return;
    for (int w = 1; w < warps; ++w) {
      sum += sums[w * warp_size + block.thread()];
      counted += counts[w * warp_size + block.thread()];
    }
    out.mean.row(one)[head * rows.dims + d] = static_cast<float>(sum / (counted > 0 ? counted : 1));
  }
};

/// One block for each 32 x 32 numbers of a covariance, from rows in shared memory, 32 at a time.
struct query_squares_kernel : query_moments_task {
  static constexpr int tile = 32;
  static constexpr int pitch = tile + 1;

  [[nodiscard]] static std::size_t shared() {
    return 3 * shared_arena::bytes_of_piece<float>(tile * pitch) + shared_arena::bytes_of_piece<int>(tile);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const tiles = (rows.dims + tile - 1) / tile;
    int const which = block.index() % (tiles * tiles);
    int const head = block.index() / (tiles * tiles) % group;
    lane const one = lanes.at(block.index() / (tiles * tiles) / group);
    int const a = which / tiles * tile, b = which % tiles * tile;
    float const* const mean = out.mean.row(one) + std::int64_t{head} * rows.dims;
    shared_arena arena(block);
    auto* const sums = arena.take<float>(tile * pitch);
    auto* const left = arena.take<float>(tile * pitch);
    auto* const right = arena.take<float>(tile * pitch);
    auto* const there = arena.take<int>(tile);
    for (int i = block.thread(); i < tile * pitch; i += block.threads()) sums[i] = 0;
    int counted = 0;
    for (int r = 0; r < count(one); r += tile) {
      block.sync();
      for (int i = block.thread(); i < tile * tile; i += block.threads()) {
        std::byte const* const row = r + i / tile < count(one) ? at(one, head, r + i / tile) : nullptr;
        if (i % tile == 0) there[i / tile] = row != nullptr ? 1 : 0;
        left[i / tile * pitch + i % tile] = less_mean(row, a + i % tile, mean);
        right[i / tile * pitch + i % tile] = less_mean(row, b + i % tile, mean);
      }
      block.sync();
      for (int i = 0; i < tile; ++i) counted += there[i];
      for (int i = block.thread(); i < tile * tile; i += block.threads())
        add(left + i / tile, right + i % tile, sums[i]);
    }
    block.sync();
    float* const to = out.square.row(one) + std::int64_t{head} * rows.dims * rows.dims;
    for (int i = block.thread(); i < tile * tile; i += block.threads()) {
      int const row = a + i / tile, column = b + i % tile;
      if (row >= rows.dims || column >= rows.dims) continue;
      to[std::int64_t{row} * rows.dims + column] = sums[i] / static_cast<float>(counted > 0 ? counted : 1);
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD float less_mean(std::byte const* row, int d, float const* mean) const {
    if (row == nullptr || d >= rows.dims) return 0;
    return element_at(rows.element, row + d * bytes_of(rows.element)) - mean[d];
  }
  KVPOLICY_HD static void add(float const* left, float const* right, float& to) {
    float sum = 0;
    for (int r = 0; r < tile; ++r) sum += left[r * pitch] * right[r * pitch];
    to += sum;
  }
};

/// One block for each query head.
struct future_moments_kernel {
  kvpolicy::lanes lanes;
  mean_turn turn;
  int group;
  moments_of_queries out;

  [[nodiscard]] static std::size_t shared(int dims) { return shared_arena::bytes_of_piece<mean_turn::number>(dims); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / group);
    int const units = turn.units(), newest = lanes.newest(one);
    shared_arena arena(block);
    auto* const by = arena.take<mean_turn::number>(units);
    for (int u = block.thread(); u < units; u += block.threads()) by[u] = turn.of(u, newest);
    block.sync();
    turned_head const turned(turn, by, out, one, block.index() % group, group);
    for (int u = block.thread(); u < units; u += block.threads()) turned.turn_mean(u);
    if (out.square.data == nullptr) return;
    for (int i = block.thread(); i < units * units; i += block.threads()) turned.turn_square(i / units, i % units);
  }
};

}  // namespace detail

/// Takes two launches, or one without a covariance.
template <kernel_backend Backend>
struct implementation<ops::query_moments_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, query_view const& rows, int sinks,
                  moments_of_queries const& out) {
    if (rows.rows > 0) detail::check_aligned("query_moments", rows);
    int const group = rows.heads / batch.heads;
    int const tiles = (rows.dims + detail::warp_size - 1) / detail::warp_size;
    auto const threads = exec.threads().entry;
    detail::query_moments_task const task{batch, rows, sinks, group, out};
    exec.launch(launch_shape{batch.size() * group * tiles, threads, detail::query_means_kernel::shared(threads)},
                detail::query_means_kernel{task});
    if (out.square.data == nullptr) return;
    exec.launch(launch_shape{batch.size() * group * tiles * tiles, threads, detail::query_squares_kernel::shared()},
                detail::query_squares_kernel{task});
  }
};

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::future_moments_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, query_model const& from, int future,
                  moments_of_queries const& out) {
    int const group = from.mean.heads / batch.heads;
    exec.launch(
        launch_shape{batch.size() * group, exec.threads().entry, detail::future_moments_kernel::shared(from.mean.dims)},
        detail::future_moments_kernel{batch, {from, future}, group, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE

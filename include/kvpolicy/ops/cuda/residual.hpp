// SPDX-License-Identifier: Apache-2.0
// Device implementation of residual: means of features, attention to the span, and the perceptron behind it.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/cuda/feature_sums.hpp>
#include <kvpolicy/ops/cuda/perceptron/perceptron.hpp>
#include <kvpolicy/ops/cuda/perceptron/residual_attention.hpp>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The features of an entry, followed by the output of its attention to the span.
struct attended_rows {
  float const* features;
  residual_storage temp_storage;
  int begin;
  bool attended;
  int dims;

  [[nodiscard]] KVPOLICY_HD float operator()(int r, int c) const {
    if (c < dims) return features[std::int64_t{r} * dims + c];
    if (!attended) return 0;
    int const head = (c - dims) / temp_storage.head_width;
    int const slice = (c - dims) % temp_storage.head_width / tile_sizes::units;
    return temp_storage.state_of(begin + r)[c - dims] / temp_storage.statistics(begin + r, head, slice)[1];
  }
};

/// The task of the perceptron for a tile of entries.
struct residual_tile {
  attended_rows rows;
  folded_rows fc1;
  float const* bias;
  float const* fc2;
  float* rule;      ///< [rows], shared memory
  float* constant;  ///< [tile_sizes::units], the constants of a slice's units
  bool has_work;
  int first = 0;  ///< first unit of the slice

  template <class Block>
  KVPOLICY_HD void prepare(Block& block, int unit, int units) {
    block.sync();
    first = unit;
    fold_constants(block, weight_from(unit), bias + unit, units, constant);
  }
  [[nodiscard]] KVPOLICY_HD attended_rows const& row() const { return rows; }
  [[nodiscard]] KVPOLICY_HD folded_rows weight_from(int unit) const {
    return {fc1.from + unit * fc1.stride, fc1.stride, fc1.dims, fc1.memory};
  }
  [[nodiscard]] KVPOLICY_HD float activation(int r, int unit, float sum) const {
    return gelu(sum + constant[unit - first] + fc1.slope(unit) * rule[r]);
  }
  [[nodiscard]] KVPOLICY_HD float output_weight(int, int unit) const { return fc2[unit]; }
};

struct residual_net {
  residual_group group;
  float alpha;

  [[nodiscard]] static std::size_t bytes(int rows) {
    return shared_arena::bytes_of_piece<float>(rows) + shared_arena::bytes_of_piece<float>(tile_sizes::units);
  }
  [[nodiscard]] KVPOLICY_HD int columns() const { return group.head.dims + group.head.width; }
  [[nodiscard]] KVPOLICY_HD int rows_of(int) const { return group.count(); }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD residual_tile bind(Block& block, shared_arena& arena, row_tile const& tile,
                                               int rows) const {
    residual_head const& head = group.head;
    auto* const rule = arena.take<float>(rows);
    auto* const constant = arena.take<float>(tile_sizes::units);
    bool const attended = group.temp_storage.range[0] < group.temp_storage.range[1];
    std::int64_t const columns = 3 * std::int64_t{head.dims} + 1 + head.width;
    return {{group.row(tile.begin), group.temp_storage, tile.begin, attended, head.dims},
            {head.fc1, columns, head.dims, group.memory()},
            head.fc1_bias,
            head.fc2,
            rule,
            constant,
            read_rule_scores(block, group.scores() + tile.begin, tile.rows, rule)};
  }

  KVPOLICY_HD void store(int, int entry, int, float z) const {
    float& score = group.scores()[entry];
    if (score != same_bits<float>(0xFF800000u)) score += alpha * (z + group.head.fc2_bias[0]);
  }
};

}  // namespace detail

/// For each sequence: one launch for means, one for keys and values of the span, one for the attention to them, one for
/// the perceptron. Where the scratch does not hold a long span or all entries, the last three are repeated. A
/// repetition handles at least 1024 entries of the span (or all of them), and launches that find none left end at once.
template <kernel_backend Backend>
struct implementation<ops::residual_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, token_features const& features, turn_queries const& turn, residual_head const& head,
                  residual_options const& how, score_view const& out, float* temp_storage) {
    lanes const& batch = out.lanes;
    if (head.alpha == 0 || batch.capacity <= 0) return;
    detail::residual_storage const cut(head, batch.capacity, temp_storage);
    for (int sequence = 0; sequence < batch.sequences; ++sequence) {
      detail::launch_each_unless_fault(
          exec, (std::int64_t{batch.capacity} + 1) * features.dims + 1,
          detail::means_body{features, turn, how, batch, ranks_of(exec), sequence, cut.range});
      for (int begin = 0; begin < batch.capacity; begin += cut.entries) {
        detail::residual_group const group{head, cut, features, out, sequence, begin};
        if (how.cross_attention) attend(exec, group);
        finish(exec, group);
      }
    }
  }

 private:
  template <class Executor>
  static void attend(Executor& exec, detail::residual_group const& group) {
    int const bound = group.out.lanes.capacity;
    detail::residual_storage const& temp_storage = group.temp_storage;
    for (int first = 0; first < bound; first += temp_storage.span) {
      project(exec, group, std::min(temp_storage.span, bound - first), first);
      auto const bytes = [&](int threads) { return detail::attend_bytes(temp_storage, threads); };
      auto const threads = detail::tile_threads(exec, bytes);
      int const rows = detail::tile_sizes::rows(threads);
      int const tiles = (std::min(temp_storage.entries, bound - group.begin) + rows - 1) / rows;
      detail::launch_unless_fault(
          exec, launch_shape{tiles * residual_head::heads * temp_storage.slices, threads, bytes(threads)},
          detail::attend_kernel{group, first});
    }
  }

  template <class Executor>
  static void project(Executor& exec, detail::residual_group const& group, int most, int first) {
    using sizes = detail::tile_sizes;
    auto const threads = detail::tile_threads(exec, sizes::bytes);
    int const tiles = (most + sizes::rows(threads) - 1) / sizes::rows(threads);
    int const slices = (group.head.width + sizes::units - 1) / sizes::units;
    detail::launch_unless_fault(
        exec, launch_shape{tiles * 2 * slices, threads, sizes::bytes(threads)},
        detail::project_kernel{group.head, group.temp_storage, group.features.row(group.sequence, 1), first});
  }

  template <class Executor>
  static void finish(Executor& exec, detail::residual_group const& group) {
    detail::perceptron_work const work{
        .groups = 1,
        .bound = std::min(group.temp_storage.entries, group.out.lanes.capacity - group.begin),
        .hidden = group.head.hidden};
    float const alpha = std::clamp(group.head.alpha, -5.0f, 5.0f);
    detail::launch_perceptron(exec, detail::residual_net{group, alpha}, work, nullptr, 0);
  }
};

}  // namespace KVPOLICY_NAMESPACE

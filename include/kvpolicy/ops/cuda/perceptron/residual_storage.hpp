// SPDX-License-Identifier: Apache-2.0
// The layout of residual's scratch on a device, and helpers of its kernels.
#pragma once

#include <kvpolicy/ops/cuda/perceptron/perceptron_tile.hpp>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The layout of the scratch: the range of the span, keys and values of some of its entries, and attention states of
/// some entries. If the span or the entries do not all fit, they are handled in turn.
///
/// - `values` is [width][span], so that the entries of a channel are neighbours.
/// - `state` has, for each entry, sums of values [width], then the row maximum and the sum of weights for each head and
///   slice of its columns.
struct residual_storage {
  /// How many entries of the span are handled at once: enough for few launches with long sequences, and few enough to
  /// leave scratch for states.
  [[nodiscard]] static constexpr int span_for(int bound) {
    int const wanted = bound / 16 < 1024 ? 1024 : bound / 16 < 4096 ? bound / 16 : 4096;
    return bound < wanted ? bound : wanted;
  }

  int width = 0;
  int head_width = 0;
  int slices = 0;   ///< slices of a head's columns
  int span = 0;     ///< entries of the span that fit
  int entries = 0;  ///< entries whose states fit
  int* range = nullptr;
  float* keys = nullptr;  ///< [span][width]
  float* values = nullptr;
  float* state = nullptr;

  residual_storage(residual_head const& head, int bound, float* temp_storage)
      : width(head.width),
        head_width(head.width / residual_head::heads),
        slices((head_width + tile_sizes::units - 1) / tile_sizes::units),
        span(span_for(bound)),
        range(reinterpret_cast<int*>(temp_storage)),
        keys(temp_storage + 2),
        values(keys + std::int64_t{span} * width),
        state(values + std::int64_t{span} * width) {
    std::int64_t const left = residual_sizes(head, bound).all() - (state - temp_storage);
    std::int64_t const most = left / floats_of_an_entry();
    entries = static_cast<int>(most < bound ? most : bound);
  }

  [[nodiscard]] KVPOLICY_HD std::int64_t floats_of_an_entry() const {
    return std::int64_t{width} + 2 * residual_head::heads * slices;
  }
  [[nodiscard]] KVPOLICY_HD float* state_of(int entry) const { return state + entry * floats_of_an_entry(); }
  /// The row maximum of a head and slice, followed by the sum of the weights.
  [[nodiscard]] KVPOLICY_HD float* statistics(int entry, int head, int slice) const {
    return state_of(entry) + width + 2 * (head * slices + slice);
  }
  /// How many entries of the span are handled by the step that begins with entry `first` of it.
  [[nodiscard]] KVPOLICY_HD int there(int first) const {
    int const left = range[1] - range[0] - first;
    return left < span ? left : span;
  }
};

/// Rows of weights with the memory folded in. The features phi = [k | m | k m | rule], with m the memory of one
/// sequence, then become linear in k. Behind phi are the weights of other inputs.
struct folded_rows {
  float const* from;  ///< the row of the first unit
  std::int64_t stride;
  int dims;
  float const* memory;

  [[nodiscard]] KVPOLICY_HD float operator()(int unit, int c) const {
    float const* const row = from + unit * stride;
    return c < dims ? row[c] + row[2 * dims + c] * memory[c] : row[2 * dims + 1 + c];
  }
  /// The weight of the rule's score.
  [[nodiscard]] KVPOLICY_HD float slope(int unit) const { return from[unit * stride + 3 * dims]; }
};

/// Sets constant[u] to bias[u] plus the term of the memory alone, one warp for each unit.
template <class Block>
KVPOLICY_HD void fold_constants(Block& block, folded_rows const& of, float const* bias, int units, float* constant) {
  int const warps = block.threads() / warp_size;
  for (int unit = warp_id(block); unit < units; unit += warps) {
    float const* const row = of.from + unit * of.stride + of.dims;
    double sum = 0;
    for (int d = lane_id(block); d < of.dims; d += warp_size) {
      sum += static_cast<double>(row[d]) * static_cast<double>(of.memory[d]);
    }
    sum = block.reduce_warp(sum, plus_op{});
    if (lane_id(block) == 0) constant[unit] = static_cast<float>(static_cast<double>(bias[unit]) + sum);
  }
}

/// Reads scores of the rule: rule[r] is the head's input, 0 for an entry that is no candidate. True in every thread if
/// one of them is a candidate. Collective for a warp.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool read_rule_scores(Block& block, float const* scores, int count, float* rule) {
  float const lowest = same_bits<float>(0xFF800000u);
  bool any = false;
  for (int first = 0; first < count; first += warp_size) {
    int const r = first + lane_id(block);
    float const score = r < count ? scores[r] : lowest;
    bool const candidate = score != lowest;
    if (r < count && warp_id(block) == 0) rule[r] = candidate ? score : 0.0f;
    any = block.ballot(candidate) != 0 || any;
  }
  return any;
}

}  // namespace KVPOLICY_NAMESPACE::detail

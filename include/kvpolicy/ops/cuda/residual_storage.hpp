// How a device cuts the room of `residual`, and what its kernels share.
#pragma once

#include <kvpolicy/ops/cuda/perceptron_tile.hpp>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The room: where the span is, keys and values of some of its entries, and the attention so far of some entries that
/// attend. If all of the span or all entries do not fit, they come in turn.
///
/// - `values`: [width][span], so that a product reads a channel's entries side by side.
/// - `state`, for each entry: sums of values [width], and for each head and slice of its columns the highest logit and
///   the sum of the weights.
struct residual_storage {
  /// Entries of the span at once: few launches for long sequences, and room for those that attend.
  [[nodiscard]] static constexpr int span_for(int bound) {
    int const wanted = bound / 16 < 1024 ? 1024 : bound / 16 < 4096 ? bound / 16 : 4096;
    return bound < wanted ? bound : wanted;
  }

  int width = 0;
  int head_width = 0;
  int slices = 0;   ///< of a head's columns
  int span = 0;     ///< entries of the span that there is room for
  int entries = 0;  ///< entries that attend, likewise
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
  /// Of a head and a slice: the highest logit, and behind it the sum of the weights.
  [[nodiscard]] KVPOLICY_HD float* statistics(int entry, int head, int slice) const {
    return state_of(entry) + width + 2 * (head * slices + slice);
  }
  /// Entries of the span that are attended to in a step that begins with the `first` of them.
  [[nodiscard]] KVPOLICY_HD int there(int first) const {
    int const left = range[1] - range[0] - first;
    return left < span ? left : span;
  }
};

/// Rows of weights by which phi = [k | m | k m | rule] becomes linear in k, m being one sequence's memory; and behind
/// phi, what else a row is multiplied by.
struct folded_rows {
  float const* from;  ///< of the first unit
  std::int64_t stride;
  int dims;
  float const* memory;

  [[nodiscard]] KVPOLICY_HD float operator()(int unit, int c) const {
    float const* const row = from + unit * stride;
    return c < dims ? row[c] + row[2 * dims + c] * memory[c] : row[2 * dims + 1 + c];
  }
  /// By what the rule's score is multiplied.
  [[nodiscard]] KVPOLICY_HD float slope(int unit) const { return from[unit * stride + 3 * dims]; }
};

/// constant[u] = bias[u] + what the memory alone adds, a warp a unit.
template <class Block>
KVPOLICY_HD void fold_constants(Block& block, folded_rows const& of, float const* bias, int units, float* constant) {
  int const warps = block.threads() / warp_size;
  for (int unit = warp_id(block); unit < units; unit += warps) {
    float const* const row = of.from + unit * of.stride + of.dims;
    double sum = 0;
    for (int d = lane_id(block); d < of.dims; d += warp_size) {
      sum += static_cast<double>(row[d]) * static_cast<double>(of.memory[d]);
    }
    sum = warp_reduce(block, sum, add_up{});
    if (lane_id(block) == 0) constant[unit] = static_cast<float>(static_cast<double>(bias[unit]) + sum);
  }
}

/// Some scores of the rule on their way into a head: rule[r] is what the head is shown, 0 for what is no candidate.
/// True in every thread if there is a candidate among them. Collective for a warp.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool take_rules(Block& block, float const* scores, int count, float* rule) {
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

/// Features of entries side by side.
struct feature_rows {
  float const* from;
  int dims;
  [[nodiscard]] KVPOLICY_HD float operator()(int r, int d) const { return from[std::int64_t{r} * dims + d]; }
};

}  // namespace KVPOLICY_NAMESPACE::detail

// SPDX-License-Identifier: Apache-2.0
// Host implementation of redundancy: blocks of a lane's keys look for their newest similar entry, newest tiles first.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/keys_as_rows.hpp>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/redundancy.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The pairs of one lane that its mean cosines leave out.
class spared_pairs {
 public:
  static std::size_t scratch(shape const& model, int bound) {
    return scratch_of<double>(static_cast<std::size_t>(bound)) + scratch_of<float>(floats_of_values) +
           scratch_of<float>(static_cast<std::size_t>(most_rows * model.head_dim)) + lane_logits::scratch(model);
  }

  spared_pairs(host_executor const& exec, keys const& from, lane one, int entries, float const* inverse_norm,
               std::span<std::byte> memory)
      : exec_(exec), keys_(from), lane_(one), entries_(entries), inverse_norm_(inverse_norm), memory_(memory) {
    keys_.logits = {.scale = 1.0f};
  }

  /// Takes from each entry's mean what it leaves out.
  void take_out(redundancy_options const& how, float* mean) {
    scratch_arena arena(memory_);
    sum_ = arena.take<double>(static_cast<std::size_t>(entries_));
    values_ = arena.take<float>(floats_of_values);
    rows_ = arena.take<float>(static_cast<std::size_t>(most_rows * keys_.rows.channels));
    for (int e = 0; e < entries_; ++e) sum_[e] = inverse_norm_[e] == 0 ? 0 : 1;  // a key without a direction has none
    for (int first = 0; how.spare_newest && first < entries_; first += most_rows) {
      add_newest_similar(how.threshold, first, std::min(most_rows, entries_ - first), arena);
    }
    for (int e = 0; e < entries_; ++e) mean[e] -= static_cast<float>(sum_[e] / entries_);
  }

 private:
  static constexpr std::size_t floats_of_values =
      keys_of_a_tile * most_rows + 16;  // a whole vector may follow the last

  /// For each of entries [first, first + count): adds its cosine with its newest similar entry to the sum of that one.
  void add_newest_similar(float threshold, int first, int count, scratch_arena arena) {
    query_view const rows = keys_as_rows(keys_, lane_, count, [&](int i) { return first + i; }, rows_);
    lane_logits products(exec_, keys_, rows, lane_, {0, count, 1}, arena);
    row_block block = products.block_storage(0);
    block.set_rows(exec_.simd_level(), products.rows_for(count));
    products.pack(block, 0, count);
    lane_logits::amx_registers const registers = products.acquire(block);
    float left[most_rows] = {};  // 1 / norm of a row that still searches; 0: it does not, and no product is similar
    std::copy_n(inverse_norm_ + first, count, left);
    auto searching = count - static_cast<int>(std::count(left, left + count, 0.0f));
    for (int e = (entries_ - 1) / keys_of_a_tile * keys_of_a_tile; e >= 0 && searching > 0; e -= keys_of_a_tile) {
      int const keys = products.load_tile(e, entries_);
      products.multiply_tile(block, keys, values_);
      for (int k = keys - 1; k >= 0; --k) {
        float const* const product = values_ + static_cast<std::ptrdiff_t>(k) * block.rows;
        if (!any_above(threshold, product, left, inverse_norm_[e + k], block.rows)) continue;
        for (int r = 0; r < count; ++r) {
          float const cosine = product[r] * left[r] * inverse_norm_[e + k];
          if (!(cosine > threshold) || e + k == first + r) continue;
          sum_[e + k] += static_cast<double>(cosine);
          left[r] = 0;
          --searching;
        }
      }
    }
    if (searching == 0) return;  // else the last tile was that of the oldest entries
    for (int r = 0; r < count; ++r) {
      if (first + r > 0) sum_[0] += static_cast<double>(values_[r] * left[r] * inverse_norm_[0]);
    }
  }

  static bool any_above(float threshold, float const* product, float const* left, float inverse_norm, int rows) {
    int hits = 0;
    for (int r = 0; r < rows; ++r) hits += product[r] * left[r] * inverse_norm > threshold ? 1 : 0;
    return hits > 0;
  }

  host_executor const& exec_;
  keys keys_;
  lane lane_;
  int entries_;
  float const* inverse_norm_;
  std::span<std::byte> memory_;
  double* sum_ = nullptr;  ///< of the cosines that an entry's mean leaves out
  float* values_ = nullptr;
  float* rows_ = nullptr;
};

}  // namespace detail

template <>
struct implementation<ops::redundancy_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::spared_pairs::scratch(model, bound); }

  static void run(host_executor& exec, keys const& from, by_lane<float> const& inverse_norms,
                  redundancy_options const& how, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::spared_pairs made(exec, from, one, out.lanes.committed(one), inverse_norms.row(one),
                                exec.scratch(worker));
      made.take_out(how, out.row(segment));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

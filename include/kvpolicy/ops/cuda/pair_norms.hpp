// SPDX-License-Identifier: Apache-2.0
// Device implementation of pair_norms: one warp for each key, whose threads handle its pairs.
#pragma once

#include <kvpolicy/ops/cuda/moves/row_numbers.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/pair_norms.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Combine>
struct pair_norms_kernel {
  row_view from;
  key_pairs pairs;
  by_lane<float> weights;
  Combine combine;
  score_view out;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, int segment, ordinal_range of) const {
    lane const one = out.lane_of(segment);
    float const* const weight = weights.row(one);
    float* const to = out.row(segment);
    for (int e = of.begin + warp_id(block); e < of.end; e += block.threads() / warp_size) {
      float sum = 0;
      for (int f = lane_id(block); f < pairs.count; f += warp_size) {
        float const x = number_at(from, one, e, pairs.first(f)), y = number_at(from, one, e, pairs.second(f));
        sum += weight[f] * ::sqrtf(x * x + y * y);
      }
      sum = block.reduce_warp(sum, plus_op{});
      if (lane_id(block) == 0) to[e] = combine(to[e], sum * ::fabsf(from.scale(one, e)));
    }
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::pair_norms_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, keys const& from, key_pairs const& pairs, by_lane<float> const& weights,
                  Combine const& combine, score_view const& out) {
    detail::check_aligned("pair_norms", "keys", from.rows);
    detail::launch_pieces(exec, out, detail::pair_norms_kernel<Combine>{from, pairs, weights, combine, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// What one would write instead of top_k: a sort of packed keys by CUB, and a plain kernel of a block a lane.
#pragma once

#include <cub/device/device_segmented_radix_sort.cuh>

#include "cuda/gpu_measure.cuh"

namespace bench::gpu {

/// The order of scores as unsigned numbers: NaN is lowest, -0 equals +0.
__device__ inline unsigned ordered(float score) {
  if (score != score) return 0;
  auto const bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Score above, ordinal below and turned round: in a descending sort of these the lower ordinal wins a tie.
static __global__ void pack_scores(float const* scores, int entries, unsigned long long* to) {
  auto const lane = static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(entries);
  for (int e = static_cast<int>(threadIdx.x); e < entries; e += static_cast<int>(blockDim.x)) {
    auto const at = lane + static_cast<std::size_t>(e);
    to[at] = static_cast<unsigned long long>(ordered(scores[at])) << 32 | (0xFFFFFFFFu - static_cast<unsigned>(e));
  }
}

struct every {
  int entries = 0;
  __host__ __device__ int operator()(int segment) const { return segment * entries; }
};

/// cub::DeviceSegmentedRadixSort of whole lanes. Their first k are the best, by score: ascending ordinals would be
/// another sort, which is not done here.
class cub_sort {
 public:
  cub_sort(int lanes, int entries)
      : lanes_(lanes), entries_(entries), in_(count()), out_(count()), offsets_(offsets_of(lanes, entries)) {
    std::size_t bytes = 0;
    checked("DeviceSegmentedRadixSort", sort(nullptr, bytes, nullptr));
    storage_ = array<std::byte>(bytes);
  }
  static double bytes(int lanes, int entries) { return 3.0 * 8 * lanes * entries; }

  void operator()(stream const& on, float const* scores) {
    pack_scores<<<static_cast<unsigned>(lanes_), 512, 0, on.get()>>>(scores, entries_, in_.data());
    checked("pack_scores", cudaGetLastError());
    std::size_t bytes = storage_.bytes();
    checked("DeviceSegmentedRadixSort", sort(storage_.data(), bytes, on.get()));
  }
  /// Ordinals of the k best of a lane, ascending.
  [[nodiscard]] std::vector<int> best(int lane, int k) const {
    std::vector<unsigned long long> all(static_cast<std::size_t>(k));
    checked("cudaDeviceSynchronize", cudaDeviceSynchronize());
    auto const first = static_cast<std::size_t>(lane) * static_cast<std::size_t>(entries_);
    checked("cudaMemcpy", cudaMemcpy(all.data(), out_.data() + first, 8 * all.size(), cudaMemcpyDeviceToHost));
    std::vector<int> made;
    for (auto const each : all) made.push_back(static_cast<int>(0xFFFFFFFFu - static_cast<unsigned>(each)));
    std::sort(made.begin(), made.end());
    return made;
  }

 private:
  static std::vector<int> offsets_of(int lanes, int entries) {
    std::vector<int> made;
    for (int i = 0; i <= lanes; ++i) made.push_back(i * entries);
    return made;
  }
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(lanes_) * static_cast<std::size_t>(entries_);
  }
  cudaError_t sort(void* temp_storage, std::size_t& bytes, cudaStream_t on) {
    return cub::DeviceSegmentedRadixSort::SortKeysDescending(temp_storage, bytes, in_.data(), out_.data(),
                                                             static_cast<int>(count()), lanes_, offsets_.data(),
                                                             offsets_.data() + 1, 0, 64, on);
  }

  int lanes_, entries_;
  array<unsigned long long> in_, out_;
  array<int> offsets_;
  array<std::byte> storage_{0};
};

/// A block a lane: four passes of 256 counters, a byte of the scores each, then a pass that takes what is above the cut
/// and, of ties, what comes first to a counter. In no order, and with ties another set every time.
static __global__ void plain_select(float const* scores, int entries, int k, int* to) {
  __shared__ int counters[256];
  __shared__ unsigned cut;
  __shared__ int left, above, ties;
  float const* const lane = scores + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(entries);
  int* const out = to + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(k);
  int const first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  if (first == 0) cut = 0, left = k, above = 0, ties = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = first; i < 256; i += step) counters[i] = 0;
    __syncthreads();
    unsigned const settled = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int e = first; e < entries; e += step) {
      unsigned const key = ordered(lane[e]);
      if ((key & settled) == cut) atomicAdd(&counters[key >> shift & 255u], 1);
    }
    __syncthreads();
    if (first == 0) {
      int digit = 255;
      while (digit > 0 && counters[digit] < left) left -= counters[digit--];
      cut |= static_cast<unsigned>(digit) << shift;
    }
    __syncthreads();
  }
  for (int e = first; e < entries; e += step) {
    unsigned const key = ordered(lane[e]);
    bool const tie = key == cut && atomicAdd(&ties, 1) < left;
    if (key > cut || tie) out[atomicAdd(&above, 1)] = e;
  }
}

}  // namespace bench::gpu

// SPDX-License-Identifier: Apache-2.0
// Runs the scorer of own_scorer.cpp on a GPU, unchanged: the same policy with a CUDA executor and device memory.
#include <thrust/device_vector.h>

#include <cstdio>
#include <kvpolicy/cuda.cuh>

#include "engine.hpp"
#include "value_aware.hpp"

namespace {

/// The toy engine's memory, copied to the device. All addresses in its views are device addresses.
struct gpu_pool {
  thrust::device_vector<std::uint16_t> k, v;
  thrust::device_vector<int> table, counts, positions, row_positions;
  thrust::device_vector<float> rows;

  gpu_pool(my_pool const& pool, my_forward const& forward)
      : k(pool.k),
        v(pool.v),
        table(pool.table),
        counts(pool.counts),
        positions(pool.positions),
        row_positions(forward.positions),
        rows(forward.rows) {}

  template <class T>
  static T* at(thrust::device_vector<T>& of) {
    return thrust::raw_pointer_cast(of.data());
  }

  kv::cache view(my_pool& pool) {
    kv::cache cache = pool.view();
    cache.k.base = reinterpret_cast<std::byte*>(at(k));
    cache.v.base = reinterpret_cast<std::byte*>(at(v));
    cache.where.table.data = at(table);
    cache.lanes.count.data = at(counts);
    cache.lanes.position.data = at(positions);
    return cache;
  }
  kv::queries queries(my_forward const& forward) {
    kv::queries shown = forward.queries();
    shown.base = reinterpret_cast<std::byte const*>(at(rows));
    shown.position.data = at(row_positions);
    return shown;
  }
};

void run() {
  my_pool host;
  my_forward forward(host, 200);
  gpu_pool pool(host, forward);
  kv::cache cache = pool.view(host);
  auto const policy =
      kv::eviction{.score = value_aware{}, .protect = kv::sinks{4} | kv::recent{16}, .budget = kv::per_lane{48}};
  kv::queries const rows = pool.queries(forward);
  // example-begin gpu
  kv::cuda_executor exec;  // on a stream; all views point to device memory
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = 200, .position = 0});
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache), rows};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);  // no call so far has waited for the device

  kv::fetched_keep const keep(exec, plan.keep());  // waits, and throws the errors that kernels found in the data
  // example-end gpu
  for (int segment = 0; segment < keep.segments(); ++segment) {
    auto const kept = keep.listed(segment);
    std::printf("lane %d keeps %zu:", segment, kept.size());
    for (std::size_t i = 0; i < 12; ++i) std::printf(" %d", kept[i]);
    std::printf(" ...\n");
  }
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU\n");
    return 77;
  }
  run();
}

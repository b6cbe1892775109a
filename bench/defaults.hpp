// SPDX-License-Identifier: Apache-2.0
// Sizes and data that all benchmarks share.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <vector>

namespace bench {

namespace kv = kvpolicy;

/// The lanes of one layer of a model: 8 KV heads, 32 query heads, head size 128.
inline constexpr int heads = 8;
inline constexpr int group = 4;
inline constexpr int dims = 128;

inline std::uint32_t next(std::uint32_t& seed) { return seed = seed * 1664525u + 1013904223u; }

/// Attention-like scores: exp of roughly normal numbers, most of which are small.
inline void fill_scores(std::vector<float>& to, std::uint32_t seed) {
  for (float& value : to) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(next(seed) >> 8) / 16777216.0f;
    value = std::exp(6 * (sum - 2));
  }
}

inline void fill_rows(std::vector<float>& to, std::uint32_t seed) {
  for (float& value : to) value = static_cast<float>(next(seed) >> 8) / 8388608.0f - 1.0f;
}

/// The bytes per second of a copy of `bytes` in this process, the best of five: the bandwidth of memory.
inline double copy_rate(std::size_t bytes) {
  std::vector<std::byte> from(bytes), to(bytes);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    auto const begin = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(bytes) / took.count());
  }
  return best;
}

/// Reports the bytes per second of an iteration that must touch `bytes`, and their ratio to a copy of as many bytes.
inline void report_bytes(benchmark::State& state, std::size_t bytes) {
  auto const total = static_cast<double>(bytes) * static_cast<double>(state.iterations());
  state.counters["bytes/s"] = benchmark::Counter(total, benchmark::Counter::kIsRate);
  state.counters["of_copy"] = benchmark::Counter(total / copy_rate(bytes), benchmark::Counter::kIsRate);
}

/// The cache of one layer, in contiguous rows, filled with `entries` entries.
struct layer_cache {
  explicit layer_cache(int entries)
      : k(static_cast<std::size_t>(heads) * static_cast<std::size_t>(entries) * dims),
        v(k),
        count(heads, entries),
        position(static_cast<std::size_t>(heads) * static_cast<std::size_t>(entries)),
        bound(entries) {
    fill_rows(k, 1);
    fill_rows(v, 2);
    reset();
  }

  void reset() {
    std::fill(count.begin(), count.end(), bound);
    for (std::size_t i = 0; i < position.size(); ++i)
      position[i] = static_cast<int>(i % static_cast<std::size_t>(bound));
  }

  kv::cache view() {
    kv::plane const rows{.base = reinterpret_cast<std::byte*>(k.data()),
                         .channels = dims,
                         .token_stride = 4 * dims,
                         .head_stride = 4LL * dims * bound,
                         .channel_stride = 4};
    kv::cache cache{.shape = {1, heads * group, heads, dims}, .k = rows, .v = rows, .where = kv::identity_map(bound)};
    cache.v.base = reinterpret_cast<std::byte*>(v.data());
    cache.lanes = {.layer_end = 1,
                   .heads = heads,
                   .capacity = bound,
                   .count = {count.data(), 0, 0, 1},
                   .position = {position.data(), 0, 0, bound}};
    return cache;
  }

  std::vector<float> k, v;
  std::vector<int> count, position;
  int bound;
};

/// The last `rows` query rows of that cache.
struct layer_queries {
  layer_queries(int entries, int rows)
      : values(static_cast<std::size_t>(heads) * group * static_cast<std::size_t>(rows) * dims) {
    fill_rows(values, 3);
    for (int r = 0; r < rows; ++r) position.push_back(entries - rows + r);
  }
  [[nodiscard]] kv::queries signal() const {
    auto const rows = static_cast<int>(position.size());
    return {{reinterpret_cast<std::byte const*>(values.data()),
             kv::codec::f32,
             dims,
             0,
             0,
             4LL * dims * rows,
             4LL * dims,
             heads * group,
             rows,
             {position.data()}}};
  }
  std::vector<float> values;
  std::vector<int> position;
};

}  // namespace bench

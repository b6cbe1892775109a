// Kernels of the gates other than products of blocks, for each instruction set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/row_blocks.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

struct gate_kernels {
  /// row[d] *= by[d] / sqrt(mean of the row's squares + 1e-6).
  void (*normalise)(float* row, int dims, float const* by) = nullptr;
  /// row[u] = silu(row[u] + bias[u]); `units` is a multiple of the block size.
  void (*activate)(float* row, int units, float const* bias) = nullptr;
};

template <int Width>
struct gate_bodies {
  using floats = typename vector_of<Width>::floats;
  [[gnu::always_inline]] static inline void normalise(float* row, int dims, float const* by) {
    floats squares{};
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      floats part;
      get(part, row + d);
      squares += part * part;
    }
    float sum = block_bodies<Width, Width>::across(squares, false);
    for (int rest = d; rest < dims; ++rest) sum += row[rest] * row[rest];
    float const scale = 1.0f / std::sqrt(sum / static_cast<float>(dims) + 1e-6f);
    for (d = 0; d + Width <= dims; d += Width) {
      floats part;
      floats weight;
      get(part, row + d);
      get(weight, by + d);
      put(part * scale * weight, row + d);
    }
    for (; d < dims; ++d) row[d] *= scale * by[d];
  }

  [[gnu::always_inline]] static inline void activate(float* row, int units, float const* bias) {
    for (int u = 0; u < units; u += Width) {
      floats value;
      floats part;
      get(value, row + u);
      get(part, bias + u);
      value += part;
      floats tail = value < 0.0f ? value : -value;
      exp_of_negative<Width>(tail);
      put(value * (value < 0.0f ? tail : floats{} + 1.0f) / (1.0f + tail), row + u);
    }
  }
};

/// Code for any compiler and processor.
struct portable_gates {
  static void normalise(float* row, int dims, float const* by) { gate_bodies<4>::normalise(row, dims, by); }
  static void activate(float* row, int units, float const* bias) { gate_bodies<4>::activate(row, units, bias); }
  static constexpr gate_kernels kernels{normalise, activate};
};

#if defined(__x86_64__)

struct avx2_gates {
  [[gnu::target(KVPOLICY_AVX2)]] static void normalise(float* row, int dims, float const* by) {
    gate_bodies<8>::normalise(row, dims, by);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void activate(float* row, int units, float const* bias) {
    gate_bodies<8>::activate(row, units, bias);
  }
  static constexpr gate_kernels kernels{normalise, activate};
};

struct avx512_gates {
  using bodies = gate_bodies<16>;
  [[gnu::target(KVPOLICY_AVX512)]] static void normalise(float* row, int dims, float const* by) {
    bodies::normalise(row, dims, by);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void activate(float* row, int units, float const* bias) {
    bodies::activate(row, units, bias);
  }
  static constexpr gate_kernels kernels{normalise, activate};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline gate_kernels const& gates_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_gates::kernels;
  if (simd_level == isa::avx2) return avx2_gates::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_gates::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail

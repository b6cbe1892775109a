// Kernels of residual other than products of blocks, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/residual_bodies.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

struct residual_kernels {
  /// to[d] += from[d].
  void (*add)(float const* from, int dims, float* to) = nullptr;
  /// out[e] += sum over 32 hidden units of last * gelu(products + constant + slope * rule).
  void (*perceive)(hidden_tile const& tile, float* out) = nullptr;
  /// to[e][0 .. 31] = softmax of (from[e] + constant + slope * rule[e]). Rows of `to` are `stride` apart.
  void (*attend)(float const* from, int count, float const* constant, float const* slope, float const* rule, float* to,
                 std::int64_t stride) = nullptr;
  /// One step of an online softmax over a block of 32 logits, of which the first `there` are used. They become
  /// e^(logit - row_max), and `shrink` becomes the factor for the sums so far.
  void (*advance)(float* values, int count, int there, float* row_max, float* sum, float* shrink) = nullptr;
  /// to[e][0 .. 31] = to[e] * shrink[e] + from[e]. Rows of `to` are `stride` apart. With shrink == null, to = from.
  void (*blend)(float const* from, int count, float const* shrink, float* to, std::int64_t stride) = nullptr;
  /// to[e][0 .. 31] = from[e] + constant + slope * rule[e]. Rows of `to` are `stride` apart.
  void (*shift)(float const* from, int count, float const* constant, float const* slope, float const* rule, float* to,
                std::int64_t stride) = nullptr;
  /// to[d] = from[d] / by.
  void (*divide)(float const* from, int dims, float by, float* to) = nullptr;
};

/// Code for any compiler and processor.
struct portable_residual {
  using bodies = residual_bodies<4>;
  static void add(float const* from, int dims, float* to) { bodies::add(from, dims, to); }
  static void perceive(hidden_tile const& tile, float* out) { bodies::perceive(tile, out); }
  static void attend(float const* from, int count, float const* constant, float const* slope, float const* rule,
                     float* to, std::int64_t stride) {
    bodies::attend(from, count, constant, slope, rule, to, stride);
  }
  static void advance(float* values, int count, int there, float* row_max, float* sum, float* shrink) {
    bodies::advance(values, count, there, row_max, sum, shrink);
  }
  static void blend(float const* from, int count, float const* shrink, float* to, std::int64_t stride) {
    bodies::blend(from, count, shrink, to, stride);
  }
  static void shift(float const* from, int count, float const* constant, float const* slope, float const* rule,
                    float* to, std::int64_t stride) {
    bodies::shift(from, count, constant, slope, rule, to, stride);
  }
  static void divide(float const* from, int dims, float by, float* to) { bodies::divide(from, dims, by, to); }
  static constexpr residual_kernels kernels{add, perceive, attend, advance, blend, shift, divide};
};

#if defined(__x86_64__)

struct avx2_residual {
  using bodies = residual_bodies<8>;
  [[gnu::target(KVPOLICY_AVX2)]] static void add(float const* from, int dims, float* to) {
    bodies::add(from, dims, to);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void perceive(hidden_tile const& tile, float* out) {
    bodies::perceive(tile, out);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void attend(float const* from, int count, float const* constant,
                                                    float const* slope, float const* rule, float* to,
                                                    std::int64_t stride) {
    bodies::attend(from, count, constant, slope, rule, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void advance(float* values, int count, int there, float* row_max, float* sum,
                                                     float* shrink) {
    bodies::advance(values, count, there, row_max, sum, shrink);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void blend(float const* from, int count, float const* shrink, float* to,
                                                   std::int64_t stride) {
    bodies::blend(from, count, shrink, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void shift(float const* from, int count, float const* constant,
                                                   float const* slope, float const* rule, float* to,
                                                   std::int64_t stride) {
    bodies::shift(from, count, constant, slope, rule, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void divide(float const* from, int dims, float by, float* to) {
    bodies::divide(from, dims, by, to);
  }
  static constexpr residual_kernels kernels{add, perceive, attend, advance, blend, shift, divide};
};

struct avx512_residual {
  using bodies = residual_bodies<16>;
  [[gnu::target(KVPOLICY_AVX512)]] static void add(float const* from, int dims, float* to) {
    bodies::add(from, dims, to);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void perceive(hidden_tile const& tile, float* out) {
    bodies::perceive(tile, out);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void attend(float const* from, int count, float const* constant,
                                                      float const* slope, float const* rule, float* to,
                                                      std::int64_t stride) {
    bodies::attend(from, count, constant, slope, rule, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void advance(float* values, int count, int there, float* row_max, float* sum,
                                                       float* shrink) {
    bodies::advance(values, count, there, row_max, sum, shrink);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void blend(float const* from, int count, float const* shrink, float* to,
                                                     std::int64_t stride) {
    bodies::blend(from, count, shrink, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void shift(float const* from, int count, float const* constant,
                                                     float const* slope, float const* rule, float* to,
                                                     std::int64_t stride) {
    bodies::shift(from, count, constant, slope, rule, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void divide(float const* from, int dims, float by, float* to) {
    bodies::divide(from, dims, by, to);
  }
  static constexpr residual_kernels kernels{add, perceive, attend, advance, blend, shift, divide};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline residual_kernels const& residual_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_residual::kernels;
  if (simd_level == isa::avx2) return avx2_residual::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_residual::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail

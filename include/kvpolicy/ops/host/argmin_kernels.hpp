// Finds the lowest score of a row, for each instruction set.
#pragma once

#include <kvpolicy/ops/host/argmin_bodies.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// - `last_lowest` returns the index of the lowest of `count` >= 1 scores, and the last one of equal scores; NaN is
///   below every number.
/// - `lowest_of` does so among the entries whose positions are in a range, and returns the one of the highest position
///   of those with equal scores; -1 if there is none.
/// - `count_from` returns the number of positions that are `limit` or higher.
struct argmin_kernels {
  int (*last_lowest)(float const* scores, int count, std::int64_t* nan) = nullptr;
  int (*lowest_of)(float const* scores, int const* position, int count, position_range among,
                   std::int64_t* nan) = nullptr;
  int (*count_from)(int const* position, int count, int limit) = nullptr;
};

#if defined(KVPOLICY_COMPILED)
[[nodiscard]] argmin_kernels const& argmin_for(isa simd_level);
#else
/// Code for any compiler and processor.
struct portable_argmin {
  static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<4>::last_lowest(scores, count, nan);
  }
  static int lowest_of(float const* scores, int const* position, int count, position_range among, std::int64_t* nan) {
    return argmin_bodies<4>::lowest_of(scores, position, count, among, nan);
  }
  static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<4>::count_from(position, count, limit);
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

#if defined(__x86_64__)

struct avx2_argmin {
  [[gnu::target(KVPOLICY_AVX2)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<8>::last_lowest(scores, count, nan);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int lowest_of(float const* scores, int const* position, int count,
                                                      position_range among, std::int64_t* nan) {
    return argmin_bodies<8>::lowest_of(scores, position, count, among, nan);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<8>::count_from(position, count, limit);
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

struct avx512_argmin {
  [[gnu::target(KVPOLICY_AVX512)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<16>::last_lowest(scores, count, nan);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<16>::count_from(position, count, limit);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int lowest_of(float const* scores, int const* position, int count,
                                                        position_range among, std::int64_t* nan) {
    if (among.is_all()) {
      lowest_search<16>::lowest_found found;
      int const entry = lowest_search<16>::lowest_entry(scores, count, found);
      if (!found.many && !found.maybe_nan) return entry;
    }
    return avx2_argmin::lowest_of(scores, position, count, among, nan);  // g++ 12 chooses slowly between wider vectors
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

#endif

/// The kernel for an executor's instruction set.
[[nodiscard]] inline argmin_kernels const& argmin_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_argmin::kernels;
  if (simd_level == isa::avx2) return avx2_argmin::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_argmin::kernels;
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail

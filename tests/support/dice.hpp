// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace kvpolicy_test {

/// A number that is not negative, as sizes and indices of std are.
template <class Number>
constexpr std::size_t as_size(Number number) {
  return static_cast<std::size_t>(number);
}

/// A number in [-1, 1) that follows from a key, without a generator: cheap enough for every element of a row.
inline float number_of(std::uint64_t key) {
  key += 0x9E3779B97F4A7C15u;
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>(static_cast<double>((key ^ (key >> 31)) >> 11) * 0x1p-52 - 1.0);
}

/// Seeded random choices: rapidcheck picks the shape and the seed, dice fill the memory.
class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_(seed) {}

  /// An integer in [0, n), n > 0.
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }

  /// An integer in [low, high].
  int between(int low, int high) { return low + below(high - low + 1); }

  bool chance(int percent) { return below(100) < percent; }

  /// A number in [-size, size).
  double real(double size) { return (static_cast<double>(engine_() >> 11) * 0x1p-52 - 1.0) * size; }

  template <class T>
  T const& one_of(std::vector<T> const& choices) {
    return choices[as_size(below(static_cast<int>(choices.size())))];
  }

  /// `count` different integers of [0, n), ascending.
  std::vector<int> subset(int n, int count) {
    std::vector<int> chosen = permutation(n);
    chosen.resize(as_size(count));
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

  std::vector<int> permutation(int n) {
    std::vector<int> all;
    for (int i = 0; i < n; ++i) all.push_back(i);
    for (int i = n - 1; i > 0; --i) std::swap(all[as_size(i)], all[as_size(below(i + 1))]);
    return all;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace kvpolicy_test

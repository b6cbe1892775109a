// SPDX-License-Identifier: Apache-2.0
// The alternatives that a user would write, at their best. Each runs on as many threads as it chooses.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace bench::peers {

/// The k-th largest value by std::nth_element. It reorders its input, so the measured time includes a copy. In this
/// copy a NaN, which has no order, becomes -inf.
inline float nth_element(std::span<float const> row, int k, std::vector<float>& temp_storage) {
  temp_storage.resize(row.size());
  std::transform(row.begin(), row.end(), temp_storage.begin(),
                 [](float x) { return x == x ? x : -std::numeric_limits<float>::infinity(); });
  std::nth_element(temp_storage.begin(), temp_storage.begin() + (k - 1), temp_storage.end(), std::greater<>{});
  return temp_storage[static_cast<std::size_t>(k) - 1];
}

/// Maps a number to bits that have the order of numbers.
inline std::uint32_t ordered(float value) {
  auto const bits = std::bit_cast<std::uint32_t>(value == 0.0f ? 0.0f : value);
  if (value != value) return 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Selects the ordinals of the k largest values, in ascending order; ties go to the lower ordinal. There are three
/// histogram passes of 11, 11 and 10 bits, and one pass that writes.
inline int radix_select(std::span<float const> row, int k, std::vector<std::uint32_t>& keys, int* to) {
  keys.resize(row.size());
  std::transform(row.begin(), row.end(), keys.begin(), ordered);
  std::uint32_t prefix = 0;
  std::uint32_t mask = 0;
  int left = k;
  for (auto const [shift, bits] : {std::array{21, 11}, std::array{10, 11}, std::array{0, 10}}) {
    std::array<int, 2048> counts{};
    std::uint32_t const digits = (1u << bits) - 1;
    for (std::uint32_t const key : keys) counts[(key >> shift) & digits] += (key & mask) == prefix ? 1 : 0;
    std::uint32_t digit = digits;
    for (; digit > 0 && counts[digit] < left; --digit) left -= counts[digit];
    prefix |= digit << shift;
    mask |= digits << shift;
  }
  int kept = 0;
  for (std::size_t e = 0; e < keys.size() && kept < k; ++e) {
    bool const tied = keys[e] == prefix && left > 0;
    to[kept] = static_cast<int>(e);
    kept += keys[e] > prefix || tied ? 1 : 0;
    left -= tied ? 1 : 0;
  }
  return kept;
}

/// Attention mass of one head's rows with plain Eigen: one product for the logits, a softmax row by row, and the sum of
/// the rows. Every row sees every key. `temp_storage` gets rows x entries floats and, for bf16, the keys as floats.
void eigen_mass(float const* keys, float const* queries, int entries, int rows, int dims, float* out,
                std::vector<float>& temp_storage);
void eigen_mass(std::uint16_t const* keys_bf16, std::uint16_t const* queries_bf16, int entries, int rows, int dims,
                float* out, std::vector<float>& temp_storage);

/// out[row][unit] = rows [count][columns] times weights [units][columns], with plain Eigen.
void eigen_product(float const* rows, float const* weights, int count, int columns, int units, float* out);

}  // namespace bench::peers

// SPDX-License-Identifier: Apache-2.0
// A hash of token ids: the first half of their SHA-256.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/config.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// A hash of 128 bits.
struct token_hash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(token_hash const&, token_hash const&) = default;
};

namespace detail {

inline constexpr std::array<std::uint32_t, 64> sha256_constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/// SHA-256 (FIPS 180-4) of a message of whole 32-bit words.
class sha256 {
 public:
  void add(std::uint32_t word) {
    block_[words_++ % 16] = word;
    if (words_ % 16 == 0) mix();
  }

  /// Ends the message and returns the first 128 bits of its hash.
  [[nodiscard]] token_hash finish() {
    std::uint64_t const bits = words_ * 32;
    add(0x80000000);
    while (words_ % 16 != 14) add(0);
    add(static_cast<std::uint32_t>(bits >> 32));
    add(static_cast<std::uint32_t>(bits));
    auto const two = [](std::uint32_t first, std::uint32_t second) { return std::uint64_t{first} << 32 | second; };
    return {two(state_[0], state_[1]), two(state_[2], state_[3])};
  }

 private:
  void mix() {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t t = 0; t < 16; ++t) w[t] = block_[t];
    for (std::size_t t = 16; t < 64; ++t) {
      std::uint32_t const near = w[t - 2], far = w[t - 15];
      w[t] = (std::rotr(near, 17) ^ std::rotr(near, 19) ^ near >> 10) + w[t - 7] +
             (std::rotr(far, 7) ^ std::rotr(far, 18) ^ far >> 3) + w[t - 16];
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
      std::uint32_t const one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                                sha256_constants[t] + w[t];
      std::uint32_t const two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    std::array<std::uint32_t, 8> const mixed = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state_[i] += mixed[i];
  }

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint32_t, 16> block_{};
  std::uint64_t words_ = 0;
};

}  // namespace detail

/// Hashes token ids and their number: the first 128 bits of the SHA-256 of the number (8 bytes) and the ids (4 bytes
/// each), all little endian, so that the hash is the same on every machine. No way is known to construct two lists with
/// the same hash.
///
/// - cost: O(ids), 17 blocks of SHA-256 for 256 ids. It allocates nothing.
/// - source: FIPS 180-4, truncated as its section 7 and NIST SP 800-107 allow.
[[nodiscard]] inline token_hash hash_tokens(std::span<int const> ids) {
  auto const little = [](std::uint32_t word) {  // SHA-256 reads words big endian
    return word << 24 | (word & 0xff00) << 8 | (word >> 8 & 0xff00) | word >> 24;
  };
  auto const count = static_cast<std::uint64_t>(ids.size());
  detail::sha256 sum;
  sum.add(little(static_cast<std::uint32_t>(count)));
  sum.add(little(static_cast<std::uint32_t>(count >> 32)));
  for (int const id : ids) sum.add(little(static_cast<std::uint32_t>(id)));
  return sum.finish();
}

}  // namespace KVPOLICY_NAMESPACE

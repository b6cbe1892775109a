// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "support/mock_options.hpp"

namespace kvpolicy_fuzz {

namespace kv = kvpolicy;

/// Ends the program with a word about what is wrong: libFuzzer then keeps the input.
inline void require(bool holds, std::string_view law) {
  if (holds) return;
  std::cerr << "not true: " << law << '\n';
  std::abort();
}

/// A fuzzer's input as choices, one after the other. Behind its end every choice is the first.
class bytes {
 public:
  bytes(std::uint8_t const* data, std::size_t size) : left_(data, size) {}

  [[nodiscard]] bool empty() const { return left_.empty(); }

  /// An integer in [0, n), n > 0.
  int below(int n) { return static_cast<int>(raw(n > 256 ? 4 : 1) % static_cast<std::uint32_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool coin() { return below(2) == 1; }
  std::uint64_t seed() { return raw(4); }

  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<int>(choices.size()))];
  }

  /// A float of any bits.
  float number() {
    std::uint32_t const bits = raw(4);
    float made = 0;
    std::memcpy(&made, &bits, sizeof made);
    return made;
  }

  /// Flags, eight a byte.
  std::vector<bool> flags(int count) {
    std::vector<bool> made;
    for (int i = 0, now = 0; i < count; ++i) {
      if (i % 8 == 0) now = below(256);
      made.push_back((now >> (i % 8) & 1) != 0);
    }
    return made;
  }

 private:
  std::uint32_t raw(std::size_t width) {
    std::uint32_t made = 0;
    std::size_t const there = width < left_.size() ? width : left_.size();
    for (std::size_t i = 0; i < there; ++i) made |= std::uint32_t{left_[i]} << (8 * i);
    left_ = left_.subspan(there);
    return made;
  }

  std::span<std::uint8_t const> left_;
};

/// Instructions that the processor has, the portable ones too.
inline kv::isa any_isa(bytes& from) { return static_cast<kv::isa>(from.below(static_cast<int>(kv::best_isa()) + 1)); }

/// Any shape, layout and locator; wide heads and long lanes come in small batches.
inline kvpolicy_test::mock_options any_mock(bytes& from) {
  using kvpolicy_test::arrangement;
  kvpolicy_test::mock_options how;
  how.model.head_dim = from.one_of({4, 1, 5, 16, 33, 64, 80, 96, 128, 256});
  how.bound = from.one_of({8, 1, 31, 32, 33, 65, 257});
  bool const small = how.model.head_dim >= 64 || how.bound > 64;
  how.sequences = from.between(1, small ? 2 : 3);
  how.model.layers = from.between(1, small ? 1 : 3);
  how.model.kv_heads = from.between(1, small ? 2 : 3);
  how.model.query_heads = how.model.kv_heads * from.one_of({1, 2, 4, 3});
  how.element = from.one_of({kv::codec::f32, kv::codec::f16, kv::codec::bf16});
  how.memory = static_cast<arrangement>(from.below(7));
  bool const packed = how.memory == arrangement::packed_rows || how.memory == arrangement::packed_units;
  how.model.value_dim = from.coin() ? packed ? how.model.head_dim : 3 : 0;
  how.where = static_cast<kv::locating>(from.below(4));
  how.shared_table = from.coin();
  if (how.memory == arrangement::one_pool) {
    how.shared_table = false;
    if (how.where != kv::locating::slot_map) how.where = kv::locating::block_table;
  }
  how.page = from.one_of({4, 16});
  how.padding = from.one_of({0, 12});
  how.skew = from.one_of({0, 0, 0, 2});
  how.seed = from.seed();
  return how;
}

}  // namespace kvpolicy_fuzz

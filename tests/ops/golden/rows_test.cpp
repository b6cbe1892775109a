// SPDX-License-Identifier: Apache-2.0
// Sums of rows, query memory, numbers of new tokens and turned keys: bits on every instruction set.

#include "support/golden.hpp"

namespace golden_rows_test {

using namespace kvpolicy_test;

constexpr kv::codec elements[] = {kv::codec::f32, kv::codec::f16, kv::codec::bf16};

std::uint64_t of_sums(kv::isa level) {
  kv::detail::element_rows_kernels const& kernels = kv::detail::element_rows_of_isa[level];
  folded all;
  dice random(3);
  for (kv::codec const element : elements) {
    for (int dims = 1; dims <= 200; dims += dims < 40 ? 1 : 9) {
      for (int const count : {1, 2, 5, 8}) {
        std::vector<std::byte> const numbers = any_rows(random, element, as_size(count * dims), random.chance(70));
        std::vector<std::byte const*> rows;
        for (int r = 0; r < count; ++r) rows.push_back(numbers.data() + r * dims * kv::bytes_of(element));
        std::vector<float> to(as_size(dims), 0.75f), wide(as_size(dims));
        kernels.of(element)(rows.data(), rows.data(), count, dims, to.data());
        for (float const divisor : {1.0f, 7.0f}) {
          kernels.sum_of(element)(rows.data(), rows.data(), count, dims, divisor, to.data());
        }
        if (element == kv::codec::f32) kernels.max_f32(rows.data(), rows.data(), count, dims, to.data());
        if (element == kv::codec::f16) kernels.convert_f16(rows[0], dims, wide.data());
        all.add(std::span<float const>(to));
        all.add(std::span<float const>(wide));
      }
    }
  }
  return all.bits();
}

std::uint64_t of_memory(kv::isa level) {
  folded all;
  dice random(4);
  for (kv::codec const element : elements) {
    for (int const dims : {1, 7, 24, 64, 100, 128, 200}) {
      for (int const rows : {1, 15, 16, 17, 33, 70}) {
        std::vector<std::byte> numbers = any_rows(random, element, as_size(2 * rows * dims), random.chance(80));
        std::vector<float> memory(as_size(2 * dims), 0.125f);
        kv::turn_queries turn;
        turn.base = numbers.data(), turn.element = element, turn.dims = dims, turn.heads = 2, turn.rows = rows;
        turn.row = std::int64_t{dims} * kv::bytes_of(element), turn.head = rows * turn.row;
        kv::host_executor exec(1, level);
        exec.reserve(kv::implementation<kv::ops::update_query_memory_t, kv::host>::scratch({1, 2, 1, dims}, 0));
        int count = 1;
        kv::lanes const lanes{.layer_end = 1, .heads = 1, .capacity = 1, .count = {&count}};
        for (kv::query_memory_update const how : {kv::query_memory_update{0.6f, true, 40}, {0.3f, false, 70}, {}}) {
          kv::ops::update_query_memory(exec, lanes, turn, how, kv::by_lane<float>{memory.data()});
          all.add(std::span<float const>(memory));
        }
      }
    }
  }
  return all.bits();
}

std::uint64_t of_numbers(kv::isa level) {
  folded all;
  dice random(5);
  for (kv::codec const element : elements) {
    for (int const tokens : {2, 3, 4, 7, 16, 37, 100}) {
      for (int const heads : {8, 11}) {
        std::vector<std::byte> numbers = any_rows(random, element, as_size(tokens * heads), false);
        for (std::byte& each : numbers) each = random.chance(30) ? std::byte{0} : each;
        std::vector<float> column(as_size(heads * tokens), 7.0f);
        std::vector<int> count(as_size(heads), tokens);
        kv::entry_numbers from;
        from.base = numbers.data(), from.element = element, from.entries = tokens;
        from.head = kv::bytes_of(element), from.entry = from.head * heads;
        kv::lanes const lanes{.layer_end = 1, .heads = heads, .capacity = tokens, .count = {count.data(), 0, 0, 1}};
        kv::host_executor exec(1, level);
        kv::ops::append_column(exec, lanes, from, kv::by_lane<float>{column.data(), 0, 0, tokens});
        all.add(std::span<float const>(column));
      }
    }
  }
  return all.bits();
}

std::uint64_t of_turns(kv::isa level) {
  folded all;
  dice random(6);
  for (kv::codec const element : elements) {
    for (int const dims : {2, 14, 16, 32, 40, 64, 100}) {
      constexpr int entries = 40;
      std::vector<std::byte> numbers = any_rows(random, element, as_size(entries * dims), false);
      std::vector<int> position;
      for (int e = 0; e < entries; ++e) position.push_back(e * random.below(300) + e % 3);
      int count = entries;
      kv::cache in;
      in.lanes = {.layer_end = 1, .heads = 1, .capacity = entries, .count = {&count}, .position = {position.data()}};
      in.k = {.base = numbers.data(), .element = element, .channels = dims, .channel_stride = kv::bytes_of(element)};
      in.k.token_stride = in.k.channel_stride * dims, in.k.unit_stride = entries * in.k.token_stride;
      in.where = kv::identity_map(entries);
      kv::host_executor exec(1, level);
      exec.reserve(kv::implementation<kv::ops::rerotate_t, kv::host>::scratch(in));
      kv::ops::rerotate(exec, in.lanes, in, kv::rope{});
      for (std::int64_t i = 0; i < entries * dims; ++i)
        all.add(kv::load(element, numbers.data() + i * in.k.channel_stride));
    }
  }
  return all.bits();
}

TEST_SUITE("ops/golden/rows") {
  TEST_CASE("kernels give the bits that they gave before") {
    for_each_isa([](kv::isa level) {
      CHECK(of_sums(level) == 0x3FC90BCB2027637Fu);
      CHECK(of_memory(level) == 0x3E170729F71B96C0u);
      CHECK(of_numbers(level) == 0x2D3CCC0008BC9FD2u);
      if (has_recorded_sums) CHECK(of_turns(level) == 0x4E417A382A75A449u);
    });
  }
}

}  // namespace golden_rows_test

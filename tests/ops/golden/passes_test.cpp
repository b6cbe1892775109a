// SPDX-License-Identifier: Apache-2.0
// Norms, lowest scores, passes over slots and lists of ordinals: bits on every instruction set.

#include "support/golden.hpp"

namespace golden_passes_test {

using namespace kvpolicy_test;

std::uint64_t of_norms(kv::isa simd_level, kv::codec element) {
  kv::detail::norms_kernels const& kernels = kv::detail::norms_of_isa[simd_level];
  folded all;
  dice random(3);
  auto const width = as_size(kv::bytes_of(element));
  for (bool const finite : {true, false}) {
    for (int dims = 1; dims <= 200; ++dims) {
      for (int const count : {1, 3, 4, 8, 16}) {
        auto const rows = as_size(count), row = as_size(dims);
        std::vector<std::byte> const numbers = any_rows(random, element, rows * row, finite);
        std::vector<std::byte const*> at(rows);
        for (std::size_t r = 0; r < rows; ++r) at[r] = numbers.data() + r * row * width;
        std::vector<double> sums(16, 2.0);
        kernels.of(element)(at.data(), at.data(), count, dims, sums.data());
        all.add(std::span<double const>(sums).first(rows));
        float norms[16];
        kernels.roots(sums.data(), norms);
        all.add(std::span<float const>(norms));
      }
    }
  }
  return all.bits();
}

std::uint64_t of_lowest(kv::isa simd_level) {
  kv::detail::lowest_kernels const& kernels = kv::detail::lowest_of_isa[simd_level];
  folded all;
  dice random(4);
  for (int const count :
       {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200, 1023, 1024, 1025, 2500, 4097}) {
    for (int const distinct : {1, 2, 5, 100000}) {
      for (int const nan_percent : {0, 0, 2}) {
        std::vector<float> scores(as_size(count) + 16);
        std::vector<int> const position = random.permutation(count);
        for (std::size_t e = 0; e < scores.size(); ++e) {
          scores[e] = static_cast<float>(random.below(distinct)) / 7.0f - 3.0f;
          if (random.chance(nan_percent)) scores[e] = std::numeric_limits<float>::quiet_NaN();
          if (random.chance(1)) scores[e] = std::numeric_limits<float>::infinity();
        }
        for (std::size_t const shift : {0u, 1u, 5u}) {
          std::int64_t nan = 0;
          all.add(kernels.last_lowest(scores.data() + shift, count, &nan));
          for (kv::detail::position_range const among :
               {kv::detail::all_positions, kv::detail::position_range{count / 5, count - count / 7}}) {
            all.add(kernels.lowest_of(scores.data() + shift, position.data(), count, among, &nan));
          }
          all.add(nan);
        }
        for (int const limit : {0, count / 3, count}) all.add(kernels.count_from(position.data(), count, limit));
      }
    }
  }
  return all.bits();
}

std::uint64_t of_slots(kv::isa simd_level) {
  kv::detail::slots_kernels const& kernels = kv::detail::slots_of_isa[simd_level];
  folded all;
  dice random(5);
  for (int count = 0; count < 300; count += count < 70 ? 1 : 37) {
    for (int const percent : {0, 3, 50, 97, 100}) {
      for (bool const gaps : {false, true}) {
        auto const entries = as_size(count);
        std::vector<unsigned char> marks(entries + 3);
        std::vector<int> slot(entries), position(entries), numbers(entries);
        int next = 0;
        for (std::size_t e = 0; e < entries; ++e) {
          marks[e] = random.chance(percent) ? 1 : 0;
          slot[e] = random.below(2 * count + 1);
          position[e] = next;
          next += gaps && random.chance(30) ? 1 + random.below(3) : 1;
          numbers[e] = random.below(3 * count + 3) - 1;
        }
        std::vector<int> map(as_size(next) + 3, -5);
        for (std::size_t e = 0; e < entries; ++e) map[as_size(position[e])] = slot[e];
        all.add(kernels.inside(numbers.data(), count, static_cast<unsigned>(3 * count), 5) ? 1 : 0);
        all.add(kernels.inside(slot.data(), count, static_cast<unsigned>(2 * count + 1), -1) ? 1 : 0);
        all.add(kernels.ascends(numbers.data(), count) ? 1 : 0);
        all.add(kernels.ascends(position.data(), count) ? 1 : 0);
        all.add(kernels.matches_map(slot.data(), position.data(), count, map.data()) ? 1 : 0);
        std::vector<int> anywhere(2 * entries + 17);
        for (std::size_t e = 0; e < entries; ++e) anywhere[as_size(slot[e])] = position[e];
        all.add(kernels.matches_map(position.data(), slot.data(), count, anywhere.data()) ? 1 : 0);
        all.add(kv::detail::count_set(marks.data(), count));
        std::vector<unsigned char> bytes(2 * entries + 8);
        bytes[entries] = 1;
        all.add(kernels.any_set(bytes.data(), slot.data(), count) ? 1 : 0);
        int gone = 0;
        for (std::size_t e = 0; e < entries; ++e) gone += marks[e] != 0 ? 0 : 1;
        for (bool const in_place : {false, true}) {
          std::vector<int> list = slot, kept(entries), dropped(entries);
          std::vector<unsigned char> units(2 * entries + 8);
          kernels.partition(marks.data(), count, gone, list.data(), in_place ? list.data() : kept.data(),
                            dropped.data(), units.data());
          auto const left = as_size(count - gone);
          all.add(std::span<int const>(in_place ? list : kept).first(left));
          all.add(std::span<int const>(dropped).first(as_size(gone)));
          all.add(std::span<unsigned char const>(units));
        }
        std::vector<int> taken(entries, -9);
        std::vector<int> first(map.begin(), map.begin() + count);
        int const room = count - gone;
        all.add(kernels.collect_live(marks.data(), count, -1, first.data(), room, taken.data()));
        all.add(std::span<int const>(taken));
        all.add(std::span<int const>(first));
        kernels.redirect_to_dead(marks.data(), position.data(), count, -7, map.data());
        all.add(std::span<int const>(map));
      }
    }
  }
  return all.bits();
}

std::uint64_t of_lists(kv::isa simd_level) {
  folded all;
  dice random(6);
  for (int count = 1; count < 400; count += count < 140 ? 1 : 37) {
    for (int const percent : {0, 3, 50, 97, 100}) {
      auto const entries = as_size(count);
      std::vector<int> position(entries), rows(entries, -3);
      std::vector<std::uint32_t> bits(entries / 32 + 1);
      std::vector<unsigned char> marks(entries);
      int listed = 0;
      for (std::size_t e = 0; e < entries; ++e) {
        bool const is_set = random.chance(percent);
        position[e] = is_set ? random.below(1000) : -1 - random.below(3);
        marks[e] = is_set ? 1 : 0;
        bits[e / 32] |= (is_set ? 1u : 0u) << (e % 32);
        listed += is_set ? 1 : 0;
      }
      all.add(kv::detail::listing_of_isa[simd_level].rows(position.data(), count, 0, rows.data()));
      all.add(std::span<int const>(rows));
      std::vector<int> ordinals(as_size(listed) + 1, -3);
      kv::detail::listing_of_isa[simd_level].bits(bits.data(), count, listed, ordinals.data());
      all.add(std::span<int const>(ordinals));
      std::vector<int> of_marks(entries + 1);
      all.add(kv::detail::listing_of_isa[simd_level].marked(marks.data(), count, of_marks.data()));
      all.add(std::span<int const>(of_marks).first(as_size(listed)));
      auto* const in_place = reinterpret_cast<unsigned char*>(of_marks.data()) + 3 * entries;
      std::memcpy(in_place, marks.data(), entries);
      all.add(kv::detail::listing_of_isa[simd_level].marked(in_place, count, of_marks.data()));
      all.add(std::span<int const>(of_marks).first(as_size(listed)));
    }
  }
  return all.bits();
}

TEST_SUITE("ops/golden/passes") {
  TEST_CASE("kernels give the bits that they gave before") {
    for_each_isa([](kv::isa level) {
      CHECK(of_norms(level, kv::codec::f32) == 0xC572D4B71976DFCDu);
      CHECK(of_norms(level, kv::codec::f16) == 0x97510D6B36EBD0EEu);
      CHECK(of_norms(level, kv::codec::bf16) == 0xB30D65286E363A41u);
      CHECK(of_lowest(level) == 0xAC3676B1DFDE11DCu);
      CHECK(of_lists(level) == 0x1FF836C40C139AE4u);
      CHECK(of_slots(level) == 0x2BF75D5BB3C38AFBu);
    });
  }
}

}  // namespace golden_passes_test

// SPDX-License-Identifier: Apache-2.0
// The host's kernels that list marked entries, transpose squares and add up rows, for each instruction set against
// plain loops: every number of entries around a vector's width, rows that begin anywhere, NaN, infinities and subnormal
// numbers.
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Kept ordinals below `count`, ascending: `percent` of them.
std::vector<int> some_of(dice& random, int count, int percent) {
  std::vector<int> made;
  for (int e = 0; e < count; ++e) {
    if (random.chance(percent)) made.push_back(e);
  }
  return made;
}

TEST_CASE("list_dropped lists what is not kept, and writes nothing behind its memory") {
  dice random(3);
  for (kv::isa const level : vector_isas()) {
    for (int count = 0; count < 400; count += count < 200 ? 1 : 13) {
      for (int const percent : {0, 3, 50, 97, 99, 100}) {
        std::vector<int> const kept = some_of(random, count, percent);
        std::vector<int> expected;
        for (int e = 0, next = 0; e < count; ++e) {
          bool const stays = next < std::ssize(kept) && kept[as_size(next)] == e;
          next += stays ? 1 : 0;
          if (!stays) expected.push_back(e);
        }
        std::vector<int> dropped(as_size(count) + 3, -7);
        int const gone = kv::detail::list_dropped(kv::host_executor(1, level), kept, count, dropped.data());
        CHECK(dropped[as_size(count) + 1] == -7);
        CHECK(dropped[as_size(count) + 2] == -7);
        dropped.resize(as_size(gone));
        CHECK(dropped == expected);
      }
    }
  }
}

TEST_CASE("list_rows lists rows at positions from 0 on, and writes nothing behind them") {
  dice random(9);
  for (kv::isa const level : vector_isas()) {
    for (int const rows : {0, 1, 15, 16, 17, 31, 32, 33, 100, 4097}) {
      for (int const percent : {0, 3, 50, 97, 100}) {
        std::vector<int> const expected = some_of(random, rows, percent);
        std::vector<int> position(as_size(rows), -1), index(expected.size() + 17, -7);
        for (int const r : expected) position[as_size(r)] = random.below(3);
        int const counted = kv::detail::listing_of_isa[level].rows(position.data(), rows, 0, index.data());
        CHECK(counted == std::ssize(expected));
        for (std::size_t i = expected.size(); i < index.size(); ++i) CHECK(index[i] == -7);
        index.resize(expected.size());
        CHECK(index == expected);
      }
    }
  }
}

TEST_CASE("list_marked takes marks from the end of the memory that it writes to") {
  dice random(4);
  for (kv::isa const level : vector_isas()) {
    for (int const count : {1, 15, 16, 63, 64, 65, 128, 1000, 4097}) {
      for (int const percent : {0, 10, 90, 100}) {
        std::vector<int> const expected = some_of(random, count, percent);
        std::vector<int> to(as_size(count) + 1, -7);
        auto* const marks = reinterpret_cast<unsigned char*>(to.data()) + 3 * as_size(count);
        std::memset(marks, 0, as_size(count));
        for (int const e : expected) marks[e] = 1;
        int const listed = kv::detail::listing_of_isa[level].marked(marks, count, to.data());
        CHECK(to.back() == -7);
        to.resize(as_size(listed));
        CHECK(to == expected);
      }
    }
  }
}

/// Elements of any kind, at an address that nothing is aligned to.
std::vector<std::byte> elements(dice& random, kv::codec element, int count) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<std::byte> made(as_size(count * kv::bytes_of(element)) + 1);
  for (int i = 0; i < count; ++i) {
    float value = static_cast<float>(random.below(2001) - 1000) / 128;
    if (random.chance(4)) value = random.one_of<float>({0.0f, -0.0f, 6e-8f, -1e-5f, 60000.0f});
    if (random.chance(1)) value = random.one_of<float>({infinity, -infinity, std::nanf("")});
    kv::store(element, value, made.data() + 1 + i * kv::bytes_of(element));
  }
  return made;
}

TEST_CASE("sums and maxima of rows are those of a loop over the rows, bit for bit") {
  dice random(5);
  for (kv::isa const level : vector_isas()) {
    auto const& kernels = kv::detail::element_rows_of_isa[level];
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (int const dims : {1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 160}) {
        int const count = 1 + random.below(kv::detail::rows_at_a_time);
        std::vector<std::vector<std::byte>> rows;
        std::vector<std::byte const*> at;
        for (int r = 0; r < count; ++r) rows.push_back(elements(random, element, dims));
        for (auto const& row : rows) at.push_back(row.data() + 1);
        std::vector<float> sum(as_size(dims)), expected(sum.size());
        for (std::size_t d = 0; d < sum.size(); ++d) sum[d] = expected[d] = static_cast<float>(d) / 3;
        std::vector<float> highest = sum, expected_highest = sum;
        for (std::size_t d = 0; d < sum.size(); ++d) {
          for (std::byte const* const row : at) {
            auto const value =
                static_cast<float>(decoded(element, row + static_cast<std::ptrdiff_t>(d) * kv::bytes_of(element)));
            expected[d] += value;
            float& most = expected_highest[d];
            if (!std::isnan(most) && !(most > value)) most = value;
          }
        }
        kernels.of(element)(at.data(), at.data(), count, dims, sum.data());
        CHECK(same_bits(sum, expected));
        if (element == kv::codec::f16) {
          std::vector<float> wide(sum.size()), numbers(sum.size());
          kernels.convert_f16(at[0], dims, wide.data());
          for (std::size_t d = 0; d < numbers.size(); ++d)
            numbers[d] = static_cast<float>(decoded(element, at[0] + static_cast<std::ptrdiff_t>(d) * 2));
          CHECK(same_bits(wide, numbers));
        }
        if (element != kv::codec::f32) continue;
        kernels.max_f32(at.data(), at.data(), count, dims, highest.data());
        CHECK(same_bits(highest, expected_highest));
      }
    }
  }
}

TEST_CASE("rows of every size become columns bit for bit, except that a zero becomes +0") {
  dice random(8);
  for (kv::isa const level : vector_isas()) {
    for (int const rows : {1, 3, 7, 8, 15, 16, 21, 32}) {
      for (int const columns : {1, 3, 8, 9, 16}) {
        constexpr int stride = 35;
        std::vector<std::vector<float>> numbers(as_size(rows));
        std::vector<float const*> from;
        std::vector<float> to(as_size(columns * stride), -7.0f), expected = to;
        for (int r = 0; r < rows; ++r) {
          std::vector<float>& row = numbers[as_size(r)];
          for (int c = 0; c < columns; ++c) {
            row.push_back(random.one_of<float>({-0.0f, 1e-42f, std::nanf(""), 0.5f - static_cast<float>(c)}));
            expected[as_size(c * stride + r)] = row.back() == 0 ? 0.0f : row.back();
          }
          from.push_back(row.data());
        }
        kv::detail::transpose_of_isa[level].rows(from.data(), rows, columns, to.data(), stride);
        CHECK(same_bits(to, expected));
      }
    }
  }
}

/// What `pool(level, by, to)` writes is the pool of each entry, in windows of these widths, on every instruction set.
template <class Pool>
void pools_alike(std::vector<float> const& scores, std::vector<int> const& widths, Pool const& pool) {
  int const count = static_cast<int>(scores.size());
  for (int const width : widths) {
    for (kv::pooling const by : {kv::pooling{kv::max_pool{width}}, kv::pooling{kv::avg_pool{width}}}) {
      std::vector<float> expected(scores.size());
      for (int e = 0; e < count; ++e) expected[as_size(e)] = kv::detail::pooled(by, scores.data(), count, e);
      for (kv::isa const level : vector_isas()) {
        INFO("count ", count, ", width ", width, ", level ", static_cast<int>(level));
        std::vector<float> is(scores.size());
        pool(level, by, is);
        CHECK(same_bits(is, expected));
      }
    }
  }
}

TEST_CASE("pool gives the same bits whatever the instruction set, at every place of a row") {
  dice random(6);
  for (int const count : {0, 1, 3, 6, 7, 8, 33, 70, 71, 130, 300}) {
    std::vector<float> scores(as_size(count));
    for (float& each : scores) {
      each = static_cast<float>(random.below(50) - 25);
      if (random.chance(3)) each = random.one_of<float>({-0.0f, std::nanf(""), std::numeric_limits<float>::infinity()});
    }
    pools_alike(scores, {1, 3, 5, 7, 15, 31}, [&](kv::isa level, kv::pooling const& by, std::vector<float>& is) {
      kv::detail::pool_part(kv::host_executor(1, level), by, scores.data(), count, 0, count, is.data());
    });
  }
}

TEST_CASE("a row is pooled in place, block by block, as it is from a copy") {
  dice random(7);
  for (int const count : {0, 1, 9, 2047, 4096, 4097, 6144, 9999}) {
    std::vector<float> scores(as_size(count));
    for (float& each : scores) {  // of any size: means are divided as the instruction divides
      auto const bits =
          static_cast<std::uint32_t>(random.below(1 << 16)) << 16 | static_cast<std::uint32_t>(random.below(1 << 16));
      std::memcpy(&each, &bits, sizeof each);
      if (random.chance(2)) each = static_cast<float>(random.below(1 << 24)) * 0x1p-149f;
    }
    pools_alike(scores, {1, 5, 7, 17, 33, 511, 513, 4001},
                [&](kv::isa level, kv::pooling const& by, std::vector<float>& is) {
                  std::vector<float> window(scores.size());
                  is = scores;
                  kv::detail::pool_row(kv::host_executor(1, level), by, is.data(), count, window.data());
                });
  }
}

TEST_CASE("means of all kinds of sums are the bits of a division") {
  dice random(8);
  std::vector<float> scores(1 << 16);
  for (int const width : {3, 5, 7, 9, 11, 21, 63, 1001}) {
    int const apart = width;  // every sum has one score that is not 0
    for (std::size_t e = 0; e < scores.size(); ++e) {
      auto const bits =
          static_cast<std::uint32_t>(random.below(0xFF00)) << 15 | static_cast<std::uint32_t>(random.below(1 << 15));
      scores[e] = 0;
      if (e % as_size(apart) == 0) std::memcpy(&scores[e], &bits, sizeof bits);
    }
    int const count = static_cast<int>(scores.size());
    kv::pooling const by = kv::avg_pool{width};
    std::vector<float> expected(scores.size());
    for (int e = 0; e < count; ++e) expected[as_size(e)] = kv::detail::pooled(by, scores.data(), count, e);
    for (kv::isa const level : vector_isas()) {
      std::vector<float> is(scores.size());
      kv::detail::pool_part(kv::host_executor(1, level), by, scores.data(), count, 0, count, is.data());
      CHECK(same_bits(is, expected));
    }
  }
}

}  // namespace

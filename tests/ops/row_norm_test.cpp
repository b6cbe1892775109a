// SPDX-License-Identifier: Apache-2.0
// row_norm against the reference, for keys and values of every element type and layout.

#include "reference/methods.hpp"
#include "support/verbs.hpp"

namespace {

using namespace kvpolicy_test;

/// Finite elements of any size.
std::vector<std::byte> any_bytes(std::size_t bytes, kv::codec element) {
  std::mt19937 dice(7);
  std::vector<std::byte> made(bytes);
  for (std::size_t at = 0; at < bytes; at += as_size(kv::bytes_of(element))) {
    auto const value =
        std::ldexp(std::uniform_real_distribution<float>(-1, 1)(dice), static_cast<int>(dice() % 20) - 10);
    kv::store(element, value, made.data() + at);
  }
  return made;
}

struct just_norm {
  float operator()(float, float norm) const { return norm; }
};

}  // namespace

TEST_SUITE("ops/row_norm") {
  TEST_CASE("agrees with the reference for keys and values, and writes only committed entries") {
    holds("row_norm == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::troubled}, 12);
      filled_cache cache(shape);
      auto const before = cache.save();
      of const which = *rc::gen::element(of::keys, of::values);
      kv::host_executor exec(*rc::gen::element(1, 3));
      owned_scores out(cache.lanes());
      kv::ops::row_norm(exec, rows_of(cache, which), old_plus_twice{}, out.view());
      comparison const result = compare_twice(cache, out, 0, [&](int, kv::lane one) {
        return reference::row_norms(cache.rows(which, one, cache.committed(one)));
      });
      RC_LOG() << result;
      RC_ASSERT(result.same);
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("rows of 1e30 do not overflow, and rows of 1e-30 do not vanish") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}});
    cache.put({0, 0, 0}, {0, 1});
    cache.write(of::keys, {0, 0, 0}, 0, {1e30, 1e30, 1e30, 1e30});
    cache.write(of::keys, {0, 0, 0}, 1, {1e-30, -1e-30, 1e-30, 1e-30});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    kv::ops::row_norm(exec, kv::keys_of(cache.view()), just_norm{}, out.view());
    CHECK(out.row(0, 2)[0] == doctest::Approx(2e30));
    CHECK(static_cast<double>(out.row(0, 2)[1]) * 1e30 == doctest::Approx(2.0));
  }

  TEST_CASE("every instruction set and every stride gives the same bits") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (int const dims : {1, 15, 16, 17, 64, 80, 128, 255, 256}) {
        std::vector<std::byte> const row = any_bytes(as_size(dims * kv::bytes_of(element)), element);
        int const bytes = kv::bytes_of(element);
        std::vector<std::byte> apart(as_size(3 * dims * bytes));
        for (int d = 0; d < dims; ++d) std::copy_n(row.begin() + d * bytes, bytes, apart.begin() + 3 * d * bytes);
        double const expected = kv::detail::strided_square_sum(element, apart.data(), 3 * bytes, dims);
        double const exact = kv::detail::wide_square_sum(element, row.data(), bytes, dims);
        CHECK(expected == doctest::Approx(exact).epsilon(2e-7));
        for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
          INFO("simd_level ", static_cast<int>(simd_level), ", dims ", dims);
          std::byte const* const rows[] = {row.data(), row.data()};
          double found[2] = {};
          kv::detail::norms_of_isa[std::min(simd_level, kv::best_isa())].of(element)(rows, rows, 2, dims, found);
          CHECK(found[0] == expected);
          CHECK(found[1] == expected);
        }
      }
    }
  }

  TEST_CASE("every number of rows gives each row its own sum") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      int const bytes = 70 * kv::bytes_of(element);
      std::vector<std::byte> const all = any_bytes(as_size(20 * bytes), element);
      std::byte const* rows[20];
      for (int r = 0; r < 20; ++r) rows[r] = all.data() + static_cast<std::ptrdiff_t>(r) * bytes;
      for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
        auto const sums = kv::detail::norms_of_isa[std::min(simd_level, kv::best_isa())].of(element);
        for (int count = 1; count <= 19; ++count) {
          INFO("simd_level ", static_cast<int>(simd_level), ", count ", count);
          std::vector<double> found(20, -1);
          sums(rows, rows + 1, count, 70, found.data());
          for (int r = 0; r < count; ++r)
            CHECK(found[as_size(r)] == kv::detail::strided_square_sum(element, rows[r], kv::bytes_of(element), 70));
          CHECK(found[as_size(count)] == -1);
        }
      }
    }
  }

  TEST_CASE("bf16 rows whose squares no float holds are summed in double") {
    for (float const size : {1e30f, 1e-30f, 0.0f, std::numeric_limits<float>::infinity()}) {
      std::vector<std::byte> row(2 * 80);
      for (std::size_t d = 0; d < 80; ++d) kv::store(kv::codec::bf16, size, row.data() + 2 * d);
      auto const value = static_cast<double>(kv::load(kv::codec::bf16, row.data()));
      for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
        std::byte const* const at = row.data();
        double found = 0;
        kv::detail::norms_of_isa[std::min(simd_level, kv::best_isa())].bf16(&at, &at, 1, 80, &found);
        CHECK((found == 80 * value * value || std::abs(found / (80 * value * value) - 1) < 1e-12));
      }
    }
  }

  TEST_CASE("every f16 number is squared as it is, and infinities and NaN stay") {
    for (int bits = 0; bits < 0x10000; ++bits) {
      std::uint16_t sixteen[16] = {};
      sixteen[as_size(bits % 16)] = static_cast<std::uint16_t>(bits);
      auto const* const row = reinterpret_cast<std::byte const*>(sixteen);
      auto const value = static_cast<double>(kv::load(kv::codec::f16, row + 2 * (bits % 16)));
      for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
        double found = 0;
        kv::detail::norms_of_isa[std::min(simd_level, kv::best_isa())].f16(&row, &row, 1, 16, &found);
        if (!(found == value * value || (found != found && value != value))) FAIL_CHECK(bits);
      }
    }
  }

  TEST_CASE("refuses scores that are not made lane by lane") {
    mock_cache cache({});
    kv::host_executor exec;
    owned_scores out(cache.lanes(), kv::granularity::sequence);
    CHECK(error_of([&] { kv::ops::row_norm(exec, kv::keys_of(cache.view()), just_norm{}, out.view()); }) ==
          "row_norm: out.decides = 2, but rows belong to lanes");
  }
}

// SPDX-License-Identifier: Apache-2.0
// rerotate: which channels turn together, and what is not touched.

#include "layout/slot_cache.hpp"
#include "reference/rope.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// One lane of four entries at positions 0, 2, 3 and 9, with these keys.
struct turning {
  explicit turning(kv::codec element = kv::codec::f32, int dims = 4, kv::isa most = kv::isa::amx)
      : cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = dims},
               .bound = 4,
               .element = element}),
        exec(1, most) {
    cache.count = {4};
    cache.position = {0, 2, 3, 9};
    exec.reserve(scratch_of_every_verb<kv::host>(cache.view()));
  }
  void turn(kv::rope const& how) { kv::ops::rerotate(exec, cache.lanes(), cache.view(), how); }
  reference::row key(int entry) { return cache.read(true, {}, cache.list[as_size(entry)]); }
  void set(int entry, reference::row const& values) { cache.write(true, {}, cache.list[as_size(entry)], 0, values); }

  slot_cache cache;
  kv::host_executor exec;
};

bool near(reference::row const& a, reference::row const& b) {
  bool same = a.size() == b.size();
  for (std::size_t d = 0; same && d < a.size(); ++d) same = std::abs(a[d] - b[d]) <= 1e-6;
  return same;
}

}  // namespace

TEST_SUITE("ops/rerotate") {
  TEST_CASE("with copies a key is copied before its first turn, and each turn begins from the copy") {
    for (kv::codec const element : {kv::codec::bf16, kv::codec::f16}) {
      for (kv::rope_style const style : {kv::rope_style::neox, kv::rope_style::gptj}) {
        turning with(element);
        kv::rope const how{.theta = 100, .style = style};
        auto const pairing =
            style == kv::rope_style::neox ? reference::rope_pairing::halves : reference::rope_pairing::pairs;
        std::vector<std::byte> keys(4 * 8, std::byte{7});
        std::vector<int> written(4);
        kv::first_keys const first{{keys.data()}, {written.data()}};
        auto const turn = [&] { kv::ops::rerotate(with.exec, with.cache.lanes(), with.cache.view(), how, first); };
        auto const is = [&](int entry, reference::row const& raw, int by, double roundings) {
          reference::row const key = with.key(entry), wanted = reference::rotated(raw, by, {100, pairing});
          bool near_it = true;
          for (std::size_t d = 0; d < 4; ++d) {
            near_it = near_it &&
                      std::abs(key[d] - wanted[d]) <= roundings * 5 * (element == kv::codec::bf16 ? 0x1p-8 : 0x1p-11);
          }
          return near_it;
        };
        reference::row const raw[] = {{1, 2, 3, 4}, {4, -3, 2, 1}, {0.5, 1, -2, 4}, {1, 1, 2, 3}};
        for (int e = 0; e < 4; ++e) with.set(e, raw[e]);
        turn();
        CHECK(written == std::vector<int>{0, 3, 4, 10});  // 1 + the positions 2, 3 and 9
        CHECK(with.key(0) == raw[0]);
        CHECK(keys[0] == std::byte{7});
        for (int e = 1; e < 4; ++e) CHECK(is(e, raw[e], std::vector{0, -1, -1, -6}[as_size(e)], 1));
        for (int again = 0; again < 50; ++again) {  // forth and back, by other distances
          for (int e = 1; e < 4; ++e) {
            with.set(e, {0, 0, 0, 0});  // what stands there is not read
            with.cache.position[as_size(e)] = 100 * again + 7 * e + 5;
          }
          turn();
        }
        for (int e = 1; e < 4; ++e) CHECK(is(e, raw[e], std::vector{0, -1, -1, -6}[as_size(e)], 1));
        written[2] = 3;  // the copy is one of position 2
        with.cache.position[2] = 8;
        turn();
        CHECK(with.key(2) == raw[2]);
      }
    }
  }

  TEST_CASE("NeoX turns halves and GPT-J turns neighbours, pair i by theta to the -2i/D") {
    double const c = std::cos(-1.0), s = std::sin(-1.0);    // pair 0 of entry 1: from 2 to 1
    double const c1 = std::cos(-0.1), s1 = std::sin(-0.1);  // pair 1, theta 100, D 4
    for (kv::rope_style const style : {kv::rope_style::neox, kv::rope_style::gptj}) {
      turning with;
      with.set(1, {1, 2, 3, 4});
      with.turn({.theta = 100, .style = style});
      reference::row const neox{c - 3 * s, 2 * c1 - 4 * s1, 3 * c + s, 4 * c1 + 2 * s1};
      reference::row const gptj{c - 2 * s, 2 * c + s, 3 * c1 - 4 * s1, 4 * c1 + 3 * s1};
      CHECK(near(with.key(1), style == kv::rope_style::neox ? neox : gptj));
      CHECK(with.cache.positions({}) == std::vector<int>{0, 1, 2, 3});
    }
  }

  TEST_CASE("channels behind `dims`, values, rows whose position stays and everything around are not touched") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      turning with(element, 6);
      for (int e = 0; e < 4; ++e) with.set(e, {1, 2, 3, 4, 5, 6});
      auto before = with.cache.memory;
      with.turn({.dims = 4});
      CHECK(with.key(0) == reference::row{1, 2, 3, 4, 5, 6});
      for (int e = 1; e < 4; ++e) {
        reference::row const key = with.key(e);
        CHECK(key[0] != 1);
        CHECK(key[4] == 5);
        CHECK(key[5] == 6);
        with.set(e, {1, 2, 3, 4, 5, 6});
      }
      CHECK(with.cache.memory == before);
    }
  }

  TEST_CASE("a table of frequencies takes theta's place") {
    turning with;
    with.set(3, {1, 0, 0, 2});
    std::vector<float> const table{0.0f, 0.5f};
    with.turn({.theta = -1, .frequency = table.data()});
    double const angle = (3 - 9) * 0.5;
    CHECK(near(with.key(3), {1, -2 * std::sin(angle), 0, 2 * std::cos(angle)}));
  }

  TEST_CASE("a scaled embedding's table, of float32 or float64, is the reference's in double") {
    constexpr int dims = 16;
    constexpr int pairs = dims / 2;
    for (int kind = 0; kind < 3; ++kind) {  // linear interpolation by 4, Llama 3's, YaRN's ramp
      reference::row wanted;
      for (int pair = 0; pair < pairs; ++pair) {
        double const plain = std::pow(500000.0, -2.0 * pair / dims);
        double const wavelength = 2 * std::acos(-1.0) / plain;
        double const keep = kind == 0   ? 0.0
                            : kind == 1 ? std::clamp((8192 / wavelength - 1) / (4 - 1), 0.0, 1.0)
                                        : 1 - std::clamp((pair - 1.5) / 4, 0.0, 1.0);
        wanted.push_back(keep * plain + (1 - keep) * plain / (kind == 1 ? 8 : 4));
      }
      std::vector<float> const narrow(wanted.begin(), wanted.end());
      for (bool const wide : {false, true}) {
        for (kv::rope_style const style : {kv::rope_style::neox, kv::rope_style::gptj}) {
          std::vector<int> const positions{7, 4096, 100000, 1000003};
          turning with(kv::codec::f32, dims);
          with.cache.position = positions;
          for (int e = 0; e < 4; ++e) with.set(e, with.cache.token_row(true, {}, e));
          reference::rope how{.pairing = style == kv::rope_style::neox ? reference::rope_pairing::halves
                                                                       : reference::rope_pairing::pairs,
                              .frequency = wide ? wanted : reference::row(narrow.begin(), narrow.end())};
          kv::rope given{.style = style, .frequency = narrow.data()};
          if (wide) given.frequency = wanted.data();
          with.turn(given);
          for (int e = 0; e < 4; ++e) {
            CHECK(near(with.key(e),
                       reference::rotated(with.cache.token_row(true, {}, e), e - positions[as_size(e)], how)));
          }
        }
      }
    }
  }

  TEST_CASE("a theta that is not positive is refused, unless a table takes its place") {
    turning with;
    std::vector<double> const table{1.0, 0.5};
    CHECK(error_of([&] { with.turn({.theta = 0}); }) ==
          "rerotate: rope.theta = 0, but frequencies are powers of a positive number");
    CHECK_NOTHROW(with.turn({.theta = 0, .frequency = table.data()}));
  }

  TEST_CASE("turns of any length, near multiples of 64 and far away, are the reference's") {
    std::vector<std::vector<int>> const rows{
        {0, 64, 65, 66}, {63, 64, 127, 128}, {1, 130, 131, 200}, {7, 4096, 100000, 1000003}};
    for (auto const& positions : rows) {
      for (double const theta : {10000.0, 2.0}) {
        turning with(kv::codec::f32, 16);
        with.cache.position = positions;
        for (int e = 0; e < 4; ++e) with.set(e, with.cache.token_row(true, {}, e));
        with.turn({.theta = theta});
        for (int e = 0; e < 4; ++e) {
          auto const expected =
              reference::rotated(with.cache.token_row(true, {}, e), e - positions[as_size(e)], {.theta = theta});
          CHECK(near(with.key(e), expected));
        }
      }
    }
  }

  TEST_CASE("every instruction set gives the same bits, and the reference's numbers, for any number of pairs") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (int const dims : {2, 14, 16, 30, 32, 34, 62, 128, 130, 192}) {
        std::vector<std::byte> expected;
        for (kv::isa const level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
          if (level > kv::host_executor(1).simd_level()) continue;
          turning with(element, dims, level);
          std::vector<int> const positions{5, 70, 8191, 70000};
          with.cache.position = positions;
          for (int e = 0; e < 4; ++e) with.set(e, with.cache.token_row(true, {}, e));
          with.set(2, reference::row(as_size(dims), NAN));
          std::vector<reference::row> before;
          for (int e = 0; e < 4; ++e) before.push_back(with.key(e));
          with.turn({});
          if (expected.empty()) expected = with.cache.memory;
          CHECK_MESSAGE(with.cache.memory == expected, kv::name_of(element), " ", dims);
          for (int const e : {0, 1, 3}) {
            auto const at = as_size(e);
            reference::row const wanted = reference::rotated(before[at], e - positions[at], {});
            reference::row const is = with.key(e);
            // Half a unit of the element type, and 8 of float, for the angle's cosine and sine and for two products.
            double const unit = element == kv::codec::f32 ? 0 : element == kv::codec::f16 ? 0x1p-11 : 0x1p-8;
            double largest = 0;
            for (double const x : before[at]) largest = std::max(largest, std::abs(x));
            for (std::size_t d = 0; d < is.size(); ++d)
              CHECK(std::abs(is[d] - wanted[d]) <= unit * std::abs(wanted[d]) + 16 * 0x1p-24 * largest);
          }
        }
      }
    }
  }

  TEST_CASE("NaN and infinity stay in their pair") {
    turning with;
    with.set(1, {NAN, 1, 2, 3});
    with.turn({});
    reference::row const key = with.key(1);
    CHECK(std::isnan(key[0]));
    CHECK(std::isnan(key[2]));
    CHECK(!std::isnan(key[1]));
    CHECK(!std::isnan(key[3]));
  }
}

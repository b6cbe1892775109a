// SPDX-License-Identifier: Apache-2.0
// Rows on their way from one cache into another: any element type, any strides on either side, and planes that move
// with them.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

mock_options cache_of(arrangement memory, kv::codec element, std::uint64_t seed) {
  return {.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 5, .value_dim = 3},
          .bound = 8,
          .element = element,
          .memory = memory,
          .seed = seed};
}

TEST_SUITE("append_rows") {
  TEST_CASE("an entry is the same numbers wherever its rows lie") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (arrangement const source : {arrangement::nhd, arrangement::transposed_v, arrangement::reversed}) {
        for (arrangement const target : {arrangement::hnd, arrangement::transposed_v, arrangement::packed_rows}) {
          mock_cache from(cache_of(source, element, 1));
          mock_cache to(cache_of(target, element, 2));
          kv::lane const this_lane{0, 1, 1};
          from.put(this_lane, {0, 1, 2});
          to.put(this_lane, {0, 1, 2});
          auto const untouched = to.row(of::values, this_lane, 1);
          kv::detail::copy_entry(from.view(), to.view(), this_lane, 2, 0);
          for (of const plane : {of::keys, of::values})
            CHECK(to.row(plane, this_lane, 0) == from.row(plane, this_lane, 2));
          CHECK(to.row(of::values, this_lane, 1) == untouched);
        }
      }
    }
  }

  TEST_CASE("a row of fp8 is the same bytes with the same scale, and a latent row is copied once") {
    for (kv::codec const element : {kv::codec::e4m3, kv::codec::e5m2}) {
      for (scaling const scales : {scaling::none, scaling::token}) {
        for (arrangement const memory : {arrangement::hnd, arrangement::latent, arrangement::latent_view}) {
          mock_options how = cache_of(memory, element, 1);
          how.scales = scales;
          mock_cache from(how);
          how.seed = 2;
          mock_cache to(how);
          kv::lane const this_lane{0, 1, 1};
          from.put(this_lane, {0, 1, 2});
          to.put(this_lane, {0, 1, 2});
          kv::cache const source = from.view(), target = to.view();
          CHECK(error_of([&] { kv::detail::refuse_other_rows("promote", source, target); }).empty());
          kv::detail::copy_entry(source, target, this_lane, 2, 0);
          for (of const plane : {of::keys, of::values})
            CHECK(to.row(plane, this_lane, 0) == from.row(plane, this_lane, 2));
        }
      }
    }
  }

  TEST_CASE("rows of another scale, or latent on one side only, are refused") {
    mock_options how = cache_of(arrangement::nhd, kv::codec::e4m3, 1);
    how.scales = scaling::head;
    mock_cache from(how), to(how);
    kv::cache const source = from.view();
    kv::cache target = to.view();
    std::string const rule =
        " = other numbers than the other cache's, but rows are copied byte by byte: scales are the same memory, or a "
        "plane of `more` of both caches";
    auto const refusal = [&] { return error_of([&] { kv::detail::refuse_other_rows("promote", source, target); }); };
    CHECK(refusal() == "promote: k.scales" + rule);
    target.k.scales = source.k.scales;
    CHECK(refusal() == "promote: v.scales" + rule);
    target.v.scales = source.v.scales;
    CHECK(refusal().empty());
    target.v = {};
    CHECK(refusal() ==
          "promote: rows = latent on one side only, but values are in the keys' rows of both caches, or of none");
  }

  TEST_CASE("what moves with the rows moves, and another number of planes or another type is refused") {
    mock_cache from(cache_of(arrangement::nhd, kv::codec::f32, 1));
    mock_cache to(cache_of(arrangement::nhd, kv::codec::f32, 2));
    std::vector<std::byte> here(8, std::byte{7}), there(8);
    auto const scales = [](std::vector<std::byte>& of) {
      return kv::plane{
          .base = of.data(), .element = kv::codec::opaque, .channels = 1, .token_stride = 1, .channel_stride = 1};
    };
    std::vector<kv::plane> const more{scales(here)}, other{scales(there)};
    kv::cache source = from.view();
    kv::cache target = to.view();
    source.more = more;
    CHECK(error_of([&] { kv::detail::refuse_other_rows("promote", source, target); }) ==
          "promote: more = 1, but the other cache has 0 further planes");
    target.more = other;
    kv::detail::copy_entry(source, target, {0, 0, 0}, 3, 5);
    CHECK(there[5] == std::byte{7});
    CHECK(there[4] == std::byte{0});
    target.v.element = kv::codec::f16;
    CHECK(error_of([&] { kv::detail::refuse_other_rows("promote", source, target); }) ==
          "promote: rows = of another type or size, but rows are copied byte by byte");
  }
}

}  // namespace

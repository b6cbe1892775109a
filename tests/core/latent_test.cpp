// SPDX-License-Identifier: Apache-2.0
// Caches whose values are a part of the keys' rows, and elements of fp8 with their scales: what a cache says of them,
// what is refused, and that appliers move a row and its scale once.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

mock_options latent_of(arrangement memory) {
  return {.model = {.layers = 2, .query_heads = 4, .kv_heads = 1, .head_dim = 8, .value_dim = 6},
          .memory = memory,
          .rows = content::fingerprint};
}

mock_options scaled_of(scaling scales) {
  return {.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4},
          .element = kv::codec::e4m3,
          .scales = scales,
          .rows = content::fingerprint};
}

/// Keeps the sinks and the newest entries of every lane, with any applier. Returns the error.
template <class Applier>
std::string keep_six(kv::cache view, Applier const& applier) {
  kv::host_executor exec;
  auto const policy = kv::policies::streaming_llm({.budget = 6, .sinks = 2});
  return error_of([&] {
    auto [state, plan] = decided(exec, kv::signals{view.lanes}, policy, view, applier);
    kv::apply(exec, applier, plan, view, state);
  });
}

void fill_lanes(mock_cache& cache, int entries) {
  for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(entries));
}

void check_fingerprints(mock_cache& cache) {
  std::vector<int> const kept{0, 1, 9, 10, 11, 12};
  for (kv::lane const one : lanes_of(cache)) {
    REQUIRE(cache.positions(one, cache.count(one)) == kept);
    for (int e = 0; e < 6; ++e) {
      for (of const plane : {of::keys, of::values}) {
        CHECK(cache.row(plane, one, e) == cache.fingerprint(plane, one, cache.position(one, e)));
      }
    }
  }
}

/// A pool of pages as vLLM has it for DeepSeek's MLA: a tensor [pages, page, 576] for each layer.
struct mla_pool {
  static constexpr int layers = 2, pages = 9, page = 4, dims = 576, value_dim = 512;
  std::vector<std::vector<std::uint16_t>> memory;
  std::vector<std::byte*> bases;
  std::vector<int> list{7, 2, 5, 0, 3, 8}, begin{0, 4, 6};
  std::vector<int> counts = std::vector<int>(2 * layers, 0), positions = std::vector<int>(2 * layers * 16, 0);

  mla_pool() : memory(layers, std::vector<std::uint16_t>(pages * page * dims)) {
    for (auto& each : memory) bases.push_back(reinterpret_cast<std::byte*>(each.data()));
    for (int layer = 0; layer < layers; ++layer) {
      for (int s = 0; s < 2; ++s) {
        int const entries = s == 0 ? 13 : 8;
        counts[as_size(s * layers + layer)] = entries;
        for (int e = 0; e < entries; ++e) {
          positions[as_size((s * layers + layer) * 16 + e)] = e;
          for (int d = 0; d < dims; ++d) row(s, layer, e)[d] = number(s, layer, e, d);
        }
      }
    }
  }
  static std::uint16_t number(int sequence, int layer, int position, int d) {
    return static_cast<std::uint16_t>(sequence * 20000 + layer * 10000 + position * 600 + d);
  }
  std::uint16_t* row(int sequence, int layer, int e) {
    int const which = list[as_size(begin[as_size(sequence)] + e / page)];
    return memory[as_size(layer)].data() + (which * page + e % page) * dims;
  }
  kv::cache view(bool keys_only) {
    kv::plane const rows{.element = kv::codec::bf16,
                         .channels = dims,
                         .unit_stride = page * dims * 2,
                         .token_stride = dims * 2,
                         .channel_stride = 2,
                         .bases = {bases.data(), 1, 0, 0, 16}};
    kv::cache made{.shape = {layers, 16, 1, dims, value_dim},
                   .k = rows,
                   .where = kv::csr_pages({list.data(), 0, 0, 0}, {begin.data(), 1, 0, 0}, page, pages)};
    made.lanes = {.sequences = 2,
                  .layer_end = layers,
                  .heads = 1,
                  .capacity = 16,
                  .count = {counts.data(), layers, 1, 0},
                  .position = {positions.data(), layers * 16, 16, 0}};
    if (!keys_only) {
      made.v = rows;
      made.v.channels = value_dim;
    }
    return made;
  }
};

TEST_SUITE("core/latent") {
  TEST_CASE("the values of a cache with keys only are the first channels of their rows, which count once") {
    mock_cache apart(latent_of(arrangement::nhd)), only(latent_of(arrangement::latent)),
        inside(latent_of(arrangement::latent_view));
    CHECK(kv::entry_bytes(apart.view()) == 4 * (8 + 6));
    for (mock_cache* const each : {&only, &inside}) {
      kv::cache const view = each->view();
      CHECK(kv::entry_bytes(view) == 4 * 8);
      CHECK(kv::values_of(view).rows.channels == 6);
      CHECK(kv::values_of(view).row({0, 1, 0}, 3) == kv::keys_of(view).row({0, 1, 0}, 3));
      CHECK(refusal_of_cache(view).empty());
    }
  }

  TEST_CASE("a contiguous cache of one tensor says by the shape which channels are values") {
    std::vector<float> rows(2 * 16 * 8);
    std::vector<int> counts(2), positions(2 * 16);
    kv::contiguous_memory memory{.k = rows.data(),
                                 .shape = {.layers = 2, .query_heads = 4, .kv_heads = 1, .head_dim = 8, .value_dim = 6},
                                 .capacity = 16,
                                 .counts = counts.data(),
                                 .positions = positions.data()};
    kv::cache const made = kv::contiguous_cache(memory);
    CHECK(refusal_of_cache(made).empty());
    CHECK(kv::entry_bytes(made) == 32);
    memory.shape.value_dim = 0;
    CHECK(error_of([&] { (void)kv::contiguous_cache(memory); }) ==
          "contiguous_cache: v = null, but a cache is the engine's memory: of one with keys only, shape.value_dim says "
          "which channels are values");
  }

  TEST_CASE("values that are neither memory of their own nor within the keys' rows are refused") {
    mock_cache cache(latent_of(arrangement::latent_view));
    auto const with = [&](auto const& change) {
      kv::cache view = cache.view();
      change(view);
      return refusal_of_cache(view);
    };
    std::string const overlap = "make_plan: k and v = overlapping, but keys and values are different memory";
    CHECK(with([](kv::cache& now) { now.v.base += 2 * 4; }).empty());
    CHECK(with([](kv::cache& now) { now.v.base += 3 * 4; }) == overlap);
    CHECK(with([](kv::cache& now) { now.v.base += 2; }) == overlap);
    CHECK(with([](kv::cache& now) { now.v.base -= 4; }) == overlap);
    CHECK(with([](kv::cache& now) { now.v.layer_stride += 4; }) == overlap);
    CHECK(with([](kv::cache& now) { now.v = now.k, now.shape.value_dim = 0; }) == overlap);
    CHECK(with([](kv::cache& now) { now.v = {}, now.shape.value_dim = 0; }) ==
          "make_plan: v = null, but a plane is the engine's memory");
    CHECK(
        with([](kv::cache& now) { now.v = {}, now.shape.value_dim = 9; }) ==
        "make_plan: shape.value_dim = 9, but values without memory of their own are in the keys' rows, of 8 channels");
  }

  TEST_CASE("rows that are keys and values move once, in pages that a table of pointers names") {
    for (bool const keys_only : {true, false}) {
      mla_pool pool;
      REQUIRE(keep_six(pool.view(keys_only), kv::compact{}).empty());
      for (int s = 0; s < 2; ++s) {
        int const entries = s == 0 ? 13 : 8;
        for (int layer = 0; layer < mla_pool::layers; ++layer) {
          REQUIRE(pool.counts[as_size(s * mla_pool::layers + layer)] == 6);
          for (int e = 0; e < 6; ++e) {
            int const position = e < 2 ? e : entries - 6 + e;
            for (int const d : {0, 511, 512, 575}) {
              CHECK(pool.row(s, layer, e)[d] == mla_pool::number(s, layer, position, d));
            }
          }
        }
      }
    }
  }

  TEST_CASE("every applier that moves rows moves those of a latent cache once") {
    for (arrangement const memory : {arrangement::latent, arrangement::latent_view}) {
      for (kv::locating const where : {kv::locating::identity, kv::locating::slot_map, kv::locating::block_table}) {
        mock_options how = latent_of(memory);
        how.where = where;
        mock_cache cache(how);
        fill_lanes(cache, 13);
        REQUIRE(keep_six(cache.view(), kv::compact{}).empty());
        check_fingerprints(cache);
      }
    }
  }

  TEST_CASE("turning the keys of a latent cache turns the channels that are no values, as it turns those alone") {
    for (arrangement const memory : {arrangement::latent, arrangement::latent_view}) {
      mock_options how = latent_of(memory);
      how.model.value_dim = 4;
      mock_cache cache(how);
      how.model = {.layers = 2, .query_heads = 4, .kv_heads = 1, .head_dim = 4};
      how.memory = arrangement::nhd;
      mock_cache rope_part(how);
      fill_lanes(cache, 13);
      fill_lanes(rope_part, 13);
      for (int i = 0; i < cache.lane_count(); ++i) {
        for (int e = 0; e < 13; ++e) {
          reference::row const key = cache.row(of::keys, cache.lane_at(i), e);
          rope_part.write(of::keys, cache.lane_at(i), e, {key.begin() + 4, key.end()});
        }
      }
      kv::compact_rerotated const applier{{.style = kv::rope_style::gptj}};
      REQUIRE(keep_six(cache.view(), applier).empty());
      REQUIRE(keep_six(rope_part.view(), applier).empty());
      for (kv::lane const one : lanes_of(cache)) {
        for (int e = 0; e < 6; ++e) {
          reference::row key = cache.row(of::keys, one, e);
          CHECK(reference::row(key.begin() + 4, key.end()) == rope_part.row(of::keys, one, e));
          CHECK(cache.row(of::values, one, e) == cache.fingerprint(of::values, one, e < 2 ? e : 7 + e));
        }
      }
    }
    mock_cache cache(latent_of(arrangement::latent));
    fill_lanes(cache, 13);
    CHECK(keep_six(cache.view(), kv::compact_rerotated{{.dims = 4}}) ==
          "rerotate: rope.dims = 4, but a key has 2 channels that are no values");
  }

  TEST_CASE("a slot of a latent cache is filled with one number") {
    mock_options how = latent_of(arrangement::latent);
    how.where = kv::locating::slot_map;
    mock_cache cache(how);
    kv::host_executor exec;
    CHECK(error_of([&] { kv::blank(exec, cache.view(), 3); }).empty());
    CHECK(error_of([&] { kv::poison(exec, cache.view(), 3); }) ==
          "fill_row: key = -10000, but values are in the keys' rows, and are set to 0");
  }
}

TEST_SUITE("core/scales") {
  TEST_CASE("scales of tokens move with their rows, because they are a plane of cache.more") {
    for (kv::codec const element : {kv::codec::e4m3, kv::codec::e5m2}) {
      for (kv::locating const where : {kv::locating::identity, kv::locating::slot_map, kv::locating::block_table}) {
        mock_options how = scaled_of(scaling::token);
        how.where = where;
        how.element = element;
        mock_cache cache(how);
        fill_lanes(cache, 13);
        kv::cache view = cache.view();
        CHECK(static_cast<void const*>(view.more[0].base) == view.k.scales.data);
        REQUIRE(keep_six(view, kv::compact{}).empty());
        check_fingerprints(cache);
      }
    }
  }

  TEST_CASE("scales of a tensor or of heads stay where they are") {
    for (scaling const scales : {scaling::none, scaling::tensor, scaling::head}) {
      mock_cache cache(scaled_of(scales));
      fill_lanes(cache, 13);
      REQUIRE(keep_six(cache.view(), kv::compact{}).empty());
      check_fingerprints(cache);
    }
  }

  TEST_CASE("scales that would stay behind are refused, and nothing has changed") {
    mock_options how = scaled_of(scaling::token);
    how.where = kv::locating::block_table;
    mock_cache cache(how);
    fill_lanes(cache, 13);
    auto const before = cache.save();
    std::string const rule =
        " = a number for each token or page, but rows move, and no plane of cache.more moves these numbers with them";
    kv::cache view = cache.view();
    view.more = view.more.first(1);
    CHECK(keep_six(view, kv::compact{}) == "apply: v.scales" + rule);
    view.more = {};
    CHECK(keep_six(view, kv::compact{}) == "apply: k.scales" + rule);
    view = cache.view();
    view.k.scales.token = 0;  // a scale for a page: rows move from page to page
    CHECK(keep_six(view, kv::compact{}) == "apply: k.scales" + rule);
    CHECK(cache.save() == before);
  }

  TEST_CASE("what fp8 and scales are not for is refused") {
    mock_cache cache(scaled_of(scaling::head));
    fill_lanes(cache, 13);
    kv::cache view = cache.view();
    kv::host_executor exec;
    CHECK(keep_six(view, kv::compact_rerotated{}) ==
          "rerotate: k = e4m3, but turned keys would have to be quantised anew, and their scales are the engine's");
    CHECK(error_of([&] { kv::ops::fill_row(exec, view, kv::place{}, 0.0f, 0.0f); }).empty());
    CHECK(error_of([&] { kv::ops::fill_row(exec, view, kv::place{}, -1e4f, 0.0f); }) ==
          "fill_row: key = -10000, but the scales of e4m3 rows are their engine's: only 0 needs none");
    CHECK(error_of([&] { kv::ops::fill_row(exec, view, kv::place{}, 0.0f, 1.0f); }) ==
          "fill_row: value = 1, but the scales of e4m3 rows are their engine's: only 0 needs none");
    view.k.element = view.v.element = kv::codec::opaque;
    CHECK(refusal_of_cache(view) ==
          "make_plan: k.scales = numbers beside opaque, but e4m3 and e5m2 elements alone have scales");
    kv::queries rows;
    rows.element = kv::codec::e5m2;
    rows.heads = 2;
    CHECK(error_of([&] { rows.check("observe", cache.model()); }) ==
          "observe: queries = e5m2, but it is f32, f16 or bf16: only keys and values may be fp8");
    kv::quest const bounds{.bounds = kv::codec::e4m3};
    CHECK(error_of([&] { bounds.check("make_plan"); }) ==
          "make_plan: quest.bounds = e4m3, but it is f32, f16 or bf16: only keys and values may be fp8");
  }
}

}  // namespace

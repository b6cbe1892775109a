// SPDX-License-Identifier: Apache-2.0
// What can be told about a cache from its strides alone: layouts up to their exact limits, told from those one byte
// tighter.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

/// Two layers, two heads, two sequences of up to three tokens, rows of four f32: keys, then values, without a gap.
struct tight_cache {
  static constexpr int layers = 2, heads = 2, sequences = 2, tokens = 3, dims = 4;
  static constexpr std::int64_t row = dims * 4, token = row * heads, unit = token * tokens, layer = unit * sequences;
  static constexpr std::int64_t bytes = layer * layers;

  std::vector<std::byte> memory = std::vector<std::byte>(4 * bytes);
  std::vector<int> numbers = std::vector<int>(64);
  std::vector<std::byte*> bases = std::vector<std::byte*>(16, memory.data() + bytes);
  kv::cache view;

  tight_cache() {
    view.shape = {layers, heads, heads, dims};
    view.lanes = {.sequences = sequences,
                  .layer_begin = 0,
                  .layer_end = layers,
                  .heads = heads,
                  .capacity = tokens,
                  .count = {numbers.data(), layers * heads, heads, 1},
                  .position = {numbers.data() + 16, layers * heads * tokens, heads * tokens, tokens}};
    view.k = {memory.data() + bytes, kv::codec::f32, dims, layer, unit, token, row, 4};
    view.v = view.k;
    view.v.base += bytes;
    view.where = kv::identity_map(tokens, sequences);
  }

  [[nodiscard]] std::string refusal() const { return refusal_of_cache(view); }
  std::string with(std::function<void(kv::cache&)> const& change) {
    kv::cache const before = view;
    change(view);
    std::string const said = refusal();
    view = before;
    return said;
  }
  bool is_sound_with(std::function<void(kv::cache&)> const& change) { return with(change).empty(); }

  /// Three entries in every lane.
  void fill() {
    for (int i = 0; i < 8; ++i) numbers[as_size(i)] = 3;
    for (int i = 0; i < 24; ++i) numbers[as_size(16 + i)] = i % 3;
  }
};

constexpr auto every_stride = {&kv::plane::layer_stride, &kv::plane::unit_stride, &kv::plane::token_stride,
                               &kv::plane::head_stride, &kv::plane::channel_stride};

std::string const k_shares = "make_plan: k = strides, but two of its elements share bytes";
std::string const v_shares = "make_plan: v = strides, but two of its elements share bytes";
std::string const overlap = "make_plan: k and v = overlapping, but keys and values are different memory";

}  // namespace

TEST_SUITE("core/contract/check") {
  TEST_CASE("planes without a gap are sound, and any stride that is one byte less is not") {
    tight_cache cache;
    CHECK(cache.refusal().empty());
    for (auto const stride : every_stride) {
      CHECK(cache.with([&](kv::cache& now) { now.k.*stride -= 1; }) == k_shares);
      CHECK(cache.with([&](kv::cache& now) { now.v.*stride -= 1; }) == v_shares);
    }
  }

  TEST_CASE("the largest and the smallest numbers are refused, or are sound, before anything overflows") {
    constexpr auto most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
    constexpr int most_int = std::numeric_limits<int>::max(), least_int = std::numeric_limits<int>::min();
    tight_cache cache;
    auto const refused = [&](auto const& change) { CHECK(!cache.with(change).empty()); };
    for (auto const stride : every_stride) {
      for (std::int64_t const value : {most, least, least + 1, most / 2, most / 3, least / 2, std::int64_t{1} << 60}) {
        refused([&](kv::cache& now) { now.k.*stride = value; });
        refused([&](kv::cache& now) { now.v.*stride = value; });
        refused([&](kv::cache& now) { now.k.*stride = now.v.*stride = value; });
        refused([&](kv::cache& now) {
          now.k.bases = {cache.bases.data(), 8, 4, 2};
          now.k.*stride = value;
        });
        // One step needs no stride, whatever it says.
        CHECK(cache.is_sound_with([&](kv::cache& now) {
          now.shape = {1, 1, 1, 1};
          now.lanes.layer_end = now.lanes.heads = now.lanes.sequences = now.lanes.capacity = 1;
          now.where = kv::identity_map(1, 1);
          now.k.channels = now.v.channels = 1;
          now.k.*stride = now.v.*stride = value;
        }));
      }
    }
    for (std::int64_t const units : {most, most / 2, least, std::int64_t{1} << 57}) {
      refused([&](kv::cache& now) { now.where.units = units; });
    }
    for (int const value : {most_int, least_int, most_int - 1, 1 << 30, least_int + 1}) {
      refused([&](kv::cache& now) { now.where.unit_tokens = value; });
      refused([&](kv::cache& now) { now.shape.head_dim = now.k.channels = now.v.channels = value; });
      refused([&](kv::cache& now) { now.shape.value_dim = value; });
      refused([&](kv::cache& now) { now.shape.layers = now.lanes.layer_end = value; });
      refused([&](kv::cache& now) { now.shape.kv_heads = now.shape.query_heads = now.lanes.heads = value; });
      refused([&](kv::cache& now) { now.lanes.layer_begin = value; });
      refused([&](kv::cache& now) { now.lanes.layer_end = value; });
      refused([&](kv::cache& now) { now.lanes.sequences = value; });
      refused([&](kv::cache& now) { now.lanes.sequence_begin = value; });
      refused([&](kv::cache& now) { now.lanes.sequences = now.lanes.sequence_begin = value; });
      refused([&](kv::cache& now) {
        now.lanes.slot_count = most_int;
        now.lanes.sequences = now.lanes.sequence_begin = value;
      });
      for (kv::codec const element : {kv::codec::opaque, kv::codec::f32}) {
        static_cast<void>(cache.with([&](kv::cache& now) {  // opaque rows are as wide as they say
          now.k.element = now.v.element = element;
          now.k.channels = now.v.channels = value;
        }));
      }
    }
    for (auto* const base : {reinterpret_cast<std::byte*>(std::uintptr_t{1} << 63),
                             reinterpret_cast<std::byte*>((std::uintptr_t{1} << 63) - 1),
                             reinterpret_cast<std::byte*>(~std::uintptr_t{0}), reinterpret_cast<std::byte*>(1)}) {
      CHECK(cache.is_sound_with([&](kv::cache& now) { now.k.base = base; }));
      CHECK(cache.is_sound_with([&](kv::cache& now) { now.v.base = base; }));
    }
    for (int const value : {most_int, least_int}) {
      auto const text = [&](auto const& call) { return error_of(call).substr(0, 40); };
      kv::shape const hostile{value, value, value, value};
      float number = 0;
      int position = 0;
      CHECK(text([&] { (void)kv::queries_of(&number, hostile, value, &position, {.sequences = value}); }) ==
            "queries_of: data = 2^60 elements or more");
      CHECK(text([&] { (void)kv::entry_numbers_of(&number, hostile, value, {.sequences = value}); }) ==
            "entry_numbers_of: data = 2^60 elements o");
      CHECK(text([&] {
              (void)kv::probabilities_of(&number, hostile, value, value, &position, {.sequences = value});
            }) == "probabilities_of: data = 2^60 elements o");
      CHECK(!text([&] {
               (void)kv::contiguous_cache({.k = &number,
                                           .v = &number,
                                           .shape = hostile,
                                           .sequences = value,
                                           .capacity = value,
                                           .counts = &position,
                                           .positions = &position});
             }).empty());
    }
  }

  TEST_CASE("so are the numbers of the lanes of signals") {
    working_batch now;
    for (int const value : {std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
      for (auto const member : {&kv::lanes::sequences, &kv::lanes::layer_begin, &kv::lanes::layer_end,
                                &kv::lanes::heads, &kv::lanes::capacity, &kv::lanes::sequence_begin}) {
        for (auto const other : {member, &kv::lanes::sequences, &kv::lanes::layer_end}) {
          kv::lanes bad = now.view.lanes;
          bad.*member = bad.*other = value;
          kv::signals const in{bad, kv::keys_of(now.view), kv::queries{now.queries.view()}};
          CHECK(!error_of([&] { kv::observe(now.exec, now.policy, in, now.state); }).empty());
          CHECK(!error_of([&] { kv::decide(now.exec, now.policy, in, now.state, now.plan); }).empty());
        }
      }
    }
  }

  TEST_CASE("strides may be negative, as long as no two elements meet") {
    tight_cache cache;
    auto const turned = [](kv::plane& rows, std::int64_t kv::plane::* stride, std::int64_t steps) {
      rows.base += steps * (rows.*stride);
      rows.*stride = -(rows.*stride);
    };
    CHECK(cache.is_sound_with([&](kv::cache& now) { turned(now.k, &kv::plane::token_stride, 2); }));
    CHECK(cache.is_sound_with([&](kv::cache& now) { turned(now.v, &kv::plane::layer_stride, 1); }));
    CHECK(cache.is_sound_with([&](kv::cache& now) { turned(now.k, &kv::plane::channel_stride, 3); }));
    CHECK(cache.with([&](kv::cache& now) { now.k.layer_stride = 1 - now.k.layer_stride; }) == k_shares);
    // Below its base, a plane reaches into the other: values that grow downwards from where they began.
    CHECK(cache.with([&](kv::cache& now) { now.v.layer_stride = -now.v.layer_stride; }) == overlap);
  }

  TEST_CASE("an axis of one step has any stride") {
    tight_cache cache;
    cache.view.shape.layers = cache.view.lanes.layer_end = 1;
    CHECK(cache.is_sound_with([](kv::cache& now) { now.k.layer_stride = 0; }));
    CHECK(cache.is_sound_with([](kv::cache& now) { now.k.layer_stride = now.v.layer_stride = 1; }));
    CHECK(cache.with([](kv::cache& now) { now.k.unit_stride = 0; }) == k_shares);
    cache.view.lanes.sequences = 1;
    cache.view.where = kv::identity_map(tight_cache::tokens);
    CHECK(cache.is_sound_with([](kv::cache& now) { now.k.unit_stride = 0; }));
    CHECK(cache.with([](kv::cache& now) { now.k.token_stride = 0; }) == k_shares);
  }

  TEST_CASE("keys and values may touch in either order, and not by one byte more") {
    tight_cache cache;
    CHECK(cache.with([](kv::cache& now) { now.v.base -= 1; }) == overlap);
    CHECK(cache.is_sound_with([](kv::cache& now) { now.v.base = now.k.base - tight_cache::bytes; }));
    CHECK(cache.with([](kv::cache& now) { now.v.base = now.k.base - tight_cache::bytes + 1; }) == overlap);
    CHECK(cache.is_sound_with([](kv::cache& now) { now.v.base += 100; }));
  }

  TEST_CASE("keys and values may take turns at any one axis, as long as both fit into its step") {
    using tight = tight_cache;
    // The axis whose step holds a part of keys and a part of values, and what of each lies inside.
    struct turn {
      std::int64_t kv::plane::* axis;
      std::int64_t inside;
    };
    std::vector<turn> const turns = {{&kv::plane::layer_stride, tight::layer},
                                     {&kv::plane::unit_stride, tight::unit},
                                     {&kv::plane::token_stride, tight::token},
                                     {&kv::plane::head_stride, tight::row}};
    for (turn const& one : turns) {
      tight_cache cache;
      for (kv::plane* const rows : {&cache.view.k, &cache.view.v}) {
        for (turn const& each : turns) {
          if (each.inside >= one.inside) rows->*each.axis *= 2;
        }
      }
      cache.view.v.base = cache.view.k.base + one.inside;
      INFO("parts of ", one.inside, " bytes");
      CHECK(cache.refusal().empty());
      CHECK(cache.with([](kv::cache& now) { now.v.base -= 1; }) == overlap);
      CHECK(cache.with([](kv::cache& now) { now.v.base += 1; }) == overlap);
      CHECK(cache.is_sound_with([](kv::cache& now) { std::swap(now.k.base, now.v.base); }));
    }
  }

  TEST_CASE("a pool that lanes share needs a table for each of those that share it") {
    tight_cache cache;
    cache.view.where = kv::slot_map({cache.numbers.data(), 12, 6, 3}, 24);
    for (kv::plane* const rows : {&cache.view.k, &cache.view.v}) {
      rows->layer_stride = rows->head_stride = 0;
      rows->unit_stride = tight_cache::row;
    }
    CHECK(cache.refusal().empty());
    CHECK(cache.with([](kv::cache& now) { now.where.table.layer = 0; }) == k_shares);
    CHECK(cache.with([](kv::cache& now) { now.where.table.head = 0; }) == k_shares);
    CHECK(cache.with([](kv::cache& now) { now.where.units = 25; }) == overlap);
    CHECK(cache.with([](kv::cache& now) { now.k.unit_stride = now.v.unit_stride = tight_cache::row - 1; }) == k_shares);
    // A slot is one token, whatever else the locator says; a page is many.
    CHECK(cache.is_sound_with([](kv::cache& now) { now.k.token_stride = now.v.token_stride = 0; }));
    CHECK(cache.with([](kv::cache& now) { now.where = kv::block_table(now.where.table, 2, 12); }) == k_shares);
  }

  TEST_CASE("where a plane has pointers, only the axes that they do not run over are judged") {
    tight_cache cache;
    CHECK(cache.is_sound_with([&](kv::cache& now) {
      now.k.bases = {cache.bases.data(), 1, 0, 0};
      now.k.base = nullptr;
      now.k.layer_stride = 0;
    }));
    auto const pointed = [&](int layer, int unit, int head, std::int64_t kv::plane::* stride, std::int64_t value = 0) {
      return cache.with([&](kv::cache& now) {
        now.k.bases = {cache.bases.data(), layer, unit, head};
        now.k.*stride = value;
      });
    };
    CHECK(pointed(0, 1, 0, &kv::plane::unit_stride).empty());
    CHECK(pointed(0, 0, 1, &kv::plane::head_stride).empty());
    CHECK(pointed(0, 1, 1, &kv::plane::layer_stride) == k_shares);
    CHECK(pointed(1, 0, 1, &kv::plane::unit_stride) == k_shares);
    CHECK(pointed(1, 1, 0, &kv::plane::head_stride) == k_shares);
    CHECK(pointed(1, 1, 1, &kv::plane::token_stride) == k_shares);
    CHECK(pointed(1, 1, 1, &kv::plane::channel_stride, 3) == k_shares);
    // What pointers name cannot be told apart without reading them.
    CHECK(cache.is_sound_with([&](kv::cache& now) {
      now.v.base = now.k.base;
      now.v.bases = {cache.bases.data(), 1, 0, 0};
    }));
  }

  TEST_CASE("lanes are fewer than 2^31, however they come about") {
    auto const refused = [](int sequences, int layers, int heads) {
      kv::lanes const batch{.sequences = sequences, .layer_begin = 0, .layer_end = layers, .heads = heads};
      return !error_of([&] { kv::detail::check_size("make_plan", "lanes", batch); }).empty();
    };
    constexpr int most = std::numeric_limits<int>::max();
    CHECK_FALSE(refused(1, 1, most));
    CHECK_FALSE(refused(most, 1, 1));
    CHECK_FALSE(refused(1 << 10, (1 << 11) - 1, 1 << 10));
    CHECK(refused(1 << 10, 1 << 11, 1 << 10));
    CHECK(refused(2, 1 << 15, 1 << 15));
    CHECK(refused(most, most, most));
  }

  TEST_CASE("appliers that move rows ask what pointers name: a latent row that is both key and value does not move") {
    tight_cache cache;
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::streaming_llm{.sinks = 0}, .budget = kv::per_lane{1}};
    std::vector<std::byte*> k_rows, v_rows;
    cache.view.k.layer_stride = cache.view.v.layer_stride = 0;
    cache.view.k.bases = {nullptr, 1, 0, 0};
    auto const apply = [&](std::vector<std::int64_t> const& k, std::vector<std::int64_t> const& v, auto const& how) {
      k_rows.clear(), v_rows.clear();
      for (auto const at : k) k_rows.push_back(cache.memory.data() + at);
      for (auto const at : v) v_rows.push_back(cache.memory.data() + at);
      cache.view.k.bases.data = k_rows.data();
      cache.view.v.bases = cache.view.k.bases;
      cache.view.v.bases.data = v_rows.data();
      cache.fill();
      auto [state, plan] = decided(exec, kv::signals(cache.view.lanes), policy, cache.view);
      auto const before = std::pair{cache.memory, cache.numbers};
      std::string const said = error_of([&] { kv::apply(exec, how, plan, cache.view, state); });
      CHECK(said.empty() == (before != std::pair{cache.memory, cache.numbers}));
      return said;
    };
    using tight = tight_cache;
    std::string const rest =
        " of sequence 0, but this applier moves rows of both: keys and values are different memory";
    std::string const both = "apply: k and v = overlapping in ";
    for (std::size_t i = 0; i < cache.memory.size(); ++i) cache.memory[i] = static_cast<std::byte>(i * 7);
    constexpr std::int64_t of_layer = tight::layer;
    CHECK(apply({0, of_layer}, {2 * of_layer, 3 * of_layer}, kv::compact{}).empty());
    CHECK(apply({0, of_layer}, {0, of_layer}, kv::compact{}) == both + "layer 0, head 0" + rest);
    CHECK(apply({0, of_layer}, {2 * of_layer, of_layer}, kv::compact{}) == both + "layer 1, head 0" + rest);
    CHECK(apply({0, of_layer}, {2 * of_layer, of_layer + 4}, kv::compact{}) == both + "layer 1, head 0" + rest);
    CHECK(apply({0, of_layer}, {0, of_layer}, kv::compact_rerotated{}) == both + "layer 0, head 0" + rest);
    // Heads that take turns are apart: keys of one lie where values of the other would.
    cache.view.k.head_stride = cache.view.v.head_stride = 2 * tight::row;
    cache.view.k.token_stride = cache.view.v.token_stride = 2 * tight::token;
    cache.view.k.unit_stride = cache.view.v.unit_stride = 2 * tight::unit;
    CHECK(apply({0, 2 * of_layer}, {tight::row, 2 * of_layer + tight::row}, kv::compact{}).empty());
    CHECK(apply({0, 2 * of_layer}, {tight::row - 1, 2 * of_layer + tight::row}, kv::compact{}) ==
          both + "layer 0, head 0" + rest);
  }

  TEST_CASE("where pointers run over units, each unit of a lane's own is asked about") {
    tight_cache cache;
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::streaming_llm{.sinks = 0}, .budget = kv::per_lane{1}};
    std::vector<std::byte*> k_rows, v_rows;
    for (int i = 0; i < 2; ++i) {
      k_rows.push_back(cache.memory.data() + i * tight_cache::unit);
      v_rows.push_back(k_rows.back() + 2 * tight_cache::bytes);
    }
    cache.view.k.unit_stride = cache.view.v.unit_stride = 0;
    cache.view.k.bases = {k_rows.data(), 0, 1, 0};
    cache.view.v.bases = {v_rows.data(), 0, 1, 0};
    cache.fill();
    auto [state, plan] = decided(exec, kv::signals(cache.view.lanes), policy, cache.view);
    auto const apply = [&] { return error_of([&] { kv::apply(exec, kv::compact{}, plan, cache.view, state); }); };
    v_rows[1] = k_rows[1] + tight_cache::row - 1;
    CHECK(apply() ==
          "apply: k and v = overlapping in layer 0, head 0 of sequence 1, but this applier moves rows of "
          "both: keys and values are different memory");
    v_rows[1] = v_rows[0] + tight_cache::unit;
    CHECK(apply().empty());
  }

  TEST_CASE("what moves along with a row is judged as a plane, but its width is its own") {
    tight_cache cache;
    std::vector<kv::plane> more = {cache.view.k};
    more[0].base += 2 * tight_cache::bytes;
    more[0].channels = 2;
    cache.view.more = more;
    CHECK(cache.refusal().empty());
    more[0].token_stride = tight_cache::row;
    CHECK(cache.refusal() == "make_plan: more = strides, but two of its elements share bytes");
    more[0].base = nullptr;
    CHECK(cache.refusal() == "make_plan: more = null, but a plane is the engine's memory");
    more[0].token_stride = tight_cache::token;
    more[0].bases = {cache.bases.data(), 1, 0, 0};
    CHECK(cache.refusal().empty());
  }

  TEST_CASE("opaque rows are as wide as their engine says") {
    tight_cache cache;
    auto const opaque = [&](int dims) {
      return cache.with([&](kv::cache& now) {
        now.k.element = kv::codec::opaque;
        now.k.channels = dims;
        now.k.channel_stride = 1;
      });
    };
    CHECK(opaque(16).empty());
    CHECK(opaque(17) == k_shares);
  }

  TEST_CASE("a locator has room for every sequence and for the bound, where it reads no table") {
    tight_cache cache;
    auto const ring = [&](int tokens, int rows) {
      return kv::locator{kv::locating::ring, {cache.numbers.data(), 1, 0, 0}, tokens, rows};
    };
    CHECK(cache.is_sound_with([&](kv::cache& now) { now.where = ring(3, 2); }));
    CHECK(cache.with([&](kv::cache& now) { now.where = ring(2, 2); }) ==
          "make_plan: where.unit_tokens = 2, but a row holds `capacity` tokens (3)");
    CHECK(cache.with([&](kv::cache& now) { now.where = ring(3, 1); }) ==
          "make_plan: where.units = 1, but every sequence has a row of its own");
    CHECK(cache.with([&](kv::cache& now) {
      now.where = ring(3, 2);
      now.where.table = {};
    }) == "make_plan: where.table = null, but this locator reads a table");
    auto const pages = kv::csr_pages({cache.numbers.data()}, {cache.numbers.data(), 1, 0, 0}, 1, 2);
    CHECK(cache.is_sound_with([&](kv::cache& now) { now.where = pages; }));
    CHECK(cache.with([&](kv::cache& now) {
      now.where = pages;
      now.where.begin = {};
    }) == "make_plan: where.begin = null, but a list of a whole batch says where each lane begins");
  }

  TEST_CASE("one of each is enough of a model, a batch and a cache") {
    tight_cache cache;
    cache.view.shape = {1, 1, 1, 1, 1};
    cache.view.lanes.sequences = cache.view.lanes.layer_end = cache.view.lanes.heads = cache.view.lanes.capacity = 1;
    cache.view.k.channels = cache.view.v.channels = 1;
    cache.view.where = kv::identity_map(1);
    CHECK(cache.refusal().empty());
  }

  TEST_CASE("signals, plan and state are of one batch: a part of its layers, and no other") {
    tight_cache cache;
    kv::host_executor exec;
    auto const policy = kv::policies::streaming_llm();
    auto [state, plan] = state_and_plan(exec, policy, cache.view);
    auto const refusal = [&](auto const& change) {
      kv::lanes batch = cache.view.lanes;
      change(batch);
      return error_of([&] { kv::decide(exec, policy, kv::signals{batch}, state, plan); });
    };
    CHECK(refusal([](kv::lanes&) {}).empty());
    CHECK(refusal([](kv::lanes& batch) { batch.layer_begin = 1; }).empty());
    CHECK(refusal([](kv::lanes& batch) { batch.layer_end = 1; }).empty());
    struct misfit {
      int kv::lanes::* member;
      int value;
      char const* said;
    };
    for (misfit const& one : {misfit{&kv::lanes::sequences, 1, "sequences = 1, but it was made for 2"},
                              {&kv::lanes::heads, 1, "heads = 1, but it was made for 2"},
                              {&kv::lanes::capacity, 2, "capacity = 2, but it was made for 3"},
                              {&kv::lanes::layer_begin, -1, "layers = -1 to 2, but it was made for layers 0 to 2"},
                              {&kv::lanes::layer_end, 3, "layers = 0 to 3, but it was made for layers 0 to 2"},
                              {&kv::lanes::layer_begin, 2, "layers = 2 to 2, but it was made for layers 0 to 2"}}) {
      CHECK(refusal([&](kv::lanes& batch) { batch.*one.member = one.value; }) ==
            "decide: signals.lanes." + std::string(one.said));
    }
    CHECK(refusal([](kv::lanes& batch) { batch.count = {}; }) ==
          "decide: signals.lanes.count = null, but every lane says how many entries it holds");
    CHECK(refusal([](kv::lanes& batch) { batch.position = {}; }) ==
          "decide: signals.lanes.position = null, but every entry says its position");
  }
}

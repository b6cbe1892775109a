// SPDX-License-Identifier: Apache-2.0
// Tensors that are described in one call, against the addresses that their axes give.

#include "support/test.hpp"

namespace tensors_test {

using namespace kvpolicy_test;

/// The sizes of a small batch whose axes all differ.
struct sizes {
  static constexpr int layers = 3, query_heads = 4, kv_heads = 2, dims = 5, value_dims = 7, sequences = 2, capacity = 6;
  static constexpr kv::shape model{layers, query_heads, kv_heads, dims, value_dims};
};

/// Memory of a contiguous cache.
struct memory : sizes {
  std::vector<float> k = std::vector<float>(layers * sequences * capacity * kv_heads * dims);
  std::vector<float> v = std::vector<float>(layers * sequences * capacity * kv_heads * value_dims);
  std::vector<int> counts = std::vector<int>(sequences * layers * kv_heads);
  std::vector<int> positions = std::vector<int>(sequences * layers * kv_heads * capacity);
  std::vector<int> slots = positions;

  [[nodiscard]] kv::contiguous_memory described(kv::axis_order order, int batch = sequences) {
    return {.k = k.data(),
            .v = v.data(),
            .shape = model,
            .sequences = batch,
            .capacity = capacity,
            .counts = counts.data(),
            .positions = positions.data(),
            .order = order};
  }
};

/// The float of a row of a tensor [layer, sequence, token, head, dim] or [layer, sequence, head, token, dim].
template <class T>
T* row_in(std::vector<T>& tensor, kv::axis_order order, int batch, int tokens, int heads, int dims, kv::lane at,
          int token) {
  int const inner = order == kv::axis_order::nhd ? token * heads + at.head : at.head * tokens + token;
  return tensor.data() + ((at.layer * batch + at.sequence) * tokens * heads + inner) * dims;
}

std::string refusal_of(kv::contiguous_memory const& of) {
  return error_of([&] { static_cast<void>(kv::contiguous_cache(of)); });
}

TEST_SUITE("core/tensors") {
  TEST_CASE("a contiguous cache finds every row, in either order, and as slots") {
    for (auto const order : {kv::axis_order::nhd, kv::axis_order::hnd}) {
      for (bool const slots : {false, true}) {
        int const batch = slots && order == kv::axis_order::hnd ? 1 : sizes::sequences;
        memory of;
        kv::contiguous_memory const described = of.described(order, batch);
        kv::cache const cache =
            slots ? kv::contiguous_cache_as_slots(described, of.slots.data()) : kv::contiguous_cache(described);
        kv::detail::check_cache("test", cache);
        CHECK(cache.lanes.size() == batch * sizes::layers * sizes::kv_heads);
        for (int i = 0; i < cache.lanes.size(); ++i) {
          kv::lane const at = cache.lanes.at(i);
          CHECK(cache.lanes.count.row(at) == of.counts.data() + i);
          CHECK(cache.lanes.position.row(at) == of.positions.data() + i * sizes::capacity);
          for (int e = 0; e < sizes::capacity; ++e) {
            kv::place const here = cache.where.at(at, e);
            auto const* const k = reinterpret_cast<float*>(cache.k.row(at.layer, here, at.head));
            auto const* const v = reinterpret_cast<float*>(cache.v.row(at.layer, here, at.head));
            CHECK(k == row_in(of.k, order, batch, sizes::capacity, sizes::kv_heads, sizes::dims, at, e));
            CHECK(v == row_in(of.v, order, batch, sizes::capacity, sizes::kv_heads, sizes::value_dims, at, e));
          }
        }
      }
    }
  }

  TEST_CASE("entries are appended and dropped through both views of the same memory") {
    for (bool const slots : {false, true}) {
      memory of;
      kv::contiguous_memory const described = of.described(kv::axis_order::nhd);
      kv::cache cache =
          slots ? kv::contiguous_cache_as_slots(described, of.slots.data()) : kv::contiguous_cache(described);
      kv::host_executor exec;
      auto const policy = kv::policies::streaming_llm_decode({.budget = 3, .sinks = 1});
      auto const whole = kv::policies::streaming_llm({.budget = 3, .sinks = 1});
      auto [state, plan] = state_and_plan(exec, policy, cache);
      auto whole_plan = kv::make_plan(exec, whole, cache);
      for (int s = 0; s < sizes::sequences; ++s) {
        kv::append(exec, cache, state, {.sequence = s, .tokens = 4, .position = 0});
      }
      kv::signals const in{cache.lanes};
      if (slots) {
        kv::decide(exec, policy, in, state, plan);
        kv::apply(exec, kv::overwrite{kv::list_of(cache, of.slots.data())}, plan, cache, state);
      } else {
        kv::decide(exec, whole, in, state, whole_plan);
        kv::apply(exec, kv::compact{}, whole_plan, cache, state);
      }
      for (kv::lane const at : lanes_of(cache.lanes)) {
        int const* const position = cache.lanes.position.row(at);
        CHECK(*cache.lanes.count.row(at) == 3);
        CHECK(std::vector<int>(position, position + 3) == std::vector<int>{0, 2, 3});
        // The dropped entry's slot is the next one to write.
        if (slots) CHECK(cache.where.at(at, 3).unit == at.sequence * sizes::capacity + 1);
      }
    }
  }

  TEST_CASE("query rows and probabilities lie where their axes say") {
    constexpr int rows = 3, entries = 8;
    std::vector<int> const positions(as_size(sizes::sequences * rows), 0), valid{3, 1};
    std::vector<std::uint16_t> data(sizes::layers * sizes::sequences * rows * sizes::query_heads * entries);
    for (auto const order : {kv::axis_order::nhd, kv::axis_order::hnd}) {
      kv::queries const q = kv::queries_of(data.data(), kv::codec::bf16, sizes::model, rows, positions.data(),
                                           {.sequences = sizes::sequences, .valid_rows = valid.data(), .order = order});
      kv::attention_probabilities const p =
          kv::probabilities_of(data.data(), kv::codec::f16, sizes::model, rows, entries, positions.data(),
                               {.sequences = sizes::sequences, .valid_rows = valid.data()});
      CHECK(q.element == kv::codec::bf16);
      CHECK(p.entries == entries);
      for (int s = 0; s < sizes::sequences; ++s) {
        CHECK(q.position.row({s, 1, 1}) == positions.data() + s * rows);
        CHECK(p.position.row({s, 1, 1}) == positions.data() + s * rows);
        CHECK(q.valid({s, 2, 1}) == valid[as_size(s)]);
        CHECK(p.valid({s, 2, 1}) == valid[as_size(s)]);
        for (int l = 0; l < sizes::layers; ++l) {
          for (int h = 0; h < sizes::query_heads; ++h) {
            for (int r = 0; r < rows; ++r) {
              kv::lane const at{s, l, h};
              auto const* const row =
                  row_in(data, order, sizes::sequences, rows, sizes::query_heads, sizes::dims, at, r);
              CHECK(q.at({s, l, 0}, h, r) == reinterpret_cast<std::byte const*>(row));
              auto const* const of_row =
                  row_in(data, kv::axis_order::hnd, sizes::sequences, rows, sizes::query_heads, entries, at, r);
              CHECK(p.at({s, l, 0}, h, r) == reinterpret_cast<std::byte const*>(of_row));
            }
          }
        }
      }
    }
    kv::entry_numbers const gates = kv::entry_numbers_of(data.data(), kv::codec::bf16, sizes::model, rows,
                                                         {.sequences = sizes::sequences, .valid_rows = valid.data()});
    for (int s = 0; s < sizes::sequences; ++s) {
      CHECK(gates.count({s, 1, 1}) == valid[as_size(s)]);
      for (int l = 0; l < sizes::layers; ++l) {
        for (int h = 0; h < sizes::kv_heads; ++h) {
          for (int r = 0; r < rows; ++r) {
            auto const* const number = data.data() + ((l * sizes::sequences + s) * sizes::kv_heads + h) * rows + r;
            CHECK(gates.at({s, l, h}, r) == reinterpret_cast<std::byte const*>(number));
          }
        }
      }
    }
    float const one = 0;
    CHECK(kv::entry_numbers_of(&one, sizes::model, 1).element == kv::codec::f32);
    CHECK(kv::entry_numbers_of(&one, sizes::model, 1).counts.data == nullptr);
    CHECK(kv::queries_of(&one, sizes::model, 1, positions.data()).element == kv::codec::f32);
    CHECK(kv::queries_of(&one, sizes::model, 1, positions.data()).valid_rows.data == nullptr);
    CHECK(kv::probabilities_of(&one, sizes::model, 1, 1, positions.data()).element == kv::codec::f32);
  }

  TEST_CASE("memory that is missing is refused by its name") {
    memory of;
    auto const refused = [&](auto const& change) {
      kv::contiguous_memory bad = of.described(kv::axis_order::nhd);
      change(bad);
      return refusal_of(bad);
    };
    CHECK(refused([](auto&) {}).empty());
    CHECK(refused([](auto& bad) { bad.k = nullptr; }) ==
          "contiguous_cache: k = null, but a cache is the engine's memory");
    CHECK(refused([](auto& bad) { bad.v = nullptr, bad.shape.value_dim = 0; }) ==
          "contiguous_cache: v = null, but a cache is the engine's memory: of one with keys only, shape.value_dim says "
          "which channels are values");
    CHECK(refused([](auto& bad) { bad.counts = nullptr; }) ==
          "contiguous_cache: counts = null, but every lane says how many entries it holds");
    CHECK(refused([](auto& bad) { bad.positions = nullptr; }) ==
          "contiguous_cache: positions = null, but every entry says its position");
    CHECK(refused([](auto& bad) { bad.capacity = 0; }) ==
          "contiguous_cache: capacity = 0, but each sequence has memory for at least one token");
    CHECK(refused([](auto& bad) { bad.sequences = 0; }) ==
          "contiguous_cache: sequences = 0, but a batch has at least one sequence");
    CHECK(refused([](auto& bad) { bad.element = kv::codec::opaque; }) ==
          "contiguous_cache: element = opaque, but rows of opaque bytes need a plane of their own");
    CHECK(error_of([&] {
            static_cast<void>(kv::contiguous_cache_as_slots(of.described(kv::axis_order::hnd), of.slots.data()));
          }) ==
          "contiguous_cache_as_slots: order = hnd, but one stride leads from slot to slot, and there are 2 sequences: "
          "use nhd");
    CHECK(error_of([&] {
            static_cast<void>(kv::contiguous_cache_as_slots(of.described(kv::axis_order::nhd), nullptr));
          }) == "contiguous_cache_as_slots: slots = null, but every lane has a list of its slots");
    kv::cache const cache = kv::contiguous_cache_as_slots(of.described(kv::axis_order::nhd), of.slots.data());
    CHECK(error_of([&] { static_cast<void>(kv::list_of(cache, of.counts.data())); }) ==
          "list_of: slots = another table, but it is the memory of the table that the cache's locator reads");
    CHECK(error_of([&] { static_cast<void>(kv::list_of(cache, nullptr)); }).starts_with("list_of: slots = null, but"));
  }
}

}  // namespace tensors_test

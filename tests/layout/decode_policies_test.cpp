// SPDX-License-Identifier: Apache-2.0
// The policies that drop one entry in each step, over slots, keep what those that drop all at once keep over rows.

#include "support/test.hpp"

namespace decode_test {

namespace kv = kvpolicy;

/// An engine of one sequence whose attention is a number that depends on layer, head and the two positions.
struct engine {
  static constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 3};
  static constexpr int capacity = 40, lanes = 4;
  std::vector<float> k = std::vector<float>(lanes * capacity * 3), v = k;
  std::vector<int> counts = std::vector<int>(lanes), positions = std::vector<int>(lanes * capacity), slots = positions;
  std::vector<float> probabilities;
  std::vector<int> rows;

  /// The forward of the tokens at positions [begin, end), after their entries were appended.
  kv::attention_probabilities forward(kv::cache const& cache, int begin, int end) {
    probabilities.assign(static_cast<std::size_t>(2 * 4 * (end - begin) * capacity), 0);
    rows.clear();
    for (int p = begin; p < end; ++p) rows.push_back(p);
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 4; ++head) {
        kv::lane const lane{0, layer, head / 2};
        for (int r = 0; r < end - begin; ++r) {
          for (int e = 0; e < *cache.lanes.count.row(lane); ++e) {
            int const at = cache.lanes.position.row(lane)[e];
            if (at > begin + r) continue;
            unsigned const mixed = static_cast<unsigned>(layer * 977 + head * 131 + (begin + r) * 29 + at * 7919);
            probabilities[static_cast<std::size_t>(((layer * 4 + head) * (end - begin) + r) * capacity + e)] =
                static_cast<float>(mixed * 2654435761u >> 20) / 4096.0f;
          }
        }
      }
    }
    return kv::probabilities_of(probabilities.data(), model, end - begin, capacity, rows.data());
  }
  [[nodiscard]] std::vector<int> kept(kv::cache const& cache, int i) const {
    int const* const first = cache.lanes.position.row(cache.lanes.at(i));
    return {first, first + counts[static_cast<std::size_t>(i)]};
  }
};

/// Runs both policies side by side: a prompt, then single tokens.
template <class Whole, class One>
void keep_the_same(Whole const& whole, One const& one) {
  engine rows, list;
  kv::cache by_row = kv::contiguous_cache(rows.k.data(), rows.v.data(), engine::model, engine::capacity,
                                          rows.counts.data(), rows.positions.data());
  kv::cache by_slot = kv::contiguous_cache_as_slots(list.k.data(), list.v.data(), engine::model, engine::capacity,
                                                    list.counts.data(), list.positions.data(), list.slots.data());
  for (std::size_t i = 0; i < list.k.size(); ++i) list.k[i] = static_cast<float>(i);
  std::vector<float> const untouched = list.k;
  kv::host_executor exec;
  auto rows_state = kv::make_state(exec, whole, by_row);
  auto list_state = kv::make_state(exec, one, by_slot);
  auto rows_plan = kv::make_plan(exec, whole, by_row, kv::compact{});
  auto prompt_plan = kv::make_plan(exec, whole, by_slot, kv::overwrite{});
  auto list_plan = kv::make_plan(exec, one, by_slot, kv::overwrite{});
  for (int begin = 0, end = 20; end <= 60; begin = end++) {
    for (auto* const each : {&by_row, &by_slot}) {
      kv::append(exec, *each, each == &by_row ? rows_state : list_state, {.tokens = end - begin, .position = begin});
    }
    kv::signals const of_rows{by_row.lanes, rows.forward(by_row, begin, end)};
    kv::signals const of_list{by_slot.lanes, list.forward(by_slot, begin, end)};
    kv::observe(exec, whole, of_rows, rows_state);
    kv::observe(exec, one, of_list, list_state);
    kv::decide(exec, whole, of_rows, rows_state, rows_plan);
    kv::apply(exec, kv::compact{}, rows_plan, by_row, rows_state);
    kv::overwrite const how{kv::list_of(by_slot, list.slots.data())};
    if (begin == 0) {  // a prompt comes down to the budget at once; both policies share the state
      kv::decide(exec, whole, of_list, list_state, prompt_plan);
      kv::apply(exec, how, prompt_plan, by_slot, list_state);
      list.k = untouched;
    } else {
      kv::decide(exec, one, of_list, list_state, list_plan);
      kv::apply(exec, how, list_plan, by_slot, list_state);
      CHECK(list.k == untouched);  // no row moves
    }
    CAPTURE(end);
    for (int i = 0; i < engine::lanes; ++i) {
      CHECK(rows.counts[static_cast<std::size_t>(i)] == 12);
      CHECK(rows.kept(by_row, i) == list.kept(by_slot, i));
    }
  }
}

}  // namespace decode_test

TEST_SUITE("layout/decode_policies") {
  TEST_CASE("streaming_llm_decode keeps what streaming_llm keeps") {
    decode_test::keep_the_same(kvpolicy::policies::streaming_llm({.budget = 12, .sinks = 2}),
                               kvpolicy::policies::streaming_llm_decode({.budget = 12, .sinks = 2}));
  }
  TEST_CASE("h2o_decode keeps what h2o keeps, with the engine's own probabilities") {
    decode_test::keep_the_same(kvpolicy::policies::h2o({.budget = 12}), kvpolicy::policies::h2o_decode({.budget = 12}));
    decode_test::keep_the_same(kvpolicy::policies::h2o({.budget = 12, .sinks = 3}),
                               kvpolicy::policies::h2o_decode({.budget = 12, .sinks = 3}));
  }
}

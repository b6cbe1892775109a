// SPDX-License-Identifier: Apache-2.0
// Evicts from a cache whose prefix tree keeps matching: the map redirects dropped positions to the dead slot, and
// attention reads the list of live slots.
#include <array>
#include <numeric>

#include "engine.hpp"

namespace {

/// An engine whose slots hold one token each, with a map from positions to slots for each request, as a prefix tree
/// needs it. Slot 0 belongs to no request.
struct slot_engine {
  static constexpr int slots = 16, tokens = 10;
  std::vector<float> rows = std::vector<float>(slots * 2);  // one layer, one head, keys and values of one channel
  std::array<int, tokens> map{3, 4, 5, 9, 8, 7, 11, 12, 13, 14};
  std::array<int, tokens> live = map;
  std::array<int, tokens> position{};
  std::array<int, tokens> freed{};
  int count = 0;
  int freed_count = 0;

  kv::cache view() {
    kv::plane const keys{.base = reinterpret_cast<std::byte*>(rows.data()),
                         .channels = 1,
                         .unit_stride = 8,
                         .channel_stride = 4};  // K and V side by side
    kv::plane values = keys;
    values.base += 4;
    return {.shape = {1, 1, 1, 1},
            .lanes = {.layer_end = 1, .heads = 1, .capacity = tokens, .count = {&count}, .position = {position.data()}},
            .k = keys,
            .v = values,
            .where = kv::slot_map({live.data()}, slots)};
  }
};

void print(char const* what, int const* from, int count) {
  std::printf("%-8s", what);
  for (int i = 0; i < count; ++i) std::printf("%4d", from[i]);
  std::printf("\n");
}

}  // namespace

int main() {
  slot_engine engine;
  kv::cache cache = engine.view();
  kv::host_executor exec;
  auto const policy = kv::policies::streaming_llm({.budget = 5, .sinks = 2});
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = slot_engine::tokens, .position = 0});
  print("map", engine.map.data(), slot_engine::tokens);
  kv::decide(exec, policy, kv::signals{cache.lanes}, state, plan);

  // example-begin dead_slot
  auto const used_elsewhere = [](int slot) { return slot == 9; };  // another request uses this slot
  int const tree_prefix = 3;  // the slots of the first three positions belong to the prefix tree
  kv::apply_stats stats;
  kv::apply(exec,
            kv::dead_slot<decltype(used_elsewhere)>{.list = {engine.live.data()},  // attention reads this
                                                    .map = {engine.map.data()},    // the engine's map, by position
                                                    .dead = 0,
                                                    .locked_prefix = {&tree_prefix},
                                                    .shared = used_elsewhere,
                                                    .freed = {{engine.freed.data()}, {&engine.freed_count}}},
            plan, cache, state, &stats);
  // example-end dead_slot

  print("map", engine.map.data(), slot_engine::tokens);
  print("live", engine.live.data(), engine.count);
  print("freed", engine.freed.data(), engine.freed_count);
  std::printf("kept %lld, freed %lld, attended %lld\n", static_cast<long long>(stats.logical_kept),
              static_cast<long long>(stats.physical_freed), static_cast<long long>(stats.attended_length));
}

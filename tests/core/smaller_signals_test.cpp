// SPDX-License-Identifier: Apache-2.0
// Keys and values of another cache than that of the lanes are refused before a row of them is read.

#include "laws/refusal.hpp"
#include "support/fenced.hpp"

namespace {

using namespace kvpolicy_test;

/// Two sequences of nine entries each, and rows that end at a page that nobody may touch.
struct fenced_rows {
  static constexpr int sequences = 2, held = 9, bound = 12, heads = 2, dims = 20;
  static constexpr kv::shape model{.layers = 1, .query_heads = heads, .kv_heads = heads, .head_dim = dims};

  fenced_rows(int rows, kv::isa most)
      : capacity(rows), memory(as_size(sequences * heads * dims * rows), fence::behind, 0.5f), exec(1, most) {
    view = make(memory.data(), rows);
    view.lanes.capacity = bound;
    view.lanes.position.sequence = heads * bound;
    view.lanes.position.head = bound;
    for (int& each : counts) each = held;
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int>(i) % bound;
    memory.seal();
  }

  kv::cache make(float* rows, int capacity_of) {
    return kv::contiguous_cache({.k = rows,
                                 .v = rows,
                                 .shape = model,
                                 .sequences = sequences,
                                 .capacity = capacity_of,
                                 .counts = counts.data(),
                                 .positions = positions.data()});
  }

  int capacity;
  fenced<float> memory;
  std::vector<int> counts = std::vector<int>(sequences * heads);
  std::vector<int> positions = std::vector<int>(sequences * heads * bound);
  std::vector<float> whole = std::vector<float>(sequences * heads * dims * bound);
  std::vector<float> whole_values = whole;
  kv::host_executor exec;
  kv::cache view;
};

std::vector<kv::isa> levels() {
  std::vector<kv::isa> all;
  for (int i = 0; i <= static_cast<int>(kv::best_isa()); ++i) all.push_back(static_cast<kv::isa>(i));
  return all;
}

}  // namespace

TEST_SUITE("core/signals") {
  TEST_CASE("keys and values of a cache with fewer rows than entries are refused, on every instruction set") {
    for (kv::isa const most : levels()) {
      for (int const rows : {1, 7, 8, 9, 12}) {
        fenced_rows now(rows, most);
        kv::cache whole = now.view;
        whole.where = kv::identity_map(fenced_rows::bound, fenced_rows::sequences);
        auto const ask = [&](auto const& policy, auto const& given) {
          kv::cache of = now.make(now.whole.data(), fenced_rows::bound);
          of.v.base = reinterpret_cast<std::byte*>(now.whole_values.data());
          auto [state, plan] = state_and_plan(now.exec, policy, of);
          kv::signals const in{of.lanes, given};
          if constexpr (requires { kv::observe(now.exec, policy, in, state); }) {
            std::string const said = error_of([&] { kv::observe(now.exec, policy, in, state); });
            if (!said.empty()) return said;
          }
          return error_of([&] { kv::decide(now.exec, policy, in, state, plan); });
        };
        std::string const rule = ", but a lane holds 9 entries: these rows are of a smaller cache";
        std::string const told = ".where.unit_tokens = " + std::to_string(rows) + rule;
        std::string const knorm = ask(kv::eviction<kv::knorm>{.budget = {4}}, kv::keys_of(now.view));
        std::string const recorded = ask(kv::eviction<kv::recorded_knorm>{.budget = {4}}, kv::keys_of(now.view));
        std::string const erased = ask(kv::any_policy(kv::parse("knorm | budget(4)")), kv::keys_of(now.view));
        CHECK(knorm == (rows < 9 ? "observe: keys" + told : ""));
        CHECK(recorded == (rows < 9 ? "observe: keys" + told : ""));
        CHECK(erased == (rows < 9 ? "observe: keys" + told : ""));
      }
    }
  }

  TEST_CASE("keys of fewer sequences, of other slots and without a table are refused") {
    working_batch now;
    auto const refuses = [&](std::string const& text, std::function<void(kv::locator&)> const& change) {
      kv::keys bad = kv::keys_of(now.view);
      change(bad.where);
      kv::values bad_values = kv::values_of(now.view);
      change(bad_values.where);
      kv::signals const in{now.view.lanes, bad, kv::queries{now.queries.view()}};
      kv::signals const values{now.view.lanes, kv::keys_of(now.view), bad_values, kv::queries{now.queries.view()}};
      now.refuses("observe: keys." + text, [&] { kv::observe(now.exec, now.policy, in, now.state); });
      now.refuses("decide: keys." + text, [&] { kv::decide(now.exec, now.policy, in, now.state, now.plan); });
      now.refuses("observe: values." + text, [&] { kv::observe(now.exec, now.policy, values, now.state); });
    };
    int const list[] = {1, 0};
    refuses("where.table = null, but this locator reads a table", [](kv::locator& bad) { bad.table.data = nullptr; });
    refuses("where.units = 0, but a pool has at least one unit", [](kv::locator& bad) { bad.units = 0; });
    refuses("where.table.sequence = 0, but there are 2 sequences, and each has a row of its own",
            [](kv::locator& bad) { bad.table.sequence = 0; });
    refuses("where.units = 1, but every sequence has a row of its own",
            [](kv::locator& bad) { bad = kv::identity_map(16, 1); });
    refuses(
        "where.slots = another list, but the rows of these sequences are by slot: make the cache with kvpolicy::only",
        [&](kv::locator& bad) { bad = kv::identity_map(16, 2), bad.slots = list; });
  }
}

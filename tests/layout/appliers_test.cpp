// SPDX-License-Identifier: Apache-2.0
// What holds for every applier: no allocation, the same memory for any number of threads, and three numbers told.

#include "layout/slot_cache.hpp"
#include "support/beside.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

enum class applier { compact, list_rewrite, dead_slot, mask, overwrite, compact_rerotated, drop_blocks };
constexpr applier all_appliers[] = {applier::compact,   applier::list_rewrite,      applier::dead_slot,  applier::mask,
                                    applier::overwrite, applier::compact_rerotated, applier::drop_blocks};

/// A cache, its state with columns, and a decision; carried out by any applier.
struct work {
  using policy_type = kv::eviction<kv::reduce_lanes<kv::random_scores>, kv::sinks>;

  work(slot_options const& shape, int threads)
      : cache(shape),
        exec(threads),
        view(cache.view()),
        plan(kv::make_plan(exec, policy, view, kv::compact_rerotated{}, kv::list_rewrite<>{}, kv::dead_slot<>{},
                           kv::mask{}, kv::overwrite{}, kv::drop_blocks{})),
        columns(kv::make_state(exec, policy, view)),
        hidden(as_size(4 * cache.units * cache.rows), std::byte{0}) {
    keep_beside(columns, kv::record_attention_mass{});
    keep_beside(columns, kv::query_ring{3});
    freed = cache.freed_list();
    std::int64_t const row = 4 * cache.units;
    masking = {cache.list_table(), {{hidden.data(), row, 0, 0}, kv::mask_form::additive_f32, cache.units}};
    redirecting = cache.redirecting();
    list = cache.list_table();
  }
  void append(int tokens) {
    for (int t = 0; t < tokens; ++t, ++length) {
      for (int s = 0; s < cache.options.sequences; ++s) {
        if (cache.held({s, 0, 0}) == cache.options.bound) continue;
        int const next = cache.held({s, 0, 0}) == 0 ? 0 : cache.positions({s, 0, 0}).back() + 1;
        cache.write_token(s, next, length);
        kv::append(exec, view, columns, {s, 1, next});
      }
    }
  }
  void decide(int budget) {
    policy.budget.tokens = budget;
    kv::decide(exec, policy, kv::signals{view.lanes}, columns, plan);
  }
  void apply(applier by) {
    if (by == applier::compact) kv::apply(exec, kv::compact{}, plan, view, columns, &told);
    if (by == applier::list_rewrite) {
      kv::apply(exec, kv::list_rewrite<>{.list = list, .freed = freed}, plan, view, columns, &told);
    }
    if (by == applier::dead_slot) kv::apply(exec, redirecting, plan, view, columns, &told);
    if (by == applier::mask) kv::apply(exec, masking, plan, view, columns, &told);
    if (by == applier::overwrite) kv::apply(exec, kv::overwrite{list}, plan, view, columns, &told);
    if (by == applier::compact_rerotated) kv::apply(exec, kv::compact_rerotated{}, plan, view, columns, &told);
    if (by == applier::drop_blocks) kv::apply(exec, kv::drop_blocks{list, freed}, plan, view, columns, &told);
  }

  slot_cache cache;
  kv::host_executor exec;
  policy_type policy{.protect = {1}};
  kv::cache view;
  kv::plan<kv::host_executor> plan;
  kv::state<kv::host_executor> columns;
  std::vector<std::byte> hidden;
  kv::unit_list freed;
  kv::mask masking;
  kv::dead_slot<> redirecting;
  kv::by_lane<int> list;
  kv::apply_stats told;
  int length = 0;
};

slot_options shape_for(applier by) {
  return {.model = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 64},
          .sequences = 3,
          .bound = 40,
          .page = by == applier::drop_blocks ? 4 : 1,
          .element = kv::codec::f16};
}

}  // namespace

TEST_SUITE("layout") {
  TEST_CASE("no applier allocates, whatever it drops") {
    long const probe = allocations_in([] {
      int* const volatile made = new int(1);  // volatile: or the compiler leaves both out
      delete made;
    });
    REQUIRE(probe > 0);  // the program counts
    for (applier const by : all_appliers) {
      for (int const threads : {1, 3}) {
        work with(shape_for(by), threads);
        with.append(40);
        for (int const budget : {40, 31, 30, 7, 0}) {
          with.decide(budget);
          long const made = allocations_in([&] { with.apply(by); });
          CHECK_MESSAGE(made == 0, "applier " << static_cast<int>(by) << ", budget " << budget);
        }
      }
    }
  }

  TEST_CASE("every applier leaves the same memory with 1, 2 and 4 threads") {
    for (applier const by : all_appliers) {
      for (int const threads : {2, 4, 4}) {
        work with(shape_for(by), threads);
        work again(shape_for(by), 1);
        for (int const budget : {33, 20, 5}) {
          for (work* each : {&with, &again}) {
            each->append(budget == 33 ? 40 : 3);
            each->decide(budget);
            each->apply(by);
          }
          CHECK(with.cache.save() == again.cache.save());
          CHECK(with.hidden == again.hidden);
          CHECK(with.told == again.told);
        }
      }
    }
  }

  TEST_CASE("what a decision came to: ten entries of two layers, four of them kept") {
    // sinks 1 and budget 4 of 10; positions and the kept ones do not matter for the numbers
    struct wanted {
      applier by;
      int page;
      kv::apply_stats told;
    };
    for (wanted const& one :
         {wanted{applier::compact, 1, {8, 12, 8}}, wanted{applier::compact, 4, {8, 16, 8}},
          wanted{applier::list_rewrite, 1, {8, 12, 8}}, wanted{applier::dead_slot, 1, {8, 12, 8}},
          wanted{applier::mask, 1, {8, 0, 0}}, wanted{applier::overwrite, 1, {8, 12, 8}},
          wanted{applier::compact_rerotated, 1, {8, 12, 8}}, wanted{applier::drop_blocks, 16, {8, 0, 20}}}) {
      work with({.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 16, .page = one.page},
                1);
      with.append(10);
      with.decide(4);
      with.apply(one.by);
      kv::apply_stats expected = one.told;
      if (one.by == applier::mask) expected.attended_length = 2 * (with.cache.positions({}).back() + 1);
      // compact in pages of 4: 10 entries take 3 pages and 4 take 1, so 2 pages of 4 places come free in each layer
      CHECK_MESSAGE(with.told.logical_kept == expected.logical_kept, static_cast<int>(one.by));
      CHECK_MESSAGE(with.told.physical_freed == expected.physical_freed, static_cast<int>(one.by));
      CHECK_MESSAGE(with.told.attended_length == expected.attended_length, static_cast<int>(one.by));
    }
  }
}

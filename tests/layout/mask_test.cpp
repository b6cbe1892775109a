// SPDX-License-Identifier: Apache-2.0
// mask: the elements of dropped entries are written and no other, in every form that a mask has.

#include "layout/any_slots.hpp"
#include "reference/layouts.hpp"

namespace {

using namespace kvpolicy_test;

/// A mask whose rows have guard bytes between them, and one element read and written by definitions of its own.
struct guarded_mask {
  static constexpr int guard = 16;

  guarded_mask(slot_cache& cache, kv::mask_form of)
      : form(of),
        bytes(of == kv::mask_form::additive_f32 ? cache.units * 4
              : of == kv::mask_form::boolean    ? cache.units
              : of == kv::mask_form::bits       ? (cache.units + 7) / 8
                                                : cache.units * 2),
        row(bytes + guard),
        memory(as_size(cache.rows * row + guard), std::byte{0x5A}) {}

  kv::mask_rows view(slot_cache& cache) {
    auto const like = cache.table(cache.count, 1);
    return {{memory.data() + guard, like.sequence * row, like.layer * row, like.head * row}, form, cache.units};
  }
  /// Writes "may be read" or "may not" as the form says.
  void set(std::vector<std::byte>& into, int of_row, int unit, bool readable) const {
    std::byte* const at = into.data() + guard + of_row * row;
    std::uint32_t const infinity = form == kv::mask_form::additive_f32   ? 0xFF800000u
                                   : form == kv::mask_form::additive_f16 ? 0xFC00u
                                                                         : 0xFF80u;
    std::uint32_t const value = readable ? 0 : infinity;
    if (form == kv::mask_form::boolean) {
      at[unit] = std::byte{readable};
    } else if (form == kv::mask_form::bits) {
      int const bit = 1 << unit % 8;
      int const old = std::to_integer<int>(at[unit / 8]);
      at[unit / 8] = static_cast<std::byte>(readable ? old | bit : old & ~bit);
    } else if (form == kv::mask_form::additive_f32) {
      std::memcpy(at + 4 * unit, &value, 4);
    } else {
      std::memcpy(at + 2 * unit, &value, 2);
    }
  }

  kv::mask_form form;
  int bytes;
  int row;
  std::vector<std::byte> memory;
};

template <class Policy>
void hides_what_goes(bool by_lane, Policy policy) {
  slot_options shape = any_slots(by_lane);
  shape.bound = *rc::gen::element(8, 1, 33);
  shape.spare = *rc::gen::inRange(1, 9);
  slot_cache cache(shape);
  guarded_mask rows(cache, static_cast<kv::mask_form>(*rc::gen::inRange(0, 5)));
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::cache view = cache.view();
  auto [state, plan] = state_and_plan(exec, policy, view);
  kv::mask const how{cache.list_table(), rows.view(cache)};
  dice random(shape.seed);
  int length = 0;
  for (int round = 0; round < 3; ++round) {
    append_any(exec, cache, view, state, random, length);
    length += shape.bound;

    auto expected = rows.memory;
    for (int r = 0; r < cache.rows; ++r) {
      for (int unit = 0; unit < cache.units; ++unit) rows.set(expected, r, unit, false);
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      for (int const unit : cache.listed(cache.lane_at(i)))
        rows.set(expected, cache.row_of(cache.lane_at(i)), unit, true);
    }
    auto const state_before = cache.save();
    kv::show(exec, how, view);
    RC_ASSERT(rows.memory == expected);
    RC_ASSERT(cache.save() == state_before);

    for (auto& each : rows.memory) each ^= static_cast<std::byte>(random.below(256));  // whatever an engine has there
    expected = rows.memory;
    policy.budget.tokens = random.below(shape.bound + 1);
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    kv::apply_stats wanted;
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      std::vector<int> const kept = staying(cache, plan.keep(), i);
      wanted.logical_kept += static_cast<int>(kept.size()) - cache.held(this_lane) + cache.committed(this_lane);
      for (int const unit : reference::hidden_units(cache.listed(this_lane), cache.held(this_lane), kept)) {
        rows.set(expected, cache.row_of(this_lane), unit, false);
      }
      if (!kept.empty()) wanted.attended_length += cache.positions(this_lane)[as_size(kept.back())] + 1;
    }
    auto const memory_before = cache.memory;
    kv::apply_stats stats;
    kv::apply(exec, how, plan, view, state, &stats);
    RC_ASSERT(rows.memory == expected);
    RC_ASSERT(cache.memory == memory_before);
    RC_ASSERT(stats == wanted);
  }
}

}  // namespace

TEST_SUITE("layout/mask") {
  TEST_CASE("only the elements of dropped entries are written, and show writes exactly what lives") {
    holds("a row for each sequence", 200,
          [] { hides_what_goes(false, kv::eviction<kv::reduce_lanes<kv::random_scores>>{}); });
    holds("a row for each lane", 200, [] { hides_what_goes(true, kv::eviction<kv::random_scores>{}); });
  }

  TEST_CASE("a slot that a kept entry has, too, is not hidden: or an alias in one list is refused") {
    slot_cache cache({.bound = 4});
    kv::host_executor exec;
    kv::eviction<kv::streaming_llm> const policy{.score = {.sinks = 1}, .budget = {2}};
    kv::cache view = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 3, .position = 0});
    cache.list[1] = cache.list[0];
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    guarded_mask rows(cache, kv::mask_form::boolean);
    kv::mask const how{cache.list_table(), rows.view(cache)};
    kv::show(exec, how, view);
    auto const shown = rows.memory;
    try {
      kv::apply(exec, how, plan, view, state);
    } catch (kv::invalid_argument const&) {
    }
    CHECK(rows.memory == shown);
  }

  TEST_CASE("nothing is freed and every position so far is attended") {
    slot_cache cache({.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 6});
    kv::host_executor exec;
    kv::eviction<kv::reduce_lanes<kv::streaming_llm>> const policy{.score = {.score_of = {.sinks = 1}}, .budget = {2}};
    kv::cache view = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 6, .position = 10});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    guarded_mask rows(cache, kv::mask_form::bits);
    kv::apply_stats stats;
    kv::apply(exec, kv::mask{cache.list_table(), rows.view(cache)}, plan, view, state, &stats);
    CHECK(stats == kv::apply_stats{.logical_kept = 4, .physical_freed = 0, .attended_length = 2 * 16});
  }
}

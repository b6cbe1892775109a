// SPDX-License-Identifier: Apache-2.0
// Consumer 3: WG-KV. A ring that overwrites its oldest row, promotion before it does, and pages for every lane.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// A window whose rows are all lanes' in step, and its global pages: one pool that any lane may hold.
struct wg_kv_engine {
  engine& model;
  int window_count = 0;
  int oldest = 0;
  std::vector<int> window_position = std::vector<int>(engine::bound);
  std::vector<int> pages{};
  std::vector<int> held = std::vector<int>(engine::lanes);
  std::vector<int> free{};
  int free_count = 0;

  kv::dual_cache view(int page) {
    kv::dual_cache both;
    both.window = model.view();
    both.window.lanes.count = {&window_count, 0, 0, 0};
    both.window.lanes.position = {window_position.data(), 0, 0, 0};
    both.window.where = {
        .kind = kv::locating::ring, .table = {&oldest, 0, 0, 0}, .unit_tokens = engine::bound, .units = 1};
    both.oldest = {&oldest, 0, 0, 0};
    both.pages.entries = model.view();
    both.pages.entries.lanes.in_flight = nullptr;
    std::int64_t const blocks = engine::bound / page;
    for (kv::plane* rows : {&both.pages.entries.k, &both.pages.entries.v}) {
      rows->layer_stride = rows->head_stride = 0, rows->unit_stride = page * rows->token_stride;
    }
    both.pages.table = {pages.data(), 0, std::int64_t{engine::kv_heads} * blocks, blocks};
    both.pages.entries.where = kv::block_table({pages.data(), 0, std::int64_t{engine::kv_heads} * blocks, blocks}, page,
                                               std::int64_t{engine::lanes} * blocks);
    both.pages.num_pages = {held.data(), 0, engine::kv_heads, 1};
    both.pages.free_pages = {free.data(), &free_count, -1};
    return both;
  }
};

/// Before the ring overwrites its oldest row: the place where a promoted victim goes is known, and is not the victim's.
inline bool promotes_before_overwrite(kv::dual_cache const& both, kv::lane this_lane) {
  kv::cache const& pages = both.pages.entries;
  kv::place const victim = both.window.where.at(this_lane, 0);
  kv::place const target = pages.where.at(this_lane, *pages.lanes.count.row(this_lane));
  return both.window.k.row(this_lane.layer, victim, this_lane.head) !=
         pages.k.row(this_lane.layer, target, this_lane.head);
}

/// A step of a composed policy, as an engine calls it.
inline void wg_kv_step(kv::host_executor& exec, kv::dual_cache& both, int position) {
  auto const policy = kv::cache_policy{.admit = kv::policies::wg_kv({.window = 8}),
                                       .select = kv::policies::quest({.budget = 32}),
                                       .evict = kv::policies::trim_kv({.budget = 48})};
  auto held = kv::make_state(exec, policy, both);
  auto plans = kv::make_plan(exec, policy, both);
  kv::step(exec, policy, kv::signals{both.window.lanes}, both, held, plans, {.tokens = 1, .position = position}, [] {});
}

}  // namespace vocabulary

// Consumer 3: WG-KV. A ring that overwrites its oldest row, promotion before it does, and pages for every lane.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// Signal: the write gate of each entry, one float an entry of a lane.
struct write_gate {
  static constexpr auto name = "write_gate";
  kv::by_lane<float const> gate{};
};

/// Admission is the same sentence with another trigger, domain and effect: score the entries that leave the window,
/// pick those above a threshold, promote.
struct gated {
  using needs = kv::needs<write_gate>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  struct read {
    kv::by_lane<float const> gate;
    KVPOLICY_HD float operator()(float, kv::entry at) const { return gate.row(at.who)[at.ordinal]; }
  };
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::map(exec, out, read{in.template get<write_gate>().gate});
  }
  friend bool operator==(gated const&, gated const&) = default;
};
static_assert(kv::scorer<gated>);

/// The window of a lane as a ring, `max_draft` rows longer so that a roll-back finds its victims, and its global pages.
struct dual_cache {
  kv::cache window;
  kv::cache global;
};

inline dual_cache two_caches(engine& model, std::vector<int>& oldest, std::vector<int> const& pages, int page) {
  kv::cache window = model.view();
  window.where = {
      .kind = kv::locating::ring, .table = {oldest.data(), 0, 0, 0}, .unit_tokens = engine::bound, .units = 1};
  kv::cache global = model.view();  // one pool of pages that any lane may hold: the table has a row for every lane
  auto const blocks = engine::bound / page;
  for (kv::plane* rows : {&global.k, &global.v}) rows->layer = rows->head = 0, rows->unit = page * rows->token;
  global.where = kv::block_table({pages.data(), 0, std::int64_t{engine::kv_heads} * blocks, blocks}, page,
                                 std::int64_t{engine::lanes} * blocks);
  return {window, global};
}

/// Before the ring overwrites its oldest row: the place where a promoted victim goes is known, and is not the victim's.
inline bool promotes_before_overwrite(dual_cache const& both, kv::lane who) {
  kv::place const victim = both.window.where.at(who, 0);
  kv::place const target = both.global.where.at(who, *both.global.who.count.row(who));
  return both.window.k.row(who.layer, victim, who.head) != both.global.k.row(who.layer, target, who.head);
}

}  // namespace vocabulary

// Consumer 2: IntentKV. One decision a token for all lanes, over a slot map with holes, by a memory of earlier turns'
// queries.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// Signal: one remembered query row for each layer and query head.
struct query_memory : kv::query_view {
  static constexpr auto name = "query_memory";
};

/// Recorder: M <- unit(e^-lambda M + mean of the span's rows), for each session. Appliers leave it where it is.
struct remember {
  float lambda = 0.5f;
  using needs = kv::needs<kv::queries>;
  using provides = query_memory;

  static std::array<kv::column, 1> columns(kv::shape const& model, int) {
    int const row = model.group() * model.head_dim * 4;
    return {kv::column{"query_memory", kv::per::session, kv::on_move::stay, row, 1}};
  }
  static query_memory view(kv::held_columns const& held) {
    query_memory out;  // no positions: a memory sees every entry
    out.base = held[0].rows.data;
    out.dims = held.model.head_dim;
    out.layer = held[0].rows.layer;
    out.head = 4LL * held.model.head_dim;
    out.heads = held.model.query_heads;
    out.rows = 1;
    return out;
  }
  void observe(auto&, auto const&, kv::held_columns const&) const {}
  friend bool operator==(remember const&, remember const&) = default;
};
static_assert(kv::recorder<remember>);

/// Scorer: softmax over the live entries, summed over all layers and heads, then over tensor-parallel ranks.
struct intent_kv {
  int tail = 32;
  using needs = kv::needs<kv::keys, query_memory>;
  static constexpr kv::granularity decides = kv::granularity::token;
  auto recorders() const { return std::tuple{remember{}}; }

  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::attention_mass(exec, in.template get<kv::keys>(), in.template get<query_memory>(),
                            {.group = kv::reduction::sum, .lanes = kv::reduction::sum}, out);
    kv::ops::all_reduce(exec, out);
  }
  friend bool operator==(intent_kv const&, intent_kv const&) = default;
};
static_assert(kv::scorer<intent_kv>);

/// The live entries of a slot map with holes: ordinals count what is live, positions say where it stands in the text.
inline kv::cache over_slot_map(engine& model, std::vector<int> const& live_slots) {
  kv::cache cache = model.view();
  cache.where = kv::slot_map({live_slots.data(), 0, 0, 0}, engine::bound);
  cache.k.unit = cache.v.unit = cache.k.token;
  cache.who.count = {model.count.data(), 0, 0, 0};        // one count and one list of positions for all lanes:
  cache.who.position = {model.position.data(), 0, 0, 0};  // a position is live everywhere or nowhere
  return cache;
}

}  // namespace vocabulary

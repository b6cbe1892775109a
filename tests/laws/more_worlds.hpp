// SPDX-License-Identifier: Apache-2.0
// Worlds of caches in parts: groups of layers, and a window with its pages.
#pragma once

#include "laws/worlds.hpp"
#include "support/dual_engine.hpp"

namespace kvpolicy_test {

/// A model of two groups of layers, of which the second has one head.
class groups_world : public world {
 public:
  static constexpr cache_world::policy_type policy = cache_world::policy;

  explicit groups_world(bool ragged = true) {
    for (auto* each : {&first, &second}) each->make(exec);
    all = {.layers = 4, .groups = {{"first", first.all, {0, 1}}, {"second", second.all, {2, 3}}}};
    states = kv::make_state(exec, policy, all);
    for (auto& each : plans) each = kv::make_plan(exec, policy, all, kv::compact{});
    begin(ragged);
  }

  std::vector<piece> pieces() override {
    return {{&all.groups[0].entries, &states[0]}, {&all.groups[1].entries, &states[1]}};
  }
  byte_image memory() const override {
    byte_image made;
    first.add_to(made);
    second.add_to(made);
    return made;
  }
  void append(view of, kv::append_request const& new_tokens) override {
    kv::layer_groups part = part_of(all, of);
    kv::append(exec, part, states, new_tokens);
  }
  void commit(view of, int sequence, int tokens) override {
    kv::layer_groups part = part_of(all, of);
    kv::commit(exec, part, states, sequence, tokens);
  }
  void truncate(view of, int sequence, int position) override {
    kv::layer_groups part = part_of(all, of);
    kv::truncate(exec, part, states, sequence, position);
  }
  void record(view of, std::vector<int> const& tokens) override {
    kv::layer_groups const part = part_of(all, of);
    // A group's numbers are made when they are asked for: they are recorded before those of the next one are.
    auto const signals_of = [&](int g) {
      kv::cache const& in = part.groups[as_size(g)].entries;
      return kv::signals{in.lanes, numbers<kv::log_beta>(in.shape, of, tokens, -1)};
    };
    kv::observe(exec, policy, part, signals_of, states);
  }
  void reset(std::span<int const> some) override {
    for (int const slot : some) kv::reset(exec, all, states, slot);  // a call for each: there is none for a list
  }
  void fork(int from, int to) override { kv::fork(exec, all, states, from, to); }
  void move(int from, int to) override { kv::move(exec, all, states, from, to); }
  std::size_t saved_bytes(int slot) override { return kv::saved_bytes(exec, all, states, slot); }
  void save(int slot, std::span<std::byte> to) override { kv::save(exec, all, states, slot, to); }
  void load(int slot, std::span<std::byte const> from) override { kv::load(exec, all, states, slot, from); }
  void decide(view of, int plan) override {
    kv::layer_groups const part = part_of(all, of);
    auto const signals_of = [&](int g) { return kv::signals{part.groups[as_size(g)].entries.lanes}; };
    kv::decide(exec, policy, part, signals_of, states, plans[cache_world::index(plan)]);
  }
  void apply(view of, int plan) override {
    kv::layer_groups part = part_of(all, of);
    kv::apply(exec, [](int) { return kv::compact{}; }, plans[cache_world::index(plan)], part, states);
  }
  void write_rows(int slot, int tokens) override {
    for (auto* each : {&first, &second}) each->write_rows(slot, tokens, length[cache_world::index(slot)]);
  }
  void make_state() override { static_cast<void>(kv::make_state(exec, policy, all)); }
  void make_plan() override { static_cast<void>(kv::make_plan(exec, policy, all, kv::compact{})); }

  cache_world::cell_type first{false, 2, 2, 0}, second{false, 2, 1, 1};
  kv::layer_groups all;
  kv::group_states<kv::host_executor> states;
  std::array<kv::group_plans<kv::host_executor>, 2> plans;
};

/// A window and pages. Tokens whose gate is open are admitted, and the pages drop what TRIM-KV scores lowest.
class dual_world : public world {
 public:
  static constexpr kv::cache_policy<kv::admission<kv::write_gate>, kv::omitted, kv::eviction<kv::trim_kv>> policy{
      .admit = {.window = 4, .pick = {0.5f}}, .evict = {.budget = {3}}};

  explicit dual_world(bool ragged = true, int pages = 64)
      : engine({.sequences = slots, .rows = 8, .page = 4, .pages = pages, .bound = bound}),
        all(engine.view()),
        state(kv::make_state(exec, policy, all)),
        exits(kv::make_plan(exec, admit, all)) {
    for (auto& each : plans) each.emplace(kv::make_plan(exec, policy.evict, all.pages.entries, kv::compact{}));
    begin(ragged);
  }

  std::vector<piece> pieces() override { return {{&all.window, &state.window}, {&all.pages.entries, &state.pages}}; }
  byte_image memory() const override {
    auto const now = engine.save();
    byte_image made;
    add(made, now.k);
    add(made, now.v);
    for (auto const& each : now.tables) add(made, each);
    add_number(made, now.free_pages);
    return made;
  }
  void append(view of, kv::append_request const& new_tokens) override {
    kv::cache part = part_of(all.window, of);
    kv::append(exec, part, state.window, new_tokens);
  }
  void commit(view of, int sequence, int tokens) override {
    kv::cache part = part_of(all.window, of);
    kv::commit(exec, part, sequence, tokens);
  }
  void truncate(view of, int sequence, int position) override {
    kv::dual_cache part = part_of(all, of);
    kv::truncate(exec, part, state, sequence, position);
  }
  void record(view of, std::vector<int> const& tokens) override {
    auto const shown_gates = numbers<kv::gate>(all.window.shape, of, tokens, 1);
    auto const shown_betas = numbers<kv::log_beta>(all.window.shape, of, tokens, -1);
    kv::observe(exec, policy, kv::signals{part_of(all.window.lanes, of), shown_gates, shown_betas}, state);
  }
  void reset(std::span<int const> some) override { kv::reset(exec, all, state, some); }
  void fork(int from, int to) override { kv::fork(exec, all, state, from, to); }
  void move(int from, int to) override { kv::move(exec, all, state, from, to); }
  std::size_t saved_bytes(int slot) override { return kv::saved_bytes(exec, all, state, slot); }
  void save(int slot, std::span<std::byte> to) override { kv::save(exec, all, state, slot, to); }
  void load(int slot, std::span<std::byte const> from) override { kv::load(exec, all, state, slot, from); }
  void decide(view of, int plan) override {
    kv::lanes const batch = part_of(all.pages.entries.lanes, of);
    kv::decide(exec, policy.evict, kv::signals{batch}, state.pages, *plans[cache_world::index(plan)]);
  }
  void apply(view of, int plan) override {
    kv::dual_cache part = part_of(all, of);
    kv::apply(exec, kv::compact{}, *plans[cache_world::index(plan)], part.pages.entries, state.pages);
    kv::ops::release_pages(exec, part.pages);
  }
  void promote(view of, std::vector<int> const& tokens) override {
    kv::dual_cache part = part_of(all, of);
    kv::promote(exec, admit, kv::signals{part.window.lanes}, part, state, exits, std::span(tokens));
  }
  void write_rows(int slot, int tokens) override {
    for (kv::lane const one : lanes_of(all.window.lanes)) {
      int const count = *all.window.lanes.count.row(one);
      for (int t = 1; one.sequence == slot && t <= tokens; ++t) {
        dual_engine::write(all.window, one, count - t, length[cache_world::index(slot)] - t);
      }
    }
  }
  void make_state() override { static_cast<void>(kv::make_state(exec, policy, all)); }
  void make_plan() override { static_cast<void>(kv::make_plan(exec, policy, all)); }

  /// Rows of a chunk outside of the cache: so many tokens of each slot, with a decision about them.
  void bring_chunk(std::vector<int> const& tokens, view of = view::whole) {
    chunk = engine.chunk(tokens, {length.begin(), length.end()});
    if (!of_chunk) of_chunk.emplace(kv::make_state(exec, admit, chunk));
    if (!decided) decided.emplace(kv::make_plan(exec, admit, chunk));
    auto const before = length;
    for (std::size_t s = 0; s < slots; ++s) length[s] += tokens[s];
    auto const shown_gates = numbers<kv::gate>(chunk.shape, view::whole, tokens, 1);
    auto const shown_betas = numbers<kv::log_beta>(chunk.shape, view::whole, tokens, -1);
    length = before;
    kv::observe(exec, admit, kv::signals{chunk.lanes, shown_gates, shown_betas}, *of_chunk);
    kv::decide(exec, admit, kv::signals{part_of(chunk.lanes, of)}, *of_chunk, *decided);
  }
  void ingest(view of = view::whole) {
    kv::dual_cache part = part_of(all, of);
    kv::ingest(exec, admit, kv::signals{part.window.lanes}, part_of(chunk, of), *of_chunk, *decided, part, state,
               exits);
  }
  /// One step of the library, in which a slot has new tokens.
  void step_of_library(view of, int slot, int tokens) {
    if (!stepping) stepping.emplace(kv::make_plan(exec, policy, all));
    kv::dual_cache part = part_of(all, of);
    kv::step(exec, policy, kv::signals{part.window.lanes}, part, state, *stepping,
             {sequence_in(of, slot), tokens, length[cache_world::index(slot)]}, [] {});
  }

  kv::cache chunk;
  std::optional<state_type> of_chunk;
  std::optional<kv::plan<kv::host_executor>> decided;
  std::optional<kv::step_plan<kv::host_executor>> stepping;
  decltype(kv::window_part(policy)) admit = kv::window_part(policy);
  dual_engine engine;
  kv::dual_cache all;
  kv::dual_state<kv::host_executor> state;
  kv::exit_plan<kv::host_executor> exits;
  std::array<std::optional<kv::plan<kv::host_executor>>, 2> plans;
};

/// A world of any kind. Requests are ragged, or all of one length, so that the columns of a dual cache's window slide.
inline std::unique_ptr<world> make_world(kind of, bool ragged = true) {
  if (of == kind::dual) return std::make_unique<dual_world>(ragged);
  if (of == kind::groups) return std::make_unique<groups_world>(ragged);
  return std::make_unique<cache_world>(of == kind::shared_table, ragged);
}

}  // namespace kvpolicy_test

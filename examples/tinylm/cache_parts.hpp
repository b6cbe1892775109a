// SPDX-License-Identifier: Apache-2.0
// The cache of a sequence under a cache policy, with and without an admission. A session uses either by the same calls.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <optional>
#include <vector>

#include "../executor.hpp"
#include "dual_memory.hpp"
#include "fresh_tokens.hpp"
#include "row_list.hpp"

namespace tinylm {

/// Adds the entries of a lane in the pages that a selection chose. `segment` is the lane's index in the keep set.
inline void add_pages(row_list& to, kv::cache const& pages, kv::keep_set const& chosen, int segment, int page) {
  kv::lane const this_lane = chosen.lanes.at(segment);
  int const count = *pages.lanes.count.row(this_lane);
  for (int const which : chosen.listed(segment))
    to.add(pages, this_lane, which * page, std::min(count, (which + 1) * page));
}

/// A cache with a window and pages, and the states of both.
template <class Policy, kv::executor Executor>
class admitting_cache {
 public:
  admitting_cache(Executor& exec, Policy const& policy, kv::shape const& model, int bound)
      : exec_(&exec),
        policy_(policy),
        memory_(model, policy.admit.window, bound),
        held_(kv::make_state(exec, policy, memory_.view())),
        plans_(kv::make_plan(exec, policy, memory_.view())) {
    kv::expects(
        !kv::observes_pages(policy), "tinylm", "evict", [&] { return kv::to_string(policy.evict); },
        "beside an admission this decoder gives no attention");
  }

  [[nodiscard]] dual_memory const& memory() const { return memory_; }
  [[nodiscard]] std::vector<kv::lanes> lanes() {
    kv::dual_cache const both = memory_.view();
    return {both.pages.entries.lanes, both.window.lanes};
  }
  /// The mask of a chunk: a row sees an entry before the window only if it was admitted.
  [[nodiscard]] std::optional<vertical_slash> mask(row_list const& of) const { return of.mask(policy_.admit.window); }

  /// Lists all entries in order, and marks the window's entries that will be admitted.
  void list(row_list& to) {
    kv::dual_cache const both = memory_.view();
    if (*both.window.lanes.count.row({}) > 0) {
      kv::decide(*exec_, admit(), kv::signals{both.window.lanes}, held_.window, plans_.admission->decided);
    }
    for (int i = 0; i < both.window.lanes.size(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      to.clear(this_lane);
      to.add(both.pages.entries, this_lane);
      to.add(both.window, this_lane, false);
      if (*both.window.lanes.count.row(this_lane) > 0) mark(to, plans_.admission->decided.keep(), i);
    }
  }

  /// Prepares a chunk that is about to be read. Its tokens become the last entries of each lane.
  void begin(fresh_tokens& fresh) {
    kv::cache const rows = fresh.view();
    chunk_.emplace(kv::make_state(*exec_, admit(), rows), kv::make_plan(*exec_, admit(), rows));
  }
  void hear(fresh_tokens& fresh, int layer, row_list& to) {
    auto const told = fresh.signals(fresh.view().lanes.layers_only(layer, layer + 1));
    kv::observe(*exec_, admit(), told, chunk_->of);
    kv::decide(*exec_, admit(), told, chunk_->of, chunk_->decided);
    for (int i = 0; i < told.lanes.size(); ++i) mark(to, chunk_->decided.keep(), i);
  }

  /// Moves the chunk into the window and the pages.
  void ingest(fresh_tokens& fresh) {
    kv::dual_cache both = memory_.view();
    auto const told = fresh.signals(fresh.view().lanes);
    kv::observe(*exec_, admit(), told, chunk_->of);
    kv::decide(*exec_, admit(), told, chunk_->of, chunk_->decided);
    kv::ingest(*exec_, admit(), kv::signals{both.window.lanes}, fresh.view(), chunk_->of, chunk_->decided, both, held_,
               *plans_.admission);
    kv::maintain(*exec_, policy_, kv::signals{both.window.lanes}, both.pages.entries, held_.pages, plans_);
    kv::ops::release_pages(*exec_, both.pages);
    examples::settle(*exec_);
  }

  template <class Forward>
  void step(kv::append_request const& new_tokens, Forward const& forward) {
    kv::dual_cache both = memory_.view();
    kv::step(*exec_, policy_, kv::signals{both.window.lanes}, both, held_, plans_, new_tokens, forward);
    examples::settle(*exec_);
  }
  /// Runs inside of a step's forward: records the new token's gates in a layer, then lists the rows that the layer
  /// reads.
  void observe(fresh_tokens const& fresh, int layer) {
    kv::lanes const batch = memory_.view().window.lanes.layers_only(layer, layer + 1);
    kv::observe(*exec_, policy_, fresh.signals(batch), held_);
  }
  void select(kv::queries const& rows, int layer, row_list& to) {
    kv::dual_cache const both = memory_.view();
    kv::lanes const batch = both.pages.entries.lanes.layers_only(layer, layer + 1);
    kv::select_pages(*exec_, policy_, kv::signals{batch, rows}, held_.pages, plans_);
    for (int i = 0; i < batch.size(); ++i) {
      to.clear(batch.at(i));
      add_pages(to, both.pages.entries, plans_.selection->keep(), i, policy_.select.score.page);
      to.add(both.window, batch.at(i));
    }
  }

 private:
  struct chunk {
    kv::state<Executor> of;
    kv::plan<Executor> decided;
  };

  /// The admission, with all recorders whose values are known when an entry is appended.
  [[nodiscard]] auto admit() const { return kv::window_part(policy_); }

  /// Marks admitted entries. The last entries of a lane in the list are the entries that the keep set decides about.
  static void mark(row_list& to, kv::keep_set const& admitted, int segment) {
    kv::lane const this_lane = admitted.lanes.at(segment);
    std::uint8_t* const flags = to.admitted(this_lane) + to.count(this_lane) - *admitted.lanes.count.row(this_lane);
    for (int const ordinal : admitted.listed(segment)) flags[ordinal] = 1;
  }

  Executor* exec_;
  Policy policy_;
  dual_memory memory_;
  kv::dual_state<Executor> held_;
  kv::step_plan<Executor> plans_;
  std::optional<chunk> chunk_;
};

/// A cache with pages only, which every token enters.
template <class Policy, kv::executor Executor>
class plain_cache {
 public:
  plain_cache(Executor& exec, Policy const& policy, kv::shape const& model, int bound)
      : exec_(&exec),
        policy_(policy),
        memory_(model, 0, bound),
        held_(kv::make_state(exec, policy, entries())),
        plans_(kv::make_plan(exec, policy, entries())) {}

  [[nodiscard]] dual_memory const& memory() const { return memory_; }
  [[nodiscard]] std::vector<kv::lanes> lanes() { return {entries().lanes}; }
  [[nodiscard]] std::optional<vertical_slash> mask(row_list const&) const { return std::nullopt; }

  void list(row_list& to) {
    kv::cache const all = entries();
    for (int i = 0; i < all.lanes.size(); ++i) {
      to.clear(all.lanes.at(i));
      to.add(all, all.lanes.at(i));
    }
  }

  void begin(fresh_tokens&) {}
  void hear(fresh_tokens&, int, row_list&) {}

  void ingest(fresh_tokens& fresh) {
    kv::cache const from = fresh.view();
    step({.tokens = fresh.tokens(), .position = *from.lanes.position.row({})}, [&] {
      kv::cache const all = entries();
      for (int i = 0; i < all.lanes.size(); ++i) copy_rows(from, all, all.lanes.at(i));
      kv::observe(*exec_, policy_, fresh.signals(all.lanes), held_);
    });
  }

  template <class Forward>
  void step(kv::append_request const& new_tokens, Forward const& forward) {
    memory_.reserve(new_tokens.tokens);
    kv::paged_lanes const all = memory_.view().pages;
    kv::cache entries = all.entries;
    kv::step(*exec_, policy_, kv::signals{entries.lanes}, entries, held_, plans_, new_tokens, forward);
    kv::ops::release_pages(*exec_, all);
    examples::settle(*exec_);
  }
  void observe(fresh_tokens const& fresh, int layer) {
    kv::observe(*exec_, policy_, fresh.signals(entries().lanes.layers_only(layer, layer + 1)), held_);
  }
  void select(kv::queries const& rows, int layer, row_list& to) {
    kv::cache const all = entries();
    kv::lanes const batch = all.lanes.layers_only(layer, layer + 1);
    kv::select_pages(*exec_, policy_, kv::signals{batch, rows}, held_, plans_);
    for (int i = 0; i < batch.size(); ++i) {
      to.clear(batch.at(i));
      add_pages(to, all, plans_.selection->keep(), i, policy_.select.score.page);
    }
  }

 private:
  [[nodiscard]] kv::cache entries() { return memory_.view().pages.entries; }

  /// Copies all rows of `from` to the end of a lane.
  static void copy_rows(kv::cache const& from, kv::cache const& to, kv::lane this_lane) {
    int const tokens = *from.lanes.count.row(this_lane);
    int const first = *to.lanes.count.row(this_lane) - tokens;
    auto const bytes = static_cast<std::size_t>(from.k.channels) * sizeof(float);
    for (int e = 0; e < tokens; ++e) {
      kv::place const source = from.where.at(this_lane, e);
      kv::place const target = to.where.at(this_lane, first + e);
      std::memcpy(to.k.row(this_lane.layer, target, this_lane.head),
                  from.k.row(this_lane.layer, source, this_lane.head), bytes);
      std::memcpy(to.v.row(this_lane.layer, target, this_lane.head),
                  from.v.row(this_lane.layer, source, this_lane.head), bytes);
    }
  }

  Executor* exec_;
  Policy policy_;
  dual_memory memory_;
  kv::state<Executor> held_;
  kv::step_plan<Executor> plans_;
};

}  // namespace tinylm

// SPDX-License-Identifier: Apache-2.0
// `fork`, `move`, `save` and `load` of a slot of a dual cache, whose lanes take pages from a free list.
#pragma once

#include <algorithm>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/lifecycle/fork.hpp>
#include <kvpolicy/lifecycle/reset.hpp>
#include <kvpolicy/lifecycle/save.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The pages that the lanes of a slot need, before they are taken from the free list.
template <executor Executor>
class pages_to_take {
 public:
  /// - throws: `invalid_argument` if the pool has too few pages.
  pages_to_take(char const* call, Executor& exec, paged_lanes const& all, std::vector<int> const& counts) : all_(all) {
    for (int const count : counts) {
      of_lane_.push_back((count + all.page() - 1) / all.page());
      total_ += of_lane_.back();
    }
    left_ = fetched(exec, all.free_pages.count, 1).front();
    expects(total_ <= left_, call, "pages", total_, [&] { return "the pool has " + std::to_string(left_) + " left"; });
    free_ = fetched(exec, all.free_pages.free + left_ - total_, static_cast<std::size_t>(total_));
  }

  /// Writes the tables of a slot, which holds no page. A lane's pages are in the order in which decoding takes them.
  void take(Executor& exec, int slot) {
    auto const put = [&](int* to, int const* from, int count) {
      exec.copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from),
                static_cast<std::size_t>(count) * sizeof(int));
    };
    std::reverse(free_.begin(), free_.end());
    int const* next = free_.data();
    lanes const& batch = all_.entries.lanes;
    for (std::size_t i = 0; i < of_lane_.size(); ++i) {
      lane const one{slot, batch.layer_begin + static_cast<int>(i) / batch.heads, static_cast<int>(i) % batch.heads};
      put(all_.table.row(one), next, of_lane_[i]);
      put(all_.num_pages.row(one), &of_lane_[i], 1);
      next += of_lane_[i];
    }
    int const left = left_ - total_;
    put(all_.free_pages.count, &left, 1);
  }

 private:
  paged_lanes all_;
  std::vector<int> of_lane_;
  int total_ = 0;
  int left_ = 0;
  std::vector<int> free_;
};

/// The pages that the lanes of a slot hold, before they become those of another slot.
template <executor Executor>
class pages_to_hand_over {
 public:
  pages_to_hand_over(Executor& exec, paged_lanes const& all, int from) : all_(all), from_(from) {
    lanes const& batch = all.entries.lanes;
    for_each_lane(batch.sequences_only(from, from + 1), [&](int, lane one) {
      held_.push_back(fetched(exec, all.num_pages.row(one), 1).front());
      std::vector<int> const row = fetched(exec, all.table.row(one), static_cast<std::size_t>(held_.back()));
      pages_.insert(pages_.end(), row.begin(), row.end());
    });
    none_.assign(pages_.size(), all.free_pages.sentinel);
  }

  void run(Executor& exec, int to) const {
    auto const put = [&](int* at, int const* numbers, int count) {
      exec.copy(reinterpret_cast<std::byte*>(at), reinterpret_cast<std::byte const*>(numbers),
                static_cast<std::size_t>(count) * sizeof(int));
    };
    static constexpr int nothing = 0;
    int const* next = pages_.data();
    for_each_lane(all_.entries.lanes.sequences_only(from_, from_ + 1), [&](int i, lane one) {
      int const& count = held_[static_cast<std::size_t>(i)];
      lane const there{to, one.layer, one.head};
      put(all_.table.row(there), next, count);
      put(all_.num_pages.row(there), &count, 1);
      if (all_.free_pages.sentinel >= 0) put(all_.table.row(one), none_.data(), count);
      put(all_.num_pages.row(one), &nothing, 1);
      next += count;
    });
  }

 private:
  paged_lanes all_;
  int from_;
  std::vector<int> held_;   ///< of each lane
  std::vector<int> pages_;  ///< of the lanes, one after the other
  std::vector<int> none_;   ///< as many sentinels
};

template <class DualState>
void check_dual_slots(char const* call, dual_cache const& all, DualState const& state) {
  check_dual(call, all);
  check_slots_of(call, all.window, state.window);
  check_slots_of(call, all.pages.entries, state.pages);
}

/// Sets where the ring of a slot begins.
template <executor Executor>
void set_oldest(Executor& exec, dual_cache const& all, int slot, int row) {
  exec.copy(reinterpret_cast<std::byte*>(all.oldest.row(lane{slot, all.window.lanes.layer_begin, 0})),
            reinterpret_cast<std::byte const*>(&row), sizeof row);
}

}  // namespace detail

/// As `fork` of a cache, for a dual cache: the lanes of slot `to` take pages of their own from the free list.
///
/// - throws: also `invalid_argument` if the pool has too few pages. Then nothing was changed.
template <executor Executor, class DualState>
void fork(Executor& exec, dual_cache& all, DualState& state, int from, int to) {
  detail::sole_use const in_use("fork", exec);
  detail::check_dual_slots("fork", all, state);
  cache const& entries = all.pages.entries;
  detail::slot_copy<Executor> const window("fork", exec, all.window, state.window, from, to, rows::copy);
  detail::slot_copy<Executor> const global("fork", exec, entries, state.pages, from, to, rows::copy);
  detail::pages_to_take<Executor> pages("fork", exec, all.pages, detail::counts_of(exec, entries, from));
  pages.take(exec, to);
  detail::set_oldest(exec, all, to, 0);
  window.run(exec);
  global.run(exec);
}

/// As `move` of a cache, for a dual cache. The pages go to the other slot as they are, so none need be free.
template <executor Executor, class DualState>
void move(Executor& exec, dual_cache& all, DualState& state, int from, int to) {
  detail::sole_use const in_use("move", exec);
  detail::check_dual_slots("move", all, state);
  cache const& entries = all.pages.entries;
  std::span<int const> const old(&from, 1);
  detail::slot_copy<Executor> const window("move", exec, all.window, state.window, from, to, rows::copy);
  detail::slot_copy<Executor> const global("move", exec, entries, state.pages, from, to, rows::leave);
  detail::slot_reset<Executor> const old_window(exec, all.window, state.window, old);
  detail::slot_reset<Executor> const old_global(exec, entries, state.pages, old);
  detail::pages_to_hand_over<Executor> const pages(exec, all.pages, from);
  pages.run(exec, to);
  detail::set_oldest(exec, all, to, 0);
  window.run(exec);
  global.run(exec);
  old_window.run(exec);
  old_global.run(exec);
}

/// The number of bytes that `save` writes for a slot of a dual cache: those of the window, and those of the pages.
template <executor Executor, class DualState>
[[nodiscard]] std::size_t saved_bytes(Executor& exec, dual_cache const& all, DualState const& state, int slot) {
  return saved_bytes(exec, all.window, state.window, slot) + saved_bytes(exec, all.pages.entries, state.pages, slot);
}

/// As `save` of a cache, for a dual cache. Its pages go back to the free list when the slot is reset.
template <executor Executor, class DualState>
std::size_t save(Executor& exec, dual_cache const& all, DualState const& state, int slot, std::span<std::byte> to) {
  detail::sole_use const in_use("save", exec);
  detail::check_dual_slots("save", all, state);
  std::size_t const bytes = saved_bytes(exec, all, state, slot);
  expects(to.size() >= bytes, "save", "to", to.size(), [&] { return "saved_bytes says " + std::to_string(bytes); });
  std::size_t const of_window = saved_bytes(exec, all.window, state.window, slot);
  detail::slot_save<Executor> const window(exec, all.window, state.window, slot, to.first(of_window), rows::copy);
  detail::slot_save<Executor> const global(exec, all.pages.entries, state.pages, slot, to.subspan(of_window),
                                           rows::copy);
  return window.run(exec) + global.run(exec);
}

/// As `load` of a cache, for a dual cache. The lanes of the slot take pages from the free list.
///
/// - throws: also `invalid_argument` if the pool has too few pages. Then nothing was changed.
template <executor Executor, class DualState>
void load(Executor& exec, dual_cache& all, DualState& state, int slot, std::span<std::byte const> from) {
  detail::sole_use const in_use("load", exec);
  constexpr char const* call = "load";
  detail::check_dual_slots(call, all, state);
  auto const header = detail::saved_reader(call, from).template take<detail::saved_header>();
  auto const bytes = std::min<std::size_t>(from.size(), static_cast<std::size_t>(header.bytes));
  cache const& entries = all.pages.entries;
  detail::slot_load<Executor> const window(call, exec, all.window, state.window, slot, from.first(bytes), rows::copy);
  detail::slot_load<Executor> const global(call, exec, entries, state.pages, slot, from.subspan(bytes), rows::copy);
  detail::check_free(call, "slot", exec, all.window, state.window, slot);
  detail::check_free(call, "slot", exec, entries, state.pages, slot);
  detail::pages_to_take<Executor> taken(call, exec, all.pages, global.counts());
  taken.take(exec, slot);
  detail::set_oldest(exec, all, slot, 0);
  window.run(exec);
  global.run(exec);
}

}  // namespace KVPOLICY_NAMESPACE

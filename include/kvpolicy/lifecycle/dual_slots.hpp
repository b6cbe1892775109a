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
    left_ = fetched(exec, all.pages.count, 1).front();
    expects(total_ <= left_, call, "pages", total_, [&] { return "the pool has " + std::to_string(left_) + " left"; });
    free_ = fetched(exec, all.pages.free + left_ - total_, static_cast<std::size_t>(total_));
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
    put(all_.pages.count, &left, 1);
  }

 private:
  paged_lanes all_;
  std::vector<int> of_lane_;
  int total_ = 0;
  int left_ = 0;
  std::vector<int> free_;
};

template <class DualState>
void check_dual_slots(char const* call, dual_cache const& all, DualState const& state) {
  check_dual(call, all);
  check_slots_of(call, all.window, state.window);
  check_slots_of(call, all.global.entries, state.global);
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
  detail::check_dual_slots("fork", all, state);
  detail::check_two_slots("fork", all.window, state.window, from, to, rows::copy);
  detail::check_two_slots("fork", all.global.entries, state.global, from, to, rows::copy);
  detail::pages_to_take<Executor> pages("fork", exec, all.global, detail::counts_of(exec, all.global.entries, from));
  pages.take(exec, to);
  detail::set_oldest(exec, all, to, 0);
  detail::copy_slot(exec, all.window, state.window, from, to, rows::copy);
  detail::copy_slot(exec, all.global.entries, state.global, from, to, rows::copy);
}

/// As `move` of a cache, for a dual cache.
template <executor Executor, class DualState>
void move(Executor& exec, dual_cache& all, DualState& state, int from, int to) {
  fork(exec, all, state, from, to);
  reset(exec, all, state, from);
}

/// The number of bytes that `save` writes for a slot of a dual cache: those of the window, and those of the pages.
template <executor Executor, class DualState>
[[nodiscard]] std::size_t saved_bytes(Executor& exec, dual_cache const& all, DualState const& state, int slot) {
  return saved_bytes(exec, all.window, state.window, slot) + saved_bytes(exec, all.global.entries, state.global, slot);
}

/// As `save` of a cache, for a dual cache. Its pages go back to the free list when the slot is reset.
template <executor Executor, class DualState>
std::size_t save(Executor& exec, dual_cache const& all, DualState const& state, int slot, std::span<std::byte> to) {
  detail::check_dual_slots("save", all, state);
  std::size_t const bytes = saved_bytes(exec, all, state, slot);
  expects(to.size() >= bytes, "save", "to", to.size(), [&] { return "saved_bytes says " + std::to_string(bytes); });
  std::size_t const window = save(exec, all.window, state.window, slot, to);
  return window + save(exec, all.global.entries, state.global, slot, to.subspan(window));
}

/// As `load` of a cache, for a dual cache. The lanes of the slot take pages from the free list.
///
/// - throws: also `invalid_argument` if the pool has too few pages. Then nothing was changed.
template <executor Executor, class DualState>
void load(Executor& exec, dual_cache& all, DualState& state, int slot, std::span<std::byte const> from) {
  constexpr char const* call = "load";
  detail::check_dual_slots(call, all, state);
  detail::check_slot(call, "slot", all.window, slot);
  detail::check_free(call, "slot", state.window, slot);
  detail::check_free(call, "slot", state.global, slot);
  auto const header = detail::saved_reader(call, from).template take<detail::saved_header>();
  auto const window = std::min<std::size_t>(from.size(), static_cast<std::size_t>(header.bytes));
  static_cast<void>(detail::read_slot(call, all.window, state.window, from.first(window), rows::copy));
  detail::checked_slot const pages =
      detail::read_slot(call, all.global.entries, state.global, from.subspan(window), rows::copy);
  detail::pages_to_take<Executor> taken(call, exec, all.global, pages.layout.counts);
  taken.take(exec, slot);
  detail::set_oldest(exec, all, slot, 0);
  load(exec, all.window, state.window, slot, from.first(window));
  load(exec, all.global.entries, state.global, slot, from.subspan(window));
}

}  // namespace KVPOLICY_NAMESPACE

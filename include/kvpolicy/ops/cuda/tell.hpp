// Device implementations of the verbs that count what a decision came to.
#pragma once

#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/lists_rows.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds to a number of a tally, which any block may. Sums of integers do not depend on their order.
template <class Block>
KVPOLICY_HD void add_to_tally(Block& block, std::int64_t* number, std::int64_t more) {
  if (more != 0) block.add(reinterpret_cast<std::uint64_t*>(number), static_cast<std::uint64_t>(more));
}

struct clear_tally_kernel {
  tally* told;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (block.thread() > 0) return;
    told->logical_kept = 0;
    told->physical_freed = 0;
    told->attended_length = 0;
  }
};

/// A block a row of the table: whole units behind what all of its lanes keep.
struct free_tails_kernel {
  keep_set keep;
  lanes who;
  row_owners rows;
  int unit_tokens;
  std::int64_t* freed;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int* const room = shared_arena(block).take<int>(warp_size + 1);
    lane const owner = rows.at(block.index());
    int before = 0;
    int after = 0;
    for (int j = block.thread(); j < rows.sharers(); j += block.threads()) {
      lane const one = rows.sharer(owner, j);
      int const count = *who.count.row(one);
      before = take_higher{}(before, count);
      after = take_higher{}(after, listed_for(keep, one).count + count - who.committed(one));
    }
    before = block_reduce(block, before, room, take_higher{});
    after = block_reduce(block, after, room, take_higher{});
    if (block.thread() > 0) return;
    std::int64_t const tokens = std::int64_t{units(before) - units(after)} * unit_tokens;
    add_to_tally(block, freed, tokens * rows.sharers());
  }
  [[nodiscard]] KVPOLICY_HD int units(int entries) const { return (entries - 1 + unit_tokens) / unit_tokens; }
};

/// What one lane adds to a tally of kept entries.
struct told_of_kept {
  keep_set keep;
  lanes who;
  bool masked;
  [[nodiscard]] KVPOLICY_HD tally operator()(lane one) const {
    int const count = *who.count.row(one);
    bool const whole = masked && count > 0;
    return {listed_for(keep, one).count, 0, whole ? std::int64_t{who.position.row(one)[count - 1]} + 1 : count};
  }
};

/// What one lane adds to a tally of dropped entries.
struct told_of_dropped {
  keep_set keep;
  lanes who;
  [[nodiscard]] KVPOLICY_HD tally operator()(lane one) const {
    std::int64_t const dropped = listed_for(keep, one).count;
    int const segment = segment_of(keep.who, keep.decides, keep.who.index(one));
    return {keep.seen[segment] - dropped, dropped, *who.count.row(one)};
  }
};

/// A thread a lane; a block adds its sums at once.
template <class Told>
struct tell_kernel {
  lanes among;
  Told of;
  tally* told;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    auto* const room = shared_arena(block).take<std::int64_t>(warp_size + 1);
    tally sum;
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < among.size(); i += step) {
      tally const one = of(among.at(i));
      sum.logical_kept += one.logical_kept;
      sum.physical_freed += one.physical_freed;
      sum.attended_length += one.attended_length;
    }
    sum.logical_kept = block_reduce(block, sum.logical_kept, room, add_up{});
    sum.physical_freed = block_reduce(block, sum.physical_freed, room, add_up{});
    sum.attended_length = block_reduce(block, sum.attended_length, room, add_up{});
    if (block.thread() > 0) return;
    add_to_tally(block, &told->logical_kept, sum.logical_kept);
    add_to_tally(block, &told->physical_freed, sum.physical_freed);
    add_to_tally(block, &told->attended_length, sum.attended_length);
  }
};

template <class Executor, class Told>
void launch_tell(Executor& exec, lanes const& among, Told const& of, tally* told) {
  int const threads = exec.numbers().lane_threads;
  int const wanted = (among.size() + threads - 1) / threads;
  int const most = exec.numbers().processors;
  launch_change(exec, launch_shape{wanted < most ? wanted : most, threads, collective_bytes<std::int64_t>()},
                tell_kernel<Told>{among, of, told});
}

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::clear_tally_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, tally* told) {
    detail::launch_change(exec, launch_shape{}, detail::clear_tally_kernel{told});
  }
};

template <kernel_backend Backend>
struct implementation<ops::free_tails_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::int64_t* freed) {
    if (in.where.kind == locating::identity || in.where.kind == locating::ring)
      return;  // a row belongs to its sequence
    detail::row_owners const rows = detail::owners_of(detail::rows_of(in.where, in.where.table), keep.who);
    detail::launch_change(exec,
                          launch_shape{rows.count(), exec.numbers().lane_threads, detail::collective_bytes<int>()},
                          detail::free_tails_kernel{keep, in.who, rows, in.where.unit_tokens, freed});
  }
};

template <kernel_backend Backend>
struct implementation<ops::tell_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, lanes const& who, bool masked, tally* told) {
    detail::launch_tell(exec, keep.who, detail::told_of_kept{keep, who, masked}, told);
  }
};

template <kernel_backend Backend>
struct implementation<ops::tell_dropped_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, lanes const& who, tally* told) {
    detail::launch_change(exec, launch_shape{}, detail::clear_tally_kernel{told});
    detail::launch_tell(exec, keep.who, detail::told_of_dropped{keep, who}, told);
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that compute statistics of an applied decision.
#pragma once

#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/cuda/lists/unit_users.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct zero_stats {
  apply_stats* stats;
  KVPOLICY_HD void operator()(std::int64_t) const { *stats = {}; }
};

struct add_counter {
  std::int64_t const* from;
  std::int64_t* to;
  bool anew;
  KVPOLICY_HD void operator()(std::int64_t i) const { to[i] = from[i] + (anew ? 0 : to[i]); }
};

/// Counts the tokens in whole units behind the kept entries of all lanes that share a row of the table, one block for
/// each row. Where rows may share units, the last block does, after further blocks have marked the units of other
/// slots.
struct free_tails_kernel {
  keep_set keep;
  kvpolicy::lanes lanes;
  unit_users users;
  row_units* of_rows;  ///< of each row, in scratch; null where no two rows share a unit
  std::int64_t* freed;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    int const r = block.index();
    if (r < users.rows.count()) {
      count_row(block, r, shared.collective);
    } else {
      users.mark_other(block, r - users.rows.count(), shared.collective);
    }
    if (of_rows != nullptr && last_block(block, ticket, shared.last)) count_unused(block, shared.collective);
  }

 private:
  template <class Block>
  KVPOLICY_HD void count_row(Block& block, int r, collective_storage* storage) const {
    lane const owner = users.rows.at(r);
    int before = 0;
    int after = 0;
    for (int j = block.thread(); j < users.rows.sharers(); j += block.threads()) {
      lane const one = users.rows.sharer(owner, j);
      int const count = *lanes.count.row(one);
      before = max_op{}(before, count);
      after = max_op{}(after, listed_for(keep, one).count + count - lanes.committed(one));
    }
    before = min_op{}(block.reduce(storage, before, max_op{}), lanes.capacity);
    block.sync();
    after = min_op{}(block.reduce(storage, after, max_op{}), before);
    row_units const has{units(after), units(before) - units(after)};
    if (of_rows != nullptr) {
      users.mark(block, owner, has, users.where.list(owner));
      if (block.thread() == 0) of_rows[r] = has;
    } else if (block.thread() == 0) {
      add_to_stats(block, freed, std::int64_t{has.gone} * tokens_of_unit());
    }
  }
  template <class Block>
  KVPOLICY_HD void count_unused(Block& block, collective_storage* storage) const {
    int unused = 0;
    for (int r = 0; r < users.rows.count(); ++r) {
      lane const owner = users.rows.at(r);
      int const* const unit = users.where.list(owner);
      for (int i = of_rows[r].kept + block.thread(); i < of_rows[r].kept + of_rows[r].gone; i += block.threads()) {
        unused += users.falls_free(owner, i, unit[i]) ? 1 : 0;
      }
    }
    unused = block.reduce(storage, unused, plus_op{});
    if (block.thread() == 0) add_to_stats(block, freed, unused * tokens_of_unit());
  }
  [[nodiscard]] KVPOLICY_HD int units(int entries) const {
    return (entries - 1 + users.where.unit_tokens) / users.where.unit_tokens;
  }
  [[nodiscard]] KVPOLICY_HD std::int64_t tokens_of_unit() const {
    return std::int64_t{users.where.unit_tokens} * users.rows.sharers();
  }
};

struct add_stats {
  [[nodiscard]] KVPOLICY_HD apply_stats operator()(apply_stats const& a, apply_stats const& b) const {
    return {a.logical_kept + b.logical_kept, a.physical_freed + b.physical_freed,
            a.attended_length + b.attended_length};
  }
};

/// Adds up the statistics of lanes, one thread for each lane. Each block adds its sums with one atomic for each number.
struct stats_kernel {
  keep_set keep;
  kvpolicy::lanes lanes;
  bool dropped;  ///< the keep set lists dropped entries
  bool masked;
  apply_stats* stats;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    apply_stats sum;
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < keep.lanes.size(); i += step) {
      sum = add_stats{}(sum, of(keep.lanes.at(i)));
    }
    sum = block.reduce(shared_arena(block).take<collective_storage>(1), sum, add_stats{});
    if (block.thread() > 0) return;
    add_to_stats(block, &stats->logical_kept, sum.logical_kept);
    add_to_stats(block, &stats->physical_freed, sum.physical_freed);
    add_to_stats(block, &stats->attended_length, sum.attended_length);
  }

 private:
  /// What one lane adds.
  [[nodiscard]] KVPOLICY_HD apply_stats of(lane one) const {
    std::int64_t const listed = listed_for(keep, one).count;
    int const count = *lanes.count.row(one);
    if (dropped) {
      return {keep.entry_count[segment_of(keep.lanes, keep.decides, keep.lanes.index(one))] - listed, listed, count};
    }
    bool const whole = masked && count > 0;
    return {listed, 0, whole ? std::int64_t{lanes.position.row(one)[count - 1]} + 1 : count};
  }
};

template <class Executor>
void launch_stats(Executor& exec, stats_kernel const& kernel) {
  auto const threads = exec.threads().lane;
  int const blocks = min_op{}((kernel.keep.lanes.size() + threads - 1) / threads, exec.config().processors);
  launch_unless_fault(exec, launch_shape{blocks, threads, collective_bytes()}, kernel);
}

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::clear_stats_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, apply_stats* stats) {
    detail::launch_each_unless_fault(exec, 1, detail::zero_stats{stats});
  }
};

template <kernel_backend Backend>
struct implementation<ops::add_counters_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, std::int64_t const* from, int count, std::int64_t* to, bool anew) {
    detail::launch_each_unless_fault(exec, count, detail::add_counter{from, to, anew});
  }
};

template <kernel_backend Backend>
struct implementation<ops::free_tails_t, Backend> {
  static std::size_t scratch(cache const& in) {
    std::size_t const marks = detail::users_bytes(in);
    return marks > 0 ? rows_offset(in) + static_cast<std::size_t>(in.lanes.size()) * sizeof(detail::row_units) : 0;
  }

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::int64_t* freed) {
    if (!detail::names_units(in.where)) return;  // every sequence owns its rows, so none is freed
    detail::check_scratch("free_tails", exec, scratch(in));
    detail::unit_users const users = detail::users_of(in, exec.scratch());
    bool const shares = users.claims.first != nullptr;
    if (shares)
      detail::launch_each_unless_fault(exec, in.where.units * users.claims.pool_end,
                                       detail::clear_claims{users.claims.first});
    auto* const of_rows = shares ? reinterpret_cast<detail::row_units*>(exec.scratch() + rows_offset(in)) : nullptr;
    detail::launch_unless_fault(
        exec, launch_shape{users.rows.count() + users.others(), exec.threads().lane, detail::counting_storage::bytes()},
        detail::free_tails_kernel{keep, in.lanes, users, of_rows, freed, exec.tickets()});
  }

 private:
  static std::size_t rows_offset(cache const& in) { return (detail::users_bytes(in) + 15) / 16 * 16; }
};

template <kernel_backend Backend>
struct implementation<ops::count_kept_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, lanes const& batch, bool masked, apply_stats* stats) {
    detail::launch_stats(exec, detail::stats_kernel{keep, batch, false, masked, stats});
  }
};

template <kernel_backend Backend>
struct implementation<ops::count_dropped_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, lanes const& batch, apply_stats* stats) {
    detail::launch_each_unless_fault(exec, 1, detail::zero_stats{stats});
    detail::launch_stats(exec, detail::stats_kernel{keep, batch, true, false, stats});
  }
};

}  // namespace KVPOLICY_NAMESPACE

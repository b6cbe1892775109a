// SPDX-License-Identifier: Apache-2.0
// Device implementation of compact_rows.
#pragma once

#include <kvpolicy/ops/compact_rows.hpp>
#include <kvpolicy/ops/cuda/entries.hpp>
#include <kvpolicy/ops/cuda/moves/move_rows.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The most lanes that every block of a gather checks by itself.
inline constexpr int most_checked_lanes = 1024;

/// Refuses a stale plan, moves the kept rows, and sets the counts. Every block checks all lanes, whose counts do not
/// change before the last block sets them; so all blocks find the same.
///
/// The check of all lanes takes as long as several loads one after another. So a block first loads the rows of its
/// first tile, if its own lane is as the plan saw it and no fault was recorded before, and checks before it writes.
struct compact_kernel {
  permute_kernel<kept_lanes> permute;
  row_owners counts;  ///< rows of the table of counts
  device_error faults;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    checking_barrier barrier{*this, shared.collective};
    int const mine = block.index() / permute.slices;
    if (stale_check{permute.lanes, permute.moves.keep}.fits(mine)) {
      permute.run(block, mine, block.index() % permute.slices, barrier);
    }
    bool const refused = !barrier.permits(block);
    if (!last_block(block, ticket, shared.last) || refused) return;
    set_count const set{permute.lanes, counts, permute.moves.keep};
    for (int i = block.thread(); i < counts.count(); i += block.threads()) set(i);
    for (int s = permute.lanes.sequence_begin; s < permute.lanes.sequence_end(); ++s) {
      raise_epochs_of(block, permute.lanes, s, permute.moves.keep.epochs);
    }
  }

 private:
  /// A barrier whose first call checks all lanes.
  struct checking_barrier {
    compact_kernel const& kernel;
    collective_storage* storage;
    bool checked = false;
    bool passed = false;

    [[nodiscard]] KVPOLICY_HD bool may_read() const { return checked || !kernel.faults.raised(); }

    template <class Block>
    [[nodiscard]] KVPOLICY_HD bool operator()(Block& block) {
      static_cast<void>(permits(block));
      block.sync();
      return passed;
    }
    template <class Block>
    [[nodiscard]] KVPOLICY_HD bool permits(Block& block) {
      if (!checked) passed = block.reduce(storage, kernel.finds_fault(block) ? 1 : 0, max_op{}) == 0;
      checked = true;
      return passed;
    }
  };

  template <class Block>
  [[nodiscard]] KVPOLICY_HD bool finds_fault(Block& block) const {
    bool found = faults.raised();
    stale_check const stale{permute.lanes, permute.moves.keep};
    for (int i = block.thread(); i < stale.lanes.size(); i += block.threads()) {
      found |= !stale.passes(block, faults, i);
    }
    return found;
  }
};

}  // namespace detail

/// Takes one launch for up to eight planes and columns of at most 1024 lanes. Otherwise it takes those of
/// `refuse_stale`, `gather_rows` and `set_counts`.
template <kernel_backend Backend>
struct implementation<ops::compact_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::span<recorded_column const> columns) {
    detail::check_movable("compact_rows", in);
    if (in.lanes.size() > detail::most_checked_lanes) return run_apart(exec, keep, in, columns);
    std::optional<detail::permute_kernel<detail::kept_lanes>> permute;
    int launches = 0;
    detail::for_each_permute(exec, detail::kept_lanes{keep, in.lanes}, in, columns, true, [&](auto const& one) {
      permute = one;
      ++launches;
    });
    if (launches != 1) return run_apart(exec, keep, in, columns);
    launch_shape const shape{in.lanes.size() * permute->slices, exec.threads().row, detail::counting_storage::bytes()};
    exec.launch(shape, detail::compact_kernel{*permute, detail::owners_of(in.lanes.count, in.lanes), exec.faults(),
                                              exec.tickets()});
  }

 private:
  template <class Executor>
  static void run_apart(Executor& exec, keep_set const& keep, cache const& in,
                        std::span<recorded_column const> columns) {
    ops::refuse_stale(exec, in.lanes, keep);
    detail::permute_lanes(exec, detail::kept_lanes{keep, in.lanes}, in, columns, true);
    ops::set_counts(exec, in.lanes, keep);
    if (keep.epochs.data != nullptr) ops::raise_epochs(exec, in.lanes, keep.epochs, nullptr);
  }
};

}  // namespace KVPOLICY_NAMESPACE

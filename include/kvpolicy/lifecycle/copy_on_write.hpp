// `copy_on_write` gives a slot pages of its own before something writes into pages that it shares.
#pragma once

#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/copy_rows.hpp>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Gives a slot pages of its own where it shares them with other slots or with a prefix cache: copy on write. Call it
/// before anything writes rows of entry `first` or later: `append` writes in the last page, and `compact` in every page
/// from the first dropped entry on.
///
/// - in: `table` is the block table or the slot map that the locator of `all` reads, as writable memory. The function
///   `replace(page)` is the engine's: it returns the page itself if only this slot has it, or else a free page, after
///   it has taken the reference of this slot from the old one.
/// - returns: the number of pages that were copied.
/// - cost: reads and writes the rows of these pages once.
/// - throws: `invalid_argument` if the slot is out of range or `table` is another table; what `replace` throws. Then
///   the table and the rows are as before.
template <executor Executor, class Replace>
int copy_on_write(Executor& exec, cache const& all, by_lane<int> const& table, int slot, int first,
                  Replace const& replace) {
  detail::sole_use const in_use("copy_on_write", exec);
  constexpr char const* call = "copy_on_write";
  detail::check_cache(call, all);
  detail::check_copied(call, all, rows::copy);
  detail::check_slot(call, "slot", all, slot);
  detail::check_same_table(call, "table", table, all.where.table);
  expects(all.where.kind == locating::block_table || all.where.kind == locating::slot_map, call, "where",
          "no table of pages", "entries are found through a table that has a row for each slot");
  expects(first >= 0, call, "first", first, "entries are numbered from 0");
  int const page = all.where.unit_tokens;
  std::size_t const pages = static_cast<std::size_t>((all.lanes.bound + page - 1) / page);
  std::vector<int> const counts = detail::counts_of(exec, all, slot);
  std::vector<int> new_table;
  int copied = 0;
  detail::for_each_own_row(table, all.lanes, slot, [&](lane one) {
    std::size_t const i = static_cast<std::size_t>((one.layer - all.lanes.layer_begin) * all.lanes.heads + one.head);
    std::vector<int> const old_row = detail::fetched(exec, table.row(one), pages);
    std::size_t const row = new_table.size();
    new_table.insert(new_table.end(), old_row.begin(), old_row.end());
    for (int p = first / page; p < (counts[i] + page - 1) / page; ++p) {
      int& mine = new_table[row + static_cast<std::size_t>(p)];
      int const now = replace(mine);
      copied += now != mine ? 1 : 0;
      mine = now;
    }
  });
  if (copied == 0) return 0;
  detail::listed_slots<Executor> const from(exec, all, slot);
  typename Executor::template buffer<int> staged(exec, new_table.size());
  exec.copy(reinterpret_cast<std::byte*>(staged.data()), reinterpret_cast<std::byte const*>(new_table.data()),
            new_table.size() * sizeof(int));
  cache to = from.view();
  auto const width = static_cast<std::int64_t>(pages);
  int const heads = table.head == 0 ? 1 : all.lanes.heads;
  to.where.table = {staged.data() - (table.layer == 0 ? 0 : all.lanes.layer_begin * heads * width), 0,
                    table.layer == 0 ? 0 : heads * width, table.head == 0 ? 0 : width};
  ops::copy_rows(exec, from.view(), to);
  std::size_t at = 0;
  detail::for_each_own_row(table, all.lanes, slot, [&](lane one) {
    exec.copy(reinterpret_cast<std::byte*>(table.row(one)), reinterpret_cast<std::byte const*>(&new_table[at]),
              pages * sizeof(int));
    at += pages;
  });
  return copied;
}

}  // namespace KVPOLICY_NAMESPACE

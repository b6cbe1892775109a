// SPDX-License-Identifier: Apache-2.0
// Gives the cells behind the kept rows of a sequence back to llama.cpp.
#pragma once

#include "context.hpp"
#include "sequence_tables.hpp"

namespace llama_cpp {

/// Gives back all cells of a sequence but `kept` of `before`. llama.cpp wants the next token right behind the last
/// cell's position, so that the newest cell stays, and takes the rows of the last kept entries.
inline void free_cells(context& of, sequence_tables& tables, int sequence, int kept, int before) {
  auto& claimed = tables.claimed(sequence);
  int* const cells = tables.cells(sequence);
  if (kept == 0) {
    of.remove(sequence, -1, -1);
    claimed.clear();
    return;
  }
  auto const last = static_cast<std::size_t>(kept - 1), newest = static_cast<std::size_t>(before - 1);
  of.copy_rows(cells[last], cells[newest]);
  of.remove(sequence, claimed[last], claimed[newest]);
  cells[last] = cells[newest];
  claimed[last] = claimed[newest];
  claimed.resize(last + 1);
  // Attention reads all cells up to the highest one that is used, in steps of 256: one cell far above the others would
  // cost as much as those that were freed.
  int const cell = cells[last];
  cells[last] = 0;
  int const others = tables.highest_cell();
  cells[last] = cell / 256 > others / 256 ? of.move_newest_down(sequence, claimed.back(), cell) : cell;
}

}  // namespace llama_cpp

// SPDX-License-Identifier: Apache-2.0
// Rewrites one list whose slots have one owner: the slots that stay to its front, the others behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/ops/host/kernels/slots.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// One list, and its rows of the tables.
struct edited_row {
  std::span<int const> kept;
  int committed;
  int drafts;
  int* slot;
  int const* position;
  int* map;   ///< null: there is none
  int* gone;  ///< receives the slots of dropped entries, in their order
  [[nodiscard]] int num_gone() const { return committed - static_cast<int>(kept.size()); }
  /// The entries that remain, which are at the front after an edit.
  [[nodiscard]] int remaining() const { return static_cast<int>(kept.size()) + drafts; }
};

/// The pool of a list.
struct slot_pool {
  std::int64_t units;
  int dead;
};

/// Clears the marks that will be read, in the faster of two ways.
inline void clear_marks(unit_marks& in_use, std::int64_t units, int const* slot, int count) {
  if (units / 16 <= count) return in_use.clear_all(units);
  for (int e = 0; e < count; ++e) in_use.clear(slot[e]);
}

/// The memory in which units are marked. A small pool has a byte for every unit, so that no mark waits for the one
/// before it; a larger one has a bit.
struct mark_memory {
  std::span<unsigned char> bytes;
  unit_marks bits;
  [[nodiscard]] bool holds(std::int64_t units) const { return static_cast<std::uint64_t>(units) + 3 <= bytes.size(); }
};

/// Marks the kept entries of a list, one part of it after another, so that all work on a part finds it in the
/// first-level cache while the next parts are fetched.
class kept_marks {
 public:
  static constexpr int step = 256;  ///< more at once would be fetched in a burst, for which everything waits
  explicit kept_marks(std::span<int const> kept) : next_(kept.data()), end_(next_ + kept.size()) {}

  /// Marks the next `count` entries, at most `step`, from ordinal `begin` on. Returns how many of them are kept.
  int mark(int begin, int count) {
    std::fill_n(marks_, count, static_cast<unsigned char>(0));
    int const* const first = next_;
    for (; next_ != end_ && *next_ < begin + count; ++next_) marks_[*next_ - begin] = 1;
    return static_cast<int>(next_ - first);
  }
  /// The marks of that part.
  [[nodiscard]] unsigned char const* marks() const { return marks_; }

 private:
  int const* next_;
  int const* end_;
  unsigned char marks_[step];
};

/// Splits a list: kept slots to the front, drafts behind them, and then the slots of dropped entries, which `gone`
/// receives, too. The map's positions of dropped entries get the dead slot. With `units`, which may be null, the bytes
/// of the dropped entries' units are set meanwhile.
inline void split_list(slots_kernels const& passes, edited_row const& row, int dead, unsigned char* units) {
  kept_marks stays(row.kept);
  int taken = 0;
  for (int begin = 0; begin < row.committed; begin += kept_marks::step) {
    int const count = std::min(kept_marks::step, row.committed - begin);
    int const more = stays.mark(begin, count);
    if (row.map != nullptr) passes.redirect_to_dead(stays.marks(), row.position + begin, count, dead, row.map);
    passes.partition(stays.marks(), count, count - more, row.slot + begin, row.slot + taken, row.gone + (begin - taken),
                     units);
    taken += more;
  }
  std::copy_n(row.slot + row.committed, row.drafts, row.slot + row.kept.size());
  std::copy_n(row.gone, row.num_gone(), row.slot + row.remaining());
}

/// Calls visit(slots, count) with the slots of a list's dropped entries, part after part. The list is not changed.
template <class Visit>
void for_each_dropped(slots_kernels const& passes, std::span<int const> kept, int committed, int const* slot,
                      Visit const& visit) {
  kept_marks stays(kept);
  int gone[kept_marks::step];
  for (int begin = 0; begin < committed; begin += kept_marks::step) {
    int const count = std::min(kept_marks::step, committed - begin);
    int const goes = count - stays.mark(begin, count);
    passes.partition(stays.marks(), count, goes, slot + begin, nullptr, gone, nullptr);
    visit(static_cast<int const*>(gone), goes);
  }
}

/// True if all slots of dropped entries differ, and none is the dead slot or that of an entry that remains. In a small
/// pool the bytes of the dropped ones have been set.
inline bool unused_once(slots_kernels const& passes, mark_memory memory, slot_pool const& of, edited_row const& row) {
  bool const has_dead = of.dead >= 0 && of.dead < of.units;
  if (!memory.holds(of.units)) {
    unit_marks& in_use = memory.bits;
    clear_marks(in_use, of.units, row.slot, row.committed + row.drafts);
    if (has_dead) in_use.clear(of.dead);
    bool used = !in_use.set_all(row.gone, row.num_gone()) || (has_dead && in_use.has(of.dead));
    for (int i = 0; i < row.remaining(); ++i) used = used | in_use.has(row.slot[i]);
    return !used;
  }
  unsigned char const* const marks = memory.bytes.data();
  if (has_dead && marks[of.dead] != 0) return false;
  return !passes.any_set(marks, row.slot, row.remaining()) && count_set(marks, of.units) == row.num_gone();
}

/// Rewrites a list. With `frees` the slots to free are left at the front of `gone`; returns their number.
inline int rewrite_owned(slots_kernels const& passes, edited_row const& row, mark_memory memory, slot_pool const& of,
                         bool frees) {
  bool const small = frees && memory.holds(of.units);
  if (small) std::fill_n(memory.bytes.data(), of.units, static_cast<unsigned char>(0));
  split_list(passes, row, of.dead, small ? memory.bytes.data() : nullptr);
  if (!frees || unused_once(passes, memory, of, row)) return row.num_gone();
  unit_marks& in_use = memory.bits;
  clear_marks(in_use, of.units, row.slot, row.committed + row.drafts);
  for (int i = 0; i < row.remaining(); ++i) in_use.set(row.slot[i]);
  int count = 0;
  for (int i = 0; i < row.num_gone(); ++i) {
    int const unit = row.gone[i];
    if (unit == of.dead || in_use.has(unit)) continue;
    in_use.set(unit);
    row.gone[count++] = unit;
  }
  return count;
}

}  // namespace KVPOLICY_NAMESPACE::detail

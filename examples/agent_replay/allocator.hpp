// SPDX-License-Identifier: Apache-2.0
// An allocator of slots: a free list that detects a slot which is freed twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <kvpolicy/core/contract/error.hpp>
#include <numeric>
#include <vector>

namespace agent_replay {

namespace kv = kvpolicy;

/// The slots 0 ... slots - 1. Each holds one token of all layers and heads. Slot 0 is the dead slot, which is never
/// allocated or freed.
class slot_allocator {
 public:
  static constexpr int dead = 0;

  explicit slot_allocator(int slots) {
    kv::expects(slots >= 2, "slot_allocator", "slots", slots, "one is the dead slot, and one is to be given out");
    free_.resize(static_cast<std::size_t>(slots) - 1);
    std::iota(free_.rbegin(), free_.rend(), 1);
    used_.resize(static_cast<std::size_t>(slots));
  }

  /// Takes a free slot. The caller should check `available` before.
  /// - throws: `invalid_argument` if there is none.
  [[nodiscard]] int take() {
    kv::expects(!free_.empty(), "take", "slots", slots(), "all are given out");
    int const slot = free_.back();
    free_.pop_back();
    used_[static_cast<std::size_t>(slot)] = true;
    peak_ = std::max(peak_, allocated());
    return slot;
  }

  /// Frees a slot.
  /// - throws: `invalid_argument` if it is the dead slot, not a slot of the pool, or free already (which is counted).
  ///   Nothing else is changed then.
  void give(int slot) {
    kv::expects(slot > dead && slot < slots(), "give", "slot", slot, "the pool gives out others");
    bool const held = used_[static_cast<std::size_t>(slot)];
    double_frees_ += held ? 0 : 1;
    kv::expects(held, "give", "slot", slot, "it is free already");
    used_[static_cast<std::size_t>(slot)] = false;
    free_.push_back(slot);
  }

  [[nodiscard]] int slots() const { return static_cast<int>(used_.size()); }
  [[nodiscard]] int available() const { return static_cast<int>(free_.size()); }
  [[nodiscard]] int allocated() const { return slots() - 1 - available(); }  ///< the dead slot is not counted
  [[nodiscard]] int peak() const { return peak_; }                  ///< the largest number that was allocated at once
  [[nodiscard]] int double_frees() const { return double_frees_; }  ///< refused attempts to free twice
  [[nodiscard]] bool holds(int slot) const { return used_[static_cast<std::size_t>(slot)]; }

 private:
  std::vector<int> free_;
  std::vector<bool> used_;
  int peak_ = 0;
  int double_frees_ = 0;
};

}  // namespace agent_replay

// SPDX-License-Identifier: Apache-2.0
// What the host remembers of each slot of a state: whether a request uses it, which rows were observed, and how often
// its keys were turned.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE::detail {

/// How often the keys of a lane were turned where each turn rounds: those at positions below `ends[k]` may have been
/// turned k + 1 times, and all others less often. The ends do not ascend.
using turn_ends = std::array<int, 3>;

/// One request's history in its slot. It exists to find mistakes: a request that takes the slot of another one without
/// a reset, rows that are observed a second time, and keys that lose their digits. Nothing that decides reads it.
class slot_history {
 public:
  slot_history(int slots, int layer_begin, int layer_end, int heads)
      : layers_(layer_end - layer_begin),
        layer_begin_(layer_begin),
        used_(static_cast<std::size_t>(slots)),
        newest_(static_cast<std::size_t>(slots) * static_cast<std::size_t>(layers_), -1),
        heads_(static_cast<std::size_t>(heads)),
        turns_(newest_.size() * heads_) {}

  /// True if something was appended or observed since the last reset.
  [[nodiscard]] bool used(int slot) const { return used_[static_cast<std::size_t>(slot)] != 0; }
  /// The position of the newest row that was observed in a layer; -1 if there is none.
  [[nodiscard]] int newest(int slot, int layer) const { return newest_[at(slot, layer)]; }

  /// The turns of a slot's lanes, layer by layer.
  [[nodiscard]] std::span<turn_ends> turns(int slot) {
    return std::span(turns_).subspan(at(slot, layer_begin_) * heads_, static_cast<std::size_t>(layers_) * heads_);
  }
  [[nodiscard]] std::span<turn_ends const> turns(int slot) const {
    return std::span(turns_).subspan(at(slot, layer_begin_) * heads_, static_cast<std::size_t>(layers_) * heads_);
  }
  /// True if a key of the slot may have been turned where each turn rounds.
  [[nodiscard]] bool turned(int slot) const {
    return std::ranges::any_of(turns(slot), [](turn_ends const& ends) { return ends[0] > 0; });
  }

  void use(int slot) { used_[static_cast<std::size_t>(slot)] = 1; }
  void observe(int slot, int layer, int position) {
    use(slot);
    newest_[at(slot, layer)] = std::max(newest_[at(slot, layer)], position);
  }
  /// Rows of some layers at `position` and later are no longer observed. At position 0 of all layers the slot is as
  /// after a reset.
  void truncate(int slot, int position, int layer_begin, int layer_end) {
    if (position == 0 && layer_end - layer_begin == layers_) used_[static_cast<std::size_t>(slot)] = 0;
    for (int layer = layer_begin; layer < layer_end; ++layer) {
      int& newest = newest_[at(slot, layer)];
      newest = std::min(newest, position - 1);
    }
    for (turn_ends& ends : turns(slot).subspan(static_cast<std::size_t>(layer_begin - layer_begin_) * heads_,
                                               static_cast<std::size_t>(layer_end - layer_begin) * heads_)) {
      for (int& end : ends) end = std::min(end, position);
    }
  }
  void truncate(int slot, int position) { truncate(slot, position, layer_begin_, layer_begin_ + layers_); }
  void reset(int slot) { truncate(slot, 0); }
  /// No row is observed any more, because positions begin anew. The request goes on.
  void forget_rows(int slot) {
    for (int i = 0; i < layers_; ++i) newest_[at(slot, layer_begin_ + i)] = -1;
  }

  void restore(int slot, bool used, std::vector<int> const& newest, std::vector<turn_ends> const& turned) {
    used_[static_cast<std::size_t>(slot)] = used ? 1 : 0;
    std::copy(newest.begin(), newest.end(), newest_.begin() + static_cast<std::ptrdiff_t>(at(slot, layer_begin_)));
    std::ranges::fill(turns(slot), turn_ends{});
    std::ranges::copy(turned, turns(slot).begin());
  }

  void copy(slot_history const& other, int from, int to) {
    used_[static_cast<std::size_t>(to)] = other.used_[static_cast<std::size_t>(from)];
    for (int i = 0; i < layers_; ++i) newest_[at(to, layer_begin_ + i)] = other.newest(from, layer_begin_ + i);
    std::ranges::copy(other.turns(from), turns(to).begin());
  }

 private:
  [[nodiscard]] std::size_t at(int slot, int layer) const {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(layers_) +
           static_cast<std::size_t>(layer - layer_begin_);
  }

  int layers_;
  int layer_begin_;
  std::vector<char> used_;
  std::vector<int> newest_;
  std::size_t heads_;
  std::vector<turn_ends> turns_;
};

}  // namespace KVPOLICY_NAMESPACE::detail

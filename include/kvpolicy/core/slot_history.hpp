// What the host remembers of each slot of a state: whether a request uses it, and which rows were observed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace KVPOLICY_NAMESPACE::detail {

/// One request's history in its slot. It exists to find mistakes: a request that takes the slot of another one without
/// a reset, and rows that are observed a second time. Nothing that decides reads it.
class slot_history {
 public:
  slot_history(int slots, int layer_begin, int layer_end)
      : layers_(layer_end - layer_begin),
        layer_begin_(layer_begin),
        used_(static_cast<std::size_t>(slots)),
        newest_(static_cast<std::size_t>(slots) * static_cast<std::size_t>(layers_), -1) {}

  /// True if something was appended or observed since the last reset.
  [[nodiscard]] bool used(int slot) const { return used_[static_cast<std::size_t>(slot)] != 0; }
  /// The position of the newest row that was observed in a layer; -1 if there is none.
  [[nodiscard]] int newest(int slot, int layer) const { return newest_[at(slot, layer)]; }

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
  }
  void truncate(int slot, int position) { truncate(slot, position, layer_begin_, layer_begin_ + layers_); }
  void reset(int slot) { truncate(slot, 0); }
  /// No row is observed any more, because positions begin anew. The request goes on.
  void forget_rows(int slot) {
    for (int i = 0; i < layers_; ++i) newest_[at(slot, layer_begin_ + i)] = -1;
  }

  void restore(int slot, bool used, std::vector<int> const& newest) {
    used_[static_cast<std::size_t>(slot)] = used ? 1 : 0;
    std::copy(newest.begin(), newest.end(), newest_.begin() + static_cast<std::ptrdiff_t>(at(slot, layer_begin_)));
  }

  void copy(slot_history const& other, int from, int to) {
    used_[static_cast<std::size_t>(to)] = other.used_[static_cast<std::size_t>(from)];
    for (int i = 0; i < layers_; ++i) newest_[at(to, layer_begin_ + i)] = other.newest(from, layer_begin_ + i);
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
};

}  // namespace KVPOLICY_NAMESPACE::detail

// SPDX-License-Identifier: Apache-2.0
// Memory for the rows of a forward that count: see `ops::count_rows`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/lanes.hpp>
#include <optional>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// For some kinds of rows (see `kind_of_rows`), the indices of the rows that count, up to `bound` for each sequence of
/// a batch, and their number. It is in the executor's memory, and allocates in `add` only.
template <class Executor>
class row_counts {
 public:
  void add(Executor& exec, int kind, int sequences, int bound) {
    sequences_ = sequences;
    bound_ = bound;
    memory_[static_cast<std::size_t>(kind)].emplace(
        exec, static_cast<std::size_t>(sequences) * (static_cast<std::size_t>(bound) + 1));
  }
  [[nodiscard]] bool has(int kind) const { return memory_[static_cast<std::size_t>(kind)].has_value(); }
  [[nodiscard]] int bound() const { return bound_; }
  [[nodiscard]] std::size_t bytes() const {
    std::size_t all = 0;
    for (auto const& each : memory_) all += each ? each->size() * sizeof(int) : 0;
    return all;
  }
  /// The tables of indices and of numbers. `kind` was added.
  [[nodiscard]] std::pair<by_lane<int>, by_lane<int>> rows(int kind) {
    int* const data = memory_[static_cast<std::size_t>(kind)]->data();
    return {{data, bound_, 0, 0}, {data + std::int64_t{sequences_} * bound_, 1, 0, 0}};
  }

 private:
  int sequences_ = 0;
  int bound_ = 0;
  std::array<std::optional<typename Executor::template buffer<int>>, 3> memory_;
};

}  // namespace KVPOLICY_NAMESPACE::detail

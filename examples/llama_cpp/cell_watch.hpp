// SPDX-License-Identifier: Apache-2.0
// Notices what somebody else has done to the cells of a sequence of llama.cpp.
#pragma once

#include <llama.h>

#include <cstddef>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <string>

namespace llama_cpp {

namespace kv = kvpolicy;

/// Counts the cells of sequences by the size that llama.cpp says for the state of one without its rows, because it has
/// no call for the number itself.
class cell_counter {
 public:
  /// Learns the sizes. Sequence 0 has `cells` cells, first 1 and then 2.
  void learn(llama_context* of, int cells) { (cells == 1 ? of_one_ : of_two_) = size(of, 0); }

  /// False if this version of llama.cpp says no sizes that grow with the cells.
  [[nodiscard]] bool can_count() const { return of_one_ > 0 && of_two_ > of_one_; }
  [[nodiscard]] int count(llama_context* of, int sequence) const {
    std::size_t const found = size(of, sequence);
    return found < of_one_ ? 0 : 1 + static_cast<int>((found - of_one_) / (of_two_ - of_one_));
  }

 private:
  static std::size_t size(llama_context* of, int sequence) {
// With this flag the size is that without rows, because they would be copied within the memory of a device.
#if defined(LLAMA_STATE_SEQ_FLAGS_ON_DEVICE)
    return llama_state_seq_get_size_ext(of, sequence, LLAMA_STATE_SEQ_FLAGS_ON_DEVICE);
#else
    return llama_state_seq_get_size(of, sequence);
#endif
  }

  std::size_t of_one_ = 0;
  std::size_t of_two_ = 0;
};

/// The cells of the sequences of a context, compared with those that an engine left. The sequence `spare` is the
/// engine's own, and is empty between its calls.
class cell_watch {
 public:
  /// - in: `counted`: whether cells are counted; else only the first and the last position of a sequence are compared.
  cell_watch(llama_context* of, int spare, cell_counter const& counter, bool counted)
      : context_(of), spare_(spare), counter_(counter), counted_(counted && counter.can_count()) {}

  /// Refuses a sequence whose cells somebody else has changed: an engine's tables of it would be wrong. `left` are the
  /// ascending positions of the cells that the engine left.
  ///
  /// - cost: with `counted` reads a mark of each cell of the cache, and without flash attention takes some nanoseconds
  ///   for each layer, channel of the values and run of adjacent cells.
  void check(char const* call, int sequence, std::span<llama_pos const> left) const {
    check_end(call, sequence, "last", llama_memory_seq_pos_max(memory(), sequence), left.empty() ? -1 : left.back());
    check_end(call, sequence, "first", llama_memory_seq_pos_min(memory(), sequence), left.empty() ? -1 : left.front());
    llama_pos const spare = llama_memory_seq_pos_max(memory(), spare_);
    refuse(
        spare >= 0, call, spare_, [&] { return "whose last cell is at position " + std::to_string(spare); },
        "the engine needs this sequence for itself and left it empty");
    if (!counted_) return;
    int const found = counter_.count(context_, sequence), count = static_cast<int>(left.size());
    refuse(
        found < count, call, sequence,
        [&] { return "which has no cell at position " + std::to_string(first_missing(sequence, left)); },
        "the engine left one there");
    refuse(
        found > count, call, sequence, [&] { return "which has " + std::to_string(found) + " cells"; },
        [&] { return "the engine left it " + std::to_string(count); });
  }

 private:
  [[nodiscard]] llama_memory_t memory() const { return llama_get_memory(context_); }

  template <class Found, class Rule>
  static void refuse(bool wrong, char const* call, int sequence, Found const& found, Rule const& rule) {
    kv::expects(
        !wrong, call, "sequence", [&] { return std::to_string(sequence) + ", " + found(); },
        [&] {
          return kv::detail::spell(rule) + ": cells are moved, shifted and removed by the engine's own calls only";
        });
  }
  static void check_end(char const* call, int sequence, char const* which, llama_pos found, llama_pos left) {
    refuse(
        found != left, call, sequence,
        [&] { return "whose " + std::string(which) + " cell is at position " + std::to_string(found); },
        [&] { return "the engine left it at " + std::to_string(left); });
  }

  /// The first of these positions at which a sequence has no cell. There is one. The cells of a part of the positions
  /// are marked as cells of the spare sequence, too, and counted there.
  [[nodiscard]] llama_pos first_missing(int sequence, std::span<llama_pos const> left) const {
    while (left.size() > 1) {
      std::size_t const half = left.size() / 2;
      llama_memory_seq_cp(memory(), sequence, spare_, left.front(), left[half]);
      bool const whole = counter_.count(context_, spare_) == static_cast<int>(half);
      llama_memory_seq_rm(memory(), spare_, -1, -1);
      left = whole ? left.subspan(half) : left.first(half);
    }
    return left.front();
  }

  llama_context* context_;
  int spare_;
  cell_counter counter_;
  bool counted_;
};

}  // namespace llama_cpp

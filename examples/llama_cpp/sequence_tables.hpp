// SPDX-License-Identifier: Apache-2.0
// Which cells the sequences of a context have, and which token each lane holds in them.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <kvpolicy/kvpolicy.hpp>
#include <numeric>
#include <span>
#include <vector>

namespace llama_cpp {

namespace kv = kvpolicy;

/// How long a sequence is, and how many cells it has.
struct sequence_size {
  int length = 0;      ///< tokens that were read
  int count = 0;       ///< cells
  int evicted_at = 0;  ///< its length at its last eviction; 0 if there was none
};

/// Tables of the sequences of a context. All lanes of a sequence have the same cells, and each holds its own tokens in
/// them. The library's calls write counts and positions; the engine writes the rest.
class sequence_tables {
 public:
  sequence_tables(kv::shape const& model, int sequences, int cells)
      : model_(model),
        sequences_(sequences),
        bound_(cells),
        counts_(size(sequences) * lanes_each()),
        positions_(counts_.size() * size(cells)),
        cells_(size(sequences) * size(cells)),
        claimed_(size(sequences)),
        lengths_(size(sequences)),
        evicted_at_(size(sequences)) {}

  [[nodiscard]] kv::lanes lanes() {
    std::int64_t const each = std::int64_t{model_.layers} * model_.kv_heads;
    return {.sequences = sequences_,
            .layer_begin = 0,
            .layer_end = model_.layers,
            .heads = model_.kv_heads,
            .capacity = bound_,
            .count = {counts_.data(), each, model_.kv_heads, 1},
            .position = {positions_.data(), each * bound_, std::int64_t{model_.kv_heads} * bound_, bound_}};
  }
  [[nodiscard]] kv::by_lane<int const> cell_table() const { return {cells_.data(), bound_, 0, 0}; }

  /// The number of tokens that were read.
  [[nodiscard]] int length(int sequence) const { return lengths_[size(sequence)]; }
  /// The number of cells of a sequence.
  [[nodiscard]] int count(int sequence) const { return counts_[size(sequence) * lanes_each()]; }
  [[nodiscard]] int* cells(int sequence) { return cells_.data() + size(sequence) * size(bound_); }
  /// The positions that llama.cpp has for the cells of a sequence.
  [[nodiscard]] std::vector<llama_pos>& claimed(int sequence) { return claimed_[size(sequence)]; }
  [[nodiscard]] std::vector<llama_pos> const& claimed(int sequence) const { return claimed_[size(sequence)]; }
  /// The length of a sequence at its last eviction; 0 if there was none.
  [[nodiscard]] int evicted_at(int sequence) const { return evicted_at_[size(sequence)]; }
  [[nodiscard]] int& evicted_at(int sequence) { return evicted_at_[size(sequence)]; }

  [[nodiscard]] int free_count() const {
    int used = 0;
    for (int s = 0; s < sequences_; ++s) used += count(s);
    return bound_ - used;
  }
  /// The highest cell that a sequence has; -1 if no cell is used.
  [[nodiscard]] int highest_cell() const {
    int highest = -1;
    for (int s = 0; s < sequences_; ++s) {
      int const* const of = cells_.data() + size(s) * size(bound_);
      for (int i = 0; i < count(s); ++i) highest = std::max(highest, of[i]);
    }
    return highest;
  }
  [[nodiscard]] std::span<int const> positions(kv::lane of) const {
    std::size_t const lane =
        (size(of.sequence) * size(model_.layers) + size(of.layer)) * size(model_.kv_heads) + size(of.head);
    return {positions_.data() + lane * size(bound_), size(counts_[lane])};
  }

  /// Notes the cells of new tokens. Call it before `kvpolicy::append`, which counts them.
  void add(int sequence, std::span<int const> cells_of_tokens) {
    std::copy(cells_of_tokens.begin(), cells_of_tokens.end(), cells(sequence) + count(sequence));
    for (std::size_t i = 0; i < cells_of_tokens.size(); ++i) claimed(sequence).push_back(lengths_[size(sequence)]++);
  }
  /// Forgets the tokens from `position` on, which the last cells hold.
  void cut(int sequence, int position) {
    auto& all = claimed(sequence);
    all.resize(all.size() - size(length(sequence) - position));
    lengths_[size(sequence)] = position;
  }
  [[nodiscard]] sequence_size size_of(int sequence) const {
    return {length(sequence), count(sequence), evicted_at(sequence)};
  }
  /// Notes the size of a sequence whose cells claim the last positions.
  void set(int sequence, sequence_size const& to) {
    lengths_[size(sequence)] = to.length;
    evicted_at_[size(sequence)] = to.evicted_at;
    claimed(sequence).resize(size(to.count));
    std::iota(claimed(sequence).begin(), claimed(sequence).end(), to.length - to.count);
  }
  void clear(int sequence) { set(sequence, {}); }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::size_t lanes_each() const { return size(model_.layers) * size(model_.kv_heads); }

  kv::shape model_;
  int sequences_;
  int bound_;
  std::vector<int> counts_;                      ///< [sequence][layer][KV head]
  std::vector<int> positions_;                   ///< [sequence][layer][KV head][entry]
  std::vector<int> cells_;                       ///< [sequence][entry], those of all lanes of the sequence
  std::vector<std::vector<llama_pos>> claimed_;  ///< [sequence][entry]
  std::vector<int> lengths_;                     ///< [sequence]
  std::vector<int> evicted_at_;                  ///< [sequence]
};

}  // namespace llama_cpp

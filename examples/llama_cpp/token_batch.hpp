// SPDX-License-Identifier: Apache-2.0
// The tokens of one decode of llama.cpp.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <vector>

namespace llama_cpp {

namespace kv = kvpolicy;

/// Tokens of some sequences: their ids, or the rows of their embeddings.
class token_batch {
 public:
  void clear() {
    ids_.clear();
    embeddings_.clear();
    positions_.clear();
    sequences_.clear();
    wanted_.clear();
  }
  /// Adds `tokens` tokens of a sequence, of which either the ids or the embeddings are given. The logits of the last
  /// one are wanted, or those of each.
  void add(int sequence, int position, int tokens, std::span<llama_token const> ids, std::span<float const> rows,
           bool every_logit) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (ids.empty()) embeddings_.insert(embeddings_.end(), rows.begin(), rows.end());
    kv::expects(ids_.empty() || embeddings_.empty(), "decode", "embeddings", embeddings_.size(),
                "a batch has ids or embeddings, not both");
    for (int i = 0; i < tokens; ++i) {
      positions_.push_back(position + i);
      sequences_.push_back(sequence);
      wanted_.push_back(every_logit || i == tokens - 1);
    }
  }
  /// Adds tokens that only take cells: their rows and logits mean nothing.
  void add_cells(int sequence, int position, int tokens) {
    for (int i = 0; i < tokens; ++i) {
      ids_.push_back(0);
      positions_.push_back(position + i);
      sequences_.push_back(sequence);
      wanted_.push_back(0);
    }
  }

  [[nodiscard]] int tokens() const { return static_cast<int>(positions_.size()); }
  [[nodiscard]] std::span<llama_pos const> positions() const { return positions_; }
  /// The number of tokens whose logits are wanted.
  [[nodiscard]] std::ptrdiff_t logits() const { return std::count(wanted_.begin(), wanted_.end(), 1); }

  /// Decodes the tokens. Returns llama.cpp's status, 0 if all went well.
  [[nodiscard]] int decode(llama_context* with) {
    std::vector<llama_seq_id*> lists;
    std::vector<int> listed(positions_.size(), 1);
    for (llama_seq_id& one : sequences_) lists.push_back(&one);
    llama_batch const batch{.n_tokens = tokens(),
                            .token = embeddings_.empty() ? ids_.data() : nullptr,
                            .embd = embeddings_.empty() ? nullptr : embeddings_.data(),
                            .pos = positions_.data(),
                            .n_seq_id = listed.data(),
                            .seq_id = lists.data(),
                            .logits = wanted_.data()};
    return llama_decode(with, batch);
  }

 private:
  std::vector<llama_token> ids_;
  std::vector<float> embeddings_;
  std::vector<llama_pos> positions_;
  std::vector<llama_seq_id> sequences_;
  std::vector<std::int8_t> wanted_;
};

}  // namespace llama_cpp

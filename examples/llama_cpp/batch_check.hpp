// SPDX-License-Identifier: Apache-2.0
// What the tokens of one decode must be like.
#pragma once

#include <algorithm>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <string>
#include <vector>

#include "context.hpp"
#include "engine_options.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

namespace detail {

/// Refuses a batch of more tokens than a decode reads, a sequence that is in it twice, and tokens that are none of the
/// model. Returns the number of tokens.
[[nodiscard]] inline int check_batch(char const* call, context const& in, std::span<sequence_rows const> batch) {
  kv::expects(!batch.empty(), call, "batch", "empty", "a decode reads at least one token");
  int total = 0;
  std::vector<int> listed;
  bool const by_id = !batch.front().rows.tokens.empty();
  for (sequence_rows const& one : batch) {
    bool const twice = std::find(listed.begin(), listed.end(), one.sequence) != listed.end();
    kv::expects(!twice, call, "sequence", one.sequence, "a sequence is in a batch once");
    listed.push_back(one.sequence);
    int const tokens = in.tokens_of(call, one.rows.tokens, one.rows.embeddings);
    kv::expects(tokens > 0, call, "tokens", tokens, "a decode reads at least one token of each sequence");
    kv::expects(by_id == !one.rows.tokens.empty(), call, "embeddings", one.rows.embeddings.size(),
                "a batch has ids or embeddings, not both");
    in.check_ids(call, one.rows.tokens);
    kv::expects(tokens <= in.chunk() - total, call, "tokens", std::int64_t{total} + tokens,
                [&] { return "a decode has at most " + std::to_string(in.chunk()) + " tokens"; });
    total += tokens;
  }
  return total;
}

}  // namespace detail
}  // namespace llama_cpp

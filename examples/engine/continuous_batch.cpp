// SPDX-License-Identifier: Apache-2.0
// Continuous batching: requests join and leave at every step, and prompts run beside decoding in one forward. Each
// request generates what it generates alone.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"

namespace kv = kvpolicy;

struct request {
  std::vector<int> prompt;
  std::size_t tokens;       ///< how many it generates
  std::vector<int> text{};  ///< the tokens so far
};

/// Serves all requests, up to `slots` of them at once. Returns the number of forwards.
int serve(std::vector<request>& requests, int slots) {
  engine model(slots, 96);
  // example-begin continuous_batch
  kv::shape const shape{engine::layers, engine::query_heads, engine::kv_heads, engine::head_dim};
  kv::cache all = kv::contiguous_cache({.k = model.k.data(),
                                        .v = model.v.data(),
                                        .shape = shape,
                                        .sequences = slots,  // a request has one slot from its first to its last token
                                        .capacity = model.capacity,
                                        .counts = model.counts.data(),
                                        .positions = model.positions.data()});
  kv::host_executor exec;
  auto const policy = kv::policies::h2o({.budget = 24});
  auto state = kv::make_state(exec, policy, all);
  auto plan = kv::make_plan(exec, policy, all, kv::at_once{.sequences = 2}, kv::compact{});  // two sequences at once

  std::vector<request*> running(static_cast<std::size_t>(slots));
  std::size_t joined = 0;
  for (int forwards = 0;; ++forwards) {
    // A free slot takes the next request. A reset removes everything that the last one left.
    token_batch tokens(running.size());
    std::vector<int> batch;  // the slots that take part in this forward, in any order
    for (int slot = slots - 1; slot >= 0; --slot) {
      request*& one = running[static_cast<std::size_t>(slot)];
      std::vector<int>& mine = tokens[static_cast<std::size_t>(slot)];
      if (one == nullptr && joined < requests.size()) {
        one = &requests[joined++];
        kv::reset(exec, all, state, slot);
        model.lengths[slot] = 0;
        mine = one->prompt;
      } else if (one != nullptr) {
        mine = {one->text.back()};
      }
      if (one != nullptr) batch.push_back(slot);
    }
    if (batch.empty()) return forwards;

    // From here on, sequence s of a call is the request in slot batch[s].
    kv::slot_list const list{.slots = batch.data(), .size = static_cast<int>(batch.size())};
    kv::cache active = kv::only(all, list);
    for (int s = 0; s < list.size; ++s) {
      int const slot = batch[static_cast<std::size_t>(s)];
      int const count = static_cast<int>(tokens[static_cast<std::size_t>(slot)].size());
      kv::append(exec, active, state, {.sequence = s, .tokens = count, .position = model.lengths[slot]});
    }
    std::vector<int> const next = model.forward(tokens);

    // The tensors of this engine have a row for each slot. (Where they have a row for each sequence of the batch, as in
    // most engines, queries_of alone describes them.)
    kv::queries const rows = kv::queries_of(model.queries.data(), shape, model.num_rows, model.row_positions.data(),
                                            {.sequences = slots, .valid_rows = model.valid_rows.data()});
    kv::signals const in{active.lanes, kv::keys_of(active), kv::only(rows, list)};
    kv::observe(exec, policy, in, state);
    kv::evict(exec, policy, in, kv::compact{}, active, state, plan);  // decides and applies, two sequences at a time

    for (int const slot : batch) {
      request*& one = running[static_cast<std::size_t>(slot)];
      one->text.push_back(next[static_cast<std::size_t>(slot)]);
      if (one->text.size() == one->tokens) one = nullptr;  // it leaves
    }
  }
  // example-end continuous_batch
}

int main() {
  std::vector<request> requests;
  for (std::uint32_t i = 0; i < 5; ++i)
    requests.push_back({make_prompt(20 + 9 * static_cast<int>(i), i + 1), 8 + 3 * i});
  std::printf("3 slots: %d forwards\n", serve(requests, 3));
  for (request const& one : requests) {
    std::vector<request> alone{{one.prompt, one.tokens}};
    serve(alone, 1);
    std::printf("%zu tokens after a prompt of %zu, %s:", one.text.size(), one.prompt.size(),
                one.text == alone.front().text ? "as alone" : "NOT as alone");
    for (int const token : one.text) std::printf(" %d", token);
    std::printf("\n");
  }
}

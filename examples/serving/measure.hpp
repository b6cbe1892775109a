// SPDX-License-Identifier: Apache-2.0
// Runs the workload under one policy, and keeps what the table shows of it.
#pragma once

#include <agent_replay/metrics.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "engine.hpp"
#include "workload.hpp"

namespace serving {

/// A row of the table.
struct measured {
  std::string name;
  std::string spec;
  double seconds = 0;
  engine_counters counted{};
  agent_replay::share recall{};  ///< of the greedy samples whose client stayed
  held_memory held{};            ///< all that the engine holds
  int blocks = 0;
  slot_sizes slots{};
  int peak_blocks = 0;  ///< those that requests referenced at once, prompts that are read included
  int swaps = 0;
  int recomputations = 0;
  int copies = 0;
  int cancelled = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t asked_tokens = 0;

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(counted.answered) / seconds; }
  [[nodiscard]] double hit_rate() const {
    return asked_tokens > 0 ? static_cast<double>(hit_tokens) / static_cast<double>(asked_tokens) : 0;
  }
};

/// The number of blocks with which an engine holds at most `limit` bytes, all that it holds counted.
[[nodiscard]] inline int blocks_within(std::int64_t limit, decoder& model, executor& exec, engine_options with,
                                       std::vector<served_policy> const& policies) {
  auto const total = [&](int blocks) {
    with.blocks = blocks;
    return engine(model, exec, with, policies).count().total();
  };
  std::int64_t const one = total(1), two = total(2);
  return 1 + static_cast<int>(std::max<std::int64_t>(0, limit - one) / (two - one));
}

/// Serves all questions on `limit` bytes, and counts the right answers. `policies` has the policy of all requests,
/// or is empty: the full cache.
[[nodiscard]] inline measured serve(decoder& model, executor& exec, engine_options with, std::int64_t limit,
                                    std::vector<served_policy> const& policies,
                                    std::vector<question> const& questions) {
  measured row{.name = "full", .spec = "keeps everything"};
  if (!policies.empty()) row.name = policies.front().name;
  if (!policies.empty()) row.spec = policies.front().spec;
  with.blocks = blocks_within(limit, model, exec, with, policies);
  engine runs(model, exec, with, policies);
  for (question const& one : questions) runs.submit(one.asked);
  auto const begin = std::chrono::steady_clock::now();
  while (!runs.done()) runs.step();
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (answer const& each : runs.answers()) {
    question const& from = questions[static_cast<std::size_t>(each.number)];
    row.hit_tokens += each.hit_tokens;
    row.asked_tokens += each.asked_tokens;
    row.cancelled += each.how == outcome::cancelled ? 1 : 0;
    if (each.sample > 0 || from.asked.cancelled_at >= 0) continue;
    row.recall.count(std::equal(from.right.begin(), from.right.end(), each.text.begin()));
  }
  row.counted = runs.counters();
  row.held = runs.count();
  row.blocks = with.blocks;
  row.slots = with.slots;
  row.peak_blocks = runs.held().pool().peak_in_use();
  row.swaps = runs.schedule().swaps();
  row.recomputations = runs.schedule().recomputations();
  row.copies = runs.held().copies();
  return row;
}

}  // namespace serving

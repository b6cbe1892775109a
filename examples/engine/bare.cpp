// SPDX-License-Identifier: Apache-2.0
// Generates greedily with the full cache.
#include <cstdio>

#include "engine.hpp"

int main() {
  // example-begin bare
  engine model(1, 128);  // one sequence, with memory for 128 tokens
  std::vector<int> const prompt = make_prompt(48);

  model.append(0, static_cast<int>(prompt.size()));
  int token = model.forward({prompt}).front();
  std::printf("text:");
  for (int step = 0; step < 32; ++step) {
    std::printf(" %d", token);
    model.append(0, 1);
    token = model.forward({{token}}).front();
  }
  // example-end bare
  std::printf("\n%d entries in each lane\n", model.counts[0]);
}

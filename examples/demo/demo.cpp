// SPDX-License-Identifier: Apache-2.0
// The demo that ./tools/demo.sh runs: six published systems beside the full cache, at one budget, on a real decoder.
// Everything else is demo_full.
#include "options.hpp"

int main(int count, char** arguments) {
  demo::program which{.about = "kvpolicy's demo: what six published policies keep, cost and lose on a small decoder",
                      .contenders = {demo::full_cache()},
                      .shares = {8},
                      .usual = {.questions = 40, .stretches = 10},
                      .quick = {.questions = 12, .stretches = 3},
                      .everything = false};
  std::vector<demo::contender> gated = demo::gated();
  std::vector<demo::contender> evictions = demo::published_evictions();
  demo::contender const in_place = evictions.back();  // IntentKV, the only one that is not cut lane by lane
  evictions.pop_back();
  for (demo::contender const& one : evictions) which.contenders.push_back(one);
  for (demo::contender const& one : gated) which.contenders.push_back(one);
  which.contenders.push_back(in_place);
  return demo::run_demo(which, count, arguments);
}

// SPDX-License-Identifier: Apache-2.0
// One process, three copies of kvpolicy: the program's and those of two shared libraries. What one makes the others
// use.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "library.hpp"

namespace kv = kvpolicy;

// In linked.cpp and in loaded.cpp.
library const* first_library();
library const* second_library();

namespace {

int failures = 0;

void check(bool holds, char const* what) {
  std::printf("%s: %s\n", what, holds ? "yes" : "NO");
  failures += holds ? 0 : 1;
}

/// `maker` makes policy, state and plan, `decider` decides, `applier` compacts; the program reads what is left.
bool hand_round(library const& maker, library const& decider, library const& applier) {
  tiny::memory memory;
  kv::cache cache = memory.view();
  kv::host_executor exec;
  tiny::policy const policy = maker.make_policy(4);
  tiny::state state = maker.make_state(exec, policy, cache);
  tiny::plan plan = maker.make_plan(exec, policy, cache);
  decider.decide(exec, policy, cache, state, plan);
  bool const listed = std::ranges::equal(plan.keep().listed(0), tiny::kept);
  applier.apply(exec, plan, cache, state);
  return policy == tiny::four_entries && listed && memory.count == static_cast<int>(tiny::kept.size()) &&
         std::equal(tiny::kept.begin(), tiny::kept.end(), memory.positions.begin());
}

std::string refusal_of(library const& from) {
  try {
    from.refuse();
  } catch (kv::invalid_argument const& refusal) {
    return refusal.what();
  } catch (...) {
    return "caught, but not by its type";
  }
  return "nothing was thrown";
}

}  // namespace

int main() {
  library const& a = *first_library();
  library const& b = *second_library();
  check(hand_round(a, a, a) && hand_round(b, b, b), "each library decides for itself");
  check(hand_round(a, b, a) && hand_round(b, a, b), "a plan made in one is filled by the other");
  check(hand_round(a, a, b) && hand_round(b, b, a), "a decision made in one is carried out by the other");
  std::puts(refusal_of(a).c_str());
  check(refusal_of(a).find(" = -1, but ") != std::string::npos, "the program catches what the first throws, by type");
  check(refusal_of(a) == refusal_of(b), "both refuse in the same words");
  check(a.catches(b.refuse) && b.catches(a.refuse), "each catches what the other throws, by type");
  std::printf("kvpolicy %s, beside %s and %s\n", kv::version, a.version(), b.version());
  return failures == 0 ? 0 : 1;
}

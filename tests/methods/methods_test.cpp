// SPDX-License-Identifier: Apache-2.0
// Every method of this folder does what its description says: scores, decisions, specs, refusals, worked numbers.

#include "methods/all.hpp"  // made by CMake: it includes the other headers of this folder, and lists them
#include "support/method.hpp"

namespace {

using namespace kvpolicy_test;

/// So many tokens of every lane. Log betas and other numbers are of a few values too, so that scores tie.
std::vector<told_of_lane> any_tokens(int tokens, int position) {
  std::vector<told_of_lane> made(told_lanes::lanes);
  for (told_of_lane& one : made) {
    for (int e = 0; e < tokens; ++e) {
      one.positions.push_back(position + e);
      bool const drawn = any_bool();
      one.log_beta.push_back(static_cast<float>(-*rc::gen::inRange(0, drawn ? 1 << 20 : 4) / (drawn ? 1e6 : 8.0)));
      one.born.push_back(*rc::gen::inRange(-8, 9) / 4.0);
      auto const any_row = [] {
        reference::row row;
        for (int d = 0; d < told_lanes::dims; ++d) row.push_back(*rc::gen::inRange(-9, 10));
        return row;
      };
      one.keys.push_back(any_row());
      one.values.push_back(any_row());
      for (auto& head : one.queries) head.push_back(any_row());
    }
  }
  return made;
}

/// `size`: how large the numbers are whose sums the scores are, where they cancel.
bool near(double found, double expected, double size) {
  if (std::isinf(expected)) return found == expected;
  return std::fabs(found - expected) <= 2e-6 * std::max(size, std::fabs(expected));
}

template <class Method>
void decides_as_described() {
  kv::eviction const policy{.score = Method::any(),
                            .protect = kv::sinks{*rc::gen::element(0, 0, 1, 3)},
                            .budget = kv::per_lane{*rc::gen::element(0, 1, 5, 17, 40)}};
  RC_LOG() << kv::to_string(policy) << '\n';
  int const parts = *rc::gen::inRange(1, 4);
  double size = 1;
  if constexpr (requires { Method::size; }) size = Method::size;
  told_lanes now(64);
  if constexpr (requires { Method::turns(policy.score); }) now.turns = Method::turns(policy.score);
  auto [state, plan] = state_and_plan(now.exec, policy, now.view());
  int position = *rc::gen::element(0, 100);
  for (int i = 0; i < parts; ++i) {
    int const tokens = *rc::gen::inRange(1, 20);
    now.forward(policy, state, any_tokens(tokens, position));
    position += tokens + *rc::gen::element(0, 0, 7);
  }
  now.decide(policy, state, plan);
  for (int s = 0; s < told_lanes::lanes; ++s) {
    told_of_lane const& lane = now.told[as_size(s)];
    auto const count = static_cast<int>(lane.positions.size());
    int sinks = policy.protect.tokens;
    if constexpr (requires { Method::sinks(policy.score); }) sinks = std::max(sinks, Method::sinks(policy.score));
    reference::flags forced;
    for (int e = 0; e < count; ++e) {
      forced.push_back(lane.positions[as_size(e)] < sinks || e >= count - Method::last(policy.score));
      if constexpr (requires { Method::forces(policy.score, lane, e); }) {
        if (Method::forces(policy.score, lane, e)) forced.back() = true;
      }
    }
    reference::row expected;
    if constexpr (requires { Method::scores(policy.score, now.told, as_size(s), forced, 0); }) {
      expected = Method::scores(policy.score, now.told, as_size(s), forced, policy.budget.tokens);
    } else if constexpr (requires { Method::scores(policy.score, lane, forced); }) {
      expected = Method::scores(policy.score, lane, forced);  // it ranks those that compete
    } else if constexpr (requires { Method::scores(policy.score, now.told, as_size(s)); }) {
      expected = Method::scores(policy.score, now.told, as_size(s));
    } else {
      expected = Method::scores(policy.score, lane);
    }
    if (expected.empty() && count > 0) continue;  // rounding decides there
    reference::row found;
    for (int e = 0; e < count; ++e) {
      found.push_back(static_cast<double>(plan.score(s, e)));
      RC_LOG() << "lane " << s << ", entry " << e << ": " << found.back() << " for " << expected[as_size(e)] << '\n';
      if (std::isnan(expected[as_size(e)])) continue;
      RC_ASSERT(near(found.back(), expected[as_size(e)], size));
    }
    bool decides = true;
    if constexpr (requires { Method::decides(policy.score, lane); }) decides = Method::decides(policy.score, lane);
    RC_ASSERT(listed(plan.keep(), s) == reference::select(found, forced, decides ? policy.budget.tokens : count).kept);
  }
}

/// What the library ships, with the tables of the method.
template <class Method>
kv::registry known_to() {
  if constexpr (requires { Method::known(); }) return Method::known();
  return kv::shipped();
}

template <class Method>
void reads_back() {
  kv::eviction const policy{.score = Method::any(), .budget = kv::per_lane{*rc::gen::inRange(0, 99)}};
  kv::any_policy const named(policy);
  kv::any_policy const read = kv::parse(kv::to_string(named), known_to<Method>());
  RC_ASSERT(kv::to_string(read) == kv::to_string(named));
  RC_ASSERT(read == named);
}

}  // namespace

TEST_SUITE("methods") {
  TEST_CASE_TEMPLATE_DEFINE("a method scores and decides as its description says", Method, described) {
    holds(Method::scorer::name, decides_as_described<Method>);
  }
  TEST_CASE_TEMPLATE_APPLY(described, methods::all);

  TEST_CASE_TEMPLATE_DEFINE("its spec is read as it was printed, and what is out of range is refused", Method, named) {
    holds(Method::scorer::name, reads_back<Method>);
    for (refusal const& each : Method::refusals) {
      CHECK(error_of([&] { (void)kv::parse(each.spec); }) == each.error);
    }
  }
  TEST_CASE_TEMPLATE_APPLY(named, methods::all);

  TEST_CASE_TEMPLATE_DEFINE("its worked numbers, and its row in docs/systems.md", Method, worked) {
    Method::worked();
    std::ifstream const page(KVPOLICY_SOURCE_DIR "/docs/systems.md");
    std::ostringstream text;
    text << page.rdbuf();
    CHECK(text.str().find("scorers/" + std::string(Method::header)) != std::string::npos);
  }
  TEST_CASE_TEMPLATE_APPLY(worked, methods::all);
}

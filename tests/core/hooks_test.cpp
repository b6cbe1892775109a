// SPDX-License-Identifier: Apache-2.0
// Which shapes of a user's types are taken, and which are not. What an error says: tests/compile_fail/hooks.
#include "support/test.hpp"

namespace kv = kvpolicy;

namespace hooks_test {

// The smallest types, and for each requirement one that misses only it.
struct least_budget {
  int operator()(kv::lane, int) const { return 1; }
  friend bool operator==(least_budget const&, least_budget const&) = default;
};
struct budget_of_doubles {
  double operator()(kv::lane, int) const { return 1; }
  friend bool operator==(budget_of_doubles const&, budget_of_doubles const&) = default;
};
struct least_protection {
  bool operator()(kv::entry) const { return true; }
  friend bool operator==(least_protection const&, least_protection const&) = default;
};
struct protection_not_compared {
  bool operator()(kv::entry) const { return true; }
};
struct least_trigger {
  bool operator()(int, int) const { return true; }
  friend bool operator==(least_trigger const&, least_trigger const&) = default;
};
struct least_scorer {
  using needs = kv::needs<>;
  static constexpr auto decides = kv::granularity::lane;
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(least_scorer const&, least_scorer const&) = default;
};
struct without_score {
  using needs = kv::needs<>;
  static constexpr auto decides = kv::granularity::lane;
  friend bool operator==(without_score const&, without_score const&) = default;
};
struct final_scorer final {
  using needs = kv::needs<>;
  kv::granularity decides = kv::granularity::lane;
  kv::sinks forces() const { return {}; }
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(final_scorer const&, final_scorer const&) = default;
};
// A hook that is a callable member is called as one.
struct holds_a_function {
  using needs = kv::needs<>;
  static constexpr auto decides = kv::granularity::lane;
  struct forced {
    kv::sinks operator()() const { return {}; }
    friend bool operator==(forced const&, forced const&) = default;
  };
  forced forces{};
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(holds_a_function const&, holds_a_function const&) = default;
};
// A comparison may be a member, or a template outside of the class.
struct compares_by_member {
  int tokens = 4;
  bool operator()(kv::entry at) const { return at.position < tokens; }
  bool operator==(compares_by_member const&) const = default;
};
template <class T>
struct compared_outside {
  T value{};
  bool operator()(kv::entry) const { return true; }
};
template <class T>
bool operator==(compared_outside<T> const& a, compared_outside<T> const& b) {
  return a.value == b.value;
}
// One that derives, and says of itself what there is to say.
struct wider_sinks : kv::sinks {
  int more = 2;
  static constexpr auto name = "wider_sinks";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"", &wider_sinks::tokens}, kv::field{"more", &wider_sinks::more});
  }
  bool operator()(kv::entry at) const { return at.position < tokens + more; }
  friend bool operator==(wider_sinks const&, wider_sinks const&) = default;
};
// Hooks for some arguments of its template only.
template <class Score>
struct renamed {
  Score score_of{};
  using needs = typename Score::needs;
  static constexpr auto decides = kv::granularity::lane;
  static constexpr bool constrains_hooks = true;
  auto forces() const
    requires requires(Score const& s) { s.forces(); }
  {
    return score_of.forces();
  }
  void score(auto& exec, auto const& in, kv::score_view const& out) const { score_of.score(exec, in, out); }
  friend bool operator==(renamed const&, renamed const&) = default;
};
struct least_policy {
  least_scorer score{};
  least_protection protect{};
  least_budget budget{};
  least_trigger trigger{};
};
struct policy_without_trigger {
  least_scorer score{};
  least_protection protect{};
  least_budget budget{};
};
struct policy_of_doubles : least_policy {
  budget_of_doubles budget{};
};
struct policy_not_compared : least_policy {
  protection_not_compared protect{};
};
struct policy_of_pages : least_policy {
  kv::quest score{};
};
struct least_rule {
  int budget(kv::lane, int) const { return 1; }
  bool triggers(int, int) const { return true; }
  bool forces(kv::entry) const { return false; }
};
struct rule_that_never_triggers {
  int budget(kv::lane, int) const { return 1; }
  bool forces(kv::entry) const { return false; }
};

template <class Score, class Protect = kv::nothing, class Budget = kv::per_lane>
inline constexpr bool composes = kv::eviction_policy<kv::eviction<Score, Protect, Budget>>;

static_assert(kv::scorer<least_scorer> && !kv::scorer<without_score>);
static_assert(kv::scorer<final_scorer> && composes<final_scorer>);
static_assert(composes<least_scorer, least_protection, least_budget>);
static_assert(composes<holds_a_function> && composes<renamed<kv::full>> && composes<renamed<kv::knorm>>);
static_assert(composes<least_scorer, compares_by_member> && composes<least_scorer, compared_outside<int>>);
static_assert(composes<least_scorer, wider_sinks>);
static_assert(composes<kv::with_recorders<least_scorer>> && composes<kv::reduce_lanes<least_scorer>>);
static_assert(composes<kv::with_recorders<kv::h2o>> && composes<kv::reduce_lanes<kv::intent_kv>>);
static_assert(kv::eviction_policy<least_policy> && !kv::eviction_policy<policy_without_trigger>);
static_assert(!kv::eviction_policy<policy_of_doubles> && !kv::eviction_policy<policy_not_compared>);
static_assert(!kv::eviction_policy<policy_of_pages> && !kv::eviction_policy<int>);
static_assert(kv::rule<least_rule> && kv::rule<kv::plain_top_k> && !kv::rule<rule_that_never_triggers>);
static_assert(kv::admission_policy<kv::admission<kv::head_table>> && !kv::admission_policy<least_policy>);
static_assert(kv::selection_policy<kv::selection<kv::quest>> && !kv::selection_policy<least_policy>);

}  // namespace hooks_test

TEST_SUITE_BEGIN("core/contract/hooks");

using namespace hooks_test;

TEST_CASE("a derived part that lists its own fields prints and compares as itself") {
  CHECK(kv::to_string(wider_sinks{{4}, 3}) == "wider_sinks(4, more=3)");
  CHECK_FALSE(kv::eviction{.score = least_scorer{}, .protect = wider_sinks{{4}, 2}} ==
              kv::eviction{.score = least_scorer{}, .protect = wider_sinks{{4}, 3}});
}

TEST_CASE("a scorer beside which more is recorded prints as it does alone") {
  kv::h2o const alone{.heavy = 3, .recent = 5};
  CHECK(kv::to_string(kv::with_recorders<kv::h2o>(alone, std::tuple{})) == kv::to_string(alone));
}

TEST_SUITE_END();

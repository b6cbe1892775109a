// SPDX-License-Identifier: Apache-2.0
// Lanes that decide together hold the same tokens: a decision about others is refused before it writes, whichever way
// it picks, and so is a plan that is carried out on another cache.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

constexpr auto layer = kv::granularity::layer;
constexpr auto token = kv::granularity::sequence;

/// Decides once, then again after lane `other` got other tokens: the plan, and the scores in it, stay as they were.
template <class Policy>
void refuses_other(Policy const& policy, kv::lane other, std::string const& text) {
  working_batch now;
  auto state = kv::make_state(now.exec, policy, now.view);
  now.plan = kv::make_plan(now.exec, policy, now.view);
  kv::signals const in(now.view.lanes);
  kv::decide(now.exec, policy, in, state, now.plan);
  float const before = now.plan.score(0, 3);
  now.cache.put(other, {0, 1, 2, 4, 5, 6, 7, 8, 9, 10});
  now.refuses(text, [&] { kv::decide(now.exec, policy, in, state, now.plan); });
  CHECK(now.plan.score(0, 3) == before);
}

struct picking : kv::plain_top_k {
  [[nodiscard]] bool picks(float) const { return true; }
};

std::string const rule = ", but lanes that decide together hold the same tokens";

}  // namespace

TEST_SUITE("laws/refused_tokens") {
  TEST_CASE("heads of a layer, or layers of a token, that hold other tokens are refused by every pick") {
    auto const refused = [](auto const& score, kv::lane other, std::string const& lanes) {
      std::string const text = "decide: lanes.position = other tokens in " + lanes + " (entry 3: 4 against 3)" + rule;
      kv::per_lane const budget{6};
      refuses_other(kv::eviction{.score = score, .budget = budget}, other, text);
      refuses_other(kv::eviction{.score = score, .budget = budget, .pick = kv::lowest_one{}}, other, text);
      refuses_other(kv::eviction{.score = score, .budget = budget, .pick = kv::at_least{}}, other, text);
    };
    refused(together<layer>{}, {1, 1, 1}, "layer 1, head 1 of sequence 1 than in layer 1, head 0 of sequence 1");
    refused(together<token>{}, {0, 1, 0}, "layer 1, head 0 of sequence 0 than in layer 0, head 0 of sequence 0");
  }

  TEST_CASE("other tokens in lanes that decide apart are no mistake, nor are other drafts") {
    working_batch now;
    kv::eviction const layered{.score = together<layer>{}, .budget = kv::per_lane{6}};
    auto state = kv::make_state(now.exec, layered, now.view);
    now.plan = kv::make_plan(now.exec, layered, now.view);
    for (int h = 0; h < 2; ++h) now.cache.put({0, 1, h}, {0, 1, 2, 4, 5, 6, 7, 8, 9, 10});
    auto const said = [&] {
      return error_of([&] { kv::decide(now.exec, layered, kv::signals(now.view.lanes), state, now.plan); });
    };
    CHECK(said().empty());
    now.cache.put({0, 0, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 10});
    CHECK(said() ==
          "decide: lanes.position = other tokens in layer 0, head 1 of sequence 0 than in layer 0, head 0 of sequence "
          "0 (entry 9: 10 against 9)" +
              rule);
    now.cache.set_drafts(0, 1);
    CHECK(said().empty());
  }

  TEST_CASE("a protected entry of one head cannot be dropped for another head's") {
    working_batch now;
    kv::eviction const policy{
        .score = together<token>{}, .protect = kv::position_span{.begin = 40, .end = 41}, .budget = kv::per_lane{4}};
    auto state = kv::make_state(now.exec, policy, now.view);
    now.plan = kv::make_plan(now.exec, policy, now.view);
    for (int i = 0; i < now.cache.lane_count(); ++i) {
      bool const first = now.cache.lane_at(i).layer + now.cache.lane_at(i).head == 0;
      now.cache.put(now.cache.lane_at(i), {0, first ? 1 : 40, 50, 51, 52, 53, 54, 55, 56, 57});
    }
    now.refuses(
        "decide: lanes.position = other tokens in layer 0, head 1 of sequence 0 than in layer 0, head 0 of "
        "sequence 0 (entry 1: 40 against 1)" +
            rule,
        [&] { kv::decide(now.exec, policy, kv::signals(now.view.lanes), state, now.plan); });
  }

  TEST_CASE("verbs that pick refuse what decide refuses, before they write") {
    owned_lanes const lanes(1, 2, 1, 4, {4, 4});
    owned_scores scores(lanes.view(), token);
    owned_keep keep(scores.view());
    kv::host_executor exec;
    kv::ops::top_k(exec, scores.view(), kv::plain_top_k{2}, keep.view());
    lanes.view().position.row({0, 1, 0})[2] = 5;
    std::string const text =
        ": lanes.position = other tokens in layer 1, head 0 than in layer 0, head 0 (entry 2: 5 "
        "against 4)" +
        rule;
    CHECK(error_of([&] { kv::ops::top_k(exec, scores.view(), kv::plain_top_k{1}, keep.view()); }) == "top_k" + text);
    CHECK(error_of([&] { kv::ops::select_if(exec, scores.view(), picking{}, keep.view()); }) == "select_if" + text);
    kv::keep_set dropping = keep.view();
    dropping.lists = kv::side::dropped;
    CHECK(error_of([&] { kv::ops::argmin(exec, scores.view(), kv::plain_top_k{1}, dropping); }) == "argmin" + text);
    CHECK(keep.kept(0) == std::vector<int>{0, 1});
    kv::score_view seen = scores.view();
    seen.same_tokens = true;  // whoever says so has looked
    CHECK(error_of([&] { kv::ops::top_k(exec, seen, kv::plain_top_k{1}, keep.view()); }).empty());
  }

  TEST_CASE("a plan is carried out on the cache that it was decided about, whatever view of it is given") {
    std::string const text =
        "apply: cache.lanes = other counts or positions than those that the plan was decided about, but a plan is "
        "carried out on the cache that decide was given";
    working_batch now, other;
    other.refuses(text, [&] { kv::apply(other.exec, kv::compact{}, now.plan, other.view, other.state); });
    now.refuses(text, [&] { kv::apply(other.exec, kv::compact{}, now.plan, other.view, other.state); });
    std::vector<int> elsewhere(200);
    kv::cache mixed = now.view;
    mixed.lanes.position.data = elsewhere.data();
    now.refuses(text, [&] { kv::apply(now.exec, kv::compact{}, now.plan, mixed, now.state); });
    mixed = now.view;
    mixed.lanes.count.head = 2;  // the first lane's count is where it was
    now.refuses(text, [&] { kv::apply(now.exec, kv::compact{}, now.plan, mixed, now.state); });
    kv::cache again = now.cache.view();
    CHECK(error_of([&] { kv::apply(now.exec, kv::compact{}, now.plan, again, now.state); }).empty());
  }
}

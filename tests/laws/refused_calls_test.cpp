// SPDX-License-Identifier: Apache-2.0
// observe, decide, apply, append, commit and truncate refuse what does not fit, say why, and change nothing.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

struct some_signals {
  kv::lanes batch;
  kv::keys keys;
  kv::queries queries;
};

/// What is said of signals, and what makes sound ones such signals.
struct refused_signals {
  std::string text;
  std::function<void(some_signals&)> change;
};

/// Both calls that read signals must say the same.
void refuses_signals(std::vector<refused_signals> const& all) {
  for (auto const& [text, change] : all) {
    working_batch now;
    some_signals of{now.view.lanes, kv::keys_of(now.view), {now.queries.view()}};
    change(of);
    kv::signals const bad(of.batch, of.keys, of.queries);
    now.refuses("observe: " + text, [&] { kv::observe(now.exec, now.policy, bad, now.state); });
    now.refuses("decide: " + text, [&] { kv::decide(now.exec, now.policy, bad, now.state, now.plan); });
  }
}

}  // namespace

TEST_SUITE("laws/refused_calls") {
  TEST_CASE("signals of other lanes than the state and the plan were made for are refused") {
    refuses_signals({
        {"signals.lanes.sequences = 1, but it was made for 2", [](auto& of) { of.batch.sequences = 1; }},
        {"signals.lanes.heads = 1, but it was made for 2", [](auto& of) { of.batch.heads = 1; }},
        {"signals.lanes.capacity = 17, but it was made for 16", [](auto& of) { of.batch.capacity = 17; }},
    });
    std::string const made_for = ", but it was made for layers 0 to 2";
    refuses_signals({
        {"signals.lanes.layers = 0 to 3" + made_for, [](auto& of) { of.batch.layer_end = 3; }},
        {"signals.lanes.layers = -1 to 2" + made_for, [](auto& of) { of.batch.layer_begin = -1; }},
        {"signals.lanes.layers = 1 to 1" + made_for, [](auto& of) { of.batch = of.batch.layers_only(1, 1); }},
        {"signals.lanes.count = null, but every lane says how many entries it holds",
         [](auto& of) { of.batch.count.data = nullptr; }},
        {"signals.lanes.position = null, but every entry says its position",
         [](auto& of) { of.batch.position.data = nullptr; }},
    });
  }

  TEST_CASE("signals that do not fit the model, or are null, are refused") {
    refuses_signals({
        {"keys = null, but a signal is the engine's memory", [](auto& of) { of.keys.rows.base = nullptr; }},
        {"keys.channels = 8, but the shape says 4 channels", [](auto& of) { of.keys.rows.channels = 8; }},
        {"queries = null, but a signal is the engine's memory", [](auto& of) { of.queries.base = nullptr; }},
        {"keys = opaque rows, but only their engine can read them",
         [](auto& of) { of.keys.rows.element = kv::codec::opaque; }},
        {"queries = opaque rows, but only their engine can read them",
         [](auto& of) { of.queries.element = kv::codec::opaque; }},
        {"queries.position = null, but every row says its position",
         [](auto& of) { of.queries.position.data = nullptr; }},
        {"queries.rows = -1, but a count cannot be negative", [](auto& of) { of.queries.rows = -1; }},
        {"queries.dims = 8, but the shape says 4 channels", [](auto& of) { of.queries.dims = 8; }},
        {"queries.heads = 2, but the model has 4 query heads", [](auto& of) { of.queries.heads = 2; }},
    });
  }

  TEST_CASE("every signal that is null or opaque is refused, whoever would have read it") {
    working_batch now;
    auto const refuses = [&](std::string const& text, auto const& signal) {
      kv::signals const bad(now.view.lanes, kv::keys_of(now.view), kv::queries{now.queries.view()}, signal);
      now.refuses("observe: " + text, [&] { kv::observe(now.exec, now.policy, bad, now.state); });
      now.refuses("decide: " + text, [&] { kv::decide(now.exec, now.policy, bad, now.state, now.plan); });
    };
    std::string const null = " = null, but a signal is the engine's memory";
    refuses("attention_mass" + null, kv::attention_mass{});
    refuses("external" + null, kv::external_scores{});
    refuses("admission_gate" + null, kv::admission_gate{});
    refuses("retention" + null, kv::retention{});
    refuses("entry numbers" + null, kv::gate{{.entries = 1}});
    refuses("entry numbers" + null, kv::log_beta{{.entries = 1}});
    std::string const opaque = " = opaque rows, but only their engine can read them";
    kv::query_view rows = now.queries.view();
    rows.element = kv::codec::opaque;
    refuses("queries" + opaque, kv::recent_queries{rows});
    refuses("queries" + opaque, kv::turn_queries{rows});
    refuses("queries" + opaque, kv::query_memory{rows});
    kv::values values = kv::values_of(now.view);
    values.rows.element = kv::codec::opaque;
    refuses("values" + opaque, values);
    values.rows.base = nullptr;
    refuses("values" + null, values);
  }

  TEST_CASE("a plan of another granularity or of other lanes is refused, and so is a state") {
    working_batch now;
    kv::eviction const layered{.score = together<kv::granularity::layer>{}, .budget = kv::per_lane{6}};
    now.refuses("decide: plan.decides = lane, but the plan was made for another granularity",
                [&] { kv::decide(now.exec, layered, now.signals(), now.state, now.plan); });
    kv::cache half = now.view;
    half.lanes = half.lanes.layers_only(1, 2);
    auto half_plan = kv::make_plan(now.exec, now.policy, half);
    auto half_state = kv::make_state(now.exec, now.policy, half);
    now.refuses("decide: signals.lanes.layers = 0 to 2, but it was made for layers 1 to 2",
                [&] { kv::decide(now.exec, now.policy, now.signals(), now.state, half_plan); });
    now.refuses("decide: signals.lanes.layers = 0 to 2, but it was made for layers 1 to 2",
                [&] { kv::decide(now.exec, now.policy, now.signals(), half_state, now.plan); });
    now.refuses("observe: signals.lanes.layers = 0 to 2, but it was made for layers 1 to 2",
                [&] { kv::observe(now.exec, now.policy, now.signals(), half_state); });
    now.refuses("apply: plan.lanes.layers = 0 to 2, but it was made for layers 1 to 2",
                [&] { kv::apply(now.exec, kv::compact{}, now.plan, half, now.state); });
    now.refuses("apply: cache.lanes.layers = 0 to 2, but it was made for layers 1 to 2",
                [&] { kv::apply(now.exec, kv::compact{}, now.plan, now.view, half_state); });
    now.refuses("append: cache.lanes.layers = 0 to 2, but it was made for layers 1 to 2",
                [&] { kv::append(now.exec, now.view, half_state, {.tokens = 1, .position = 10}); });
  }

  TEST_CASE("a decision that is refused late leaves the last one in the plan") {
    working_batch now;
    for (int i = 0; i < 4; ++i) now.cache.count(now.cache.lane_at(i)) = 8;
    kv::eviction const whole{.score = together<kv::granularity::sequence>{}, .budget = kv::per_lane{6}};
    auto state = kv::make_state(now.exec, whole, now.view);
    now.plan = kv::make_plan(now.exec, whole, now.view);
    kv::signals const in(now.view.lanes);
    kv::decide(now.exec, whole, in, state, now.plan);
    now.cache.count({1, 1, 1}) = 9;
    kv::signals const some(now.view.lanes.layers_only(1, 2));
    now.refuses("decide: count = 9, but lanes that decide together hold equally many entries",
                [&] { kv::decide(now.exec, whole, some, state, now.plan); });
  }

  TEST_CASE("apply refuses a plan without a decision, an old one, and one that was carried out") {
    working_batch now;
    auto empty = kv::make_plan(now.exec, now.policy, now.view);
    now.refuses("apply: plan = empty, but decide comes before apply",
                [&] { kv::apply(now.exec, kv::compact{}, empty, now.view, now.state); });
    now.cache.put({1, 0, 1}, {0, 1, 2});
    now.refuses("apply: plan = made for 10 entries of lane 5, but the cache holds 3 now: decide again",
                [&] { kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state); });
    kv::decide(now.exec, now.policy, now.signals(), now.state, now.plan);
    kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state);
    now.refuses("apply: plan = made for 10 entries of lane 0, but the cache holds 6 now: decide again",
                [&] { kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state); });
  }

  TEST_CASE("apply refuses tables that lanes share which decide apart") {
    working_batch now;
    auto const refuses = [&](std::string const& text, auto const& change) {
      kv::cache shared = now.view;
      change(shared.lanes);
      now.refuses("apply: " + text, [&] { kv::apply(now.exec, kv::compact{}, now.plan, shared, now.state); });
    };
    refuses("lanes.count = shared by layers, but these layers decide apart: reduce_lanes makes them decide together",
            [](kv::lanes& batch) { batch.count.layer = batch.position.layer = 0; });
    refuses("lanes.count = shared by heads, but these heads decide apart: reduce_lanes makes them decide together",
            [](kv::lanes& batch) { batch.count.head = batch.position.head = 0; });
    refuses("lanes.count.sequence = 0, but there are 2 sequences, and each has entries of its own",
            [](kv::lanes& batch) { batch.count.sequence = 0; });
    refuses("lanes.position = shared by layers, but these layers decide apart: reduce_lanes makes them decide together",
            [](kv::lanes& batch) { batch.position.layer = 0; });
    refuses("lanes.position = shared by heads, but these heads decide apart: reduce_lanes makes them decide together",
            [](kv::lanes& batch) { batch.position.head = 0; });
    refuses("lanes.position.sequence = 0, but there are 2 sequences, and each has entries of its own",
            [](kv::lanes& batch) { batch.position.sequence = 0; });
  }

  TEST_CASE("append refuses what has no room, does not ascend, or stands behind drafts") {
    working_batch now;
    auto const refuses = [&](std::string const& text, kv::append_request const& new_tokens) {
      now.refuses("append: " + text, [&] { kv::append(now.exec, now.view, now.state, new_tokens); });
    };
    refuses("sequence = 2, but the batch has 2 sequences", {.sequence = 2, .tokens = 1, .position = 10});
    refuses("sequence = -1, but the batch has 2 sequences", {.sequence = -1, .tokens = 1, .position = 10});
    refuses("tokens = -1, but a count cannot be negative", {.tokens = -1, .position = 10});
    refuses("position = -3, but positions start at 0", {.tokens = 1, .position = -3});
    refuses("tokens = 7, but lane (0, 0, 0) holds 10 of at most 16", {.tokens = 7, .position = 10});
    refuses("position = 9, but positions ascend and the last is 9", {.tokens = 1, .position = 9});
    int const last = std::numeric_limits<int>::max();
    refuses("position = 2147483647, but the last new position does not fit into 32 bits",
            {.tokens = 2, .position = last});
    now.cache.put({1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12});
    refuses("tokens = 5, but lane (1, 1, 1) holds 12 of at most 16", {.sequence = 1, .tokens = 5, .position = 13});
    refuses("position = 11, but positions ascend and the last is 12", {.sequence = 1, .tokens = 1, .position = 11});
    now.cache.set_drafts(0, 2);
    refuses("tokens = 1, but 2 drafts are in flight; commit or truncate them first", {.tokens = 1, .position = 10});
    kv::cache without = now.view;
    without.lanes.in_flight = nullptr;
    now.refuses("append: lanes.in_flight = null, but drafts are counted for each sequence",
                [&] { kv::append(now.exec, without, now.state, {.tokens = 1, .position = 10, .in_flight = true}); });
    kv::cache broken = now.view;
    broken.shape.kv_heads = 0;
    now.refuses("append: shape.kv_heads = 0, but a model has at least one KV head",
                [&] { kv::append(now.exec, broken, now.state, {.tokens = 1, .position = 10}); });
  }

  TEST_CASE("commit and truncate refuse sequences, counts and positions that are not there") {
    working_batch now;
    now.cache.set_drafts(1, 2);
    now.refuses("commit: sequence = 2, but the batch has 2 sequences", [&] { kv::commit(now.exec, now.view, 2, 0); });
    now.refuses("commit: tokens = 3, but 2 drafts are in flight", [&] { kv::commit(now.exec, now.view, 1, 3); });
    now.refuses("commit: tokens = 1, but 0 drafts are in flight", [&] { kv::commit(now.exec, now.view, 0, 1); });
    now.refuses("commit: tokens = -1, but 2 drafts are in flight", [&] { kv::commit(now.exec, now.view, 1, -1); });
    now.refuses("truncate: sequence = -1, but the batch has 2 sequences",
                [&] { kv::truncate(now.exec, now.view, now.state, -1, 0); });
    now.refuses("truncate: position = -1, but positions start at 0",
                [&] { kv::truncate(now.exec, now.view, now.state, 0, -1); });
    kv::cache broken = now.view;
    broken.lanes.count.data = nullptr;
    now.refuses("truncate: lanes.count = null, but every lane says how many entries it holds",
                [&] { kv::truncate(now.exec, broken, now.state, 0, 1); });
  }

  TEST_CASE("h2o with more heavy hitters than an int can subtract is still arithmetic") {
    working_batch now;
    kv::eviction const policy{.score = kv::h2o{.heavy = std::numeric_limits<int>::max()}, .budget = kv::per_lane{6}};
    auto state = kv::make_state(now.exec, policy, now.view);
    kv::decide(now.exec, policy, now.signals(), state, now.plan);
    for (int i = 0; i < 8; ++i) CHECK(now.plan.keep().listed(i).size() == 6);
  }
}

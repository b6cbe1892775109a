// SPDX-License-Identifier: Apache-2.0
// What every keep set of every shipped policy promises, whatever the engine's memory looks like.

#include "laws/subjects.hpp"
#include "reference/methods.hpp"
#include "support/masses.hpp"

namespace {

using namespace kvpolicy_test;

/// A cache in any condition, a policy, and everything that a decision needs.
template <class Scorer>
struct situation {
  mock_options shape;
  mock_cache cache;
  law_policy<Scorer> policy;
  mock_queries queries;
  kv::host_executor exec;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;

  explicit situation(content rows, int threads = 1)
      : shape(any_shape(rows)),
        cache(shape),
        policy(any_policy<Scorer>(shape.bound)),
        queries(cache, shape.element, std::min(shape.bound + 10, 9), 9),
        exec(threads),
        state(kv::make_state(exec, policy, cache.view())),
        plan(kv::make_plan(exec, policy, cache.view())) {
    RC_LOG() << shape << "\n" << kv::to_string(policy) << '\n';
    fill(cache, any_bool());
    fill_current(queries, cache, rows);
    kv::observe(exec, policy, signals(cache.lanes()), state);
  }

  static mock_options any_shape(content rows) {
    mock_options shape = suited<Scorer>(any_mock(6));
    shape.rows = rows;
    return shape;
  }
  auto signals(kv::lanes const& batch) {
    return kv::signals{batch, kv::keys_of(cache.view()), kv::queries{queries.view()}};
  }
  void decide(kv::lanes const& batch) { kv::decide(exec, policy, signals(batch), state, plan); }
  void apply() {
    kv::cache view = cache.view();
    kv::apply(exec, kv::compact{}, plan, view, state);
  }
  /// The keep set of every lane that was decided, in order.
  [[nodiscard]] std::vector<std::vector<int>> kept() const {
    std::vector<std::vector<int>> all;
    for (int i = 0; i < plan.keep().segments(); ++i) all.push_back(listed(plan.keep(), i));
    return all;
  }
};

content any_content() { return *rc::gen::element(content::few, content::smooth, content::troubled); }

/// True if the method has seen something of a lane, or asks for nothing: a row that came after some entry.
template <class Scorer>
bool sees_any(situation<Scorer>& now, kv::lane lane) {
  if (!std::same_as<Scorer, kv::snapkv> && !std::same_as<Scorer, kv::h2o> && !std::same_as<Scorer, kv::tova>)
    return true;
  auto const attention = reference_lane(now.cache, now.queries, lane);
  return std::any_of(attention.query_positions.begin(), attention.query_positions.end(),
                     [&](int position) { return position >= attention.key_positions.front(); });
}

/// Protected entries kept, the budget exact, order and uniqueness, best first with ties to the lower ordinal, NaN last
/// and counted: all of it is one comparison with a sort of the scores that the plan holds.
template <class Scorer>
void check_keep_sets(situation<Scorer>& now, kv::lanes const& batch) {
  kv::report expected;
  for (int i = 0; i < batch.size(); ++i) {
    kv::lane const lane = batch.at(i);
    int const count = now.cache.committed(lane);
    float const* const row = now.plan.scores(batch).row(i);
    auto const scores = as_row(std::vector<float>(row, row + count));
    auto const forced = forced_entries(now.policy, now.cache.positions(lane, count));
    int const budget = now.policy.budget.tokens;
    auto const best = reference::select(scores, forced, budget, now.policy.trigger.slack);
    RC_LOG() << "lane " << i << ", " << count << " entries, " << reference::count_of(forced) << " forced\n";
    RC_ASSERT(listed(now.plan.keep(), i) == best.kept);
    bool const triggered = reference::fires(as_size(count), budget, now.policy.trigger.slack);
    expected.triggered += triggered ? 1 : 0;
    expected.nan_scores += best.nan_candidates;
    expected.forced_over_budget += triggered && best.forced_over_budget > 0 ? 1 : 0;
    expected.unobserved += triggered && !sees_any(now, lane) ? 1 : 0;
    expected.over_budget += std::ssize(best.kept) > budget ? 1 : 0;
  }
  RC_ASSERT(now.plan.report() == expected);
}

/// Scores in double where the method has some; NaN-free caches only.
template <class Scorer>
void check_scores(situation<Scorer>& now, kv::lanes const& batch) {
  for (int i = 0; i < batch.size(); ++i) {
    kv::lane const lane = batch.at(i);
    auto const attention = reference_lane(now.cache, now.queries, lane);
    reference::row expected;
    if constexpr (std::same_as<Scorer, kv::knorm> || std::same_as<Scorer, kv::recorded_knorm>)
      expected = reference::knorm_scores(attention.keys);
    if constexpr (std::same_as<Scorer, kv::h2o>) {
      expected =
          reference::attention_mass(attention, {.group = static_cast<reference::reduction>(now.policy.score.group)});
    }
    if constexpr (std::same_as<Scorer, kv::snapkv>) {
      expected =
          reference::snapkv(attention, {.window = now.policy.score.window,
                                        .pool = in_double(now.policy.score.pool),
                                        .mass = {.rows = static_cast<reference::reduction>(now.policy.score.rows),
                                                 .group = static_cast<reference::reduction>(now.policy.score.group)}})
              .scores;
    }
    if constexpr (std::same_as<Scorer, kv::streaming_llm>) {
      for (std::size_t e = 0; e < attention.keys.size(); ++e) expected.push_back(static_cast<double>(e));
    }
    if (expected.size() != attention.keys.size()) continue;  // full and random have no scores of their own
    float const* const row = now.plan.scores(batch).row(i);
    comparison const result = compare({row, expected.size()}, expected);
    RC_LOG() << "lane " << i << ", " << result << '\n';
    RC_ASSERT(result.same);
    RC_ASSERT(decided_by(listed(now.plan.keep(), i), expected, forced_entries(now.policy, attention.key_positions),
                         now.policy.budget.tokens, now.policy.trigger.slack));
  }
}

}  // namespace

TEST_SUITE("laws/keep_set") {
  TEST_CASE_TEMPLATE_DEFINE("a keep set holds what is forced and the best of the rest, and decide only reads", Scorer,
                            keep_set_law) {
    holds(Scorer::name, 150, [] {
      situation<Scorer> now(any_content());
      int const layers = now.shape.model.layers;
      int const begin = *rc::gen::inRange(0, layers);
      auto const who = now.cache.lanes().layers_only(begin, *rc::gen::inRange(begin + 1, layers + 1));
      auto const before = now.cache.save();
      now.decide(who);
      check_keep_sets(now, who);
      RC_ASSERT(now.cache.save() == before);
    });
  }
  TEST_CASE_TEMPLATE_APPLY(keep_set_law, every_scorer);

  TEST_CASE_TEMPLATE_DEFINE("scores are the method's, and so are keep sets but for scores closer than the tolerance",
                            Scorer, score_law) {
    holds(Scorer::name, [] {
      situation<Scorer> now(*rc::gen::element(content::few, content::smooth));
      now.decide(now.cache.lanes());
      check_scores(now, now.cache.lanes());
    });
  }
  TEST_CASE_TEMPLATE_APPLY(score_law, every_scorer);

  TEST_CASE_TEMPLATE_DEFINE("deciding again changes nothing, before and after the decision is applied", Scorer,
                            again_law) {
    holds(Scorer::name, [] {
      situation<Scorer> now(any_content());
      now.decide(now.cache.lanes());
      auto const first = now.kept();
      now.decide(now.cache.lanes());
      RC_ASSERT(now.kept() == first);
      now.apply();
      for (int i = 0; i < now.cache.lane_count(); ++i) {
        RC_ASSERT(now.cache.committed(now.cache.lane_at(i)) == static_cast<int>(first[as_size(i)].size()));
      }
      auto const compacted = now.cache.save();
      now.decide(now.cache.lanes());
      for (int i = 0; i < now.cache.lane_count(); ++i) {
        RC_ASSERT(listed(now.plan.keep(), i).size() == first[as_size(i)].size());
      }
      now.apply();
      RC_ASSERT(now.cache.save() == compacted);
    });
  }
  TEST_CASE_TEMPLATE_APPLY(again_law, every_scorer);

  TEST_CASE_TEMPLATE_DEFINE("a decision does not depend on the number of threads, nor on how layers are grouped",
                            Scorer, thread_law) {
    holds(Scorer::name, 50, [] {
      situation<Scorer> now(any_content(), *rc::gen::element(1, 3));
      now.decide(now.cache.lanes());
      auto const all = now.kept();
      auto const lanes = now.cache.lanes();
      kv::host_executor other(3);
      auto [state, plan] = state_and_plan(other, now.policy, now.cache.view());
      for (int layer = 0; layer < lanes.layer_end; ++layer) {
        auto const some = lanes.layers_only(layer, layer + 1);
        observe_and_decide(other, now.policy, now.signals(some), state, plan);
        for (int i = 0; i < some.size(); ++i) {
          RC_ASSERT(listed(plan.keep(), i) == all[as_size(lanes.index(some.at(i)))]);
        }
      }
    });
  }
  TEST_CASE_TEMPLATE_APPLY(thread_law, every_scorer);

  TEST_CASE("every scorer in the library's folder is in the list of the laws, under its own name") {
    // These need signals that the laws do not have, or decide about pages or what leaves a window: they have their own.
    std::set<std::string> shipped,
        listed_here{"intent_kv", "trim_kv",      "admitted_attention", "head_table",    "quest",     "write_gate",
                    "carried",   "lookahead_kv", "observed_attention", "page_gates",    "not_stale", "openvino",
                    "recency",   "lazy_layers",  "late_attention",     "peak_attention"};
    std::set<std::string> const no_scorers{"concept",          "scorer_traits",   "external",        "with_recorders",
                                           "external_queries", "openvino_blocks", "projected_norms", "put_first_rest",
                                           "known_queries",    "freeze"};
    for (auto const& file : std::filesystem::directory_iterator(KVPOLICY_SOURCE_DIR "/include/kvpolicy/scorers")) {
      if (!file.is_regular_file()) continue;  // the stages have a folder
      std::string const name = file.path().stem().string();
      if (!no_scorers.contains(name)) shipped.insert(name);
    }
    listed_here.merge(described_methods());
    listed_here.erase("received_by_value");  // it is in the file of received_attention
    std::apply([&](auto const&... each) { (listed_here.insert(each.name), ...); }, every_scorer{});
    CHECK(shipped == listed_here);
    CHECK(!shipped.empty());
  }
}

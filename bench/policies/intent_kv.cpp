// SPDX-License-Identifier: Apache-2.0
// IntentKV's event: the rule over a whole model's keys against what reading them or multiplying them takes at least,
// and all that follows it: residual, choice, redirection to the dead slot.
#include "reference/intent_kv.hpp"

#include "checks.hpp"
#include "drawn_head.hpp"
#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int span = 32;

using bench::drawn_head;

/// A sequence in a slot map, the last rows of its turn, and the tables that a dead slot is redirected in.
class turn_of {
 public:
  using policy_type = decltype(kv::policies::intent_kv());

  turn_of(kv::shape const& model, int entries, kv::codec element, policy_type const& policy, int threads)
      : policy_(policy),
        exec_(threads),
        entries_(entries),
        model_(model, entries + 1, element),
        queries_(model, entries, span, element),
        list_(static_cast<std::size_t>(entries)),
        map_(list_.size()),
        freed_(list_.size()),
        position_(list_.size()),
        cache_(model_.view()) {
    for (kv::plane* const rows : {&cache_.k, &cache_.v}) rows->unit_stride = std::exchange(rows->token_stride, 0);
    cache_.where = kv::slot_map({list_.data()}, entries + 1);
    cache_.lanes.capacity = entries;
    cache_.lanes.count = {&count_};
    cache_.lanes.position = {position_.data()};
    reset();
    static_cast<kv::query_view&>(turn_) = queries_.view();
    held_.emplace(kv::make_state(exec_, policy_, cache_));
    plan_.emplace(kv::make_plan(exec_, policy_, cache_));
    kv::observe(exec_, policy_, in(), *held_);
  }

  /// All entries are live again, in a shuffled order of slots as pools have it.
  void reset() {
    count_ = entries_;
    for (int e = 0; e < entries_; ++e) {
      auto const at = static_cast<std::size_t>(e);
      list_[at] = map_[at] = (e / 16 * 16 * 7919) % (entries_ / 16 * 16) + e % 16;
      position_[at] = e;
    }
  }
  void score() {
    kv::signals const given = in();
    auto const recorders = kv::recorders_of(policy_.score);
    kv::signal_set const told(given, recorders, *held_);
    kv::score_view const out = plan_->scores(cache_.lanes);
    std::fill_n(out.row(0), entries_, 0.0f);
    policy_.score.score(exec_, told, out);
  }
  void decide() { kv::decide(exec_, policy_, in(), *held_, *plan_); }
  void apply() {
    kv::apply(exec_,
              kv::dead_slot<>{.list = {list_.data()},
                              .map = {map_.data()},
                              .dead = entries_,
                              .freed = {{freed_.data()}, {&freed_count_}}},
              *plan_, cache_, *held_);
  }
  [[nodiscard]] bool kept_its_budget() const { return count_ == policy_.budget.tokens; }
  /// Over the candidates.
  [[nodiscard]] double sum_of_scores() {
    double sum = 0;
    for (int e = 0; e < entries_; ++e) {
      float const one = plan_->score(0, e);
      if (one > -1e30f) sum += static_cast<double>(one);
    }
    return sum;
  }
  [[nodiscard]] kv::host_executor& exec() { return exec_; }
  [[nodiscard]] bench::memory const& keys() const { return model_.keys(); }

 private:
  [[nodiscard]] kv::signals<kv::keys, kv::turn_queries> in() const {
    return kv::signals{cache_.lanes, kv::keys_of(cache_), turn_};
  }

  policy_type policy_;
  kv::host_executor exec_;
  int entries_;
  bench::model_cache model_;
  bench::model_queries queries_;
  std::vector<int> list_, map_, freed_, position_;
  int count_ = 0;
  int freed_count_ = 0;
  kv::cache cache_;
  kv::turn_queries turn_;
  std::optional<kv::state<kv::host_executor>> held_;
  std::optional<kv::plan<kv::host_executor>> plan_;
};

/// The rule alone, the event that keeps half, and the event with a residual, each against reading all keys once and
/// against their multiplications.
void intent_kv(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  if (!bench::has_memory(state, bench::model_cache::bytes(bench::whole_model, entries, element))) return;
  turn_of rule(bench::whole_model, entries, element, kv::policies::intent_kv({.budget = entries / 2}), threads);
  auto const peak = bench::floors::peak_of(rule.exec().simd_level(), element);
  double const operations = 2.0 * bench::whole_model.query_heads * bench::whole_model.layers *
                            static_cast<double>(entries) * bench::whole_model.head_dim;
  rule.decide();
  double const all = bench::whole_model.layers * bench::whole_model.query_heads;
  if (std::abs(rule.sum_of_scores() - all) > 1e-3 * all) return state.SkipWithError("the rule does not sum to L Hq");
  rule.apply();
  if (!rule.kept_its_budget()) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn_after(
      state, [&] { rule.reset(); },
      [&] {
        rule.decide();
        rule.apply();
      },
      [&] { rule.score(); }, [&] { bench::floors::read_pass(rule.exec(), rule.keys().data(), rule.keys().size()); },
      [&] { bench::floors::peak_pass(rule.exec(), peak, operations); });
  state.SetLabel(kv::name_of(element));
  std::size_t const slower = taken.seconds(2) > taken.seconds(3) ? 2 : 3;
  state.counters["score_ms"] = 1e3 * taken.seconds(1);
  state.counters["read_ms"] = 1e3 * taken.seconds(2);
  state.counters["dot_ms"] = 1e3 * taken.seconds(3);
  state.counters["score_of_floor"] = taken.ratio(slower, 1);
  state.counters["event_over_score"] = taken.ratio(0, 1);
  bench::report_rate(state, static_cast<double>(rule.keys().size()), taken.seconds(0), threads);
}
BENCHMARK(intent_kv)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{16384, 32768}, {2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void intent_kv_learnable(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  if (!bench::has_memory(state, 2 * bench::model_cache::bytes(bench::whole_model, entries, element))) return;
  drawn_head const head(bench::whole_model.head_dim);
  auto policy = kv::policies::intent_kv({.budget = entries / 2, .score = {.mode = kv::intent_mode::learnable}});
  policy.score.residual = head.view();
  turn_of run(bench::whole_model, entries, element, policy, threads);
  turn_of rule(bench::whole_model, entries, element, kv::policies::intent_kv({.budget = entries / 2}), threads);
  run.decide();
  run.apply();
  if (!run.kept_its_budget()) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn_after(
      state,
      [&] {
        run.reset();
        rule.reset();
      },
      [&] {
        run.decide();
        run.apply();
      },
      [&] { run.decide(); }, [&] { rule.score(); });
  state.SetLabel(kv::name_of(element));
  state.counters["decide_ms"] = 1e3 * taken.seconds(1);
  state.counters["rule_ms"] = 1e3 * taken.seconds(2);
  state.counters["event_over_rule"] = taken.ratio(0, 2);
  bench::report_rate(state, static_cast<double>(run.keys().size()), taken.seconds(0), threads);
}
BENCHMARK(intent_kv_learnable)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{16384}, {2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

// Device implementation of top_k: how many each segment keeps, then which, a block a segment.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/select_shares.hpp>
#include <kvpolicy/ops/top_k.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// What a segment with a budget of its own has to choose: the k best of the entries in [begin, end) that compete.
struct segment_choice {
  int begin;
  int end;
  int k;  ///< below 0: it lists all its entries
  int many;
};

/// Offsets of top_k: of the word's odd number, bit 0 says that the forced entries exceed the budget, and bit 1 that
/// what is kept does.
struct close_choices {
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place, report& found) const {
    found.forced_over_budget += result.aux_count() & 1;
    found.over_budget += result.aux_count() >> 1;
  }
};

/// Counts what each segment keeps, a block each, and the last one makes offsets of it.
template <class Rule>
struct choose_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
  segment_choice* choices;
  device_error faults;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    auto const [sums, temp_storage] = counting_storage(block);
    choose(block, block.index(), temp_storage);
    if (last_block(block, ticket, temp_storage)) close_segments(block, keep, sums, close_choices{});
  }

 private:
  /// A segment whose lanes hold other tokens lists all its entries: nothing is dropped.
  template <class Block>
  KVPOLICY_HD void choose(Block& block, int segment, int* temp_storage) const {
    segment_keys<Rule> keys(scores, rule, segment);
    int const count = keys.count();
    int const budget = rule.budget(keys.about.lane, count);
    keys.about.budget = budget;
    bool const differs = lanes_differ(block, scores, segment, faults, temp_storage);
    bool const fires = !differs && rule.triggers(count, budget);
    segment_choice made{0, count, -1, count};
    int kept = count;
    bool forced_over = false;
    if (fires) {
      int const forced = keys.find_forced(block, temp_storage);
      int const left = budget < forced ? 0 : budget - forced;
      made = {keys.begin, keys.end, left < count - forced ? left : count - forced, count - forced};
      kept = forced + made.k;
      forced_over = forced > budget;
    }
    if (block.thread() != 0) return;
    choices[segment] = made;
    keep.seen[segment] = count;
    bool const unobserved = fires && decides_unobserved(rule, scores, segment);
    int const over = (forced_over ? 1 : 0) + (kept > budget ? 2 : 0);
    keep.indptr[segment + 1] = packed_result::of(kept, over, fires, unobserved).word;
  }
};

/// Lists what each segment keeps, a block each.
template <class Rule>
struct pick_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
  segment_choice const* choices;
  int capacity;  ///< keys that a block has room for

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    segment_choice const choice = choices[segment];
    int* const to = keep.indices + keep.indptr[segment];
    segment_keys<Rule> keys(scores, rule, segment);
    if (choice.k < 0) return emit_all(block, keys.count(), to);
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    keys.begin = choice.begin;
    keys.end = choice.end;
    select_storage const temp_storage(block, capacity);
    found_point const found = find_point(block, keys, {choice.k, choice.many}, temp_storage);
    if (block.thread() == 0) add_to_report(block, keep.report->nan_scores, found.nan);
    if (choice.k == choice.many) return emit_all(block, keys.count(), to);
    emit_kept(block, by_cut<Rule>{keys, found.at.lowest}, keys.count(), found.at.ties, to, temp_storage.warps);
  }
};

}  // namespace detail

/// Two launches; seven for a shared budget. Nothing depends on the order of blocks or threads.
///
/// Lanes that decide together and hold other tokens, and counts out of their limits, raise a fault; their segments list
/// all their entries.
template <kernel_backend Backend>
struct implementation<ops::top_k_t, Backend> {
  static constexpr bool provided = true;

  /// Bytes of scratch for all lanes: a few numbers a lane, and the histogram of every pool that there may be.
  [[nodiscard]] static std::size_t scratch(shape const&, lanes const& batch) {
    std::size_t const choices = sizeof(detail::segment_choice) * static_cast<std::size_t>(batch.size());
    std::size_t const pools = detail::pool_scratch(batch.size(), batch.sequences * batch.layers());
    return choices < pools ? pools : choices;
  }

  template <class Executor, class Rule>
  static void run(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if constexpr (detail::may_pool<Rule>) {
      budget_scope const scope = rule.scope();
      if (scope != budget_scope::lane) return run_pooled(exec, scores, rule, keep, scope);
    }
    run_alone(exec, scores, rule, keep);
  }

 private:
  template <class Executor, class Rule>
  static void run_pooled(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep,
                         budget_scope scope) {
    expects(scores.decides == granularity::lane, "top_k", "budget.scope", to_string(scope),
            [&] { return "what decides by " + to_string(scores.decides) + " has one budget already"; });
    int const lanes = scope == budget_scope::layer ? scores.lanes.heads : scores.lanes.heads * scores.lanes.layers();
    detail::decide_pools(exec, scores, rule, keep, lanes);
  }

  template <class Executor, class Rule>
  static void run_alone(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    using choose = detail::choose_kernel<Rule>;
    detail::check_same_tokens(exec, scores);
    auto const& numbers = exec.config();
    auto* const choices = reinterpret_cast<detail::segment_choice*>(exec.scratch());
    int const threads = detail::knows_run<Rule> ? numbers.lane_threads : numbers.segment_threads;
    exec.launch({scores.segments(), threads, detail::counting_storage::bytes()},
                choose{scores, rule, keep, choices, exec.faults(), exec.tickets()});
    int const capacity = detail::keys_to_collect(numbers, scores.lanes.bound);
    exec.launch({scores.segments(), numbers.segment_threads, detail::select_storage::bytes(capacity)},
                detail::pick_kernel<Rule>{scores, rule, keep, choices, capacity});
  }
};

}  // namespace KVPOLICY_NAMESPACE

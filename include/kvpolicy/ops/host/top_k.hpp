// Host implementation of top_k: three histogram passes find the lowest kept key, one pass emits in order.
#pragma once

#include <algorithm>
#include <bit>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <mutex>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Keys order as scores do: NaN lowest (1), then -inf, ..., +inf. No score has the key `forced_key`, nor `out_key`.
inline constexpr std::uint32_t out_key = 0;
inline constexpr std::uint32_t nan_key = 1;
inline constexpr std::uint32_t forced_key = 0xFFFFFFFFu;

[[nodiscard]] inline std::uint32_t sort_key(float score) {
  auto bits = std::bit_cast<std::uint32_t>(score);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return nan_key;  // by its bits: true under -ffast-math too
  if (bits == 0x80000000u) bits = 0;                       // -0 is +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The cut of a segment: keys above `lowest` stay, and the first `ties` of those equal to it.
struct cut {
  std::uint32_t lowest = 0;
  std::int64_t ties = 0;
};

/// Keys that lie in several rows, one after another.
struct key_rows {
  std::uint32_t const* keys;
  std::int64_t stride;
  int const* counts;  ///< of each row
  int rows;

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (int r = 0; r < rows; ++r) {
      std::uint32_t const* const row = keys + r * stride;
      for (int e = 0; e < counts[r]; ++e) visit(row[e]);
    }
  }
};

/// Finds the cut that keeps exactly `k` (1 <= k <= candidates) of the keys that are below `forced_key`.
inline cut find_cut(key_rows const& in, std::int64_t k, std::int64_t* histogram) {
  std::uint32_t prefix = 0;
  std::uint32_t known = 0;  // mask of the bits decided so far
  for (int const shift : {21, 10, 0}) {
    int const bits = shift == 0 ? 10 : 11;
    std::uint32_t const digits = (1u << bits) - 1;
    std::fill_n(histogram, digits + 1, 0);
    in.for_each([&](std::uint32_t key) {
      if ((key & known) == prefix && key != forced_key) ++histogram[key >> shift & digits];
    });
    std::uint32_t digit = digits;
    while (histogram[digit] < k) k -= histogram[digit--];
    prefix |= digit << shift;
    known |= digits << shift;
  }
  return {prefix, k};
}

template <class Rule>
budget_scope scope_of_rule(Rule const& rule) {
  if constexpr (requires { rule.scope(); }) {
    return rule.scope();
  } else {
    return budget_scope::lane;
  }
}

template <class Rule>
int floor_of_rule(Rule const& rule, int budget) {
  if constexpr (requires { rule.floor(budget); }) {
    return rule.floor(budget);
  } else {
    return 0;
  }
}

}  // namespace detail

template <>
struct implementation<ops::top_k_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, int) { return detail::scratch_of<std::int64_t>(2048); }

  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    refuse_unequal_counts(scores);
    int const pool = segments_of_a_pool(scores, detail::scope_of_rule(rule));
    *keep.report = {};
    for (int segment = 0; segment < scores.segments(); ++segment) {
      keep.seen[segment] = scores.who.committed(scores.lane_of(segment));
    }
    std::mutex counting;
    exec.for_each(scores.segments() / pool, [&](int which, int worker) {
      report const found = pool == 1 ? decide_alone(scores, rule, which, exec.scratch(worker), keep)
                                     : decide_pooled(scores, rule, {which * pool, pool}, exec.scratch(worker), keep);
      std::lock_guard const lock(counting);
      keep.report->nan_scores += found.nan_scores;
      keep.report->forced_over_budget += found.forced_over_budget;
      keep.report->triggered += found.triggered;
    });
    keep.offset[0] = 0;
    close_gaps(scores, keep);
  }

 private:
  static void refuse_unequal_counts(score_view const& scores) {
    if (scores.decides == granularity::lane) return;
    for (int i = 0; i < scores.who.size(); ++i) {
      lane const first = scores.lane_of(segment_of(scores.who, scores.decides, i));
      expects(scores.who.committed(scores.who.at(i)) == scores.who.committed(first), "top_k", "count",
              scores.who.committed(scores.who.at(i)), "lanes that decide together hold equally many entries");
    }
  }

  static int segments_of_a_pool(score_view const& scores, budget_scope scope) {
    if (scope == budget_scope::lane) return 1;
    expects(scores.decides == granularity::lane, "top_k", "budget.scope", to_string(scope),
            [&] { return "what decides by " + to_string(scores.decides) + " has one budget already"; });
    return scope == budget_scope::layer ? scores.who.heads : scores.who.heads * scores.who.layers();
  }

  /// Where a segment's ordinals will be, its keys are until then: an ordinal is written at or before its key.
  static std::uint32_t* keys_of(score_view const& scores, int segment, keep_set const& keep) {
    return reinterpret_cast<std::uint32_t*>(keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound);
  }

  /// Writes a segment's keys, forced entries marked, and returns how many are forced.
  template <class Rule>
  static int make_keys(score_view const& scores, Rule const& rule, int segment, int budget, std::uint32_t* keys,
                       report& found) {
    lane const who = scores.lane_of(segment);
    int const count = scores.who.committed(who);
    int const* const position = scores.who.position.row(who);
    float const* const score = scores.row(segment);
    int forced = 0;
    for (int e = 0; e < count; ++e) {
      bool const must = rule.forces(entry{who, e, count, position[e], budget});
      keys[e] = must ? detail::forced_key : detail::sort_key(score[e]);
      forced += must ? 1 : 0;
      found.nan_scores += keys[e] == detail::nan_key ? 1 : 0;
    }
    return forced;
  }

  static std::int64_t* histogram_of(std::span<std::byte> memory) {
    return detail::scratch_arena(memory).take<std::int64_t>(2048);
  }

  /// One segment with a budget of its own.
  template <class Rule>
  static report decide_alone(score_view const& scores, Rule const& rule, int segment, std::span<std::byte> memory,
                             keep_set const& keep) {
    report found;
    int const count = keep.seen[segment];
    int const budget = rule.budget(scores.lane_of(segment), count);
    int* const to = keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound;
    keep.offset[segment + 1] = count;
    if (!rule.triggers(count, budget)) {
      for (int e = 0; e < count; ++e) to[e] = e;
      return found;
    }
    found.triggered = 1;
    std::uint32_t* const keys = keys_of(scores, segment, keep);
    int const forced = make_keys(scores, rule, segment, budget, keys, found);
    found.forced_over_budget = forced > budget ? 1 : 0;
    int const k = std::clamp(budget - forced, 0, count - forced);
    detail::cut at = cut_at({keys, 0, &count, 1}, k, memory);
    keep.offset[segment + 1] = emit(keys, count, at, to);
    return found;
  }

  struct pool_segments {
    int first;
    int count;
  };

  /// Several segments that share the sum of their budgets.
  template <class Rule>
  static report decide_pooled(score_view const& scores, Rule const& rule, pool_segments pool,
                              std::span<std::byte> memory, keep_set const& keep) {
    report found;
    std::int64_t entries = 0;
    std::int64_t budget = 0;
    for (int segment = pool.first; segment < pool.first + pool.count; ++segment) {
      entries += keep.seen[segment];
      budget += rule.budget(scores.lane_of(segment), keep.seen[segment]);
    }
    auto const in_int = [](std::int64_t n) { return static_cast<int>(std::min<std::int64_t>(n, 0x7FFFFFFF)); };
    bool const fires = rule.triggers(in_int(entries), in_int(budget));
    std::int64_t forced = 0;
    std::int64_t within = 0;  // forced or within a floor
    for (int segment = pool.first; segment < pool.first + pool.count; ++segment) {
      std::uint32_t* const keys = keys_of(scores, segment, keep);
      int const count = keep.seen[segment];
      int const share = rule.budget(scores.lane_of(segment), count);
      if (!fires) {
        std::fill_n(keys, count, detail::forced_key);
        continue;
      }
      int const must = make_keys(scores, rule, segment, share, keys, found);
      forced += must;
      within += std::max(must, std::min(count, detail::floor_of_rule(rule, share)));
    }
    found.triggered = fires ? 1 : 0;
    found.forced_over_budget = fires && forced > budget ? 1 : 0;
    detail::cut at{detail::forced_key, 0};
    if (fires) at = cut_of_pool(scores, rule, pool, budget, {forced, within, entries}, memory, keep);
    for (int segment = pool.first; segment < pool.first + pool.count; ++segment) {
      int* const to = keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound;
      keep.offset[segment + 1] = emit(keys_of(scores, segment, keep), keep.seen[segment], at, to);
    }
    return found;
  }

  struct pool_counts {
    std::int64_t forced;
    std::int64_t within;
    std::int64_t entries;
  };

  /// Entries within their segment's floor first: all of them, and then the rest competes; or, if the budget does not
  /// hold them all, they alone compete.
  template <class Rule>
  static detail::cut cut_of_pool(score_view const& scores, Rule const& rule, pool_segments pool, std::int64_t budget,
                                 pool_counts const& counted, std::span<std::byte> memory, keep_set const& keep) {
    bool const floors_fit = counted.within <= std::max(budget, counted.forced);
    for (int segment = pool.first; counted.within > counted.forced && segment < pool.first + pool.count; ++segment) {
      std::uint32_t* const keys = keys_of(scores, segment, keep);
      int const count = keep.seen[segment];
      int const share = rule.budget(scores.lane_of(segment), count);
      settle_floor(keys, count, detail::floor_of_rule(rule, share), floors_fit, memory);
    }
    std::int64_t const settled = floors_fit ? counted.within : counted.forced;
    std::int64_t const most = floors_fit ? counted.entries : counted.within;
    std::int64_t const k = std::clamp<std::int64_t>(budget - settled, 0, most - settled);
    detail::key_rows const all{keys_of(scores, pool.first, keep), scores.who.bound, keep.seen + pool.first, pool.count};
    return cut_at(all, k, memory);
  }

  /// Marks a segment's best `floor` entries as forced; or, where the floors of a pool do not fit, every other entry as
  /// out of it, so that only those compete.
  static void settle_floor(std::uint32_t* keys, int count, int floor, bool fits, std::span<std::byte> memory) {
    auto const forced = static_cast<int>(std::count(keys, keys + count, detail::forced_key));
    int const k = std::clamp(floor - forced, 0, count - forced);
    detail::cut at = cut_at({keys, 0, &count, 1}, k, memory);
    for (int e = 0; e < count; ++e) {
      if (keys[e] == detail::forced_key) continue;
      bool const tied = keys[e] == at.lowest && at.ties > 0;
      at.ties -= tied ? 1 : 0;
      bool const within = k > 0 && (keys[e] > at.lowest || tied);
      if (fits && within) keys[e] = detail::forced_key;
      if (!fits && !within) keys[e] = detail::out_key;
    }
  }

  static detail::cut cut_at(detail::key_rows const& in, std::int64_t k, std::span<std::byte> memory) {
    return k > 0 ? detail::find_cut(in, k, histogram_of(memory)) : detail::cut{detail::forced_key, 0};
  }

  /// Writes the ordinals above the cut, and of those at it the first `at.ties`, which it uses up.
  static int emit(std::uint32_t const* keys, int count, detail::cut& at, int* to) {
    int kept = 0;
    for (int e = 0; e < count; ++e) {
      bool const above = keys[e] == detail::forced_key || keys[e] > at.lowest;
      bool const tied = !above && keys[e] == at.lowest && at.ties > 0;
      at.ties -= tied ? 1 : 0;
      if (above || tied) to[kept++] = e;
    }
    return kept;
  }

  /// Segments were written `bound` ordinals apart; moving them together never overtakes.
  static void close_gaps(score_view const& scores, keep_set const& keep) {
    for (int segment = 0; segment < scores.segments(); ++segment) {
      int const* const from = keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound;
      auto const kept = keep.offset[segment + 1];
      int* const to = keep.ordinal + keep.offset[segment];
      if (to != from) std::copy_n(from, kept, to);
      keep.offset[segment + 1] = keep.offset[segment] + kept;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE

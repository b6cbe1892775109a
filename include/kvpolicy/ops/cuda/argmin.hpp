// Device implementation of argmin: one launch, a block a segment.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/apply_stats.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/drop_listed.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/select_emit.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Offsets of argmin: a word lists the ordinal that goes, and one more; 0: none. Its odd number counts NaN.
template <class Rule>
struct close_lowest {
  score_view const& scores;
  Rule const& rule;
  keep_set const& keep;
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed() > 0 ? 1 : 0; }
  KVPOLICY_HD void place(packed_result result, segment_place at, report& found) const {
    int const count = keep.seen[at.segment];
    found.nan_scores += result.aux_count();
    found.over_budget += count - number(result) > rule.budget(scores.lane_of(at.segment), count) ? 1 : 0;
    if (result.listed() > 0) {
      keep.indices[at.before] = result.listed() - 1;
    } else {
      found.forced_over_budget += result.triggered() ? 1 : 0;
    }
  }
};

template <class Rule>
struct argmin_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
  device_error faults;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    auto const [sums, temp_storage] = counting_storage(block);
    packed_result const found = drop(block, block.index(), reinterpret_cast<std::uint64_t*>(sums), temp_storage);
    if (block.thread() == 0) {
      keep.seen[block.index()] = scores.lanes.committed(scores.lane_of(block.index()));
      keep.indptr[block.index() + 1] = found.word;
    }
    if (last_block(block, ticket, temp_storage))
      close_segments(block, keep, sums, close_lowest<Rule>{scores, rule, keep});
  }

 private:
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  /// Lowest of all: by key, then by how far the ordinal is from the end. A segment whose lanes hold other tokens
  /// drops nothing.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD packed_result drop(Block& block, int segment, std::uint64_t* lowest_storage,
                                               int* temp_storage) const {
    segment_keys<Rule> keys(scores, rule, segment);
    int const count = keys.count();
    keys.about.budget = rule.budget(keys.about.lane, count);
    bool const differs = lanes_differ(block, scores, segment, faults, temp_storage);
    if (differs || count == 0 || !rule.triggers(count, keys.about.budget)) return {0};
    keys.find_run();
    std::uint64_t lowest = none;
    int nan = 0;
    for (int e = keys.begin + block.thread(); e < keys.end; e += block.threads()) {
      std::uint32_t const key = keys.at(e);
      if (key == order_forced) continue;
      nan += key == order_nan ? 1 : 0;
      lowest = take_lower{}(lowest, std::uint64_t{key} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(e)));
    }
    lowest = block_reduce(block, lowest, lowest_storage, take_lower{});
    nan = block_reduce(block, nan, temp_storage, add_up{});
    int const ordinal = lowest == none ? -1 : static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(lowest));
    return packed_result::of(ordinal + 1, nan, true, block.thread() == 0 && decides_unobserved(rule, scores, segment));
  }
};

}  // namespace detail

/// One launch: no result of it depends on how many threads a block has.
///
/// Lanes that decide together and hold other tokens, and counts out of their limits, raise a fault; their segments drop
/// nothing.
template <kernel_backend Backend>
struct implementation<ops::argmin_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor, class Rule>
  static void run(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    using kernel = detail::argmin_kernel<Rule>;
    detail::check_same_tokens(exec, scores);
    exec.launch({scores.segments(), exec.config().segment_threads, detail::counting_storage::bytes()},
                kernel{scores, rule, keep, exec.faults(), exec.tickets()});
  }
};

}  // namespace KVPOLICY_NAMESPACE

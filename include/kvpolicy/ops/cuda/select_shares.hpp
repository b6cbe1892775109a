// What each segment of a pool keeps once the pool's cut is known: ties go to the lower segment, then to the lower
// ordinal.
#pragma once

#include <kvpolicy/ops/cuda/select_pools.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Which of two cuts says what a segment keeps: the one of its floor, the one of its pool, or both, where they are one.
enum class ruled_by : int { floor, pool, both };

[[nodiscard]] KVPOLICY_HD inline ruled_by ruler_of(pool_segment const& one, pool_state const& pool) {
  if (one.floor.lowest == pool.range.low) return ruled_by::both;
  bool const is_stricter = one.floor.lowest > pool.range.low;
  return is_stricter == (pool.floors_fit != 0) ? ruled_by::pool : ruled_by::floor;
}

/// How many of a segment's keys at the pool's cut are within its floor, where that is at the same key.
[[nodiscard]] KVPOLICY_HD inline int first_at_floor(pool_segment const& one) {
  return one.equal < one.floor.ties ? one.equal : one.floor.ties;
}

/// How many of a segment's keys compete for the ties of its pool.
struct competing_ties {
  pools_in const& in;
  [[nodiscard]] KVPOLICY_HD int operator()(int segment) const {
    pool_segment const& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    if (pool.fires == 0) return 0;
    ruled_by const ruler = ruler_of(one, pool);
    if (ruler != ruled_by::both) return ruler == ruled_by::pool ? one.equal : 0;
    return pool.floors_fit != 0 ? one.equal - first_at_floor(one) : first_at_floor(one);
  }
};

struct place_ties {
  pools_in const& in;
  KVPOLICY_HD void operator()(int segment, std::int64_t before, std::int64_t) const {
    in.segments[segment].before = before;
  }
};

/// How many entries a segment keeps.
struct share_of_pool {
  pools_in const& in;

  /// Of the pool's ties, those that this segment has.
  [[nodiscard]] KVPOLICY_HD int ties(int segment) const {
    std::int64_t const before = in.segments[segment].before - in.segments[in.first_of(segment)].before;
    std::int64_t const left = in.pool_of(segment).range.k - before;
    int const competing = competing_ties{in}(segment);
    return left <= 0 ? 0 : left < competing ? static_cast<int>(left) : competing;
  }

  [[nodiscard]] KVPOLICY_HD int operator()(int segment) const {
    pool_segment const& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    if (pool.fires == 0) return in.keep.seen[segment];
    ruled_by const ruler = ruler_of(one, pool);
    if (ruler == ruled_by::floor) return one.within;
    bool const floor_too = ruler == ruled_by::both && pool.floors_fit != 0;
    return one.forced + one.above + (floor_too ? first_at_floor(one) : 0) + ties(segment);
  }
};

struct place_shares {
  pools_in const& in;
  KVPOLICY_HD void operator()(int segment, std::int64_t before, std::int64_t kept) const {
    pool_segment& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    ruled_by const ruler = ruler_of(one, pool);
    bool const floor_too = ruler == ruled_by::both && pool.floors_fit != 0;
    int const ties = share_of_pool{in}.ties(segment) + (floor_too ? first_at_floor(one) : 0);
    one.at = ruler == ruled_by::floor ? one.floor : cut_point{pool.range.low, ties};
    in.keep.indptr[segment + 1] = before + kept;
  }
};

struct count_at_cut {
  std::uint32_t lowest;
  int& above;
  int& equal;
  KVPOLICY_HD void operator()(std::uint32_t key) const {
    above += key != order_forced && key > lowest ? 1 : 0;
    equal += key == lowest ? 1 : 0;
  }
};

/// After the histograms: what of each segment is above the pool's cut and at it; and from that, in the last block,
/// ties and offsets.
template <class Rule>
struct share_kernel {
  pools_in in;
  Rule rule;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    auto const [sums, temp_storage] = counting_storage(block);
    pool_state const& pool = in.pool_of(block.index());
    if (pool.fires != 0 && ruler_of(in.segments[block.index()], pool) != ruled_by::floor) {
      count(block, block.index(), pool.range.low, temp_storage);
    }
    if (!last_block(block, ticket, temp_storage)) return;
    place_segments(block, in.keep.segments(), sums, competing_ties{in}, place_ties{in});
    block.sync();
    place_segments(block, in.keep.segments(), sums, share_of_pool{in}, place_shares{in});
    if (block.thread() == 0) in.keep.indptr[0] = 0;
  }

 private:
  template <class Block>
  KVPOLICY_HD void count(Block& block, int segment, std::uint32_t lowest, int* temp_storage) const {
    int above = 0;
    int equal = 0;
    in.keys_of(rule, segment).for_each(block, count_at_cut{lowest, above, equal});
    above = block_reduce(block, above, temp_storage, add_up{});
    equal = block_reduce(block, equal, temp_storage, add_up{});
    if (block.thread() != 0) return;
    in.segments[segment].above = above;
    in.segments[segment].equal = equal;
  }
};

/// Last: lists what each segment keeps.
template <class Rule>
struct emit_share_kernel {
  pools_in in;
  Rule rule;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    int* const to = in.keep.indices + in.keep.indptr[segment];
    if (in.pool_of(segment).fires == 0) return emit_all(block, in.keep.seen[segment], to);
    segment_keys<Rule> const keys = in.keys_of(rule, segment);
    cut_point const at = in.segments[segment].at;
    auto* const warps = shared_arena(block).template take<unsigned>(2 * warp_size);
    emit_kept(block, by_cut<Rule>{keys, at.lowest}, keys.count(), at.ties, to, warps);
  }
};

/// `size`: segments of a pool, which are neighbours.
template <class Executor, class Rule>
void decide_pools(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep, int size) {
  int const segments = scores.segments();
  int const threads = exec.config().segment_threads;
  int const capacity = keys_to_collect(exec.config(), scores.lanes.bound);
  auto* const of_segments = reinterpret_cast<pool_segment*>(exec.scratch());
  auto* const pools = reinterpret_cast<pool_state*>(of_segments + segments);
  auto* const histograms = reinterpret_cast<std::uint32_t*>(pools + segments / size);
  pools_in const in{scores, keep, size, of_segments, pools, histograms};
  launch_each(exec, std::int64_t{segments / size} * histogram_bins, clear_pools{in});
  exec.launch({segments, threads, select_storage::bytes(capacity)},
              survey_kernel<Rule>{in, rule, capacity, exec.faults()});
  for (int digits = 0; digits < 3; ++digits) {  // of 11 bits
    exec.launch({segments, threads, select_storage::bytes(0)}, pool_histogram_kernel<Rule>{in, rule});
  }
  using share = share_kernel<Rule>;
  exec.launch({segments, threads, counting_storage::bytes()}, share{in, rule, exec.tickets()});
  exec.launch({segments, threads, shared_arena::bytes_of_piece<unsigned>(2 * warp_size)},
              emit_share_kernel<Rule>{in, rule});
}

}  // namespace KVPOLICY_NAMESPACE::detail

// SPDX-License-Identifier: Apache-2.0
// Device implementation of page_scores: a warp handles a few pages, and its threads handle the channels of their
// bounds.
#pragma once

#include <cstddef>
#include <kvpolicy/ops/cuda/attention/query_rows.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/cuda/run/page_loads.hpp>
#include <kvpolicy/ops/page_scores.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Combines heads by a sum or a maximum. A NaN on either side stays.
struct join_heads {
  bool highest;
  template <class T>
  [[nodiscard]] KVPOLICY_HD T operator()(T a, T b) const {
    if (!highest) return a + b;
    return a >= b || a != a ? a : b;
  }
};

/// Computes scores. A score is the sum over channels of max(q high, q low), and it is computed as one dot product of
/// [max(q, 0); min(q, 0)] with [high; low], which are contiguous. `Heads` query heads share each load of a bound, for a
/// few pages at once.
template <int Heads, class Loads>
struct page_scores_kernel {
  kvpolicy::lanes lanes;
  page_bound_view bounds;
  query_view rows;
  reduction group;
  score_view out;
  Loads loads;
  int blocks_per_lane;

  static constexpr int pages_at_once = 4;
  using bound_stream = bound_loads<pages_at_once, Loads>;
  static constexpr int sums = Heads * pages_at_once;  ///< sums of a thread; at most warp_size
  /// Channels whose rows are in registers at once.
  static constexpr int together = Loads::width < 4 ? Loads::width : 4;
  static constexpr int least_blocks = Heads == 8 && Loads::width == 8 ? 1 : 2;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / blocks_per_lane;
    lane const one = out.lanes.at(segment);
    int const committed = lanes.committed(one);
    int const known = *bounds.known.row(one);
    int const pages = pages_for(committed, bounds.page);
    bool const asks = rows.valid(one) > 0;
    int const known_pages = !asks ? 0 : known >= committed ? pages : known / bounds.page;
    float* const to = out.row(segment);
    int const of_lane = block.index() % blocks_per_lane * block.threads() + block.thread();
    for (int p = known_pages + of_lane; p < pages; p += blocks_per_lane * block.threads()) {
      to[p] = asks ? same_bits<float>(0x7F800000u) : 0.0f;
    }
    warp_stride const stride = stride_of_warp(block, blocks_per_lane);
    if ((stride.first - warp_id(block)) * pages_at_once >= known_pages) return;  // no page for any warp of the block
    shared_arena arena(block);
    float* const folded = arena.take<float>(Heads * 2 * bounds.dims);
    typename bound_stream::ring const ring(block, arena);
    int const size = bytes_of(bounds.element);
    bound_stream stream(loads, ring, bounds.row(one, 0), 2 * bounds.dims * size, size);
    for (int first = 0; first < heads_of_lane(); first += Heads) {
      int const begin = stride.first * pages_at_once, step = stride.step * pages_at_once;
      stream.begin(block, {begin, known_pages}, step);
      block.sync();
      fold(block, one, first, folded);
      block.sync();
      for (int p = begin; p < known_pages; p += step) {
        take_pages(block, one, first, folded, stream, ordinal_range{p, known_pages}, to);
      }
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD int heads_of_lane() const { return rows.heads / lanes.heads; }

  /// The last valid row of query head h of the lane's group.
  [[nodiscard]] KVPOLICY_HD std::byte const* row_of(lane one, int h) const {
    return rows.at(one, one.head * heads_of_lane() + h, rows.stored(one, rows.valid(one) - 1));
  }

  /// Writes the folded rows of heads [first, first + Heads), with zeros for heads after the last.
  template <class Block>
  KVPOLICY_HD void fold(Block& block, lane one, int first, float* to) const {
    int const size = bytes_of(rows.element);
    for (int h = 0; h < Heads; ++h) {
      std::byte const* const row = row_of(one, first + h < heads_of_lane() ? first + h : 0);
      for (int d = block.thread(); d < bounds.dims; d += block.threads()) {
        float const q = first + h < heads_of_lane() ? element_at(rows.element, row + d * size) : 0.0f;
        to[h * 2 * bounds.dims + d] = q < 0 ? 0.0f : q;  // a NaN stays one
        to[h * 2 * bounds.dims + bounds.dims + d] = q < 0 ? q : 0.0f;
      }
    }
  }

  /// Scores up to `pages_at_once` pages from pages.begin on: combines heads from `first` on with the earlier heads.
  template <class Block>
  KVPOLICY_HD void take_pages(Block& block, lane one, int first, float const* folded, bound_stream& stream,
                              ordinal_range pages, float* to) const {
    join_heads const join{group == reduction::max};
    int const mine = lane_id(block) % Heads;
    int const page = pages.begin + lane_id(block) / Heads;
    float score = products(block, folded, stream);
    if (first + mine >= heads_of_lane()) score = join.highest ? same_bits<float>(0xFF800000u) : 0.0f;
    score = block.template reduce_warp<Heads>(score, join);
    bool const writes = mine == 0 && lane_id(block) < sums && page < pages.end;
    if (writes && first > 0) score = join(to[page], score);
    if (first + Heads >= heads_of_lane()) score = finished(block, one, pages.begin, score, writes);
    if (writes) to[page] = score;
  }

  /// In thread i below `sums`, the product of the next pages' (i / Heads)-th with head i % Heads.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD float products(Block& block, float const* folded, bound_stream& stream) const {
    float of[static_cast<std::size_t>(sums)];
    for (int i = 0; i < sums; ++i) of[i] = 0;
    int const dims = 2 * bounds.dims;
    int const mine = lane_id(block) * Loads::width;
    for (int d = 0; d < dims; d += warp_size * Loads::width) {
      typename Loads::raw bound[static_cast<std::size_t>(pages_at_once)];
      stream.take(block, bound);
      if (d + mine < dims) add_products(folded + d + mine, bound, of);
      stream.release(block);
    }
    return block.reduce_warp_batched(of, plus_op{});
  }
  KVPOLICY_HD void add_products(float const* folded,
                                typename Loads::raw const (&bound)[static_cast<std::size_t>(pages_at_once)],
                                float (&of)[static_cast<std::size_t>(sums)]) const {
    for (int i = 0; i < Loads::width; i += together) {  // not all at once, which would take too many registers
      float asked[static_cast<std::size_t>(Heads)][static_cast<std::size_t>(together)];
      for (int h = 0; h < Heads; ++h) {
        for (int k = 0; k < together; ++k) asked[h][k] = folded[h * 2 * bounds.dims + i + k];
      }
      for (int n = 0; n < pages_at_once; ++n) {
        for (int k = 0; k < together; ++k) {
          float const value = Loads::value(bound[n], i + k);
          for (int h = 0; h < Heads; ++h) of[n * Heads + h] += value * asked[h][k];
        }
      }
    }
  }

  /// Divides for a mean of heads. A product can be NaN because an infinite bound is multiplied by the zero of the other
  /// half, or because a key or a row holds a NaN; such a page is scored again by the definition.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD float finished(Block& block, lane one, int first_page, float score, bool writes) const {
    unsigned const strange = block.ballot(writes && score != score);
    if (group == reduction::mean) score /= static_cast<float>(heads_of_lane());
    for (int i = 0; strange != 0 && i < sums; i += Heads) {
      if ((strange >> i & 1u) == 0) continue;
      float const defined = by_definition(block, one, first_page + i / Heads);
      if (lane_id(block) == i) score = defined;
    }
    return score;
  }
  template <class Block>
  [[nodiscard]] KVPOLICY_HD float by_definition(Block& block, lane one, int page) const {
    join_heads const join{group == reduction::max};
    std::byte const* const bound = bounds.row(one, page);
    int const size = bytes_of(bounds.element);
    double all = 0;
    for (int h = 0; h < heads_of_lane(); ++h) {
      std::byte const* const row = row_of(one, h);
      double sum = 0;
      for (int d = lane_id(block); d < bounds.dims; d += warp_size) {
        auto const q = static_cast<double>(element_at(rows.element, row + d * bytes_of(rows.element)));
        auto const high = static_cast<double>(element_at(bounds.element, bound + d * size));
        auto const low = static_cast<double>(element_at(bounds.element, bound + (bounds.dims + d) * size));
        sum += join_heads{true}(q * high, q * low);
      }
      sum = block.reduce_warp(sum, plus_op{});
      all = h == 0 ? sum : join(all, sum);
    }
    return static_cast<float>(group == reduction::mean ? all / heads_of_lane() : all);
  }
};

}  // namespace detail

/// Every score has the same bits whatever the launch numbers: channels are summed in one order, and heads in the same
/// groups.
template <kernel_backend Backend>
struct implementation<ops::page_scores_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, page_bound_view const& bounds, query_view const& rows,
                  reduction group, score_view const& out) {
    detail::check_aligned("page_scores", bounds);
    detail::check_aligned("page_scores", rows);
    expects(heads_at_once(1, bounds.dims) > 0, "page_scores", "page_bounds.dims", bounds.dims,
            "a block of threads has 48 KiB for a folded query row");
    int const heads = heads_at_once(rows.heads / batch.heads, bounds.dims);
    int const alignment = bounds.dims % 2 == 0 ? detail::alignment_of(bounds.rows, bounds.row_bytes()) : 1;
    detail::with_loads<8>(bounds.element, alignment, [&](auto loads) {
      if (heads == 8) launch<8>(exec, batch, bounds, rows, group, out, loads);
      if (heads == 4) launch<4>(exec, batch, bounds, rows, group, out, loads);
      if (heads == 1) launch<1>(exec, batch, bounds, rows, group, out, loads);
    });
  }

 private:
  static constexpr std::int64_t shared_bytes(int heads, int dims) {
    return std::int64_t{heads} * 2 * dims * static_cast<int>(sizeof(float));
  }
  /// How many heads at once: 8, 4 or 1, by the group and by what fits in 48 KiB of shared memory, or 0 if nothing does.
  /// It must not depend on the device, since the bits of sums depend on it.
  static constexpr int heads_at_once(int group, int dims) {
    int heads = group > 4 ? 8 : group > 1 ? 4 : 1;
    while (heads > 0 && shared_bytes(heads, dims) > detail::default_shared_bytes) heads = heads == 8 ? 4 : heads / 4;
    return heads;
  }

  template <int Heads, class Executor, class Loads>
  static void launch(Executor& exec, lanes const& batch, page_bound_view const& bounds, query_view const& rows,
                     reduction group, score_view const& out, Loads loads) {
    using kernel = detail::page_scores_kernel<Heads, Loads>;
    auto const threads = exec.threads().entry;
    int const pages = threads / detail::warp_size * kernel::pages_at_once;
    int const all = detail::pages_for(batch.capacity, bounds.page);
    int const blocks =
        detail::count_blocks_per_lane(exec, out.segments(), (all + pages - 1) / pages, kernel::least_blocks);
    auto const folded = static_cast<std::size_t>(shared_bytes(Heads, bounds.dims));
    std::size_t const ring = kernel::bound_stream::ahead ? kernel::bound_stream::ring::bytes(threads) : 0;
    exec.launch(launch_shape{out.segments() * blocks, threads, folded + ring},
                kernel{batch, bounds, rows, group, out, loads, blocks});
  }
};

}  // namespace KVPOLICY_NAMESPACE

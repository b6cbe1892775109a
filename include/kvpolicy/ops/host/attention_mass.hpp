// SPDX-License-Identifier: Apache-2.0
// Host implementation of attention_mass: each worker computes whole segments, or the lanes of one segment are split.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/host/attention/lane_heads.hpp>
#include <kvpolicy/ops/host/attention/lane_mass.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <limits>
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::compute_attention_mass_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::lane_mass::scratch(model, bound); }

  static void run(host_executor& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
                  score_view const& out) {
    if (rows.rows > 0)
      detail::check_sinks("compute_attention_mass", "keys.logits", from.logits.sinks, out.lanes, rows.heads);
    int const lanes_per_segment = out.lanes.size() / out.segments();
    task const all{exec, from, rows, how, out, lanes_per_segment};
    if (how.order == reduction_order::all_heads_then_rows) return heads_first(all);
    if (how.domain == key_domain::candidates) clear_tails(out);
    if (lanes_per_segment > 1 && out.segments() < exec.threads()) {
      for (int segment = 0; segment < out.segments(); ++segment) compute_on_all_workers(all, segment);
    } else {
      exec.for_each(out.segments(), [&](int segment, int worker) { compute_on_one_worker(all, segment, worker); });
    }
    if (how.lanes != reduction::mean || lanes_per_segment == 1) return;
    for (int segment = 0; segment < out.segments(); ++segment) {
      int const count = out.lanes.committed(out.lane_of(segment));
      for (int e = 0; e < count; ++e) out.row(segment)[e] /= static_cast<float>(lanes_per_segment);
    }
  }

 private:
  /// Zeroes what follows the entries, because ranks sum whole rows, and these values must not grow.
  static void clear_tails(score_view const& out) {
    for (int segment = 0; segment < out.segments(); ++segment) {
      int const count = out.lanes.committed(out.lane_of(segment));
      std::fill(out.row(segment) + count, out.row(segment) + out.lanes.capacity, 0.0f);
    }
  }

  struct task {
    host_executor& exec;
    keys const& from;
    query_view const& rows;
    attention_mass_options const& how;
    score_view const& out;
    int lanes_per_segment;  ///< lanes of a segment

    [[nodiscard]] kvpolicy::lane lane(int segment, int i) const {
      return out.lanes.at(first_lane(out.lanes, out.decides, segment) + i);
    }
    [[nodiscard]] detail::lane_mass mass(int segment, int i, std::span<std::byte> memory) const {
      return {exec, from, rows, how, out, lane(segment, i), memory};
    }
    /// Adds entries [begin, end) of the i-th lane's mass to the segment's scores.
    void add(int segment, int i, float const* mass, int begin, int end) const {
      float* const row = out.row(segment);
      end = std::min(end, out.lanes.committed(lane(segment, i)));
      if (how.domain == key_domain::candidates) {
        for (int e = begin; e < end; ++e) row[e] += row[e] == -std::numeric_limits<float>::infinity() ? 0 : mass[e];
        return;
      }
      reduction const lanes = how.accumulate ? reduction::sum : how.lanes;
      for (int e = begin; e < end; ++e) detail::fold(row[e], mass[e], lanes, i == 0 && !how.accumulate);
    }
  };

  /// A worker computes some rows of all lanes of a segment, then the next ones.
  static void heads_first(task const& all) {
    int const lanes = all.lanes_per_segment;
    bool const mean_of_heads = all.how.group == reduction::mean && all.rows.rows > 0;
    int const heads = mean_of_heads ? lanes * (all.rows.heads / all.out.lanes.heads) : 1;
    all.exec.for_each(all.out.segments(), [&](int segment, int worker) {
      auto const lane = [&](int i) {
        return detail::lane_heads(all.exec, all.from, all.rows, all.how, all.out, all.lane(segment, i),
                                  all.exec.scratch(worker));
      };
      detail::lane_heads whole = lane(0);  // the lanes have the same memory
      int const rows = whole.rows();
      whole.clear();
      for (int i = 1; i < lanes; ++i) {
        int const others = lane(i).rows();
        expects(others == rows, "compute_attention_mass", "queries.rows", others,
                [&] { return "a lane that decides with this one has " + std::to_string(rows); });
      }
      for (int first = 0; first < rows; first += detail::lane_heads::rows_at_once) {
        for (int i = 0; i < lanes; ++i) {
          detail::lane_heads one = lane(i);
          one.take(all.how.rows, first, i == 0, i + 1 == lanes);
        }
      }
      whole.divide(heads * (all.how.rows == reduction::mean && rows > 0 ? rows : 1));
      std::copy_n(whole.mass(), all.out.lanes.committed(all.lane(segment, 0)), all.out.row(segment));
    });
  }

  /// One worker computes all lanes of a segment.
  static void compute_on_one_worker(task const& all, int segment, int worker) {
    for (int i = 0; i < all.lanes_per_segment; ++i) {
      detail::lane_mass one = all.mass(segment, i, all.exec.scratch(worker));
      one.compute();
      all.add(segment, i, one.mass(), 0, all.out.lanes.capacity);
    }
  }

  /// All workers compute the lanes of one segment, as many lanes at a time as their scratch can store. Each entry sums
  /// its lanes in their order, so that the sum does not depend on the number of workers.
  static void compute_on_all_workers(task const& all, int segment) {
    constexpr int stretch = 4096;
    int const threads = all.exec.threads();
    int const bound = all.out.lanes.capacity;
    int const masses = detail::lane_mass::masses_of_a_worker(all.how, all.rows, all.rows.heads / all.out.lanes.heads);
    auto const total = [&](int i) {
      return detail::lane_mass::mass_memory(all.exec.scratch(i % threads), bound, i / threads, masses);
    };
    for (int first = 0; first < all.lanes_per_segment; first += masses * threads) {
      int const lanes = std::min(masses * threads, all.lanes_per_segment - first);
      all.exec.for_each(
          lanes, [&](int i, int worker) { all.mass(segment, first + i, all.exec.scratch(worker)).compute(total(i)); });
      all.exec.for_each((bound + stretch - 1) / stretch, [&](int part, int) {
        for (int i = 0; i < lanes; ++i) {
          all.add(segment, first + i, total(i), part * stretch, std::min(bound, (part + 1) * stretch));
        }
      });
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE

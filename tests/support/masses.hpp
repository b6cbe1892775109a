// SPDX-License-Identifier: Apache-2.0
// Attention masses: what tests of the verb share, on the host and on a device.
#pragma once

#include "reference/pooling.hpp"
#include "support/given_logits.hpp"
#include "support/verbs.hpp"

namespace kvpolicy_test {

/// The reference's pooling.
inline reference::pooling in_double(kv::pooling const& by) {
  return {by.how == kv::pooling::kind::none  ? reference::pool_kind::none
          : by.how == kv::pooling::kind::avg ? reference::pool_kind::average
                                             : reference::pool_kind::maximum,
          by.width};
}

/// The options as the reference is told of them.
inline reference::mass_options in_double(kv::attention_mass_options const& how) {
  reference::mass_options made{.domain = static_cast<reference::key_domain>(how.domain),
                               .rows = static_cast<reference::reduction>(how.rows),
                               .group = static_cast<reference::reduction>(how.group),
                               .order = static_cast<reference::reduction_order>(how.order)};
  auto const to = static_cast<double>(how.weight.last);
  if (how.weight.by == kv::weight_of_row::ramp) {
    made.weight = [to](std::size_t r, std::size_t rows, std::size_t) {
      return rows > 1 ? 1 + (to - 1) * static_cast<double>(r) / static_cast<double>(rows - 1) : 1;
    };
  }
  return made;
}

/// Inside a property: any reductions, any order, one of these domains and of these numbers of last rows.
inline kv::attention_mass_options any_mass_options(std::vector<kv::key_domain> const& domains,
                                                   std::vector<int> const& last_rows = {0}) {
  using kv::reduction;
  using kv::reduction_order;
  kv::attention_mass_options how;
  how.domain = *rc::gen::elementOf(domains);
  how.rows = *rc::gen::element(reduction::sum, reduction::mean, reduction::max, reduction::last);
  how.group = *rc::gen::element(reduction::sum, reduction::mean, reduction::max);
  how.order = *rc::gen::element(reduction_order::rows_then_group, reduction_order::group_then_rows,
                                reduction_order::group_on_logits);
  how.last_rows = *rc::gen::elementOf(last_rows);
  how.weight.by =
      *rc::gen::weightedElement<kv::weight_of_row>({{4, kv::weight_of_row::one}, {1, kv::weight_of_row::ramp}});
  how.weight.last = *rc::gen::element(1.2f, 0.5f, 0.0f);
  return how;
}

/// Calls the verb, with the scratch that it asks for. A device's faults are thrown.
template <class Executor>
void write_masses(Executor& exec, kv::shape const& model, kv::keys const& keys, kv::query_view const& rows,
                  kv::attention_mass_options const& how, kv::score_view const& out) {
  reserve_for<kv::ops::compute_attention_mass_t>(exec, model, out.lanes);
  kv::ops::compute_attention_mass(exec, keys, rows, how, out);
  settle(exec);
}

/// What the verb leaves in scores that begin alike: of the softmax of candidates, every fifth entry is none.
template <class Executor>
std::vector<float> masses_of(Executor& exec, mock_cache& cache, kv::keys const& keys, kv::query_view const& rows,
                             kv::attention_mass_options const& how, kv::granularity decides) {
  owned_scores out(cache.lanes(), decides);
  for (std::size_t e = 0; e < out.all().size(); ++e) {
    bool const none = e % 5 == 2;
    if (how.domain == kv::key_domain::candidates) out.all()[e] = none ? -std::numeric_limits<float>::infinity() : 0;
  }
  write_masses(exec, cache.model(), keys, rows, how, out.view());
  return out.all();
}

/// A batch of keys and query rows, and how its logits are made.
struct mass_batch {
  mass_batch(mock_options const& shape, kv::codec queries_of, int rows, int capacity, bool scale = false,
             bool cap = false, bool sinks = false)
      : cache(shape),
        queries(cache, queries_of, rows, capacity),
        logits(cache.random(), shape.model, scale, cap, sinks) {}
  /// Every lane holds as many entries as it can, at multiples of `step`, and the rows are those of the last of them.
  void hold_all(int step = 1) {
    int const bound = cache.options().bound, rows = queries.rows();
    std::vector<int> every = up_to(bound);
    for (int& each : every) each *= step;
    cache.set_drafts(0, 0);
    for (kv::lane const one : lanes_of(cache)) cache.put(one, every);
    for (int r = 0; r < rows; ++r) queries.set_position(0, r, (bound - rows + r) * step);
  }
  /// What the verb leaves in scores that begin alike.
  template <class Executor>
  std::vector<float> mass(Executor& exec, kv::query_view const& rows, kv::attention_mass_options const& how,
                          kv::granularity decides = kv::granularity::lane) {
    return masses_of(exec, cache, logits.keys_of(cache.view()), rows, how, decides);
  }

  mock_cache cache;
  mock_queries queries;
  given_logits logits;
};

/// What a call writes for each lane: so many rows of numbers, which begin as 0.5.
struct rows_of_numbers {
  rows_of_numbers(mock_cache& of, int count)
      : lanes(of.lanes()), memory(as_size(count * of.lane_count() * of.options().bound), 0.5f) {}
  [[nodiscard]] kv::score_view rows(int which) {
    std::int64_t const stride = lanes.capacity, all = lanes.size() * stride;
    return kv::contiguous_scores(lanes, kv::granularity::lane, memory.data() + which * all, stride);
  }
  kv::lanes lanes;
  std::vector<float> memory;
};

/// Inside a property: a batch that a device reads, and rows of its current forward.
struct current_case {
  explicit current_case(std::vector<int> const& numbers, bool shared = false)
      : shape(any_batch({content::smooth, content::few}, 6, true)),
        cache((shape.shared_entries = shared, shape)),
        rows(*rc::gen::elementOf(numbers)) {
    fill_current(queries, cache, content::smooth);
  }
  mock_options shape;
  filled_cache cache;
  int rows;
  mock_queries queries{cache, any_float(), rows, rows + 2};
};

/// Numbers whose sums may cancel nowhere: they are at least 0.
inline bool masses_alike(std::vector<float> const& a, std::vector<float> const& b, float relative) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    bool const same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])) ||
                      std::abs(a[i] - b[i]) <= relative * std::abs(b[i]) + (relative > 0 ? 1e-7f : 0);
    if (same) continue;
    MESSAGE("number ", i, ": ", a[i], ", the host says ", b[i]);
    return false;
  }
  return true;
}

/// Gives every row its log-sum-exp over the entries that it sees and its head's sink, and `more`. `lane_of` tells the
/// reference's lane.
template <class LaneOf>
void give_lse(mock_cache& cache, mock_queries& queries, LaneOf const& lane_of, double more = 0) {
  queries.bring_lse();
  int const group = cache.model().group();
  for (kv::lane const at : lanes_of(cache)) {
    reference::lane_attention const lane = lane_of(at);
    auto const logits = reference::attention_logits(lane);
    auto const visible = reference::visibility(lane, reference::key_domain::all);
    for (std::size_t h = 0; h < logits.size(); ++h) {
      for (std::size_t r = 0; r < logits[h].size(); ++r) {
        double sum = lane.sinks.empty() ? 0 : std::exp(lane.sinks[h]);
        for (std::size_t e = 0; e < logits[h][r].size(); ++e) sum += visible[r][e] ? std::exp(logits[h][r][e]) : 0;
        queries.set_lse(at.sequence, at.layer, at.head * group + static_cast<int>(h), static_cast<int>(r),
                        std::log(sum) + more);
      }
    }
  }
}

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reference/leverage.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// Takes entries at positions that are no multiples of `skip`; all of them if it is 0.
struct not_multiples {
  int skip = 0;
  KVPOLICY_HD bool operator()(kv::entry at) const { return skip == 0 || at.position % skip != 0; }
};

/// A batch of rows, and what their leverages are computed with.
class leverage_case {
 public:
  explicit leverage_case(mock_options const& shape) : cache(shape) { fill(cache, true); }

  /// Draws everything but the rows. A sketch has at most `columns`, drawn by the library or by the test.
  void draw(int columns) {
    dice& random = cache.random();
    int const size = cache.lane_count() * cache.options().bound;
    how.jitter = random.chance(50) ? 0.01 : 1;
    how.centre = random.chance(50);
    if (random.chance(50)) {
      for (int i = 0; i < size; ++i)
        weights_.push_back(random.chance(10) ? 0 : static_cast<float>(std::abs(random.real(2))));
      how.more = random.chance(50) ? 0 : 0.5f;
    }
    how.sketch.columns = random.chance(30) ? 0 : 1 + random.below(columns);
    how.sketch.seed = static_cast<std::uint64_t>(random.below(1000));
    int const numbers = random.chance(50) ? cache.lane_count() * dims() * how.sketch.columns : 0;
    for (int i = 0; i < numbers; ++i) sketch_.push_back(static_cast<float>(random.real(1)));
    among.skip = random.below(4);
    how.less_mean = random.chance(30);
    point();
  }
  [[nodiscard]] kv::row_view rows() {
    return which == of::keys ? kv::row_view(kv::keys_of(cache.view())) : kv::row_view(kv::values_of(cache.view()));
  }
  [[nodiscard]] int dims() { return rows().rows.channels; }

  /// Calls the verb, with the scratch that it asks for. A device's faults are thrown.
  template <class Executor>
  std::vector<float> leverages(Executor& exec) {
    using backend = typename Executor::backend;
    exec.reserve(kv::detail::scratch_of_verb<kv::ops::leverage_t, backend>(cache.model(), cache.lanes()));
    owned_scores out(cache.lanes());
    kv::ops::leverage(exec, rows(), how, among, out.view());
    if constexpr (requires { exec.check(); }) exec.check();
    return out.all();
  }

  /// The reference's numbers of a lane.
  [[nodiscard]] reference::row expected(int i) {
    kv::lane const one = cache.lane_at(i);
    int const count = cache.committed(one);
    reference::matrix const all = cache.rows(which, one, count);
    reference::matrix taken;
    reference::row weights;
    for (int e = 0; e < count; ++e) {
      if (!takes(one, e)) continue;
      taken.push_back(all[as_size(e)]);
      weights.push_back(weights_.empty() ? 1.0 : double{weights_[as_size(i * cache.options().bound + e)]});
    }
    reference::row in_mean = weights;
    for (double& each : in_mean) each += double{how.more};
    if (how.centre) taken = reference::centred(taken, in_mean);
    if (how.sketch.columns > 0) taken = reference::product(taken, sketch_of(i));
    reference::row const some = reference::weighted_leverages(taken, weights, double{how.more}, how.jitter);
    kv::lane const first{one.sequence, one.layer, 0};
    int rows = 0;
    for (int e = 0; e < cache.committed(first); ++e) rows += takes(first, e) ? 1 : 0;
    int const columns = how.sketch.columns > 0 ? std::min(how.sketch.columns, dims()) : dims();
    double const mean = rows == 0 ? 0 : std::min(columns, how.centre ? rows - 1 : rows) / double(rows);
    reference::row made;
    for (int e = 0, at = 0; e < count; ++e) {
      made.push_back(takes(one, e) ? some[as_size(at++)] - (how.less_mean ? mean : 0) : -reference::infinity);
    }
    return made;
  }

  mock_cache cache;
  of which = of::keys;
  kv::leverage_options how;
  not_multiples among;

 private:
  [[nodiscard]] bool takes(kv::lane one, int e) {
    return among(kv::entry{one, e, 0, cache.lanes().position.row(one)[e], 0});
  }
  [[nodiscard]] reference::matrix sketch_of(int i) {
    kv::lane const one = cache.lane_at(i);
    int const columns = how.sketch.columns;
    if (sketch_.empty()) {
      return reference::drawn_sketch(how.sketch.seed, one.layer, one.head, as_size(dims()), as_size(columns));
    }
    reference::matrix made;
    float const* from = how.sketch.given.row(one);
    for (int d = 0; d < dims(); ++d, from += columns) made.emplace_back(from, from + columns);
    return made;
  }
  /// Lets the options point at the memory of this object: [sequence][layer][head][entry] and [layer][head][D][columns].
  void point() {
    std::int64_t const heads = cache.model().kv_heads, bound = cache.options().bound;
    std::int64_t const numbers = std::int64_t{dims()} * how.sketch.columns;
    if (!weights_.empty()) how.weights = {weights_.data(), heads * cache.model().layers * bound, heads * bound, bound};
    if (!sketch_.empty()) how.sketch.given = {sketch_.data(), 0, heads * numbers, numbers};
  }

  std::vector<float> weights_, sketch_;
};

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// What tests of verbs share, on the host and on a device: inputs of any kind, scratch, and comparisons of all lanes.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// What was there, and twice what comes.
struct old_plus_twice {
  KVPOLICY_HD float operator()(float old, float now) const { return old + 2 * now; }
};

// --- Inside a property
// ---------------------------------------------------------------------------------------------------

/// Six lanes of two layers, half of which hold as many entries as they can, and memory for their scores.
struct ragged_scores {
  explicit ragged_scores(int most) : bound(most) {}
  /// Lets `score()` say every number.
  template <class Score>
  void draw(Score const& score) {
    for (float& each : scores.all()) each = score();
  }

  int bound;
  dice random{any_seed()};
  std::vector<int> counts = [this] {
    std::vector<int> made(6);
    for (int& each : made) each = random.chance(50) ? bound : random.below(bound + 1);
    return made;
  }();
  owned_lanes lanes{1, 2, 3, bound, counts};
  owned_scores scores{lanes.view()};
};

// --- Calls
// ---------------------------------------------------------------------------------------------------------------

/// Gives an executor the scratch that these verbs need, one after another.
template <class... Verbs, class Executor>
void reserve_for(Executor& exec, kv::shape const& model, kv::lanes const& batch) {
  exec.reserve(kv::detail::scratch_of_verbs<typename Executor::backend>(kv::verbs<Verbs...>{}, model, batch));
}
template <class... Verbs, class Executor>
void reserve_for(Executor& exec, mock_cache& cache) {
  reserve_for<Verbs...>(exec, cache.model(), cache.lanes());
}

/// Throws what kernels found wrong, where an executor has kernels.
template <class Executor>
void settle(Executor& exec) {
  if constexpr (requires { exec.check(); }) exec.check();
}

/// What `call(exec, out)` leaves in scores of a cache's lanes that begin alike, with the scratch of these verbs.
template <class... Verbs, class Executor, class Call>
std::vector<float> scores_by(Executor& exec, mock_cache& cache, Call const& call) {
  reserve_for<Verbs...>(exec, cache);
  owned_scores out(cache.lanes());
  call(exec, out.view());
  settle(exec);
  return out.all();
}

inline kv::row_view rows_of(mock_cache& cache, of which) {
  kv::cache const view = cache.view();
  return which == of::keys ? kv::row_view(kv::keys_of(view)) : kv::row_view(kv::values_of(view));
}

/// The rows of numbers of all lanes, one after another, with `more` numbers behind each, which no verb may write.
struct owned_rows {
  owned_rows(mock_cache const& of, int numbers, int more = 1)
      : width(numbers), stride(numbers + more), values(as_size(of.lane_count() * stride), 7.0f) {
    std::int64_t const layer = std::int64_t{of.model().kv_heads} * stride;
    view = {values.data(), layer * of.model().layers, layer, stride};
  }
  [[nodiscard]] std::span<float> row(int lane) {
    return {values.data() + std::ptrdiff_t{lane} * stride, as_size(stride)};
  }
  /// True if nothing was written behind the numbers of any lane.
  [[nodiscard]] bool is_sound() const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int>(i) % stride >= width && values[i] != 7.0f) return false;
    }
    return true;
  }
  int width, stride;
  std::vector<float> values;
  kv::by_lane<float> view;
};

/// Numbers of each query head in an engine's memory: [layer][head][row][channel].
inline kv::query_view drawn_heads(dice& random, kv::shape const& model, kv::codec element, int rows, int width,
                                  std::vector<std::byte>& memory) {
  int const bytes = kv::bytes_of(element);
  memory.resize(as_size(model.layers * model.query_heads * rows * width * bytes));
  for (std::size_t i = 0; i < memory.size(); i += as_size(bytes)) {
    kv::store(element, static_cast<float>(random.real(2)), memory.data() + i);
  }
  kv::query_view made{.base = memory.data(), .element = element, .dims = width};
  made.row = std::int64_t{width} * bytes;
  made.head = made.row * rows;
  made.layer = made.head * model.query_heads;
  made.heads = model.query_heads;
  made.rows = rows;
  return made;
}

// --- Comparisons
// -----------------------------------------------------------------------------------------------------------

/// True if numbers are equal, or NaN where the expected ones are, or as near to them as is said.
inline bool alike(std::span<float const> found, std::span<float const> expected, double absolute, double relative = 0) {
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    bool const near = std::abs(a - b) <= std::max(absolute, relative * std::abs(b));
    if (a == b || near || (std::isnan(a) && std::isnan(b))) continue;
    MESSAGE("number ", i, ": ", a, ", expected ", b);
    return false;
  }
  return true;
}

/// Whether the scores of a lane, from 0.5 on `old_plus_twice`, are twice what is expected of its entries, and nothing
/// is written behind them. `size`: of the numbers whose sums may cancel.
inline comparison compare_twice(owned_scores& out, int lane, reference::row expected, double size = 0) {
  for (double& each : expected) each = 0.5 + 2 * each;
  expected.resize(as_size(out.stride()), 0.5);
  return compare(out.row(lane, out.stride()), expected, size);
}
/// The first lane that differs from what `expected(index, lane)` says.
template <class Expected>
comparison compare_twice(mock_cache& cache, owned_scores& out, double size, Expected const& expected) {
  for (int i = 0; i < cache.lane_count(); ++i) {
    comparison const result = compare_twice(out, i, expected(i, cache.lane_at(i)), size);
    if (!result) return result;
  }
  return {};
}

/// Inside a property: asserts what `agrees(level)` finds on every instruction set.
template <class Agrees>
void agrees_on_every_isa(Agrees const& agrees) {
  for (kv::isa const level : every_isa) {
    assert_same(agrees(level));
  }
}

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of decode steps share: a model's lanes in the steady state, and the times of the parts of a step.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "../measure.hpp"
#include "../model.hpp"

namespace bench {

/// Reads some bytes, a multiple of 256, as the fastest loop does.
inline void read_bytes(std::byte const* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (kv::best_isa() >= kv::isa::avx512) return floors::keep(floors::read_avx512(from, bytes));
  if (kv::best_isa() == kv::isa::avx2) return floors::keep(floors::read_avx2(from, bytes));
#endif
  floors::keep(floors::read_portable(from, bytes));
}

/// Rows of K and V that nothing has touched but what the steps write, in a list of slots for each lane, or in order.
struct decode_model {
  decode_model(int budget, int more, kv::codec of, bool listed, bool ordered)
      : bound(budget + more),
        element(of),
        k(bytes_of_plane()),
        v(bytes_of_plane()),
        list(lanes() * static_cast<std::size_t>(bound)),
        position(list.size()),
        count(lanes()),
        order(ordered ? lanes() : 0),
        by_list(listed) {
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<int>(i % static_cast<std::size_t>(bound));
  }
  static std::size_t lanes() { return 288; }
  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(128 * kv::bytes_of(element)); }
  [[nodiscard]] std::size_t bytes_of_plane() const { return lanes() * static_cast<std::size_t>(bound) * row_bytes(); }
  [[nodiscard]] kv::by_lane<int> table(std::vector<int>& of) const { return {of.data(), 0, 8LL * bound, bound}; }

  kv::cache view() {
    auto const row = static_cast<std::int64_t>(row_bytes());
    kv::plane rows{.base = k.data(),
                   .element = element,
                   .channels = 128,
                   .layer_stride = 8 * row * bound,
                   .unit_stride = by_list ? row : 0,
                   .token_stride = row,
                   .head_stride = row * bound,
                   .channel_stride = kv::bytes_of(element)};
    kv::cache made{.shape = whole_model, .k = rows, .v = rows};
    made.v.base = v.data();
    made.where = by_list ? kv::slot_map({list.data(), 0, 8LL * bound, bound}, bound) : kv::identity_map(bound);
    made.lanes = {
        .layer_end = 36, .heads = 8, .capacity = bound, .count = {count.data(), 0, 8, 1}, .position = table(position)};
    if (!order.empty()) made.lanes.order = {order.data(), 0, 8, 1};
    return made;
  }
  /// What an engine does in a forward: it writes the new rows. While the cache fills, four channels are enough. They
  /// are so large that these keys are dropped before the later ones, wherever they are.
  void write(kv::cache const& in, bool fills = false) {
    for (int i = 0; i < in.lanes.size(); ++i) {
      kv::lane const one = in.lanes.at(i);
      kv::place const at = in.where.at(one, *in.lanes.count.row(one));
      for (kv::plane const* plane : {&in.k, &in.v}) {
        std::byte* const row = plane->row(one.layer, at, one.head);
        for (int d = 0; d < (fills ? 4 : 128); ++d) {
          float const value = random.uniform() + (fills ? 1.5f : -0.5f);
          kv::store(element, value, row + d * kv::bytes_of(element));
        }
      }
    }
  }

  /// Reads the row of K that each lane writes next, which `write` has written.
  void read_next_keys(kv::host_executor& exec, int budget) const {
    std::size_t const row = row_bytes();
    exec.for_each(static_cast<int>(lanes()), [&](int i, int) {
      auto const lane = static_cast<std::size_t>(i) * static_cast<std::size_t>(bound);
      auto const slot = static_cast<std::size_t>(list[lane + static_cast<std::size_t>(budget)]);
      read_bytes(k.data() + (lane + slot) * row, row);
    });
  }

  int bound;
  kv::codec element;
  memory k, v;
  std::vector<int> list, position, count;
  std::vector<kv::lane_order> order;
  bool by_list;
  noise random{7};
};

/// Reads the first `count` elements of 4 bytes of each row, as the fastest loop does.
inline void read_rows(kv::host_executor& exec, std::byte const* data, std::int64_t row_bytes, int count) {
  exec.for_each(static_cast<int>(decode_model::lanes()),
                [&](int i, int) { read_bytes(data + i * row_bytes, static_cast<std::size_t>(count) * 4 / 256 * 256); });
}

inline constexpr std::array<char const*, 4> parts_of_a_step{"append_us", "observe_us", "decide_us", "apply_us"};

/// Steps and floors in turn, and what each part of a step took.
class timed_steps {
 public:
  template <class Part>
  void time(std::size_t part, Part const& work) {
    double const seconds = seconds_of(work);
    sums_[part] += seconds;
    step_ += seconds;
  }
  void floor(double seconds) {
    steps_.push_back(step_);
    floors_.push_back(seconds);
    step_ = 0;
  }
  void report(benchmark::State& state, int steps_in_one) {
    auto const all = static_cast<double>(steps_.size()) * steps_in_one;
    for (std::size_t p = 0; p < parts_of_a_step.size(); ++p) state.counters[parts_of_a_step[p]] = 1e6 * sums_[p] / all;
    double const step = *std::min_element(steps_.begin(), steps_.end());
    double const floor = *std::min_element(floors_.begin(), floors_.end());
    state.counters["step_us"] = 1e6 * step / steps_in_one;
    state.counters["floor_us"] = 1e6 * floor / steps_in_one;
    state.counters["over_floor"] = step / std::max(floor, steps_in_one * least_floor);
  }
  [[nodiscard]] double last_step() const { return step_; }

 private:
  std::array<double, 4> sums_{};
  double step_ = 0;
  std::vector<double> steps_, floors_;
};

}  // namespace bench

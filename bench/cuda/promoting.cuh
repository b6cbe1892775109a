// SPDX-License-Identifier: Apache-2.0
// A dual cache of a whole model in memory of host or device, and its steps: what WG-KV's benchmark and tests of bits
// run.
#pragma once

#include <numeric>

#include "cuda/cases.cuh"

namespace bench::gpu {

template <class T>
using host_array = std::vector<T>;

/// Rings in local pages of a pool, and 32 pages for every lane beside them; in memory of host or device.
template <template <class> class Array>
struct dual_model {
  static constexpr int window = 256, page = 16, lane_pages = 32, lanes = 36 * 8;
  static constexpr std::int64_t row = 256;  ///< bytes: 128 numbers in bf16

  Array<std::byte> k, v;
  Array<int> free, free_count, table, held, count, position, oldest, window_count, window_position;
  kv::dual_cache both;

  dual_model()
      : k(rows(1)),
        v(rows(2)),
        free(free_pages()),
        free_count(std::vector<int>{lanes * lane_pages}),
        table(std::vector<int>(lanes * lane_pages)),
        held(std::vector<int>(lanes)),
        count(std::vector<int>(lanes)),
        position(std::vector<int>(lanes * lane_pages * page)),
        oldest(std::vector<int>(1)),
        window_count(std::vector<int>(1)),
        window_position(std::vector<int>(window)) {
    view();
  }
  static std::vector<std::byte> rows(std::uint64_t seed) {
    bench::memory const drawn(static_cast<std::size_t>(row) * lanes * (window + lane_pages * page));
    bench::fill_elements(drawn, kv::codec::bf16, 1, seed);
    return {drawn.data(), drawn.data() + drawn.size()};
  }
  static std::vector<int> free_pages() {
    std::vector<int> made(lanes * lane_pages);
    std::iota(made.rbegin(), made.rend(), lanes * window / page);
    return made;
  }
  kv::plane plane(Array<std::byte>& of, bool ring) {
    kv::plane made{.base = of.data(),
                   .element = kv::codec::bf16,
                   .channels = 128,
                   .unit_stride = page * row,
                   .token_stride = row,
                   .channel_stride = 2};
    if (!ring) return made;
    made.head_stride = window * row;
    made.layer_stride = made.head_stride * 8;
    made.unit_stride = made.layer_stride * 36;
    return made;
  }
  void view() {
    auto const who = [](kv::by_lane<int> counts, kv::by_lane<int> positions, int bound) {
      return kv::lanes{.layer_end = 36, .heads = 8, .capacity = bound, .count = counts, .position = positions};
    };
    both.window = {.shape = bench::whole_model,
                   .lanes = who({window_count.data(), 1, 0, 0}, {window_position.data(), window, 0, 0}, window),
                   .k = plane(k, true),
                   .v = plane(v, true),
                   .where = {kv::locating::ring, {oldest.data(), 1, 0, 0}, window, 1}};
    both.oldest = {oldest.data(), 1, 0, 0};
    constexpr std::int64_t capacity = lane_pages * page;
    both.pages.table = {table.data(), 0, 8 * lane_pages, lane_pages};
    both.pages.entries = {.shape = bench::whole_model,
                          .lanes = who({count.data(), 0, 8, 1}, {position.data(), 0, 8 * capacity, capacity}, capacity),
                          .k = plane(k, false),
                          .v = plane(v, false),
                          .where = kv::block_table({table.data(), 0, 8 * lane_pages, lane_pages}, page,
                                                   lanes * (window / page + lane_pages))};
    both.pages.num_pages = {held.data(), 0, 8, 1};
    both.pages.free_pages = {free.data(), free_count.data(), -1};
  }
};

/// Steps of that model under an executor.
template <class Executor, template <class> class Array>
class promoting {
 public:
  promoting(Executor& exec, std::vector<float> const& gates)
      : exec_(exec),
        policy_(kv::policies::wg_kv({.window = dual_model<Array>::window})),
        held_(kv::make_state(exec, policy_, model_.both)),
        plans_(kv::make_plan(exec, policy_, model_.both)),
        gates_(gates) {
    fresh_.base = reinterpret_cast<std::byte const*>(gates_.data());
    fresh_.layer = 32;
    fresh_.head = fresh_.entry = 4;
    fresh_.entries = 1;
  }
  /// What the table's row times.
  void promote() { kv::promote(exec_, policy_, kv::signals{model_.both.window.lanes}, model_.both, held_, plans_, 1); }
  void write() {
    kv::append(exec_, model_.both.window, held_.window, {.tokens = 1, .position = position_++});
    kv::observe(exec_, policy_, kv::signals{model_.both.window.lanes, fresh_}, held_.window);
  }
  [[nodiscard]] bool full() const { return position_ >= model_.window + model_.lane_pages * model_.page; }
  [[nodiscard]] dual_model<Array>& model() { return model_; }

 private:
  Executor& exec_;
  dual_model<Array> model_;
  decltype(kv::policies::wg_kv({.window = dual_model<Array>::window})) policy_;
  kv::dual_state<Executor> held_;
  kv::exit_plan<Executor> plans_;
  Array<float> gates_;
  kv::gate fresh_;
  int position_ = 0;
};

template <class T>
std::vector<T> there(array<T> const& of) {
  return of.get();
}
template <class T>
std::vector<T> there(std::vector<T> const& of) {
  return of;
}

template <class A, class B>
bool same_models(A const& a, B const& b) {
  return there(a.k) == there(b.k) && there(a.v) == there(b.v) && there(a.table) == there(b.table) &&
         there(a.count) == there(b.count) && there(a.position) == there(b.position) && there(a.held) == there(b.held);
}

}  // namespace bench::gpu

// SPDX-License-Identifier: Apache-2.0
// The verbs of a window in front of pages, over a whole model: each against a plain loop that reads or writes once what
// the verb must.
#include <kvpolicy/ops/append_rows.hpp>

#include "dual_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;
using bench::dual_row, bench::window, bench::lane_pages, bench::page;
using bench::floors::touching;

constexpr int lanes = bench::dual_lanes;

/// A full window, and pages that may hold entries already.
struct full_window {
  explicit full_window(int threads) : exec(threads), indptr(lanes + 1), seen(lanes, window) { fill(window); }
  void fill(int count) {
    on.window_count = count;
    on.oldest = 0;
    for (int e = 0; e < window; ++e) on.window_position[static_cast<std::size_t>(e)] = e;
  }
  /// Every lane promotes `each` of its window's entries.
  [[nodiscard]] kv::keep_set promotes(int each) {
    ordinal.resize(static_cast<std::size_t>(lanes * each));
    for (int i = 0; i < lanes; ++i) {
      for (int e = 0; e < each; ++e) ordinal[static_cast<std::size_t>(i * each + e)] = e * (window / each);
      indptr[static_cast<std::size_t>(i) + 1] = std::int64_t{i + 1} * each;
    }
    return {.lanes = on.both.window.lanes,
            .indptr = indptr.data(),
            .indices = ordinal.data(),
            .entry_count = seen.data(),
            .capacity = static_cast<std::int64_t>(ordinal.size()),
            .report = &told};
  }

  kv::host_executor exec;
  bench::dual_model on;
  std::vector<int> ordinal;
  std::vector<std::int64_t> indptr;
  std::vector<int> seen;
  kv::report told;
};

/// 64 of the 256 entries of every lane's window go on to its pages.
void append_rows(benchmark::State& state) {
  constexpr int each = 64;
  full_window full(static_cast<int>(state.range(0)));
  kv::keep_set const keep = full.promotes(each);
  kv::promoted const source{.keep = &keep, .from = &full.on.both.window};
  kv::promotion_stats stats;
  auto const taken = bench::in_turn_after(
      state, [&] { full.on.empty(); },
      [&] {
        kv::ops::append_rows(full.exec, std::span(&source, 1), full.on.both.pages,
                             std::span<kv::recorded_column const>{}, -1, &stats);
      },
      [&] {
        full.exec.for_each(lanes, [&](int i, int) {
          for (bench::memory const* const rows : {&full.on.k, &full.on.v}) {
            std::byte const* const from = rows->data() + dual_row * static_cast<std::size_t>(i * window);
            std::byte* const to =
                rows->data() + dual_row * static_cast<std::size_t>(lanes * window + i * lane_pages * page);
            for (std::size_t e = 0; e < each; ++e)
              std::memcpy(to + e * dual_row, from + e * dual_row * (window / each), dual_row);
          }
          for (int e = 0; e < each; ++e) full.on.position[static_cast<std::size_t>(i * lane_pages * page + e)] = e;
        });
      });
  if (stats.promoted != lanes * each) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}

/// The oldest entry leaves the window of every lane.
void drop_oldest(benchmark::State& state) {
  full_window full(static_cast<int>(state.range(0)));
  int const gone = 1;
  auto const taken = bench::in_turn_after(
      state, [&] { full.fill(window); },
      [&] {
        kv::ops::drop_oldest(full.exec, full.on.both.window, full.on.both.oldest,
                             std::span<kv::recorded_column const>{}, &gone, 0);
      },
      [&] { bench::floors::touch_pass(full.exec, {{touching::both, full.on.window_position.data(), 4 * window}}); });
  if (full.on.window_count != window - 1 && full.on.window_count != window) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}

/// The last 128 tokens of a chunk enter the window, from pages of the same pools.
void enter_rows(benchmark::State& state) {
  constexpr int more = 128;
  full_window full(static_cast<int>(state.range(0)));
  bench::model_cache chunk(bench::whole_model, more, kv::codec::bf16);
  kv::cache from = chunk.view();
  std::vector<int> count{more}, position(more);
  for (int e = 0; e < more; ++e) position[static_cast<std::size_t>(e)] = window + e;
  from.lanes.count = {count.data(), 0, 0, 0};
  from.lanes.position = {position.data(), 0, 0, 0};
  int const first = 0;
  std::size_t const moved = 2 * dual_row * lanes * more;
  auto const taken = bench::in_turn_after(
      state, [&] { full.fill(window - more); },
      [&] {
        kv::ops::enter_rows(full.exec, from, std::span<kv::recorded_column const>{}, full.on.both.window,
                            std::span<kv::recorded_column const>{}, &first);
      },
      [&] {
        full.exec.for_each(lanes, [&](int i, int) {
          kv::lane const one = from.lanes.at(i);
          for (int e = 0; e < more; ++e) {
            std::size_t const to = dual_row * static_cast<std::size_t>(i * window + window - more + e);
            std::memcpy(full.on.k.data() + to, from.k.row(one.layer, {0, e}, one.head), dual_row);
            std::memcpy(full.on.v.data() + to, from.v.row(one.layer, {0, e}, one.head), dual_row);
          }
        });
      });
  full.fill(window - more);
  kv::ops::enter_rows(full.exec, from, std::span<kv::recorded_column const>{}, full.on.both.window,
                      std::span<kv::recorded_column const>{}, &first);
  if (full.on.window_count != window) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
  bench::report_rate(state, static_cast<double>(moved), taken.seconds(0), full.exec.threads());
}

/// Every lane gives back four pages.
void release_pages(benchmark::State& state) {
  full_window full(static_cast<int>(state.range(0)));
  constexpr int held = 4;
  auto const put_back = [&] {
    for (int i = 0; i < lanes; ++i) {
      full.on.held[static_cast<std::size_t>(i)] = held;
      for (int p = 0; p < held; ++p) full.on.table[static_cast<std::size_t>(i * lane_pages + p)] = i * held + p;
    }
    full.on.free_count = (lane_pages - held) * lanes;
    std::fill(full.on.count.begin(), full.on.count.end(), 0);
  };
  auto const taken = bench::in_turn_after(
      state, put_back, [&] { kv::ops::release_pages(full.exec, full.on.both.pages); },
      [&] {
        bench::floors::touch_pass(full.exec, {{touching::read, full.on.count.data(), 4 * lanes},
                                              {touching::both, full.on.held.data(), 4 * lanes},
                                              {touching::write, full.on.free.data(), 4 * lanes * held}});
      });
  put_back();
  kv::ops::release_pages(full.exec, full.on.both.pages);
  if (full.on.free_count != lane_pages * lanes) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}

/// What the counting verbs read and write: a number or two a sequence.
template <class Verb>
void counts(benchmark::State& state, full_window& full, Verb const& verb) {
  auto const taken = bench::in_turn(
      state, verb, [&] { bench::floors::touch_pass(full.exec, {{touching::read, full.on.count.data(), 4 * lanes}}); });
  bench::report_share(state, taken, 0, 1);
}
void count_exits(benchmark::State& state) {
  full_window full(static_cast<int>(state.range(0)));
  int const tokens = 3;
  int exits = 0;
  counts(state, full, [&] {
    kv::ops::count_exits(full.exec, full.on.both.window.lanes,
                         kv::ring_request{.call = "promote", .window = window, .tokens = &tokens}, &exits);
  });
  if (exits != 3) state.SkipWithError("wrong result");
}
void count_passing(benchmark::State& state) {
  full_window full(static_cast<int>(state.range(0)));
  int fresh = 0, below = 0;
  counts(state, full,
         [&] { kv::ops::count_passing(full.exec, full.on.both.window.lanes, window / 2, &fresh, &below); });
  if (fresh != window / 2 || below != window / 2) state.SkipWithError("wrong result");
}
void refuse_new_tokens(benchmark::State& state) {
  full_window full(static_cast<int>(state.range(0)));
  kv::append_request const one{.tokens = 1, .position = window};
  counts(state, full, [&] {
    kv::ops::refuse_new_tokens(full.exec, "promote", full.on.both.window.lanes, full.on.both.pages.entries.lanes,
                               std::span(&one, 1));
  });
}

#define KVPOLICY_ROW(name) \
  BENCHMARK(name)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond)
KVPOLICY_ROW(append_rows);
KVPOLICY_ROW(drop_oldest);
KVPOLICY_ROW(enter_rows);
KVPOLICY_ROW(release_pages);
KVPOLICY_ROW(count_exits);
KVPOLICY_ROW(count_passing);
KVPOLICY_ROW(refuse_new_tokens);

}  // namespace

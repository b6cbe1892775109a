// SPDX-License-Identifier: Apache-2.0
// fold over a whole model's scores, to a row for every layer or one for the model, against a plain loop and a read.
#include <kvpolicy/ops/fold.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = 36 * 8;

/// What is folded: `sets` of scores, used in turn, so that they come from memory.
struct folded {
  folded(int entries, kv::granularity to, kv::reduction by)
      : width(static_cast<std::size_t>(entries)),
        sets(bench::memory_bound_bytes() / (4 * lanes * width) + 1),
        part(sets * 4 * lanes * width),
        out(static_cast<std::size_t>(to == kv::granularity::layer ? 36 : 1) * width),
        count(lanes, entries),
        decides(to),
        how(by) {
    bench::fill_elements(part, kv::codec::f32, 1, 3);
  }
  [[nodiscard]] int rows() const { return lanes * static_cast<int>(width) / static_cast<int>(out.size()); }
  [[nodiscard]] kv::lanes who() {
    return {.layer_end = 36, .heads = 8, .capacity = static_cast<int>(width), .count = {count.data(), 0, 8, 1}};
  }
  void next() { now = part.as<float>() + (at++ % sets) * lanes * width; }

  std::size_t width, sets;
  bench::memory part;
  std::vector<float> out;
  std::vector<int> count;
  kv::granularity decides;
  kv::reduction how;
  float* now = nullptr;
  std::size_t at = 0;
};

/// True if every number is the reduction of its column, computed in double: a float sum of r rows is off by at most r
/// roundings of its largest partial sum.
bool is_folded(folded const& on) {
  auto const rows = static_cast<std::size_t>(on.rows());
  for (std::size_t i = 0; i < on.out.size(); ++i) {
    float const* const first = on.now + i / on.width * rows * on.width + i % on.width;
    double expected = *first, size = std::abs(*first);
    for (std::size_t r = 1; r < rows; ++r) {
      double const one = first[r * on.width];
      expected = on.how == kv::reduction::max ? std::max(expected, one) : expected + one;
      size += std::abs(one);
    }
    if (on.how == kv::reduction::mean) expected /= static_cast<double>(rows), size /= static_cast<double>(rows);
    double const slack = on.how == kv::reduction::max ? 0 : size * static_cast<double>(rows) * 0x1p-24;
    if (!(std::abs(on.out[i] - expected) <= slack)) return false;
  }
  return true;
}

/// The loop that one would write, over a range of every row's entries.
void plain_fold(folded& on, std::size_t begin, std::size_t end) {
  auto const rows = static_cast<std::size_t>(on.rows());
  float const* from = on.now;
  for (float* to = on.out.data(); to != on.out.data() + on.out.size(); to += on.width) {
    std::copy(from + begin, from + end, to + begin);
    from += on.width;
    for (std::size_t r = 1; r < rows; ++r, from += on.width) {
      if (on.how == kv::reduction::max) {
        for (std::size_t e = begin; e < end; ++e) to[e] = std::max(to[e], from[e]);
      } else {
        for (std::size_t e = begin; e < end; ++e) to[e] += from[e];
      }
    }
    if (on.how != kv::reduction::mean) continue;
    for (std::size_t e = begin; e < end; ++e) to[e] /= static_cast<float>(rows);
  }
}

void fold(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  int const threads = static_cast<int>(state.range(3));
  if (!bench::has_memory(state, 8.0 * lanes * entries + static_cast<double>(bench::memory_bound_bytes()))) return;
  folded on(entries, state.range(1) != 0 ? kv::granularity::sequence : kv::granularity::layer,
            state.range(2) != 0 ? kv::reduction::max : kv::reduction::mean);
  kv::host_executor exec(threads);
  kv::lanes const batch = on.who();
  kv::score_view const out = kv::contiguous_scores(batch, on.decides, on.out.data(), entries);
  kv::ops::fold_step const step{on.how, true, on.how == kv::reduction::mean ? on.rows() : 1};
  auto const together = [&] {
    kv::ops::fold(exec, kv::contiguous_scores(batch, kv::granularity::lane, on.now, entries), step, out);
  };
  auto const plain = [&] {
    std::size_t const each = on.width / static_cast<std::size_t>(threads);
    exec.for_each(threads, [&](int i, int) {
      plain_fold(on, static_cast<std::size_t>(i) * each, static_cast<std::size_t>(i + 1) * each);
    });
  };
  std::size_t const bytes = 4 * lanes * on.width;
  auto const read = [&] { bench::floors::read_pass(exec, reinterpret_cast<std::byte*>(on.now), bytes); };
  on.next();
  plain();
  if (!is_folded(on)) return state.SkipWithError("wrong peer");
  std::fill(on.out.begin(), on.out.end(), -1.0f);
  together();
  if (!is_folded(on)) return state.SkipWithError("wrong result");
  auto const touch = [&] {
    bench::floors::touch_pass(exec, {{bench::floors::touching::read, on.now, bytes},
                                     {bench::floors::touching::write, on.out.data(), 4 * on.out.size()}});
  };
  bench::rounds const taken = bench::in_turn_after(state, [&] { on.next(); }, together, plain, read, touch);
  bench::report_share(state, taken, 0, 3);
  state.counters["over_loop"] = taken.ratio(0, 1);
  state.counters["over_read"] = taken.ratio(0, 2);
  bench::report_rate(state, static_cast<double>(bytes), taken.seconds(0), threads);
}
BENCHMARK(fold)
    ->ArgNames({"entries", "to_one", "max", "threads"})
    ->ArgsProduct({{4096, 32768}, {0, 1}, {0, 1}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(40);

}  // namespace

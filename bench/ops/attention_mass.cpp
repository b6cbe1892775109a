// SPDX-License-Identifier: Apache-2.0
// attention_mass of a window over one layer: its logits against the peak of the multiply-add that they are made of, the
// whole against its logits, and against a plain Eigen formulation in the same element type.
#include <kvpolicy/ops/attention_mass.hpp>

#include "checks.hpp"
#include "measure.hpp"
#include "peers.hpp"

namespace {

namespace kv = kvpolicy;
using bench::one_layer;
using bench::one_layer_ungrouped;

/// A layer, its last rows, and room for its mass.
class observed_layer {
 public:
  observed_layer(kv::shape const& model, int entries, int rows, kv::codec element,
                 bench::rows_by order = bench::rows_by::head)
      : model_(model),
        entries_(entries),
        rows_(rows),
        layer_(model, entries, element, 2, order),
        queries_(model, entries, rows, element),
        cache_(layer_.view()),
        out_(static_cast<std::size_t>(model.kv_heads) * static_cast<std::size_t>(entries)) {}

  [[nodiscard]] kv::cache const& cache() const { return cache_; }
  [[nodiscard]] int entries() const { return entries_; }
  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] kv::query_view queries() const { return queries_.view(); }
  [[nodiscard]] double key_bytes() const { return static_cast<double>(layer_.plane_bytes()); }
  [[nodiscard]] std::vector<float>& out() { return out_; }
  /// Operations of the logits of all rows over all entries: a multiplication and an addition are two.
  [[nodiscard]] double operations() const {
    return 2.0 * model_.query_heads * rows_ * static_cast<double>(entries_) * model_.head_dim;
  }

  void reserve(kv::host_executor& exec) const {
    exec.reserve(kv::implementation<kv::ops::compute_attention_mass_t, kv::host>::scratch(model_, entries_));
  }

  void mass(kv::host_executor& exec, kv::query_view const& rows) {
    kv::ops::compute_attention_mass(exec, kv::keys_of(cache_), rows, {},
                                    kv::contiguous_scores(cache_.lanes, kv::granularity::lane, out_.data(), entries_));
  }

  [[nodiscard]] kv::query_view with_lse() {
    queries_.give_lse(lse());
    return queries_.view();
  }

  /// True if the masses of the first and the last lane are the reference's.
  [[nodiscard]] bool is_right() const {
    for (int const head : {0, model_.kv_heads - 1}) {
      auto const lane = bench::lane_of(cache_, queries_.view(), {0, 0, head});
      auto const expected = bench::reference::attention_mass(lane, {});
      std::size_t const first = static_cast<std::size_t>(head) * static_cast<std::size_t>(entries_);
      if (!bench::close({out_.data() + first, expected.size()}, expected, bench::tolerance(layer_.element())))
        return false;
    }
    return true;
  }

 private:
  /// In double, by plain loops: what an engine's attention hands over.
  [[nodiscard]] std::vector<float> lse() const {
    std::vector<float> made;
    kv::query_view const rows = queries_.view();
    for (int head = 0; head < model_.query_heads; ++head) {
      kv::lane const this_lane{0, 0, head / model_.group()};
      auto const keys =
          bench::decoded_rows(cache_.k.element, cache_.k.row(0, {}, this_lane.head), entries_, model_.head_dim);
      auto const of_head = bench::decoded_rows(rows.element, rows.at(this_lane, head, 0), rows_, model_.head_dim);
      for (int r = 0; r < rows_; ++r) {
        double sum = 0;
        for (int e = 0; e <= entries_ - rows_ + r; ++e) {
          sum +=
              std::exp(bench::reference::dot(of_head[static_cast<std::size_t>(r)], keys[static_cast<std::size_t>(e)]) /
                       std::sqrt(static_cast<double>(model_.head_dim)));
        }
        made.push_back(static_cast<float>(std::log(sum)));
      }
    }
    return made;
  }

  kv::shape model_;
  int entries_;
  int rows_;
  bench::model_cache layer_;
  bench::model_queries queries_;
  kv::cache cache_;
  std::vector<float> out_;
};

// The logits of every row over every entry and nothing else, by the kernels of the verb: the one place in the
// benchmarks that knows them.
// -----------------------------------------------------------------------------------------------------

/// One lane's logits: all of them written out, [entry][row]; or, tile by tile, each over the one before.
float const* lane_logits(kv::host_executor const& exec, observed_layer const& on, int head, bool written,
                         std::span<std::byte> scratch) {
  kv::detail::scratch_arena arena(scratch);
  kv::keys const keys = kv::keys_of(on.cache());
  kv::query_view const rows = on.queries();
  auto* const values = arena.take<float>(kv::detail::most_rows * static_cast<std::size_t>(written ? on.entries() : 64));
  kv::detail::lane_logits logits(exec, keys, rows, {0, 0, head}, {0, on.rows(), 1}, arena);
  kv::detail::row_block block = logits.block_storage(0);
  block.set_rows(exec.simd_level(), on.rows());
  logits.pack(block, 0, on.rows());
  if (written) {
    logits.multiply_range(block, 0, on.entries(), on.entries(), values);
  } else {
    kv::detail::lane_logits::amx_registers const registers = logits.acquire(block);
    for (int e = 0; e < on.entries(); e += kv::detail::keys_of_a_tile)
      logits.multiply_tile(block, logits.load_tile(e, on.entries()), values);
  }
  bench::floors::keep(values[0]);
  return values;
}

/// By vector instructions: what mass adds is held against them also where the matrix unit makes it faster than they
/// are.
void logits_alone(kv::host_executor& exec, observed_layer const& on, bool written) {
  kv::host_executor const vectors(1, std::min(exec.simd_level(), kv::isa::avx512_bf16));
  exec.for_each(on.cache().lanes.heads,
                [&](int head, int worker) { lane_logits(vectors, on, head, written, exec.scratch(worker)); });
}

/// The logits of one lane a thread, four times: 32 rows against keys that the last-level cache holds as far as it can.
constexpr int times_a_lane = 4;
void logits_again(kv::host_executor& exec, observed_layer const& on) {
  for (int i = 0; i < times_a_lane; ++i) {
    exec.for_each(exec.threads(),
                  [&](int head, int worker) { lane_logits(exec, on, head, true, exec.scratch(worker)); });
  }
}

/// True if some logits of the first lane are the reference's; of 16-bit keys to the digits that a float's sum has.
bool logits_are_right(kv::host_executor& exec, observed_layer const& on) {
  float const* const values = lane_logits(exec, on, 0, true, exec.scratch(0));
  auto lane = bench::lane_of(on.cache(), on.queries(), {});
  lane.keys.resize(100);
  auto const expected = bench::reference::attention_logits(lane).front();
  for (std::size_t r = 0; r < expected.size(); ++r) {
    for (std::size_t e = 0; e < lane.keys.size(); ++e) {
      double const is = static_cast<double>(values[e * expected.size() + r]);
      if (!(std::abs(is - expected[r][e]) < 1e-3)) return false;
    }
  }
  return true;
}

void attention_mass(benchmark::State& state, bench::rows_by order) {
  int const entries = static_cast<int>(state.range(0));
  int const threads = static_cast<int>(state.range(2));
  auto const element = static_cast<kv::codec>(state.range(3));
  observed_layer on(one_layer, entries, static_cast<int>(state.range(1)), element, order);
  kv::host_executor exec(threads);
  on.reserve(exec);
  on.mass(exec, on.queries());
  if (!on.is_right()) return state.SkipWithError("wrong result");
  auto const peak = bench::floors::peak_of(exec.simd_level(), element);
  auto const taken = bench::in_turn(
      state, [&] { on.mass(exec, on.queries()); }, [&] { bench::floors::peak_pass(exec, peak, on.operations()); },
      [&] { bench::floors::read_pass(exec, on.cache().k.base, static_cast<std::size_t>(on.key_bytes())); });
  state.SetLabel(kv::name_of(element));
  state.counters["of_peak"] = taken.ratio(1, 0);
  bench::report_share(state, taken, 0, taken.least(1) > taken.least(2) ? 1 : 2);  // reading, or multiplying
  bench::report_rate(state, on.key_bytes(), taken.seconds(0), threads);
}
BENCHMARK_CAPTURE(attention_mass, , bench::rows_by::head)
    ->Name("attention_mass")
    ->ArgNames({"entries", "window", "threads", "element"})
    ->ArgsProduct({{4096, 32768}, {1, 32}, {1, 2}, {0, 1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
/// All heads of a token side by side: rows of a lane begin a power of two apart, and share few sets of a cache.
BENCHMARK_CAPTURE(attention_mass, , bench::rows_by::token)
    ->Name("attention_mass/nhd")
    ->ArgNames({"entries", "window", "threads", "element"})
    ->ArgsProduct({{32768}, {1, 32}, {1, 2}, {0, 1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// The same by plain Eigen; every row sees every key there.
void eigen(kv::host_executor& exec, observed_layer& on) {
  static thread_local std::vector<float> temp_storage;
  kv::query_view const rows = on.queries();
  kv::cache const& cache = on.cache();
  exec.for_each(cache.lanes.heads, [&](int head, int) {
    std::byte const* const keys = cache.k.row(0, {}, head);
    std::byte const* const queries = rows.at({}, head, 0);
    float* const out = on.out().data() + std::int64_t{head} * on.entries();
    if (cache.k.element == kv::codec::f32) {
      bench::peers::eigen_mass(reinterpret_cast<float const*>(keys), reinterpret_cast<float const*>(queries),
                               on.entries(), on.rows(), rows.dims, out, temp_storage);
    } else {
      bench::peers::eigen_mass(reinterpret_cast<std::uint16_t const*>(keys),
                               reinterpret_cast<std::uint16_t const*>(queries), on.entries(), on.rows(), rows.dims, out,
                               temp_storage);
    }
  });
}

// For the report: 8 lanes of 32k entries, 32 rows each.
// -------------------------------------------------------------------

constexpr int report_entries = 32768;
constexpr int report_rows = 32;

/// True if Eigen's masses are the verb's but for the window's own entries, which only some rows see.
bool eigen_agrees(kv::host_executor& exec, observed_layer& on) {
  std::vector<float> const ours = on.out();
  eigen(exec, on);
  bench::reference::row const expected(ours.begin(), ours.begin() + report_entries - report_rows);
  return bench::close({on.out().data(), expected.size()}, expected, 0.05);
}

void report_mass(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  int const threads = static_cast<int>(state.range(1));
  observed_layer on(one_layer_ungrouped, report_entries, report_rows, element);
  kv::host_executor exec(threads);
  on.reserve(exec);
  kv::query_view const plain = on.queries();
  kv::query_view const given = on.with_lse();
  on.mass(exec, given);
  if (!on.is_right()) return state.SkipWithError("wrong result with the log-sum-exp given");
  on.mass(exec, plain);
  if (!on.is_right()) return state.SkipWithError("wrong result");
  if (!eigen_agrees(exec, on)) return state.SkipWithError("Eigen finds something else");
  if (!logits_are_right(exec, on)) return state.SkipWithError("wrong logits");
  auto const peak = bench::floors::peak_of(exec.simd_level(), element);
  auto const taken = bench::in_turn(
      state, [&] { on.mass(exec, plain); }, [&] { on.mass(exec, given); }, [&] { logits_alone(exec, on, true); },
      [&] { bench::floors::peak_pass(exec, peak, on.operations()); }, [&] { eigen(exec, on); },
      [&] { logits_alone(exec, on, false); }, [&] { logits_again(exec, on); },
      [&] {
        bench::floors::peak_pass(exec, peak, on.operations() * threads * times_a_lane / one_layer_ungrouped.kv_heads);
      });
  state.SetLabel(peak.name);
  // The peak is held against logits that are there afterwards; what mass adds, against the faster way to them.
  std::size_t const faster = taken.seconds(2) < taken.seconds(5) ? 2 : 5;
  state.counters["logits_of_peak"] = taken.ratio(7, 6);
  state.counters["from_memory_of_peak"] = taken.ratio(3, 2);
  state.counters["over_logits"] = taken.ratio(0, faster);
  state.counters["lse_over_logits"] = taken.ratio(1, faster);
  state.counters["logits_ms"] = 1e3 * taken.seconds(faster);
  state.counters["mass_ms"] = 1e3 * taken.seconds(0);
  state.counters["lse_ms"] = 1e3 * taken.seconds(1);
  state.counters["peak_ms"] = 1e3 * taken.seconds(3);
  state.counters["eigen_over"] = taken.ratio(4, 0);
}
BENCHMARK(report_mass)
    ->Name("report/attention_mass")
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{static_cast<int>(kv::codec::f32), static_cast<int>(kv::codec::bf16)}, {1, 2}})
    ->Iterations(9)
    ->UseManualTime();

/// What the second thread gains attention_mass, of what it gains a loop of multiply-adds.
void report_threads(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  observed_layer on(one_layer_ungrouped, report_entries, report_rows, element);
  kv::host_executor one(1), two(2);
  on.reserve(one);
  on.reserve(two);
  kv::query_view const rows = on.queries();
  on.mass(two, rows);
  if (!on.is_right()) return state.SkipWithError("wrong result");
  auto const peak = bench::floors::peak_of(one.simd_level(), element);
  auto const loop = [&](kv::host_executor& exec) { bench::floors::peak_pass(exec, peak, on.operations()); };
  auto const taken = bench::in_turn(
      state, [&] { on.mass(one, rows); }, [&] { on.mass(two, rows); }, [&] { loop(one); }, [&] { loop(two); });
  state.SetLabel(kv::name_of(element));
  state.counters["share"] = taken.share(0, 1, 2, 3);
  state.counters["gain"] = taken.ratio(0, 1);
  state.counters["floor_gain"] = taken.ratio(2, 3);
}
BENCHMARK(report_threads)
    ->Name("report/threads/attention_mass")
    ->ArgName("element")
    ->Arg(static_cast<int>(kv::codec::f32))
    ->Arg(static_cast<int>(kv::codec::bf16))
    ->Iterations(25)
    ->UseManualTime();

}  // namespace

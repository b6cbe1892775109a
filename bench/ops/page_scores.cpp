// SPDX-License-Identifier: Apache-2.0
// page_scores and extend_bounds against reads of what they must read, and page_scores against exact logits of every
// key: what a selection saves.
#include <kvpolicy/ops/page_scores.hpp>

#include "checks.hpp"
#include "measure.hpp"
#include "reference/pages.hpp"

namespace {

namespace kv = kvpolicy;
using bench::one_layer;

constexpr int page = 16;
constexpr int entries = 131072;
constexpr int pages = entries / page;

kv::shape layers_of(int layers) {
  kv::shape model = one_layer;
  model.layers = layers;
  return model;
}

/// Bounds of every page of a model's lanes, and the row that asks.
class bounded_model {
 public:
  bounded_model(kv::shape const& model, kv::codec element)
      : model_(model),
        queries_(model, entries, 1, element),
        known_(lanes(), entries),
        counts_(lanes(), entries),
        rows_(lanes() * pages * 2 * static_cast<std::size_t>(model.head_dim * kv::bytes_of(element))),
        scores_(lanes() * pages),
        element_(element) {
    bench::fill_elements(rows_, element, 1, 5);
  }
  bounded_model(bounded_model const&) = delete;
  bounded_model& operator=(bounded_model const&) = delete;

  [[nodiscard]] bench::memory const& rows() const { return rows_; }
  [[nodiscard]] kv::query_view asking() const { return queries_.view(); }
  [[nodiscard]] kv::page_bound_memory bounds() {
    std::int64_t const row = std::int64_t{pages} * 2 * model_.head_dim * kv::bytes_of(element_);
    return {table(rows_.data(), row), table(known_.data(), 1), element_, model_.head_dim, page};
  }
  [[nodiscard]] kv::page_bound_view reading() {
    auto const all = bounds();
    return {{all.rows.data, all.rows.sequence, all.rows.layer, all.rows.head},
            {all.known.data, all.known.sequence, all.known.layer, all.known.head},
            element_,
            model_.head_dim,
            page};
  }
  void forget() { std::fill(known_.begin(), known_.end(), 0); }

  void score(kv::host_executor& exec) {
    kv::lanes in_pages = who();
    in_pages.capacity = pages;
    kv::ops::page_scores(exec, who(), reading(), queries_.view(), kv::reduction::max,
                         kv::contiguous_scores(in_pages, kv::granularity::lane, scores_.data(), pages));
  }

  /// True if scores of pages of the first and the last lane are what their bounds say, in double.
  [[nodiscard]] bool is_right() {
    for (int const i : {0, static_cast<int>(lanes()) - 1}) {
      kv::lane const one = who().at(i);
      for (int p = 0; p < pages; p += 97) {
        auto const both = bench::decoded_rows(element_, reading().row(one, p), 2, model_.head_dim);
        double expected = -bench::reference::infinity;
        double size = 0;
        for (int h = 0; h < model_.group(); ++h) {
          auto const row =
              bench::decoded_rows(element_, asking().at(one, one.head * model_.group() + h, 0), 1, model_.head_dim);
          double sum = 0;
          for (std::size_t d = 0; d < row[0].size(); ++d) {
            sum += row[0][d] * both[row[0][d] < 0 ? 1 : 0][d];  // of a drawn bound, high need not be above low
            size += std::abs(row[0][d]) * std::max(std::abs(both[0][d]), std::abs(both[1][d]));
          }
          expected = std::max(expected, sum);
        }
        double const is = static_cast<double>(scores_[static_cast<std::size_t>(i * pages + p)]);
        if (!(std::abs(is - expected) <= size * 0x1p-15)) return false;
      }
    }
    return true;
  }

 private:
  [[nodiscard]] std::size_t lanes() const { return static_cast<std::size_t>(model_.layers * model_.kv_heads); }
  [[nodiscard]] kv::lanes who() {
    return {
        .layer_end = model_.layers, .heads = model_.kv_heads, .capacity = entries, .count = table(counts_.data(), 1)};
  }
  template <class T>
  [[nodiscard]] kv::by_lane<T> table(T* data, std::int64_t row) const {
    return {data, 0, row * model_.kv_heads, row};
  }

  kv::shape model_;
  bench::model_queries queries_;
  std::vector<int> known_;
  std::vector<int> counts_;
  bench::memory rows_;
  std::vector<float> scores_;
  kv::codec element_;
};

void reserve(kv::host_executor& exec, kv::shape const& model) {
  exec.reserve(kv::implementation<kv::ops::page_scores_t, kv::host>::scratch(model, entries));
  exec.reserve(kv::implementation<kv::ops::extend_bounds_t, kv::host>::scratch(model, entries));
  exec.reserve(kv::detail::lane_logits::scratch(model) + 4096);
}

/// 128k entries of each lane of one layer, or of a model: bounds that no cache holds.
void page_scores(benchmark::State& state) {
  kv::shape const model = layers_of(static_cast<int>(state.range(0)));
  auto const element = static_cast<kv::codec>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  bounded_model on(model, element);
  kv::host_executor exec(threads);
  reserve(exec, model);
  on.score(exec);
  if (!on.is_right()) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn(
      state, [&] { on.score(exec); }, [&] { bench::floors::read_pass(exec, on.rows().data(), on.rows().size()); });
  state.SetLabel(kv::name_of(element));
  state.counters["of_read"] = taken.ratio(1, 0);
  bench::report_share(state, taken, 0, 1);
  bench::report_rate(state, static_cast<double>(on.rows().size()), taken.seconds(0), threads);
}
BENCHMARK(page_scores)
    ->ArgNames({"layers", "element", "threads"})
    ->ArgsProduct({{1, 36}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// Logits of every query head and every key, tile by tile and written nowhere: by the kernels that attention_mass has.
void exact_logits(kv::host_executor& exec, kv::cache const& cache, kv::query_view const& rows) {
  exec.for_each(cache.lanes.heads, [&](int head, int worker) {
    kv::detail::scratch_arena arena(exec.scratch(worker));
    kv::keys const keys = kv::keys_of(cache);
    float values[kv::detail::keys_of_a_tile * kv::detail::most_rows];
    kv::detail::lane_logits logits(exec, keys, rows, {0, 0, head}, {0, 1, cache.shape.group()}, arena);
    kv::detail::row_block block = logits.block_storage(0);
    block.set_rows(exec.simd_level(), logits.rows_for(cache.shape.group()));
    logits.pack(block, 0, cache.shape.group());
    for (int e = 0; e < entries; e += kv::detail::keys_of_a_tile)
      logits.multiply_tile(block, logits.load_tile(e, entries), values);
    bench::floors::keep(values[0]);
  });
}

/// One layer's 8 lanes of 128k keys: bounds made of them, their scores, and the logits of all keys.
void page_scores_of_keys(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  int const threads = static_cast<int>(state.range(1));
  if (!bench::has_memory(state, bench::model_cache::bytes(one_layer, entries, element))) return;
  bench::model_cache layer(one_layer, entries, element);
  kv::cache const cache = layer.view();
  bounded_model on(one_layer, element);
  kv::host_executor exec(threads);
  reserve(exec, one_layer);
  on.forget();
  kv::ops::extend_bounds(exec, cache.lanes, kv::keys_of(cache), on.bounds());
  auto const keys = bench::decoded_rows(element, cache.k.row(0, {}, 7), 10 * page, one_layer.head_dim);
  auto const expected = bench::reference::bounds_of(keys, page);
  auto const is = bench::decoded_rows(element, on.reading().row({0, 0, 7}, 9), 2, one_layer.head_dim);
  if (is[0] != expected[9].high || is[1] != expected[9].low) return state.SkipWithError("wrong bounds");
  on.score(exec);
  if (!on.is_right()) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn(
      state, [&] { on.score(exec); }, [&] { exact_logits(exec, cache, on.asking()); },
      [&] { bench::floors::read_pass(exec, on.rows().data(), on.rows().size()); },
      [&] {
        on.forget();
        kv::ops::extend_bounds(exec, cache.lanes, kv::keys_of(cache), on.bounds());
      },
      [&] { bench::floors::read_pass(exec, layer.keys().data(), layer.keys().size()); },
      [&] {
        bench::floors::touch_pass(exec, {{bench::floors::touching::read, layer.keys().data(), layer.keys().size()},
                                         {bench::floors::touching::write, on.rows().data(), on.rows().size()}});
      });
  state.SetLabel(kv::name_of(element));
  state.counters["logits_over"] = taken.ratio(1, 0);
  state.counters["of_read"] = taken.ratio(2, 0);
  state.counters["logits_of_read"] = taken.ratio(4, 1);
  state.counters["extend_of_read"] = taken.ratio(4, 3);
  state.counters["scores_ms"] = 1e3 * taken.seconds(0);
  state.counters["logits_ms"] = 1e3 * taken.seconds(1);
  state.counters["extend_ms"] = 1e3 * taken.seconds(3);
  bench::report_share(state, taken, 3, 5);  // of extend_bounds
}
BENCHMARK(page_scores_of_keys)
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->Iterations(9)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// gather_rows in place, a model's rows of 256 bytes in two arrays, against a copy of the bytes that are kept.
#include "cuda/cases.cuh"

namespace {

namespace kv = kvpolicy;
namespace gpu = bench::gpu;

std::span<kv::recorded_column const> const no_columns{};

/// One of `one_in` entries of every lane stays: at random, or in runs of 64 at random.
std::vector<int> kept_at_random(int lanes, int entries, int one_in, bool in_runs) {
  bench::noise random(5);
  int const run = in_runs ? 64 : 1;
  int const runs = entries / run;
  std::vector<int> all;
  for (int lane = 0; lane < lanes; ++lane) {
    int left = runs / one_in;
    for (int i = 0; i < runs && left > 0; ++i) {
      if (random.below(runs - i) >= left) continue;  // every choice of so many is as likely as any other
      --left;
      for (int e = 0; e < run; ++e) all.push_back(i * run + e);
    }
  }
  return all;
}

/// The keep set, on both sides.
class kept_rows {
 public:
  kept_rows(int lanes, int entries, int one_in, bool in_runs)
      : ordinal_(kept_at_random(lanes, entries, one_in, in_runs)), seen_(static_cast<std::size_t>(lanes), entries) {
    auto const each = static_cast<std::int64_t>(ordinal_.size()) / lanes;
    for (int i = 0; i <= lanes; ++i) offset_.push_back(i * each);
    device_ordinal_ = gpu::array<int>(ordinal_);
    device_offset_ = gpu::array<std::int64_t>(offset_);
    device_seen_ = gpu::array<int>(seen_);
    device_report_ = gpu::array<kv::report>(std::vector<kv::report>(1));
  }
  [[nodiscard]] kv::keep_set on_host(kv::lanes const& batch) {
    return of(batch, offset_.data(), ordinal_.data(), seen_.data(), &report_);
  }
  [[nodiscard]] kv::keep_set on_device(kv::lanes const& batch) const {
    return of(batch, device_offset_.data(), device_ordinal_.data(), device_seen_.data(), device_report_.data());
  }
  [[nodiscard]] std::size_t rows() const { return ordinal_.size(); }

 private:
  [[nodiscard]] kv::keep_set of(kv::lanes const& batch, std::int64_t* offset, int* ordinal, int* seen,
                                kv::report* told) const {
    return {.lanes = batch,
            .indptr = offset,
            .indices = ordinal,
            .entry_count = seen,
            .capacity = static_cast<std::int64_t>(ordinal_.size()),
            .report = told};
  }

  std::vector<std::int64_t> offset_;
  std::vector<int> ordinal_, seen_;
  kv::report report_{};
  gpu::array<std::int64_t> device_offset_{0};
  gpu::array<int> device_ordinal_{0}, device_seen_{0};
  gpu::array<kv::report> device_report_{0};
};

/// True if host and device make the same bytes of it: rows and positions.
bool is_right(gpu::executor& exec, bench::model_cache& model, gpu::device_cache const& device, kept_rows& kept) {
  kv::cache const cache = model.view();
  kv::ops::gather_rows(exec, kept.on_device(device.view().lanes), device.view(), no_columns);
  exec.check();
  kv::ops::gather_rows(gpu::host(), kept.on_host(cache.lanes), cache, no_columns);
  auto const same = [](auto const& found, auto const* expected) {
    return std::memcmp(found.data(), expected, found.size() * sizeof(found[0])) == 0;
  };
  return same(device.k().get(), cache.k.base) && same(device.v().get(), cache.v.base) &&
         same(device.positions().get(), cache.lanes.position.data);
}

void gather_rows(benchmark::State& state) {
  gpu::guarded(state, [&] {
    int const entries = static_cast<int>(state.range(0));
    int const one_in = static_cast<int>(state.range(1));
    bool const in_runs = state.range(2) != 0;
    double const all = bench::model_cache::bytes(bench::whole_model, entries, kv::codec::f16);
    if (!gpu::fits(state, all * (1 + 2.0 / one_in))) return;
    gpu::stream const on;
    gpu::executor exec(on);
    bench::model_cache model(bench::whole_model, entries, kv::codec::f16);
    gpu::device_cache const device(model);
    kept_rows kept(device.view().lanes.size(), entries, one_in, in_runs);
    if (!is_right(exec, model, device, kept)) return state.SkipWithError("wrong result");
    std::size_t const bytes = kept.rows() * 2 * static_cast<std::size_t>(device.view().k.token_stride);
    gpu::array<std::byte> const from(bytes), to(bytes);
    from.poison(1);
    kv::keep_set const keep = kept.on_device(device.view().lanes);
    auto const taken = gpu::in_turn_after(
        state, exec, on, [&] { device.reset(on); },
        [&] { kv::ops::gather_rows(exec, keep, device.view(), no_columns); },
        [&] {
          gpu::checked("cudaMemcpyAsync",
                       cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, on.get()));
        });
    state.SetLabel(in_runs ? "runs of 64" : "random");
    state.counters["of_memcpy"] = taken.ratio(1, 0);
    state.counters["launches"] = exec.launches_of([&] { kv::ops::gather_rows(exec, keep, device.view(), no_columns); });
    gpu::report_share(state, 2.0 * static_cast<double>(bytes), taken.seconds(0));
  });
}
BENCHMARK(gather_rows)
    ->ArgNames({"entries", "one_in", "runs"})
    ->ArgsProduct({{4096, 16384}, {4, 2}, {0, 1}})
    ->Iterations(11)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

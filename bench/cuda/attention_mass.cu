// SPDX-License-Identifier: Apache-2.0
// attention_mass of a window over one layer, with the rows' log-sum-exp given and without, against a read of the keys
// and against the plain eager formulation: logits, softmax, reduction, each a kernel of its own that writes all of it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/cases.cuh"

namespace {

namespace kv = kvpolicy;
namespace gpu = bench::gpu;
using bench::one_layer;

__device__ float number(float of) { return of; }
__device__ float number(__half of) { return __half2float(of); }
__device__ float number(__nv_bfloat16 of) { return __bfloat162float(of); }

/// What the eager kernels share: one layer, keys [lane][entry][dim], rows [head][row][dim], the last rows of the lane.
struct eager_shape {
  int heads, group, rows, entries, dims;
  float scale;
};

/// A thread an entry, a block's y a head and row. Entries after the row get -inf.
template <class T>
__global__ void eager_logits(eager_shape of, T const* keys, T const* queries, float* logits) {
  extern __shared__ float row[];
  int const head_row = static_cast<int>(blockIdx.y);
  int const head = head_row / of.rows;
  T const* const query = queries + static_cast<std::int64_t>(head_row) * of.dims;
  for (int d = static_cast<int>(threadIdx.x); d < of.dims; d += static_cast<int>(blockDim.x)) row[d] = number(query[d]);
  __syncthreads();
  int const entry = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (entry >= of.entries) return;
  T const* const key = keys + (static_cast<std::int64_t>(head / of.group) * of.entries + entry) * of.dims;
  float sum = 0;
  for (int d = 0; d < of.dims; ++d) sum += row[d] * number(key[d]);
  bool const seen = entry <= of.entries - of.rows + head_row % of.rows;
  logits[static_cast<std::int64_t>(head_row) * of.entries + entry] = seen ? sum * of.scale : -INFINITY;
}

/// The block's largest, or its sum.
template <bool Largest>
__device__ float over_block(float mine) {
  __shared__ float temp_storage[1024];
  temp_storage[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      float const other = temp_storage[threadIdx.x + half];
      temp_storage[threadIdx.x] = Largest ? fmaxf(temp_storage[threadIdx.x], other) : temp_storage[threadIdx.x] + other;
    }
    __syncthreads();
  }
  float const all = temp_storage[0];
  __syncthreads();
  return all;
}

/// A block a row: logits become weights, and their log-sum-exp is kept.
__global__ void eager_softmax(int entries, float* logits, float* lse) {
  float* const row = logits + static_cast<std::int64_t>(blockIdx.x) * entries;
  float most = -INFINITY;
  for (int e = static_cast<int>(threadIdx.x); e < entries; e += static_cast<int>(blockDim.x))
    most = fmaxf(most, row[e]);
  most = over_block<true>(most);
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < entries; e += static_cast<int>(blockDim.x))
    sum += expf(row[e] - most);
  sum = over_block<false>(sum);
  for (int e = static_cast<int>(threadIdx.x); e < entries; e += static_cast<int>(blockDim.x))
    row[e] = expf(row[e] - most) / sum;
  if (threadIdx.x == 0) lse[blockIdx.x] = most + logf(sum);
}

/// A thread an entry of a lane: the sum over rows, the mean over the group.
__global__ void eager_reduce(eager_shape of, float const* weights, float* out) {
  int const entry = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (entry >= of.entries) return;
  int const all = of.group * of.rows;
  float const* const first = weights + static_cast<std::int64_t>(blockIdx.y) * all * of.entries + entry;
  float sum = 0;
  for (int i = 0; i < all; ++i) sum += first[static_cast<std::int64_t>(i) * of.entries];
  out[static_cast<std::int64_t>(blockIdx.y) * of.entries + entry] = sum / static_cast<float>(of.group);
}

/// A layer, its last rows, room for its mass, on both sides.
class observed_layer {
 public:
  observed_layer(int entries, int rows, kv::codec element)
      : of_{one_layer.query_heads,
            one_layer.group(),
            rows,
            entries,
            one_layer.head_dim,
            1 / std::sqrt(static_cast<float>(one_layer.head_dim))},
        layer_(one_layer, entries, element),
        queries_(one_layer, entries, rows, element),
        device_(layer_),
        asking_(one_layer, rows, queries_.view()),
        logits_(static_cast<std::size_t>(of_.heads * rows) * static_cast<std::size_t>(entries)),
        lse_(static_cast<std::size_t>(of_.heads * rows)),
        out_(device_.cells()),
        eager_out_(device_.cells()) {}
  static double bytes(int entries, int rows) { return 8.0 * 2 * 512 * entries + 4.0 * 32 * rows * entries; }

  void mass(gpu::executor& exec, bool lse_given) {
    kv::query_view const rows = lse_given ? asking_.with_lse(lse_.data()) : asking_.view();
    kv::ops::compute_attention_mass(
        exec, kv::keys_of(device_.view()), rows, {},
        kv::contiguous_scores(device_.view().lanes, kv::granularity::lane, out_.data(), of_.entries));
  }
  /// The eager formulation; lse is there afterwards.
  void eager(gpu::stream const& on) const {
    switch (device_.view().k.element) {
      case kv::codec::f32:
        return eager_as<float>(on);
      case kv::codec::f16:
        return eager_as<__half>(on);
      default:
        return eager_as<__nv_bfloat16>(on);
    }
  }
  /// True if the mass on the device is the host's, and so is the eager one.
  [[nodiscard]] bool is_right(gpu::executor& exec, gpu::stream const& on, bool lse_given) {
    eager(on);
    out_.poison(0xFF);
    mass(exec, lse_given);
    exec.check();
    kv::cache const cache = layer_.view();
    kv::host_executor& host = gpu::host();
    host.reserve(kv::implementation<kv::ops::compute_attention_mass_t, kv::host>::scratch(one_layer, of_.entries));
    std::vector<float> expected(device_.cells());
    kv::ops::compute_attention_mass(
        host, kv::keys_of(cache), queries_.view(), {},
        kv::contiguous_scores(cache.lanes, kv::granularity::lane, expected.data(), of_.entries));
    float const relative = cache.k.element == kv::codec::f32 ? 1e-4f : 2e-2f;
    return gpu::close_floats(out_.get(), expected, relative) && gpu::close_floats(eager_out_.get(), expected, relative);
  }
  void reserve(gpu::executor& exec) const {
    exec.reserve(
        kv::implementation<kv::ops::compute_attention_mass_t, kv::cuda>::scratch(one_layer, device_.view().lanes));
  }
  [[nodiscard]] double key_bytes() const { return static_cast<double>(layer_.plane_bytes()); }

 private:
  template <class T>
  void eager_as(gpu::stream const& on) const {
    auto const blocks = static_cast<unsigned>((of_.entries + 255) / 256);
    auto const head_rows = static_cast<unsigned>(of_.heads * of_.rows);
    eager_logits<<<dim3(blocks, head_rows), 256, sizeof(float) * static_cast<std::size_t>(of_.dims), on.get()>>>(
        of_, reinterpret_cast<T const*>(device_.k().data()), reinterpret_cast<T const*>(asking_.view().base),
        logits_.data());
    eager_softmax<<<head_rows, 1024, 0, on.get()>>>(of_.entries, logits_.data(), lse_.data());
    eager_reduce<<<dim3(blocks, static_cast<unsigned>(of_.heads / of_.group)), 256, 0, on.get()>>>(of_, logits_.data(),
                                                                                                   eager_out_.data());
    gpu::checked("eager attention", cudaGetLastError());
  }

  eager_shape of_;
  bench::model_cache layer_;
  bench::model_queries queries_;
  gpu::device_cache device_;
  gpu::device_queries asking_;
  gpu::array<float> logits_, lse_, out_, eager_out_;
};

void attention_mass(benchmark::State& state) {
  gpu::guarded(state, [&] {
    int const rows = static_cast<int>(state.range(0));
    int const entries = static_cast<int>(state.range(1));
    auto const element = static_cast<kv::codec>(state.range(2));
    bool const lse_given = state.range(3) != 0;
    if (!gpu::fits(state, observed_layer::bytes(entries, rows))) return;
    gpu::stream const on;
    gpu::executor exec(on);
    observed_layer layer(entries, rows, element);
    layer.reserve(exec);
    if (!layer.is_right(exec, on, lse_given)) return state.SkipWithError("wrong result");
    auto const taken = gpu::in_turn(state, exec, on, [&] { layer.mass(exec, lse_given); }, [&] { layer.eager(on); });
    state.SetLabel(kv::name_of(element));
    state.counters["eager_over"] = taken.ratio(1, 0);
    state.counters["launches"] = exec.launches_of([&] { layer.mass(exec, lse_given); });
    gpu::report_share(state, layer.key_bytes(), taken.seconds(0));
  });
}
BENCHMARK(attention_mass)
    ->ArgNames({"rows", "entries", "element", "lse"})
    ->ArgsProduct({{32, 8}, {32768, 131072}, {2, 1, 0}, {1, 0}})
    ->Iterations(11)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

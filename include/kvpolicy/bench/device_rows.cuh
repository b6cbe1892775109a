// SPDX-License-Identifier: Apache-2.0
// Rows of a benchmark on a device: the layer in its memory, and the time that it takes there.
#pragma once

#include <cstddef>
#include <kvpolicy/bench.hpp>
#include <kvpolicy/bench/read_words.cuh>
#include <kvpolicy/cuda.cuh>

namespace KVPOLICY_NAMESPACE::bench::detail {

/// A stream that the default stream does not wait for, so that it can be captured.
class device_stream {
 public:
  device_stream() {
    kvpolicy::detail::cuda_call("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&on_, cudaStreamNonBlocking));
  }
  device_stream(device_stream const&) = delete;
  device_stream& operator=(device_stream const&) = delete;
  ~device_stream() { static_cast<void>(cudaStreamDestroy(on_)); }
  [[nodiscard]] cudaStream_t get() const { return on_; }

 private:
  cudaStream_t on_ = nullptr;
};

/// A layer whose rows and tables are in memory of the device.
class device_layer {
 public:
  device_layer(cuda_executor& exec, layer& from)
      : exec_(exec),
        from_(from),
        k_(exec, from.bytes_of_plane()),
        v_(exec, from.bytes_of_plane()),
        table_(exec, from.table().size()),
        counts_(exec, layer::model.kv_heads),
        positions_(exec, static_cast<std::size_t>(layer::model.kv_heads) * static_cast<std::size_t>(from.entries())),
        queries_(exec, from.query_numbers().size()),
        query_positions_(exec, from.query_positions().size()) {
    put(k_, from.keys());
    put(v_, from.values());
    put(table_, from.table());
    put(queries_, from.query_numbers());
    put(query_positions_, from.query_positions());
    exec.synchronize();
  }
  /// Forgets the entries; their rows stay.
  void clear() { put(counts_, std::vector<int>(counts_.size(), 0)), exec_.synchronize(); }
  [[nodiscard]] kvpolicy::cache view() {
    kvpolicy::cache made = from_.view();
    made.k.base = k_.data();
    made.v.base = v_.data();
    if (made.where.table.data != nullptr) made.where.table.data = table_.data();
    made.lanes.count.data = counts_.data();
    made.lanes.position.data = positions_.data();
    return made;
  }
  [[nodiscard]] query_view queries() {
    query_view made = from_.queries();
    made.base = reinterpret_cast<std::byte const*>(queries_.data());
    made.position.data = query_positions_.data();
    return made;
  }
  [[nodiscard]] int entries() const { return from_.entries(); }
  [[nodiscard]] std::byte const* keys() const { return k_.data(); }

 private:
  template <class T>
  using buffer = cuda_executor::buffer<T>;
  template <class T>
  void put(buffer<T>& to, std::vector<T> const& from) {
    exec_.copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<std::byte const*>(from.data()),
               from.size() * sizeof(T));
  }

  cuda_executor& exec_;
  layer& from_;
  buffer<std::byte> k_, v_;
  buffer<int> table_, counts_, positions_;
  buffer<float> queries_;
  buffer<int> query_positions_;
};

/// What a call launches on a stream, captured once, so that the time is that of the device and not of the launches.
class captured {
 public:
  template <class Work>
  captured(cuda_executor& exec, Work const& work) : exec_(exec) {
    using kvpolicy::detail::cuda_call;
    work();  // once eagerly, so that kernels are loaded
    exec.check();
    cuda_call("cudaStreamBeginCapture", cudaStreamBeginCapture(exec.stream(), cudaStreamCaptureModeThreadLocal));
    work();
    cudaGraph_t graph = nullptr;
    cuda_call("cudaStreamEndCapture", cudaStreamEndCapture(exec.stream(), &graph));
    cudaError_t const made = cudaGraphInstantiate(&run_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    cuda_call("cudaGraphInstantiate", made);
  }
  captured(captured const&) = delete;
  captured& operator=(captured const&) = delete;
  ~captured() { static_cast<void>(cudaGraphExecDestroy(run_)); }
  void operator()() const { kvpolicy::detail::cuda_call("cudaGraphLaunch", cudaGraphLaunch(run_, exec_.stream())); }

 private:
  cuda_executor& exec_;
  cudaGraphExec_t run_ = nullptr;
};

/// The seconds of a call between two events on the stream, with a level-2 cache that holds nothing of it.
class device_clock {
 public:
  explicit device_clock(cuda_executor& exec)
      : exec_(exec),
        other_(exec,
               5 * static_cast<std::size_t>(kvpolicy::detail::device_attribute(cudaDevAttrL2CacheSize, exec.device())) /
                       2 +
                   1) {
    for (cudaEvent_t* const each : {&begin_, &end_}) {
      kvpolicy::detail::cuda_call("cudaEventCreate", cudaEventCreate(each));
    }
  }
  device_clock(device_clock const&) = delete;
  device_clock& operator=(device_clock const&) = delete;
  ~device_clock() {
    for (cudaEvent_t const each : {begin_, end_}) static_cast<void>(cudaEventDestroy(each));
  }
  template <class Work>
  double operator()(Work const& work) const {
    using kvpolicy::detail::cuda_call;
    auto* const other = const_cast<std::byte*>(other_.data());
    cuda_call("cudaMemsetAsync", cudaMemsetAsync(other, ++times_ & 0xFF, other_.size(), exec_.stream()));
    cuda_call("cudaEventRecord", cudaEventRecord(begin_, exec_.stream()));
    work();
    cuda_call("cudaEventRecord", cudaEventRecord(end_, exec_.stream()));
    cuda_call("cudaEventSynchronize", cudaEventSynchronize(end_));
    float milliseconds = 0;
    cuda_call("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cuda_executor& exec_;
  cuda_executor::buffer<std::byte> other_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  mutable int times_ = 0;
};

/// One row of the report, on the device.
template <class Score, class Make>
void measure_on_device(benchmark::State& run, Score const& score, Make const& make, shape_of_row const& row) {
  device_stream const on;
  cuda_executor exec(on.get());
  layer host(row);
  device_layer of(exec, host);
  kvpolicy::cache const cache = of.view();
  auto const given = given_of(cache, of.queries(), make);
  decision const decides(exec, score, of, given);
  decision const by_norms(exec, knorm{}, of, given);
  cuda_executor::buffer<unsigned> folded(exec, 1);
  captured const mine(exec, decides), norms(exec, by_norms), read(exec, [&] {
    int const blocks = 8 * kvpolicy::detail::device_attribute(cudaDevAttrMultiProcessorCount, exec.device());
    read_words<<<static_cast<unsigned>(blocks), 512, 0, exec.stream()>>>(
        reinterpret_cast<uint4 const*>(of.keys()), host.bytes_of_plane() / sizeof(uint4), folded.data());
    kvpolicy::detail::cuda_call("read_words", cudaGetLastError());
  });
  device_clock const clock(exec);
  rounds const taken = in_turn_by(clock, run, [] {}, mine, norms, read);
  exec.check();
  report(run, taken, bytes_of_needs(typename Score::needs{}, host), static_cast<double>(host.bytes_of_plane()));
}

}  // namespace KVPOLICY_NAMESPACE::bench::detail

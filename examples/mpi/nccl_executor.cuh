// SPDX-License-Identifier: Apache-2.0
// A CUDA executor that is one of the ranks of a tensor-parallel engine, and reaches the others by NCCL. It is compiled,
// and it has not been run on several GPUs yet.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <kvpolicy/cuda.cuh>
#include <stdexcept>
#include <string>

namespace examples {

/// Runs verbs on a stream of the current device as one of the ranks of an NCCL communicator, which belongs to the
/// engine and outlives the executor. Every rank has an equal part of the heads, in the order of the ranks, and makes
/// the same calls of this executor in the same order.
///
/// A rank that throws before a reduction leaves the others waiting in it, on the stream. So let `check_ranks` compare
/// the ranks first, and end the communicator (`ncclCommAbort`) after an exception that not all ranks have thrown.
class nccl_executor : public kvpolicy::cuda_executor {
 public:
  /// - throws: what `cuda_executor` throws, and `std::runtime_error` if NCCL fails.
  nccl_executor(ncclComm_t group, cudaStream_t stream) : cuda_executor(stream), group_(group) {
    succeed("ncclCommCount", ncclCommCount(group_, &ranks_));
  }

  [[nodiscard]] int ranks() const { return ranks_; }

  /// Writes the sum over all ranks to every rank. One rank sums, and the others receive its result, so that all ranks
  /// have the same bits by construction. The documentation of ncclAllReduce, which is faster, does not promise
  /// that.
  ///
  /// - stream: ordered on the stream; returns without waiting; can be captured.
  void all_reduce(float* data, std::size_t count) { reduce(data, count, ncclSum); }

  /// Writes the maximum over all ranks to every rank, as `all_reduce` does the sum. NCCL leaves out a NaN where another
  /// rank has a number. All ranks leave it out alike.
  void all_reduce_max(float* data, std::size_t count) { reduce(data, count, ncclMax); }

  /// Gathers `bytes` bytes of every rank, from and to host memory. It allocates and waits; it is for the start.
  void all_gather(void const* mine, int bytes, void* all) {
    auto const size = static_cast<std::size_t>(bytes);
    buffer<std::byte> sent(*this, size), received(*this, size * static_cast<std::size_t>(ranks_));
    copy(sent.data(), static_cast<std::byte const*>(mine), size);
    succeed("ncclAllGather", ncclAllGather(sent.data(), received.data(), size, ncclChar, group_, stream()));
    fetch(static_cast<std::byte*>(all), received.data(), received.size());
  }

 private:
  static void succeed(char const* call, ncclResult_t code) {
    if (code != ncclSuccess) throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(code));
  }

  void reduce(float* data, std::size_t count, ncclRedOp_t how) {
    if (ranks_ == 1 || count == 0) return;
    succeed("ncclReduce", ncclReduce(data, data, count, ncclFloat, how, 0, group_, stream()));
    succeed("ncclBroadcast", ncclBroadcast(data, data, count, ncclFloat, 0, group_, stream()));
  }

  ncclComm_t group_;
  int ranks_ = 1;
};

}  // namespace examples

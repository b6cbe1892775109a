// SPDX-License-Identifier: Apache-2.0
// Ranks on several GPUs, one for each rank, over NCCL: every rank decides about its heads, and the keep set must be
// that of all heads in one process. mpirun -n 2 tensor_parallel_cuda. With fewer GPUs than ranks it ends with
// status 77.
#include <mpi.h>
#include <thrust/device_vector.h>

#include <cstdio>
#include <exception>
#include <random>
#include <vector>

#include "check_ranks.hpp"
#include "nccl_executor.cuh"

namespace {

namespace kv = kvpolicy;

constexpr int layers = 2, heads_of_rank = 2, head_dim = 64, tokens = 512;

/// The keys of some heads of a model, [layer, token, KV head, channel].
std::vector<float> keys_of_heads(int first, int heads) {
  std::vector<float> made;
  for (int layer = 0; layer < layers; ++layer) {
    for (int token = 0; token < tokens; ++token) {
      for (int head = first; head < first + heads; ++head) {
        std::mt19937 random(static_cast<unsigned>((layer * tokens + token) * 1000 + head));
        for (int d = 0; d < head_dim; ++d) made.push_back(static_cast<float>(random() % 2000) / 1000.0f - 1.0f);
      }
    }
  }
  return made;
}

template <class Vector>
auto* address_of(Vector& of) {
  return thrust::raw_pointer_cast(of.data());
}

/// The tokens that are kept of a cache of these heads, whose memory is that of `Vector`.
template <template <class...> class Vector, class Executor>
std::vector<int> keep(Executor& exec, int first, int heads) {
  kv::eviction const policy{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .decides = kv::granularity::sequence},
                            .protect = kv::sinks{4},
                            .budget = kv::per_lane{64}};
  std::vector<float> const keys = keys_of_heads(first, heads);
  Vector<float> k(keys.begin(), keys.end()), v(keys.begin(), keys.end());
  Vector<int> counts(static_cast<std::size_t>(layers * heads));
  Vector<int> positions(counts.size() * tokens);
  kv::cache cache = kv::contiguous_cache(address_of(k), address_of(v), {layers, heads, heads, head_dim}, tokens,
                                         address_of(counts), address_of(positions));
  if constexpr (requires { exec.all_gather(nullptr, 0, nullptr); }) examples::check_ranks(exec, policy, cache);
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});
  kv::append(exec, cache, state, {.tokens = tokens, .position = 0});
  kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);
  if constexpr (requires { exec.check(); }) exec.check();  // waits, and throws what a kernel has found
  std::vector<int> kept(64);
  thrust::copy_n(positions.begin(), 64, kept.begin());
  return kept;
}

int run(int rank, int ranks) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < ranks) {
    if (rank == 0) std::printf("there are %d GPUs for %d ranks\n", devices, ranks);
    return 77;
  }
  kv::detail::cuda_call("cudaSetDevice", cudaSetDevice(rank));
  ncclUniqueId id{};
  if (rank == 0) ncclGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t group = nullptr;
  if (ncclCommInitRank(&group, ranks, id, rank) != ncclSuccess) return 1;
  examples::nccl_executor exec(group, nullptr);
  kv::host_executor alone;
  std::vector<int> const got = keep<thrust::device_vector>(exec, rank * heads_of_rank, heads_of_rank);
  std::vector<int> const expected = keep<std::vector>(alone, 0, ranks * heads_of_rank);
  std::printf("rank %d: %s\n", rank, got == expected ? "as one process" : "another keep set than one process");
  ncclCommDestroy(group);
  return got == expected ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int status = 1;
  try {
    status = run(rank, ranks);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return status;
}

// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel engine under three policies, on any number of ranks that divides its 4 KV heads:
//
//     mpirun -n 4 tensor_parallel
//
// Every rank also runs the whole model alone, and compares: the tokens that are generated and the entries that are kept
// must be the same. It prints how many tokens differ, and ends with status 1 if any does.
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

#include "check_ranks.hpp"
#include "engine.hpp"
#include "mpi_executor.hpp"

namespace {

namespace kv = kvpolicy;
using examples::mpi_executor;
using examples::tensor_parallel_engine;

/// The tokens that were generated, and the positions that each lane of some heads kept after each turn.
struct outcome {
  std::vector<int> text;
  std::vector<std::vector<int>> kept;
};

std::vector<int> make_prompt(int tokens, std::uint32_t seed) {
  std::vector<int> prompt;
  for (int i = 0; i < tokens; ++i) {
    seed = seed * 1664525u + 1013904223u;
    prompt.push_back(static_cast<int>(seed >> 26));
  }
  return prompt;
}

/// The KV heads of one rank, by their indices in the model that notes them.
struct head_range {
  int begin;
  int end;
};

void note_kept(tensor_parallel_engine const& model, head_range heads, outcome& into) {
  for (int layer = 0; layer < tensor_parallel_engine::layers; ++layer) {
    for (int head = heads.begin; head < heads.end; ++head) {
      int const lane = layer * model.kv_heads + head;
      auto const from = model.positions.begin() + lane * model.capacity;
      into.kept.emplace_back(from, from + model.counts[static_cast<std::size_t>(lane)]);
    }
  }
}

/// Three turns of an agent's session, each followed by a decision and 12 generated tokens. `noted`: the heads whose
/// kept positions are noted.
template <class Policy>
outcome three_turns(mpi_executor& exec, Policy const& policy, head_range noted) {
  outcome made;
  // example-begin tensor_parallel
  // Each rank describes the heads that it computes. Nothing else differs from an engine on one processor.
  tensor_parallel_engine model(exec.rank(), exec.ranks(), 256, [&](float* x, std::size_t n) { exec.all_reduce(x, n); });
  kv::shape const shape{tensor_parallel_engine::layers, model.query_heads, model.kv_heads,
                        tensor_parallel_engine::head_dim};
  kv::cache cache = kv::contiguous_cache(model.k.data(), model.v.data(), shape, model.capacity, model.counts.data(),
                                         model.positions.data());
  examples::check_ranks(exec, policy, cache);  // throws the same line on every rank if the ranks do not fit together
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});

  for (std::uint32_t turn = 0; turn < 3; ++turn) {
    std::vector<int> const prompt = make_prompt(turn == 0 ? 72 : 24, turn + 1);
    int const rows = static_cast<int>(prompt.size());
    int token = 0;
    exec.together([&] {  // an exception on one rank becomes one on every rank, so that no rank waits for another
      kv::append(exec, cache, state, {.tokens = rows, .position = model.length});
      token = model.forward(prompt);
      // The query rows of this rank's heads, the last 8 of which are the message that asks for something.
      int const span_begin = rows - 8, span_end = rows;
      kv::queries const queries = kv::queries_of(model.queries.data(), shape, rows, model.row_positions.data());
      kv::turn_queries const asked{queries, &span_begin, &span_end};
      kv::signals const in{cache.lanes, kv::keys_of(cache), queries, asked};
      kv::observe(exec, policy, in, state);
      kv::decide(exec, policy, in, state, plan);           // sums scores over the ranks where all heads decide together
      kv::apply(exec, kv::compact{}, plan, cache, state);  // each rank moves the rows of its own heads
    });
    note_kept(model, noted, made);
    for (int step = 0; step < 12; ++step) {
      made.text.push_back(token);
      exec.together([&] {
        kv::append(exec, cache, state, {.tokens = 1, .position = model.length});
        token = model.forward({token});
      });
    }
  }
  // example-end tensor_parallel
  return made;
}

/// Runs the policy on all ranks and on this one alone, and returns how many tokens differ on any rank.
template <class Policy>
int compare(mpi_executor& all, mpi_executor& alone, Policy const& policy) {
  int const heads = tensor_parallel_engine::kv_heads_of_model / all.ranks();
  outcome const got = three_turns(all, policy, {0, heads});
  outcome const expected = three_turns(alone, policy, {all.rank() * heads, (all.rank() + 1) * heads});  // the same ones
  float differ = 0;
  for (std::size_t i = 0; i < expected.text.size(); ++i) differ += got.text[i] != expected.text[i] ? 1.0f : 0.0f;
  for (std::size_t i = 0; i < expected.kept.size(); ++i) differ += got.kept[i] != expected.kept[i] ? 1.0f : 0.0f;
  all.all_reduce(&differ, 1);
  if (all.rank() == 0) {
    std::printf("%s\n ", kv::to_string(policy).c_str());
    for (int const token : got.text) std::printf(" %d", token);
    std::printf("\n  %d tokens and keep sets differ from one process\n", static_cast<int>(differ));
  }
  return static_cast<int>(differ);
}

int run() {
  mpi_executor all(MPI_COMM_WORLD);
  mpi_executor alone(MPI_COMM_SELF);
  try {
    int differ = 0;
    // All heads decide together: their attention is summed over the ranks.
    auto const intent_kv = kv::policies::intent_kv({.budget = 48, .score = {.prefix = 4, .normalize_encoding = true}});
    differ += compare(all, alone, intent_kv);
    // The same for a scorer of lanes, whose scores reduce_lanes sums over all heads of all ranks.
    kv::eviction const knorm{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .decides = kv::granularity::sequence},
                             .protect = kv::sinks{4} | kv::recent{8},
                             .budget = kv::per_lane{40}};
    differ += compare(all, alone, knorm);
    // Every lane decides alone: the ranks exchange nothing.
    differ += compare(all, alone, kv::policies::snapkv({.budget = 32, .score = {.window = 8}}));
    return differ == 0 ? 0 : 1;
  } catch (std::exception const& error) {  // the same on every rank
    std::fprintf(stderr, "rank %d: %s\n", all.rank(), error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int const status = run();
  MPI_Finalize();
  return status;
}

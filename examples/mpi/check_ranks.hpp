// SPDX-License-Identifier: Apache-2.0
// The checks that tensor-parallel ranks fit together: an engine makes them once, or while it is being written.
#pragma once

#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

namespace detail {

/// A number for a text or for the bytes of numbers (FNV-1a); equal ones have the same number.
[[nodiscard]] inline std::uint64_t hash_of(std::string_view bytes, std::uint64_t hash = 14695981039346656037u) {
  for (char const each : bytes) hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211u;
  return hash;
}

struct named_number {
  char const* name;
  std::int64_t value;
  char const* rule;
  bool prints = true;  ///< false: it is a hash, which says nothing to a reader
};

/// Throws the same line on every rank if one of the numbers differs between two ranks.
template <class Executor>
void expect_equal(Executor& exec, char const* call, std::vector<named_number> const& numbers) {
  std::vector<std::int64_t> mine, all(numbers.size() * static_cast<std::size_t>(exec.ranks()));
  for (named_number const& each : numbers) mine.push_back(each.value);
  exec.all_gather(mine.data(), static_cast<int>(mine.size() * sizeof(std::int64_t)), all.data());
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    for (std::size_t rank = 1; rank < all.size() / mine.size(); ++rank) {
      std::int64_t const first = all[n], other = all[rank * mine.size() + n];
      if (first == other) continue;
      std::string const values = numbers[n].prints ? std::to_string(first) + " on rank 0 and " + std::to_string(other)
                                                   : std::string("different on rank 0 and");
      throw kvpolicy::invalid_argument(std::string(call) + ": " + numbers[n].name + " = " + values +
                                       (numbers[n].prints ? " on rank " : " rank ") + std::to_string(rank) + ", but " +
                                       numbers[n].rule);
    }
  }
}

}  // namespace detail

/// Checks that all ranks decide by the same policy about caches of the same shape. Call it on every rank, once, after
/// the caches are there and before the first token.
///
/// - in: `in`, the cache of this rank; its shape counts the heads of this rank only. `Executor` has `ranks()` and
///   `all_gather`.
/// - throws: `kvpolicy::invalid_argument`, the same line on every rank, if the ranks differ. Nothing was changed.
template <class Executor, class Policy>
void check_ranks(Executor& exec, Policy const& policy, kvpolicy::cache const& in) {
  char const* const heads = "every rank computes equally many heads";
  char const* const model = "all ranks compute one model";
  char const* const batch = "all ranks have the same sequences";
  auto const text = static_cast<std::int64_t>(detail::hash_of(kvpolicy::to_string(policy)));
  detail::expect_equal(exec, "check_ranks",
                       {{"shape.layers", in.shape.layers, model},
                        {"shape.query_heads", in.shape.query_heads, heads},
                        {"shape.kv_heads", in.shape.kv_heads, heads},
                        {"shape.head_dim", in.shape.head_dim, model},
                        {"lanes.sequences", in.lanes.sequences, batch},
                        {"lanes.capacity", in.lanes.capacity, batch},
                        {"policy", text, "all ranks decide by one policy", false}});
}

/// Checks that all ranks hold the same tokens, as policies that decide by token need it: equal counts and equal
/// positions in every layer of the first head of each sequence. It reads all of those positions on the host: call it
/// before each `decide` while an engine is being written.
///
/// - throws: `kvpolicy::invalid_argument`, the same line on every rank, if the ranks differ. Nothing was changed.
template <class Executor>
void check_tokens(Executor& exec, kvpolicy::lanes const& batch) {
  std::vector<detail::named_number> numbers;
  for (int sequence = batch.sequence_begin; sequence < batch.sequence_end(); ++sequence) {
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      kvpolicy::lane const first{sequence, layer, 0};
      int const count = batch.committed(first);
      std::string_view const positions(reinterpret_cast<char const*>(batch.position.row(first)),
                                       static_cast<std::size_t>(count) * sizeof(int));
      numbers.push_back({"count", count, "all ranks hold the same tokens of each sequence"});
      numbers.push_back({"positions", static_cast<std::int64_t>(detail::hash_of(positions)),
                         "all ranks hold the same tokens of each sequence", false});
    }
  }
  detail::expect_equal(exec, "check_tokens", numbers);
}

}  // namespace examples

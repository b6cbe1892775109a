// SPDX-License-Identifier: Apache-2.0
// The concepts of a backend that runs kernels, its launch numbers, and the faults that kernels record.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/executor.hpp>
#include <string>
#include <tuple>

namespace KVPOLICY_NAMESPACE {

/// A backend that runs kernels. The verbs of ops/cuda are written once for all such backends. CUDA is one; the tests
/// have another that runs on the host. Such a backend runs blocks of threads with shared memory, barriers and warps of
/// 32.
///
/// A kernel is a value with `template <class Block> KVPOLICY_HD void operator()(Block& block) const`; see block.hpp.
template <class Backend>
concept kernel_backend = requires { requires Backend::runs_kernels; };

/// The backend that runs on an NVIDIA GPU.
struct cuda {
  static constexpr bool runs_kernels = true;
};

/// A number of threads that is known when a kernel is compiled: from 32 to 512, in warps.
template <int Count>
struct static_threads {
  static_assert(Count >= 32 && Count <= 512 && Count % 32 == 0, "kvpolicy: a block has 32 to 512 threads, in warps");
  static constexpr int most = Count;
  static constexpr int compiled = Count;  ///< what collectives of a block are compiled for
  [[nodiscard]] KVPOLICY_HD constexpr operator int() const { return Count; }
};

/// A number of threads that is chosen when a kernel is launched, of which only the highest is known when it is
/// compiled. Such a kernel has no collectives of a block.
template <int Most>
struct threads_up_to {
  static constexpr int most = Most;
  static constexpr int compiled = 0;
  int count = Most;
  [[nodiscard]] KVPOLICY_HD constexpr operator int() const { return count; }
};

/// The threads of the blocks of an executor, by what a block does. No result of a decision depends on them. On CUDA
/// they are static_threads, on an emulated device they may be ints.
template <class Segment, class Entry, class Row, class Lane>
struct block_threads {
  Segment segment;  ///< of a block that reads a whole segment: top_k, argmin, select_if
  Entry entry;      ///< of a block that reads a piece of a lane's entries
  Row row;          ///< of a block that moves rows, one warp for each row
  Lane lane;        ///< of a block that updates counts and tables of lanes
};

/// The grid of one launch: blocks, threads, dynamic shared memory and clusters. `Threads` is static_threads,
/// threads_up_to, or int on a device that compiles no kernels.
template <class Threads = static_threads<32>>
struct launch_shape {
  int blocks = 1;          ///< a multiple of `cluster`
  Threads threads{};       ///< a multiple of 32
  std::size_t shared = 0;  ///< bytes for each block
  int cluster = 1;         ///< blocks of a cluster: a power of two
};

namespace detail {

/// The same number of threads, but not more than `Most`.
template <int Most>
[[nodiscard]] constexpr int at_most(int threads) {
  return threads < Most ? threads : Most;
}
template <int Most, int Count>
[[nodiscard]] constexpr static_threads<(Count < Most ? Count : Most)> at_most(static_threads<Count>) {
  return {};
}

/// `count` threads, where there are `wanted` at most.
[[nodiscard]] constexpr int fewer(int, int count) { return count; }
template <int Count>
[[nodiscard]] constexpr threads_up_to<Count> fewer(static_threads<Count>, int count) {
  return {count};
}

}  // namespace detail

/// The launch configuration for a device. It is chosen by compute capability, can be printed, and a benchmark may try
/// others. No result of a decision depends on it.
struct launch_config {
  int entries_of_a_block = 1024;            ///< entries of a block that reads a piece of a lane's
  int shared_bytes = 48 * 1024;             ///< shared memory that a block may use
  int resident_keys = 0;                    ///< keys that top_k keeps in shared memory at most; 0: as many as fit
  int processors = 132;                     ///< multiprocessors (SMs) of the device
  int blocks_of_a_processor = 8;            ///< blocks to launch for each multiprocessor where blocks share lanes
  int entries_of_a_selection = 0x7FFFFFFF;  ///< entries whose ordinals one selection lists
  int overlapped_launches = 1;              ///< 0: no kernel begins before the one before it has ended
  static constexpr auto name = "launch_numbers";
  static constexpr auto fields() {
    return make_fields(field{"entries_of_a_block", &launch_config::entries_of_a_block},
                       field{"shared_bytes", &launch_config::shared_bytes},
                       field{"resident_keys", &launch_config::resident_keys},
                       field{"processors", &launch_config::processors},
                       field{"blocks_of_a_processor", &launch_config::blocks_of_a_processor},
                       field{"entries_of_a_selection", &launch_config::entries_of_a_selection},
                       field{"overlapped_launches", &launch_config::overlapped_launches});
  }
  friend bool operator==(launch_config const&, launch_config const&) = default;
};

/// The launch numbers for a compute capability, which is 10 * major + minor. On an H100 these were measured, and no
/// others.
[[nodiscard]] constexpr launch_config launch_config_for(int capability, int processors) {
  launch_config made;
  made.processors = processors;
  if (capability >= 90) {
    made.shared_bytes = 227 * 1024;
  } else if (capability >= 80) {
    made.shared_bytes = (capability == 80 ? 163 : 99) * 1024;
  }
  return made;
}

/// The kinds of errors that kernels find in data. A kernel cannot throw: it records a fault, the verbs that follow
/// change nothing, and `check()` of the executor throws once the caller can wait for the device.
enum class fault : int {
  none,
  append_bound,
  append_position,
  append_drafts,
  commit_drafts,
  stale_plan,
  ragged_lanes,
  unequal_counts,
  append_column,
  span,
  decide_span,
  list_slot,
  list_dead_slot,
  list_prefix,
  list_map,
  list_shared,
  relist_slot,
  window_drafts,
  window_tokens,
  window_position,
  pages_supply,
  pages_sentinel,
  pages_bound,
  pages_position,
  step_drafts,
  step_position,
  append_count,
  truncate_count,
  apply_count,
  decide_count,
  unequal_positions,
  truncate_order,
  select_count,
  select_position,
  used_plan,
  table_unit,
  gram_matrix,
  mass_rows,
  fault_count
};

/// Whether a kind is one of these.
template <class... Kinds>
[[nodiscard]] KVPOLICY_HD constexpr bool is_one_of(fault kind, Kinds... kinds) {
  return ((kind == kinds) || ...);
}

/// The group of a kind. Kinds of one group can be found by the same launch; of these the lowest kind is reported, with
/// the lowest index. Between groups, the fault that was found first is reported.
[[nodiscard]] KVPOLICY_HD constexpr int group_of(fault kind) {
  if (is_one_of(kind, fault::append_bound, fault::append_position, fault::append_drafts, fault::append_count)) return 1;
  if (is_one_of(kind, fault::list_slot, fault::list_dead_slot, fault::list_prefix, fault::list_map, fault::list_shared))
    return 2;
  if (is_one_of(kind, fault::window_drafts, fault::window_tokens)) return 3;
  if (is_one_of(kind, fault::pages_supply, fault::pages_sentinel, fault::pages_bound, fault::pages_position)) return 4;
  if (is_one_of(kind, fault::step_drafts, fault::step_position)) return 5;
  if (is_one_of(kind, fault::stale_plan, fault::used_plan, fault::apply_count, fault::table_unit)) return 6;
  if (is_one_of(kind, fault::unequal_counts, fault::decide_count, fault::unequal_positions)) return 7;
  if (is_one_of(kind, fault::truncate_count, fault::truncate_order)) return 8;
  if (is_one_of(kind, fault::select_count, fault::select_position)) return 9;
  return 16 + static_cast<int>(kind);
}

/// The recorded fault, packed into one number so that atomic_min keeps the lowest: 8 bits of kind, 24 of index, 32 of
/// value. All ones mean that there is none. The result does not depend on which thread comes first.
struct device_error {
  std::uint64_t* data = nullptr;

  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  [[nodiscard]] KVPOLICY_HD static constexpr std::uint64_t pack(fault kind, std::int64_t index, std::int64_t value) {
    std::uint64_t const lane = index < 0xFFFFFF ? static_cast<std::uint64_t>(index) : 0xFFFFFFu;
    return static_cast<std::uint64_t>(kind) << 56 | lane << 32 | static_cast<std::uint32_t>(value);
  }
  [[nodiscard]] KVPOLICY_HD bool raised() const { return *data != nothing; }
};

/// Where a selection writes its numbers: from to[*first] on. Both are in the executor's memory.
struct selected_numbers {
  int* to = nullptr;
  std::int64_t const* first = nullptr;
};

/// The bytes of scratch that a selection from `count` numbers may use. They are aligned to 256.
[[nodiscard]] constexpr std::size_t selection_bytes(std::int64_t count) {
  return (static_cast<std::size_t>(count) / 32 + 4096) / 256 * 256;
}

namespace detail {

struct no_number {
  [[nodiscard]] KVPOLICY_HD int operator()(unsigned) const { return -1; }
};

}  // namespace detail

/// An executor that launches kernels on a stream, in order. It owns scratch, a `device_error`, the launch numbers and a
/// few tickets, which are ints that are 0 before and after every launch (see `last_block`). `clusters()` is how many
/// blocks a cluster may have: a power of two from 1 to 8.
///
/// `select_numbers(count, number, to, storage)` writes number(i), for i from 0 below `count` and in this order, where
/// it is not negative. `number` is a function of its argument alone. `storage` is a part of scratch that has
/// selection_bytes(count). A selection allocates nothing, does not wait, and can be captured.
template <class E>
concept kernel_executor = executor<E> && kernel_backend<typename E::backend> && requires(E& exec) {
  { exec.config() } -> std::convertible_to<launch_config>;
  { exec.threads().segment } -> std::convertible_to<int>;
  { exec.scratch() } -> std::same_as<std::byte*>;
  { exec.tickets() } -> std::same_as<int*>;
  { exec.clusters() } -> std::same_as<int>;
  { exec.faults() } -> std::same_as<device_error>;
  exec.select_numbers(std::int64_t{1}, detail::no_number{}, selected_numbers{}, exec.scratch());
  exec.check();
};

namespace detail {

/// Refuses an executor with less scratch than a verb needs, before anything is launched.
template <class Executor>
void check_scratch(char const* verb, Executor const& exec, std::size_t needed) {
  expects(exec.reserved() >= needed, verb, "exec.reserved", exec.reserved(), [&] {
    return "the verb needs " + std::to_string(needed) +
           " bytes of scratch: the scorer, recorder or applier that runs it names it (using verbs = "
           "kvpolicy::verbs<...>), and make_state or make_plan reserves scratch for it";
  });
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

// What a backend of kernels is: verbs are launches of values that a block of threads runs.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/fields.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {

/// A backend that runs kernels. Every verb of ops/cuda is written once for all of them: CUDA's, and whatever else can
/// run a block of threads with shared memory, barriers and warps of 32 (the tests have one on the host).
///
/// A kernel is a value with `template <class Block> KVPOLICY_HD void operator()(Block& block) const`; see block.hpp.
template <class Backend>
concept kernel_backend = requires { requires Backend::runs_kernels; };

/// The backend that runs on an NVIDIA GPU.
struct cuda {
  static constexpr bool runs_kernels = true;
};

/// How many blocks of how many threads run a kernel, and what each has of shared memory.
struct launch_shape {
  int blocks = 1;
  int threads = 32;        ///< a multiple of 32
  std::size_t shared = 0;  ///< bytes a block
};

/// Numbers that suit a device: chosen by compute capability, printable, and a bench may try others. No result depends
/// on them.
struct launch_config {
  int segment_threads = 512;  ///< of a block that reads a whole segment: top_k, argmin, select_if
  int entry_threads = 256;    ///< of a block that takes a piece of a lane's entries
  int entries_of_a_block = 1024;
  int row_threads = 256;          ///< of a block that moves rows, a warp a row
  int lane_threads = 128;         ///< of a block that does a lane's bookkeeping
  int shared_bytes = 48 * 1024;   ///< shared memory that a block may have
  int collected_keys = 0;         ///< that top_k collects of a segment in shared memory; 0: as its bound asks for
  int processors = 132;           ///< multiprocessors of the device
  int blocks_of_a_processor = 8;  ///< blocks that share out work by lanes, for each of them
  static constexpr auto name = "launch_numbers";
  static constexpr auto fields() {
    return std::tuple{field{"segment_threads", &launch_config::segment_threads},
                      field{"entry_threads", &launch_config::entry_threads},
                      field{"entries_of_a_block", &launch_config::entries_of_a_block},
                      field{"row_threads", &launch_config::row_threads},
                      field{"lane_threads", &launch_config::lane_threads},
                      field{"shared_bytes", &launch_config::shared_bytes},
                      field{"collected_keys", &launch_config::collected_keys},
                      field{"processors", &launch_config::processors},
                      field{"blocks_of_a_processor", &launch_config::blocks_of_a_processor}};
  }
  friend bool operator==(launch_config const&, launch_config const&) = default;
};

/// The numbers for a compute capability, as 10 * major + minor. None has been measured yet.
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

/// What a device finds wrong with its data. Nothing can be thrown there: the verbs that follow change nothing, and
/// `check()` of the executor throws, where the caller can wait for the device.
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
  fault_count
};

/// Kinds that one launch can find together. Of these the lowest is told, with the lowest index; between groups it is
/// the first that was found.
[[nodiscard]] KVPOLICY_HD constexpr int group_of(fault kind) {
  switch (kind) {
    case fault::append_bound:
    case fault::append_position:
    case fault::append_drafts:
    case fault::append_count:
      return 1;
    case fault::list_slot:
    case fault::list_dead_slot:
    case fault::list_prefix:
    case fault::list_map:
    case fault::list_shared:
      return 2;
    case fault::window_drafts:
    case fault::window_tokens:
      return 3;
    case fault::pages_supply:
    case fault::pages_sentinel:
    case fault::pages_bound:
    case fault::pages_position:
      return 4;
    case fault::step_drafts:
    case fault::step_position:
      return 5;
    case fault::stale_plan:
    case fault::apply_count:
      return 6;
    case fault::unequal_counts:
    case fault::decide_count:
    case fault::unequal_positions:
      return 7;
    default:
      return 16 + static_cast<int>(kind);
  }
}

/// The first fault, of the lowest kind and index, as one number: 8 bits of kind, 24 of index, 32 of value. All ones:
/// none. Which thread came first does not matter.
struct device_error {
  std::uint64_t* data = nullptr;

  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  [[nodiscard]] KVPOLICY_HD static constexpr std::uint64_t pack(fault kind, std::int64_t index, std::int64_t value) {
    std::uint64_t const lane = index < 0xFFFFFF ? static_cast<std::uint64_t>(index) : 0xFFFFFFu;
    return static_cast<std::uint64_t>(kind) << 56 | lane << 32 | static_cast<std::uint32_t>(value);
  }
  [[nodiscard]] KVPOLICY_HD bool raised() const { return *data != nothing; }
};

/// An executor that launches kernels on a stream, in order, and owns scratch, a fault word, launch numbers and a few
/// tickets: ints that are 0 before and after every launch.
template <class E>
concept kernel_executor = executor<E> && kernel_backend<typename E::backend> && requires(E& exec) {
  { exec.config() } -> std::convertible_to<launch_config>;
  { exec.scratch() } -> std::same_as<std::byte*>;
  { exec.tickets() } -> std::same_as<int*>;
  { exec.faults() } -> std::same_as<device_error>;
  exec.check();
};

}  // namespace KVPOLICY_NAMESPACE

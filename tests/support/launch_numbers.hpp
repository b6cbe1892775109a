// SPDX-License-Identifier: Apache-2.0
// The launch numbers and threads that tests choose for a device.
#pragma once

#include <kvpolicy/ops/cuda/run/backend.hpp>

namespace kvpolicy_test {

namespace kv = kvpolicy;

/// The threads of blocks and the launch numbers. On CUDA kernels are compiled for other threads, and those here are
/// not used.
struct launch_numbers {
  int segment_threads = 512;
  int entry_threads = 256;
  int entries_of_a_block = 1024;
  int row_threads = 256;
  int lane_threads = 128;
  int shared_bytes = 48 * 1024;
  int resident_keys = 0;
  int processors = 132;
  int blocks_of_a_processor = 8;
  int entries_of_a_selection = 0x7FFFFFFF;

  [[nodiscard]] kv::launch_config config() const {
    return {entries_of_a_block, shared_bytes, resident_keys, processors, blocks_of_a_processor, entries_of_a_selection};
  }
  [[nodiscard]] kv::block_threads<int, int, int, int> threads() const {
    return {segment_threads, entry_threads, row_threads, lane_threads};
  }
};

}  // namespace kvpolicy_test

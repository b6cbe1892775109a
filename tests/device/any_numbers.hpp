// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/launch_numbers.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// One processor, and blocks of so many threads and entries.
inline launch_numbers numbers_of(int threads, int entries) {
  launch_numbers made;
  made.entry_threads = threads;
  made.entries_of_a_block = entries;
  made.processors = 1;
  return made;
}

/// Inside a property: launch numbers that make small tests have many pieces and tiles.
inline launch_numbers any_numbers() {
  launch_numbers of;
  of.entry_threads = *rc::gen::element(64, 32, 128);
  of.row_threads = *rc::gen::element(64, 32, 128);
  of.lane_threads = *rc::gen::element(32, 64);
  of.segment_threads = *rc::gen::element(64, 32, 128);
  of.entries_of_a_block = *rc::gen::element(48, 7, 1024);
  of.processors = *rc::gen::element(3, 1);
  of.blocks_of_a_processor = *rc::gen::element(8, 1);
  return of;
}

}  // namespace kvpolicy_test

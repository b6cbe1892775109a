#pragma once

#include <rapidcheck.h>

#include "support/launch_numbers.hpp"

namespace kvpolicy_test {

namespace kv = kvpolicy;

/// Inside a property: launch numbers that make small tests have many pieces and tiles.
inline launch_numbers any_numbers() {
  launch_numbers of;
  of.entry_threads = *rc::gen::element(64, 32, 128);
  of.lane_threads = *rc::gen::element(32, 64);
  of.segment_threads = *rc::gen::element(64, 32, 128);
  of.entries_of_a_block = *rc::gen::element(48, 7, 1024);
  of.processors = *rc::gen::element(3, 1);
  return of;
}

}  // namespace kvpolicy_test

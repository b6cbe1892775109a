// SPDX-License-Identifier: Apache-2.0
// Launch numbers of any kind, and numbers of a verb that must be the host's whichever they are.
#pragma once

#include "support/device.hpp"
#include "support/launch_numbers.hpp"
#include "support/verbs.hpp"

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

/// A batch of any rows that a device reads, drawn inside a property.
struct batch_case {
  explicit batch_case(std::vector<content> const& rows, int most_lanes = 6)
      : batch_case(any_batch(rows, most_lanes, true)) {}
  explicit batch_case(mock_options const& of) : shape(of), cache(of) {}
  mock_options shape;
  filled_cache cache;
  std::uint64_t seed = shape.seed;
};

/// A verb's numbers are the host's, and those of two devices that launch it in other ways are the same bits. A case is
/// made in every run of the property, where it draws its inputs: a `seed`, a call on an executor that returns the
/// numbers, and `same(found, expected)`, which says how near those of a device are to the host's.
template <class Case>
void is_as_on_host(char const* law, int share) {
  holds(law, share, [] {
    Case now;
    kv::host_executor host;
    device_executor device(any_numbers(), now.seed), other(any_numbers(), now.seed + 1);
    std::vector<float> const found = now(device);
    RC_ASSERT(same_bits(found, now(other)));
    RC_ASSERT(now.same(found, now(host)));
  });
}

}  // namespace kvpolicy_test

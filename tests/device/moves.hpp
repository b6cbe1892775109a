// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>

#include "support/device.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// Few threads, or more: no result depends on it.
inline launch_numbers numbers_of(int threads) {
  return {.segment_threads = threads,
          .entry_threads = threads,
          .entries_of_a_block = 48,
          .row_threads = threads,
          .lane_threads = threads,
          .shared_bytes = threads > 32 ? 48 * 1024 : 2048,
          .processors = 5};
}

/// Columns of some widths for all lanes, of which some move with the entries, and one says how much is true.
class held_bytes {
 public:
  held_bytes(int lanes, kv::lanes const& batch, std::uint64_t seed) : random_(seed) {
    using enum kv::on_move;
    for (int const width : {4, 3, 16, 1})
      add(lanes, batch, {"moved", kv::column_extent::lane_entry, permute, width}, batch.capacity);
    add(lanes, batch, {"fixed", kv::column_extent::lane_entry, stay, 4}, batch.capacity);
    add(lanes, batch, {"window", kv::column_extent::window_row, permute, 4}, batch.capacity);
    add(lanes, batch, {"known", kv::column_extent::lane, recompute, 4}, 1);
    for (int i = 0; i < lanes; ++i)
      reinterpret_cast<int*>(memory_.back().data())[i] = random_.below(batch.capacity + 1);
  }
  [[nodiscard]] std::span<kv::recorded_column const> view() const { return columns_; }
  [[nodiscard]] std::vector<std::vector<std::byte>> const& bytes() const { return memory_; }

 private:
  void add(int lanes, kv::lanes const& batch, kv::column about, int units) {
    std::int64_t const row = std::int64_t{about.bytes} * units;
    auto& mine = memory_.emplace_back(as_size(row * lanes));
    for (std::byte& each : mine) each = static_cast<std::byte>(random_.below(256));
    std::int64_t const layer = row * batch.heads;
    columns_.push_back({about, {mine.data(), lanes / batch.sequences * row, layer, row}});
  }

  dice random_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<kv::recorded_column> columns_;
};

/// Ordinals that stay: any, none, all, or all from or up to somewhere.
inline std::vector<int> any_kept(dice& random, int committed) {
  std::vector<int> kept = random.subset(committed, random.below(committed + 1));
  int const middle = random.below(committed + 1);
  switch (random.below(6)) {
    case 0:
      return {};
    case 1:
      return random.subset(committed, committed);
    case 2:  // a front that stays
      kept.clear();
      for (int e = 0; e < committed; ++e) {
        if (e < middle || random.chance(50)) kept.push_back(e);
      }
      return kept;
    case 3:  // one goes
      kept = random.subset(committed, committed);
      if (middle < committed) kept.erase(kept.begin() + middle);
      return kept;
    default:
      return kept;
  }
}

struct raise_fault {
  kv::device_error faults;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    kv::detail::report_fault(block, faults, kv::fault::stale_plan, 3, 7);
  }
};

/// True if a verb that follows a fault changes nothing, and the fault is told afterwards.
template <class Verb, class Save>
bool is_idle_after_a_fault(device_executor& device, Verb const& verb, Save const& save) {
  auto const before = save();
  device.launch(kv::launch_shape{}, raise_fault{device.faults()});
  verb();
  bool told = false;
  try {
    device.check();
  } catch (std::invalid_argument const&) {
    told = true;
  }
  return told && save() == before;
}

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// What a call that throws must leave as it was.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "fixture.hpp"

namespace llama_cpp_test {

/// What llama.cpp has of the sequences of an engine: the positions of their cells and the rows in them. `cells` are
/// those that the engine has noted.
struct cells_and_rows {
  std::vector<std::vector<std::uint8_t>> states{};
  std::vector<std::vector<int>> cells{};
  int free = 0;
  friend bool operator==(cells_and_rows const&, cells_and_rows const&) = default;
};

/// - in: `sequences` without the spare one, which is looked at, too.
template <class Engine>
cells_and_rows look_at(Engine& engine, int sequences) {
  cells_and_rows made;
  for (int s = 0; s <= sequences; ++s) {
    std::vector<std::uint8_t> state(llama_state_seq_get_size(engine.get(), s));
    state.resize(llama_state_seq_get_data(engine.get(), state.data(), state.size(), s));
    made.states.push_back(std::move(state));
    if (s == sequences) continue;
    kv::cache const cache = engine.view(s);
    int const* const cells = cache.where.table.row({});
    made.cells.emplace_back(cells, cells + engine.count(s));
    for (int lane = 0; lane < engine.shape().layers * engine.shape().kv_heads; ++lane) {
      auto const positions = engine.positions({s, lane / engine.shape().kv_heads, lane % engine.shape().kv_heads});
      made.cells.emplace_back(positions.begin(), positions.end());
    }
  }
  made.free = engine.free_count();
  return made;
}

}  // namespace llama_cpp_test

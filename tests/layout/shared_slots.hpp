// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

enum class table_kind { block_table, slot_map, csr_pages, by_lane, one_pool };

/// Slots of which some name the first blocks of slot 0, too. Every number in memory differs from every other one.
struct shared_slots {
  static constexpr int slots = 4, layers = 2, heads = 2, bound = 24, dims = 2;

  shared_slots(table_kind of, int of_page, std::uint64_t seed)
      : tables(of), page(of == table_kind::slot_map ? 1 : of_page) {
    blocks = (bound + page - 1) / page;
    lanes_apart = of == table_kind::by_lane || of == table_kind::one_pool;
    rows = slots * (lanes_apart ? layers * heads : 1);
    bool const one = of == table_kind::one_pool;
    units = 5 * rows * blocks;
    k.resize(as_size(units * page * dims * (one ? 1 : layers * heads)));
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i);
    v = k;
    dice random(seed);
    table.assign(as_size(rows * blocks), -1);
    freed.assign(table.size(), -7);
    released = freed;
    freed_count.assign(as_size(rows), -7);
    released_count = freed_count;
    for (int row = 0; row < rows; ++row) begin.push_back(row * blocks);
    next = 0;
    for (int row = 0; row < rows; ++row) {
      if (!one && lanes_apart && row % (layers * heads) == 0) next = row / (layers * heads) * blocks;
      int const first = next;
      for (int i = 0; i < blocks; ++i) at(row, i) = first + i;
      if (one || !lanes_apart || row % (layers * heads) == layers * heads - 1) next = first + blocks;
    }
    for (int s = 0; s < slots; ++s) lengths.push_back(1 + random.below(bound - 2));
    for (int s = 1; s < slots; ++s) {
      int const whole = std::min(lengths[0], lengths[as_size(s)]) / page;
      int const common = random.chance(30) ? 0 : random.below(whole + 1);
      int const lanes = rows / slots;
      for (int r = 0; r < lanes; ++r) {
        for (int i = 0; i < common; ++i) at(s * lanes + r, i) = at(r, i);
      }
    }
  }
  shared_slots(shared_slots const&) = delete;
  shared_slots& operator=(shared_slots const&) = delete;

  int& at(int row, int i) { return table[as_size(row * blocks + i)]; }
  template <class T>
  kv::by_lane<T> rows_of(std::vector<int>& of, int width) {
    std::int64_t const head = lanes_apart ? width : 0;
    return {of.data(), head > 0 ? head * layers * heads : width, head * heads, head};
  }
  kv::by_lane<int> list() {
    return tables == table_kind::csr_pages ? kv::by_lane<int>{table.data(), 0, 0, 0} : rows_of<int>(table, blocks);
  }
  kv::unit_list freed_list() { return {rows_of<int>(freed, blocks), rows_of<int>(freed_count, 1)}; }
  kv::unit_list released_list() { return {rows_of<int>(released, blocks), rows_of<int>(released_count, 1)}; }
  kv::cache view() {
    kv::cache made{.shape = {.layers = layers, .query_heads = heads, .kv_heads = heads, .head_dim = dims}};
    made.lanes = lanes_over(count, position, slots, layers, heads, bound);
    bool const one = tables == table_kind::one_pool;
    auto const plane = [&](std::vector<float>& of) {
      std::int64_t const row = dims * 4, token = one ? row : heads * row;
      return kv::plane{.base = reinterpret_cast<std::byte*>(of.data()),
                       .element = kv::codec::f32,
                       .channels = dims,
                       .layer_stride = one ? 0 : units * page * token,
                       .unit_stride = page * token,
                       .token_stride = token,
                       .head_stride = one ? 0 : row,
                       .channel_stride = 4};
    };
    made.k = plane(k);
    made.v = plane(v);
    kv::by_lane<int> const read = list();
    kv::by_lane<int const> const named{read.data, read.sequence, read.layer, read.head};
    if (tables == table_kind::slot_map) {
      made.where = kv::slot_map(named, units);
    } else if (tables == table_kind::csr_pages) {
      made.where = kv::csr_pages(named, {begin.data(), 1, 0, 0}, page, units);
    } else {
      made.where = kv::block_table(named, page, units);
    }
    return made;
  }

  /// A pool of a lane, and what a slot names in it: its first lane's entries.
  struct user {
    int slot, layer, head;
    auto operator<=>(user const&) const = default;
  };
  /// The users of each unit of each pool, one for each row of the table and block of it with entries.
  [[nodiscard]] std::map<std::pair<int, int>, std::vector<user>> users() {
    std::map<std::pair<int, int>, std::vector<user>> made;
    for (int s = 0; s < slots; ++s) {
      for (int r = 0; r < rows / slots; ++r) {
        user const one{s, r / heads, r % heads};
        for (int i = 0; i < used(one); ++i) made[{pool_of(one), at(s * rows / slots + r, i)}].push_back(one);
      }
    }
    return made;
  }
  [[nodiscard]] int pool_of(user one) const { return tables == table_kind::by_lane ? one.layer * heads + one.head : 0; }
  [[nodiscard]] int used(user one) {
    int most = 0;
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < heads; ++head) {
        if (lanes_apart && (layer != one.layer || head != one.head)) continue;
        most = std::max(most, *view().lanes.count.row({one.slot, layer, head}));
      }
    }
    return (most + page - 1) / page;
  }
  [[nodiscard]] std::vector<int> row(std::vector<int> const& of, user one) const {
    int const r = one.slot * (rows / slots) + (lanes_apart ? one.layer * heads + one.head : 0);
    return {of.begin() + r * blocks, of.begin() + (r + 1) * blocks};
  }
  [[nodiscard]] auto save() const {
    return std::tuple(k, v, table, count, position, freed, freed_count, released, released_count);
  }

  table_kind tables;
  int page, blocks, rows, units;
  bool lanes_apart;
  std::vector<float> k, v;
  std::vector<int> table, freed, freed_count, released, released_count, begin, lengths;
  std::vector<int> count = std::vector<int>(slots * layers * heads);
  std::vector<int> position = std::vector<int>(slots * layers * heads * bound);
  int next;  ///< the first page that nobody has
};

}  // namespace kvpolicy_test

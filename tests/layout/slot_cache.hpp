// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <numeric>

#include "reference/attention.hpp"
#include "support/dice.hpp"
#include "support/elements.hpp"

namespace kvpolicy_test {

namespace kv = kvpolicy;
namespace reference = kvpolicy_reference;

struct slot_options {
  kv::shape model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4};
  int sequences = 1;
  int bound = 16;
  int spare = 1;          ///< slots beyond what the sequences need; the last slot is nobody's
  int page = 1;           ///< tokens a unit
  bool by_lane = false;   ///< a list, a count and positions for every lane, or one for all lanes of a sequence
  bool one_list = false;  ///< the lists of all rows in one array, found through where each begins
  kv::codec element = kv::codec::f32;
  std::uint64_t seed = 1;
};

/// An engine's cache of slots or pages with all the tables that appliers may write, guard bytes around the rows. The
/// tables are public: an engine edits them.
class slot_cache {
 public:
  explicit slot_cache(slot_options const& how)
      : options(how),
        rows(how.sequences * (how.by_lane ? how.model.layers * how.model.kv_heads : 1)),
        places((how.bound + how.page - 1) / how.page),
        units(how.sequences * places + how.spare),
        map_row(4 * how.bound),
        random(how.seed) {
    auto const all = [&](int width, int value) { return std::vector<int>(at(rows * width), value); };
    list = all(places, -1);
    map = all(map_row, units - 1);
    position = all(how.bound, -1);
    freed = released = all(how.bound, -7);
    count = freed_count = released_count = prefix = locked = all(1, 0);
    in_flight.assign(at(how.sequences), 0);
    for (int r = 0; r < rows; ++r) begin.push_back(r * places);
    int const lanes = rows / how.sequences;
    for (int lane = 0; lane < lanes; ++lane) {
      std::vector<int> const slots = random.permutation(units - 1);
      for (int s = 0; s < how.sequences; ++s) {
        for (int i = 0; i < places; ++i) list[at((s * lanes + lane) * places + i)] = slots[at(s * places + i)];
      }
    }
    std::int64_t const w = kv::bytes_of(how.element);
    k_row = how.model.head_dim * w;
    v_row = (how.model.value_dim != 0 ? how.model.value_dim : how.model.head_dim) * w;
    tokens = std::int64_t{how.model.layers} * units * how.page * how.model.kv_heads;
    memory.assign(as_size(tokens * (k_row + v_row) + 3 * guard), std::byte{0xA5});
  }
  slot_cache(slot_cache const&) = delete;
  slot_cache& operator=(slot_cache const&) = delete;

  // --- What the library sees -----------------------------------------------------------------------------------------

  template <class T = int>
  kv::by_lane<T> table(std::vector<int>& of, int width) const {
    std::int64_t const head = options.by_lane ? width : 0;
    std::int64_t const layer = head * options.model.kv_heads;
    return {of.data(), options.by_lane ? layer * options.model.layers : width, layer, head};
  }
  kv::by_lane<int> list_table() {
    return options.one_list ? kv::by_lane<int>{list.data(), 0, 0, 0} : table(list, places);
  }
  kv::by_lane<int> map_table() { return table(map, map_row); }
  kv::unit_list freed_list() { return {table(freed, options.bound), table(freed_count, 1)}; }
  kv::unit_list released_list() { return {table(released, options.bound), table(released_count, 1)}; }
  kv::dead_slot<> redirecting() {
    return {.list = list_table(),
            .map = map_table(),
            .dead = dead(),
            .protected_prefix = table<int const>(prefix, 1),
            .locked_prefix = table<int const>(locked, 1),
            .freed = freed_list(),
            .released = released_list()};
  }

  kv::lanes lanes() {
    return {.sequences = options.sequences,
            .layer_begin = 0,
            .layer_end = options.model.layers,
            .heads = options.model.kv_heads,
            .capacity = options.bound,
            .count = table(count, 1),
            .position = table(position, options.bound),
            .in_flight = in_flight.data()};
  }
  kv::locator where() {
    auto const read = list_table();
    kv::by_lane<int const> const table_read{read.data, read.sequence, read.layer, read.head};
    if (options.one_list) return kv::csr_pages(table_read, table<int const>(begin, 1), options.page, units);
    if (options.page > 1) return kv::block_table(table_read, options.page, units);
    return kv::slot_map(table_read, units);
  }
  kv::cache view() {
    auto const plane = [&](std::int64_t base, std::int64_t row) {
      std::int64_t const token = options.model.kv_heads * row;
      return kv::plane{memory.data() + base,
                       options.element,
                       static_cast<int>(row / kv::bytes_of(options.element)),
                       units * options.page * token,
                       options.page * token,
                       token,
                       row,
                       kv::bytes_of(options.element)};
    };
    return {options.model, lanes(), plane(guard, k_row), plane(2 * guard + tokens * k_row, v_row), where()};
  }
  /// A view whose lanes have an order, of which `order` is the memory.
  kv::cache view(std::vector<kv::lane_order>& order) {
    order.assign(at(rows), {});
    kv::cache made = view();
    auto const like = table(count, 1);
    made.lanes.order = {order.data(), like.sequence, like.layer, like.head};
    return made;
  }

  // --- What the test sees --------------------------------------------------------------------------------------------

  static std::size_t at(std::int64_t i) { return as_size(i); }
  [[nodiscard]] int lane_count() const { return options.sequences * options.model.layers * options.model.kv_heads; }
  [[nodiscard]] kv::lane lane_at(int i) const {
    int const heads = options.model.kv_heads;
    return {i / heads / options.model.layers, i / heads % options.model.layers, i % heads};
  }
  [[nodiscard]] int row_of(kv::lane this_lane) const {
    if (!options.by_lane) return this_lane.sequence;
    return (this_lane.sequence * options.model.layers + this_lane.layer) * options.model.kv_heads + this_lane.head;
  }
  [[nodiscard]] int dead() const { return units - 1; }
  [[nodiscard]] int held(kv::lane this_lane) const { return count[at(row_of(this_lane))]; }
  [[nodiscard]] int committed(kv::lane this_lane) const { return held(this_lane) - in_flight[at(this_lane.sequence)]; }

  /// The first `n` numbers of a lane's row.
  [[nodiscard]] std::vector<int> row(std::vector<int> const& of, kv::lane this_lane, int n) const {
    auto const first = of.begin() + static_cast<std::ptrdiff_t>(of.size()) / rows * row_of(this_lane);
    return {first, first + n};
  }
  [[nodiscard]] std::vector<int> positions(kv::lane this_lane) const {
    return row(position, this_lane, held(this_lane));
  }
  [[nodiscard]] std::vector<int> listed(kv::lane this_lane) const { return row(list, this_lane, held(this_lane)); }

  [[nodiscard]] std::byte* bytes(bool key, kv::lane this_lane, int unit, int token = 0) {
    std::int64_t const width = key ? k_row : v_row;
    std::int64_t const base = key ? guard : 2 * guard + tokens * k_row;
    std::int64_t const token_at = (std::int64_t{this_lane.layer} * units + unit) * options.page + token;
    return memory.data() + base + (token_at * options.model.kv_heads + this_lane.head) * width;
  }
  [[nodiscard]] reference::row read(bool key, kv::lane this_lane, int unit, int token = 0) {
    reference::row values;
    std::int64_t const w = kv::bytes_of(options.element);
    for (std::int64_t d = 0; d < (key ? k_row : v_row) / w; ++d) {
      values.push_back(decoded(options.element, bytes(key, this_lane, unit, token) + d * w));
    }
    return values;
  }
  void write(bool key, kv::lane this_lane, int unit, int token, reference::row const& values) {
    std::int64_t const w = kv::bytes_of(options.element);
    for (std::size_t d = 0; d < values.size(); ++d) {
      encode(options.element, values[d], bytes(key, this_lane, unit, token) + static_cast<std::int64_t>(d) * w);
    }
  }

  /// The row of a token, of a lane: the same in every cache of this shape and seed, exact in every element type.
  [[nodiscard]] reference::row token_row(bool key, kv::lane this_lane, int number) const {
    auto const lane = static_cast<std::uint64_t>((this_lane.sequence * 64 + this_lane.layer) * 64 + this_lane.head);
    dice from(lane * 1000003u + static_cast<std::uint64_t>(number) * 2u + (key ? 1u : 0u) + options.seed * 77u);
    reference::row values;
    std::int64_t const width = (key ? k_row : v_row) / kv::bytes_of(options.element);
    for (std::int64_t d = 0; d < width; ++d) values.push_back(from.between(-128, 128) / 64.0);
    return values;
  }

  /// Whether the rows of every entry are those of its position, wherever they are.
  [[nodiscard]] bool rows_follow() {
    for (int i = 0; i < lane_count(); ++i) {
      kv::lane const one = lane_at(i);
      std::vector<kv::place> const found_at = entry_places(one);
      std::vector<int> const at_positions = positions(one);
      for (std::size_t e = 0; e < found_at.size(); ++e) {
        for (bool const key : {true, false}) {
          reference::row const found = read(key, one, static_cast<int>(found_at[e].unit), found_at[e].token);
          if (found != token_row(key, one, at_positions[e])) return false;
        }
      }
    }
    return true;
  }

  /// What an engine does before it appends a token: rows of every lane behind its last entry, and the map.
  void write_token(int sequence, int position_of_it, int number) {
    for (int i = 0; i < lane_count(); ++i) {
      kv::lane const this_lane = lane_at(i);
      if (this_lane.sequence != sequence) continue;
      int const ordinal = held(this_lane);
      int const unit = list[at(row_of(this_lane) * places + ordinal / options.page)];
      write(true, this_lane, unit, ordinal % options.page, token_row(true, this_lane, number));
      write(false, this_lane, unit, ordinal % options.page, token_row(false, this_lane, number));
      map[at(row_of(this_lane) * map_row + position_of_it)] = unit;
    }
  }

  /// softmax(q k / sqrt(D)) v over these places.
  [[nodiscard]] reference::row attend(kv::lane this_lane, reference::row const& query,
                                      std::vector<kv::place> const& over) {
    reference::row logits;
    reference::matrix values;
    for (kv::place const& one : over) {
      reference::row const key = read(true, this_lane, static_cast<int>(one.unit), one.token);
      logits.push_back(reference::dot(query, key) / std::sqrt(static_cast<double>(query.size())));
      values.push_back(read(false, this_lane, static_cast<int>(one.unit), one.token));
    }
    reference::row const weights = reference::softmax(logits, std::vector<bool>(over.size(), true));
    reference::row output(as_size(v_row / kv::bytes_of(options.element)), 0.0);
    for (std::size_t j = 0; j < over.size(); ++j) {
      for (std::size_t d = 0; d < output.size(); ++d) output[d] += weights[j] * values[j][d];
    }
    return output;
  }
  /// The places of a lane's entries, as the cache's locator says.
  [[nodiscard]] std::vector<kv::place> entry_places(kv::lane this_lane) {
    std::vector<kv::place> over;
    kv::locator const by = where();
    for (int e = 0; e < held(this_lane); ++e) over.push_back(by.at(this_lane, e));
    return over;
  }

  /// Everything that a call could have changed.
  struct snapshot {
    std::vector<std::byte> memory;
    std::vector<std::vector<int>> tables;
    friend bool operator==(snapshot const&, snapshot const&) = default;
  };
  [[nodiscard]] snapshot save() const {
    return {
        memory,
        {list, map, begin, position, count, in_flight, freed, freed_count, released, released_count, prefix, locked}};
  }

  static constexpr std::int64_t guard = 64;
  slot_options options;
  int rows, places, units, map_row;
  std::int64_t k_row = 0, v_row = 0, tokens = 0;
  dice random;
  std::vector<std::byte> memory;
  std::vector<int> list, map, begin, position, count, in_flight, freed, freed_count, released, released_count, prefix,
      locked;
};

}  // namespace kvpolicy_test

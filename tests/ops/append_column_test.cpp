// SPDX-License-Identifier: Apache-2.0
// append_column on every instruction set, against a plain loop.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Numbers of new tokens, token by token or head by head, of two sequences and layers, and a column's counts. Some
/// sequences have drafts in flight. The newest entry of every lane is at the position bound - 1.
struct told {
  static constexpr int layers = 2, sequences = 2;

  told(dice& random, kv::codec element, int num_heads, int tokens, bool by_token)
      : heads(num_heads),
        lanes(sequences * layers * num_heads),
        bound(tokens + 9),
        how_many(as_size(lanes), tokens),
        count(as_size(lanes)),
        drafts{random.chance(50) ? random.below(4) : 0, random.chance(50) ? random.below(4) : 0} {
    std::int64_t const width = kv::bytes_of(element);
    std::int64_t const padding = random.below(3) * width;
    numbers.element = element;
    numbers.head = by_token ? width : width * tokens;
    numbers.entry = by_token ? width * heads + padding : width;
    numbers.layer = by_token ? numbers.entry * tokens : numbers.head * heads;
    numbers.sequence = numbers.layer * layers;
    numbers.entries = tokens;
    bytes.resize(as_size(numbers.sequence * sequences + 1));
    for (std::byte& each : bytes) each = static_cast<std::byte>(random.chance(30) ? 0 : random.below(256));
    numbers.base = bytes.data() + 1;
    if (random.chance(50)) {
      for (int& each : how_many) each = random.chance(50) ? tokens : random.below(tokens + 1);
      numbers.counts = {how_many.data(), std::int64_t{layers} * heads, heads, 1};
    }
    for (std::size_t i = 0; i < count.size(); ++i) {
      count[i] = random.between(how_many[i] + 3, bound);
      for (int e = 0; e < bound; ++e) entries.push_back(bound - count[i] + e);
    }
  }
  void give_positions(dice& random) {
    for (int i = 0; i < numbers.entries; ++i) {
      position.push_back(random.chance(30) ? -1 : bound - numbers.entries + i);
    }
    numbers.position = {position.data()};
  }
  [[nodiscard]] kv::lanes batch() { return lanes_over(count, entries, sequences, layers, heads, bound, drafts.data()); }
  [[nodiscard]] kv::by_lane<float> table(std::vector<float>& column) const {
    return {column.data(), std::int64_t{layers} * heads * bound, std::int64_t{heads} * bound, bound};
  }
  [[nodiscard]] std::vector<float> appended(kv::isa level, int threads) {
    std::vector<float> column(as_size(std::int64_t{lanes} * bound), 7.0f);
    kv::host_executor exec(threads, level);
    kv::ops::append_column(exec, batch(), numbers, table(column));
    return column;
  }
  [[nodiscard]] std::vector<float> expected() {
    std::vector<float> column(as_size(std::int64_t{lanes} * bound), 7.0f);
    for (int i = 0; i < lanes; ++i) {
      kv::lane const one = batch().at(i);
      int const in_flight = drafts[as_size(one.sequence)];
      int next = count[as_size(i)] - in_flight;
      for (int e = numbers.count(one) - 1; e >= 0; --e) {
        // No entry of these columns is without a number, so that all are those of drafts where some are in flight.
        bool const draft = position.empty() ? in_flight > 0 : position[as_size(e)] >= bound - in_flight;
        if (draft || (!position.empty() && position[as_size(e)] < 0)) continue;
        float const number = kv::load(numbers.element, numbers.at(one, e));
        column[as_size(std::int64_t{i} * bound + --next)] = number == 0.0f ? -0.0f : number;
      }
    }
    return column;
  }

  int heads, lanes, bound;
  std::vector<std::byte> bytes;
  std::vector<int> how_many, count, position, entries;
  std::vector<int> drafts;  ///< of each sequence
  kv::entry_numbers numbers;
};

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

TEST_SUITE("append_column") {
  TEST_CASE("every lane gets its numbers but those of drafts, zeros as -0, in any layout, on every instruction set") {
    holds("every layout", [] {
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1u << 20));
      auto const element = *rc::gen::element(kv::codec::bf16, kv::codec::f32, kv::codec::f16);
      told lanes(random, element, random.chance(50) ? 8 * random.between(1, 3) : random.between(1, 20),
                 random.chance(20) ? random.between(0, 1) : random.between(0, 70), random.chance(70));
      if (random.chance(40)) lanes.give_positions(random);
      std::vector<float> const should = lanes.expected();
      for (kv::isa const level : every_isa) RC_ASSERT(same_bits(lanes.appended(level, random.between(1, 3)), should));
    });
  }

  TEST_CASE("more numbers than a stretch of the loop") {
    for (int const heads : {8, 5}) {
      for (kv::codec const element : {kv::codec::bf16, kv::codec::f32}) {
        dice random(5);
        told lanes(random, element, heads, 2503, true);
        for (kv::isa const level : every_isa) CHECK(same_bits(lanes.appended(level, 2), lanes.expected()));
      }
    }
  }

  TEST_CASE("a lane with fewer entries than numbers is refused, and no column changes") {
    dice random(9);
    told lanes(random, kv::codec::bf16, 8, 20, true);
    lanes.numbers.counts = {};
    lanes.drafts = {0, 0};
    lanes.count.assign(lanes.count.size(), 20);
    lanes.count.back() = 19;
    std::vector<float> column(as_size(std::int64_t{lanes.lanes} * lanes.bound), 7.0f);
    std::vector<float> const before = column;
    kv::host_executor exec(2);
    CHECK(error_of([&] { kv::ops::append_column(exec, lanes.batch(), lanes.numbers, lanes.table(column)); }) ==
          "observe: entries = 20, but lane 31 holds 19 entries");
    CHECK(column == before);
  }
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// update_query_memory on every instruction set, against plain loops in double precision.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Rows of one lane of two query heads, a few bytes apart, and its memory.
struct one_lane {
  static constexpr int heads = 2;

  one_lane(dice& random, kv::codec type, int channels, int num_rows)
      : element(type),
        dims(channels),
        rows(num_rows),
        step(dims * kv::bytes_of(type) + random.below(3) * kv::bytes_of(type)),
        bytes(as_size(heads * rows * step) + 1),
        memory(as_size(heads * dims)) {
    for (int i = 0; i < heads * rows; ++i) {
      for (int d = 0; d < dims; ++d) encode(element, random.real(4), at(i) + d * kv::bytes_of(element));
    }
    for (float& each : memory) each = static_cast<float>(random.real(0.2));
  }
  /// The rows begin at an odd address.
  [[nodiscard]] std::byte* at(int row) { return bytes.data() + 1 + row * step; }
  [[nodiscard]] kv::turn_queries view() {
    kv::turn_queries made;
    made.base = at(0);
    made.element = element;
    made.dims = dims;
    made.head = std::int64_t{rows} * step;
    made.row = step;
    made.heads = heads;
    made.rows = rows;
    return made;
  }
  /// The memory after an update on this instruction set.
  [[nodiscard]] std::vector<float> updated(kv::isa level, kv::query_memory_update const& how) {
    kv::host_executor exec(1, level);
    kv::shape model;
    model.head_dim = dims;
    model.kv_heads = 1;
    model.query_heads = heads;
    exec.reserve(kv::implementation<kv::ops::update_query_memory_t, kv::host>::scratch(model, 0));
    std::vector<float> made = memory;
    int count = 1;
    kv::lanes const lanes{.layer_end = 1, .heads = 1, .capacity = 1, .count = {&count}};
    kv::ops::update_query_memory(exec, lanes, view(), how, kv::by_lane<float>{made.data()});
    return made;
  }

  kv::codec element;
  int dims, rows, step;
  std::vector<std::byte> bytes;
  std::vector<float> memory;
};

void make_unit(std::vector<double>& values) {
  double square = 0;
  for (double const each : values) square += each * each;
  for (double& each : values) each /= square > 0 ? std::sqrt(square) : 1;
}

/// What the verb's definition makes of a head's memory.
std::vector<double> expected(one_lane& of, int head, kv::query_memory_update const& how) {
  std::vector<double> mean(as_size(of.dims), 0.0);
  int const some = std::min(how.tail, of.rows);
  for (int r = of.rows - some; r < of.rows; ++r) {
    for (int d = 0; d < of.dims; ++d) {
      mean[as_size(d)] += decoded(of.element, of.at(head * of.rows + r) + d * kv::bytes_of(of.element)) / some;
    }
  }
  if (how.normalise) make_unit(mean);
  for (int d = 0; d < of.dims; ++d) {
    mean[as_size(d)] += static_cast<double>(how.keep) * static_cast<double>(of.memory[as_size(head * of.dims + d)]);
  }
  make_unit(mean);
  return mean;
}

TEST_SUITE("update_query_memory") {
  TEST_CASE("it is what its definition says, with the same bits on every instruction set") {
    holds("every instruction set", [] {
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1u << 20));
      auto const element = any_float();
      one_lane lane(random, element, random.chance(50) ? random.between(1, 300) : 64 * random.between(1, 4),
                    random.between(1, 70));
      kv::query_memory_update const how{random.chance(30) ? 0.0f : 0.6f, random.chance(50), random.between(1, 80)};
      std::vector<float> const portable = lane.updated(kv::isa::portable, how);
      for (int head = 0; head < one_lane::heads; ++head) {
        std::vector<double> const should = expected(lane, head, how);
        for (int d = 0; d < lane.dims; ++d) {
          auto const is = static_cast<double>(portable[as_size(head * lane.dims + d)]);
          RC_ASSERT(std::abs(is - should[as_size(d)]) < 1e-7);
        }
      }
      for (kv::isa const level : every_isa) RC_ASSERT(lane.updated(level, how) == portable);
    });
  }

  TEST_CASE("numbers of any size, infinities and NaNs have the same bits on every instruction set") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      dice random(7);
      one_lane lane(random, element, 150, 40);
      for (std::byte& each : lane.bytes) each = static_cast<std::byte>(random.below(256));
      std::vector<float> const portable = lane.updated(kv::isa::portable, {0.5f, true, 40});
      for (kv::isa const level : every_isa) {
        std::vector<float> const made = lane.updated(level, {0.5f, true, 40});
        for (std::size_t i = 0; i < made.size(); ++i) {
          CHECK(std::isnan(made[i]) == std::isnan(portable[i]));
          if (!std::isnan(made[i])) CHECK(made[i] == portable[i]);
        }
      }
    }
  }

  TEST_CASE("a memory of NaN is dropped where nothing of it is kept, and zeros stay zeros") {
    for (kv::isa const level : every_isa) {
      dice random(3);
      one_lane lane(random, kv::codec::bf16, 24, 5);
      for (float& each : lane.memory) each = std::numeric_limits<float>::quiet_NaN();
      for (float const each : lane.updated(level, {0, false, 5})) CHECK(!std::isnan(each));
      std::fill(lane.memory.begin(), lane.memory.end(), 0.0f);
      std::fill(lane.bytes.begin(), lane.bytes.end(), std::byte{0});
      for (float const each : lane.updated(level, {0.6f, true, 5})) CHECK(each == 0.0f);
    }
  }
}

}  // namespace

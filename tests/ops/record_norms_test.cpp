// SPDX-License-Identifier: Apache-2.0
// record_norms: only entries without a number get one, wherever the last recorded number is.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Rows of some lanes, and a column in which the first `known` entries of each have numbers.
struct recorded_lanes {
  explicit recorded_lanes(dice& random, kv::codec of)
      : element(of),
        lanes(random.chance(40) ? random.between(20, 50) : random.between(1, 5)),
        bound(random.between(1, lanes > 5 ? 12 : 300)),
        dims(random.chance(20) ? 128 : random.between(1, 40)),
        row(dims * kv::bytes_of(element)),
        bytes(as_size(lanes * bound * row)),
        column(as_size(lanes * bound)) {
    for (int i = 0; i < lanes * bound * dims; ++i)
      encode(element, random.real(2), bytes.data() + i * kv::bytes_of(element));
    for (int lane = 0; lane < lanes; ++lane) {
      count.push_back(random.below(bound + 1));
      known.push_back(random.chance(30) ? count.back() : random.below(count.back() + 1));
      for (int e = 0; e < known.back(); ++e) at(lane, e) = random.chance(20) ? 0.0f : -7.0f;
      if (known.back() > 0) at(lane, known.back() - 1) = -0.0f;
    }
  }
  [[nodiscard]] float& at(int lane, int e) { return column[as_size(lane * bound + e)]; }
  [[nodiscard]] bool is_new(int lane, int e) const { return e >= known[as_size(lane)] && e < count[as_size(lane)]; }
  void record(kv::host_executor& exec) {
    kv::lanes const among{.layer_end = 1, .heads = lanes, .capacity = bound, .count = {count.data(), 0, 0, 1}};
    kv::plane const plane{.base = bytes.data(),
                          .element = element,
                          .channels = dims,
                          .token_stride = row,
                          .head_stride = std::int64_t{bound} * row,
                          .channel_stride = kv::bytes_of(element)};
    kv::ops::record_norms(exec, kv::row_view{plane, kv::identity_map(bound)},
                          kv::contiguous_scores(among, kv::granularity::lane, column.data(), bound));
  }
  [[nodiscard]] double norm(int lane, int e) const {
    double square = 0;
    for (int d = 0; d < dims; ++d) {
      double const value = decoded(element, bytes.data() + (lane * bound + e) * row + d * kv::bytes_of(element));
      square += value * value;
    }
    return std::sqrt(square);
  }

  kv::codec element;
  int lanes, bound, dims, row;
  std::vector<std::byte> bytes;
  std::vector<float> column;
  std::vector<int> count, known;
};

TEST_SUITE("record_norms") {
  TEST_CASE("recorded numbers stay, and the entries behind the last of them get their norms") {
    holds("any number of recorded entries", [] {
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1u << 20));
      recorded_lanes on(random, *rc::gen::element(kv::codec::bf16, kv::codec::f32, kv::codec::f16));
      recorded_lanes before = on;
      kv::host_executor exec(random.between(1, 2), *rc::gen::element(kv::isa::portable, kv::isa::avx2, kv::best_isa()));
      on.record(exec);
      for (int lane = 0; lane < on.lanes; ++lane) {
        for (int e = 0; e < on.bound; ++e) {
          float const is = on.at(lane, e);
          if (on.is_new(lane, e)) {
            RC_ASSERT(std::signbit(is));
            RC_ASSERT(std::abs(-static_cast<double>(is) - on.norm(lane, e)) <= 1e-6 * on.norm(lane, e));
          } else {
            RC_ASSERT(std::memcmp(&is, &before.at(lane, e), sizeof is) == 0);
          }
        }
      }
    });
  }
}

}  // namespace

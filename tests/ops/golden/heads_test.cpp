// SPDX-License-Identifier: Apache-2.0
// Gates, residual heads and the sums of features: bits on every instruction set.

#include "support/golden.hpp"

namespace golden_heads_test {

using namespace kvpolicy_test;

/// Weights, one tensor after another. They stay where they are.
struct drawn {
  dice random;
  std::vector<float> all;
  std::size_t next = 0;

  explicit drawn(std::uint64_t seed) : random(seed), all(1 << 18) {
    for (float& each : all) each = static_cast<float>(random.real(0.3));
  }
  float* take(int floats) {
    next += as_size(floats);
    return all.data() + next - floats;
  }
};

std::uint64_t of_gates(kv::isa level) {
  folded all;
  drawn from(3);
  for (int const dims : {8, 20, 33, 64, 300}) {
    for (int const hidden : {3, 32, 75}) {
      for (int const entries : {1, 5, 50}) {
        from.next = 0;
        auto const fc1 = from.take(2 * dims * hidden), bias = from.take(hidden), fc2 = from.take(2 * hidden);
        auto const last = from.take(2), norm = from.take(dims);
        kv::write_gate_weights const writing{1, 1, dims, hidden, norm, norm, fc1, bias, fc2, last};
        kv::retention_gate_weights const keeping{1, 2, dims, hidden, fc1, bias, fc2, last};
        std::vector<std::byte> const rows = any_rows(from.random, kv::codec::bf16, as_size(entries * dims), true);
        kv::plane const plane{.base = const_cast<std::byte*>(rows.data()),
                              .element = kv::codec::bf16,
                              .channels = dims,
                              .token_stride = 2 * std::int64_t{dims},
                              .channel_stride = 2};
        kv::row_view const view{plane, kv::identity_map(entries)};
        kv::hidden_rows hidden_of;
        hidden_of.base = rows.data(), hidden_of.dims = dims, hidden_of.element = kv::codec::bf16,
        hidden_of.row = 2 * std::int64_t{dims};
        std::vector<int> count{entries, entries};
        std::vector<float> out(as_size(2 * entries));
        kv::lanes lanes{.layer_end = 1, .heads = 1, .capacity = entries, .count = {count.data(), 0, 0, 1}};
        kv::host_executor exec(1, level);
        kv::ops::write_gates.reserve(exec, writing);
        kv::ops::retention_gates.reserve(exec, keeping);
        kv::ops::write_gates(exec, lanes, view, view, writing, kv::by_lane<float>{out.data()});
        all.add(std::span<float const>(out));
        lanes.heads = 2;
        kv::ops::retention_gates(exec, lanes, hidden_of, keeping, kv::by_lane<float>{out.data(), 0, 0, entries});
        all.add(std::span<float const>(out));
      }
    }
  }
  return all.bits();
}

/// Scores of tokens, from the sums of their keys, recorded and not, and a head that attends to a span of any length.
std::uint64_t of_heads(kv::isa level) {
  folded all;
  drawn from(4);
  constexpr int entries = 170;
  for (int const dims : {8, 40}) {
    for (int const span : {0, 1, 20, 150}) {
      int const width = 24, inner = 45, phi = 3 * dims + 1;
      from.next = 0;
      kv::residual_head head{.dims = dims, .width = width, .hidden = inner, .alpha = 1.5f};
      head.w_q = from.take(width * phi), head.w_q_bias = from.take(width);
      head.w_k = from.take(width * dims), head.w_k_bias = from.take(width);
      head.w_v = from.take(width * dims), head.w_v_bias = from.take(width);
      head.fc1 = from.take(inner * (phi + width)), head.fc1_bias = from.take(inner);
      head.fc2 = from.take(inner), head.fc2_bias = from.take(1);
      std::vector<std::byte> numbers = any_rows(from.random, kv::codec::f16, as_size(3 * entries * dims), true);
      std::vector<int> position = up_to(entries);
      int count = entries;
      kv::cache in;
      in.lanes = {.layer_end = 1, .heads = 3, .capacity = entries, .count = {&count}, .position = {position.data()}};
      in.k = {.base = numbers.data(), .element = kv::codec::f16, .channels = dims, .channel_stride = 2};
      in.k.token_stride = 2 * dims, in.k.head_stride = entries * in.k.token_stride;
      in.where = kv::identity_map(entries);
      kv::turn_queries turn;
      turn.base = reinterpret_cast<std::byte const*>(from.take(3 * dims)), turn.element = kv::codec::f32;
      turn.dims = dims, turn.heads = 3, turn.rows = 1, turn.head = turn.row = 4 * std::int64_t{dims};
      std::vector<float> features(as_size((entries + 1) * dims)), scores(entries, 0.25f),
          sums(as_size(entries * dims * 3));
      scores[9] = -std::numeric_limits<float>::infinity();
      kv::score_view const out = kv::contiguous_scores(in.lanes, kv::granularity::sequence, scores.data(), entries);
      kv::token_features const tokens{features.data(), dims, entries};
      int const each = (dims + 2) / 3;
      kv::key_sums const recorded{{sums.data(), 0, 0, std::int64_t{entries} * each}, each, 1};
      kv::host_executor exec(1, level);
      kv::shape const model{1, 3, 3, dims};
      exec.reserve(kv::implementation<kv::ops::record_key_sums_t, kv::host>::scratch(model, 0));
      count = 99;
      kv::ops::record_key_sums(exec, kv::keys_of(in), in.lanes, recorded);
      count = entries;
      kv::ops::feature_sums(exec, kv::keys_of(in), turn, recorded, out, tokens);
      all.add(std::span<float const>(features));
      std::vector<float> scratch(as_size(kv::ops::residual_t::scratch_floats(head, entries)));
      std::vector<int> places(as_size(span + 1));
      for (int r = 0; r < span; ++r) places[as_size(r)] = 3 + r;
      turn.rows = span, turn.position = {places.data()};
      kv::ops::residual(exec, tokens, turn, head, kv::residual_options{span + 1, true}, out, scratch.data());
      all.add(std::span<float const>(scores));
    }
  }
  return all.bits();
}

TEST_SUITE("ops/golden/heads") {
  // A sum's order follows the vectors' width, and products and sums are fused where there is such an operation.
  TEST_CASE("kernels give the bits that they gave before") {
    std::uint64_t const before[][2] = {{0x27AB587CCF5D821Du, 0x2CAEC90F73E07906u},
                                       {0xDB86F1C8321AAD1Au, 0xE291B9BA1824D755u},
                                       {0x39DDB4A882363E95u, 0xB07976B51C9C5924u}};
    for_each_isa([&](kv::isa level) {
      if (!has_recorded_sums) return;
      auto const& expected = before[static_cast<int>(std::min(level, kv::isa::avx512))];
      CHECK(of_gates(level) == expected[0]);
      CHECK(of_heads(level) == expected[1]);
    });
  }
}

}  // namespace golden_heads_test

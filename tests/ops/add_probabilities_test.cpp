// SPDX-License-Identifier: Apache-2.0
// add_probabilities: the rows that an engine's softmax gives, added to the mass of entries, over many stretches of
// lanes that hold different numbers of entries.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

void adds_as_the_reference() {
  int const sequences = *rc::gen::inRange(1, 3);
  int const heads = *rc::gen::inRange(1, 3);
  int const group = *rc::gen::element(1, 4, 8, 9);
  int const rows = *rc::gen::element(1, 3);
  int const bound = *rc::gen::element(33, 4096, 4097, 9000);
  auto const element = any_float();
  auto const how = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
  dice random(any_seed());
  std::vector<int> counts(as_size(sequences * heads));
  for (int& each : counts) each = random.one_of<int>({0, 10, std::min(bound, 4096), bound, random.below(bound + 1)});
  owned_lanes const lanes(sequences, 1, heads, bound, counts);
  int const width = kv::bytes_of(element);
  std::int64_t const row = std::int64_t{bound} * width;
  std::int64_t const head = rows * row;
  int const query_heads = heads * group;
  std::vector<std::byte> memory(as_size(sequences * query_heads * head));
  for (std::size_t at = 0; at < memory.size(); at += as_size(width)) {
    kv::store(element, static_cast<float>(random.below(1000)) / 1000, memory.data() + at);
  }
  kv::attention_probabilities from{.base = memory.data(), .element = element, .sequence = query_heads * head};
  from.head = head;
  from.row = row;
  from.heads = query_heads;
  from.rows = rows;
  from.entries = bound;
  std::vector<int> valid(counts.size(), rows);
  if (random.chance(50)) {
    for (int& each : valid) each = random.below(rows + 1);
    from.valid_rows = {valid.data(), heads, 0, 1};
  }
  std::vector<float> mass(counts.size() * as_size(bound), 0.5f);
  kv::host_executor exec(*rc::gen::element(1, 3), *rc::gen::element(kv::isa::portable, kv::isa::avx2, kv::isa::avx512));
  kv::ops::add_probabilities(exec, lanes.view(), from, how, kv::by_lane<float>{mass.data(), heads * bound, 0, bound});
  for (int i = 0; i < sequences * heads; ++i) {
    int const count = counts[as_size(i)];
    for (int e = 0; e < bound; ++e) {
      double all = 0, most = 0;
      for (int h = 0; h < group; ++h) {
        double received = 0;
        for (int r = 0; r < valid[as_size(i)]; ++r) {
          received += decoded(element, memory.data() + (i * group + h) * head + r * row + std::int64_t{e} * width);
        }
        all += received;
        most = std::max(most, received);
      }
      if (how == kv::reduction::mean) all /= group;
      if (how == kv::reduction::max) all = most;
      double const found = static_cast<double>(mass[as_size(i * bound + e)]);
      RC_ASSERT(std::abs(found - (e < count ? 0.5 + all : 0.5)) <= 1e-5);
    }
  }
}

TEST_CASE("probabilities are added to the entries of lanes of any length, and to no others") {
  holds("sums of double precision", adds_as_the_reference);
}

TEST_CASE("a lane without a valid row follows one that has a row") {
  constexpr int heads = 3, bound = 70;
  owned_lanes const lanes(1, 1, heads, bound, {bound, bound, bound});
  std::vector<float> const given(std::size_t{heads} * bound, 0.25f);
  std::vector<int> const valid = {1, 0, 1};
  kv::attention_probabilities from{.base = reinterpret_cast<std::byte const*>(given.data()), .head = 4 * bound};
  from.heads = heads;
  from.rows = 1;
  from.entries = bound;
  from.valid_rows = {valid.data(), heads, 0, 1};
  for (kv::isa const level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
    std::vector<float> mass(given.size(), 1.0f);
    kv::host_executor exec(1, level);
    kv::ops::add_probabilities(exec, lanes.view(), from, kv::reduction::sum,
                               kv::by_lane<float>{mass.data(), 0, 0, bound});
    for (std::size_t e = 0; e < mass.size(); ++e) CHECK(mass[e] == (e / bound == 1 ? 1.0f : 1.25f));
  }
}

}  // namespace

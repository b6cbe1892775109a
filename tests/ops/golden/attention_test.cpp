// SPDX-License-Identifier: Apache-2.0
// attention_mass: bits on every instruction set. Sums of products differ among them.

#include "support/golden.hpp"

namespace golden_attention_test {

using namespace kvpolicy_test;

struct lane_options {
  int entries, dims, heads, rows;
  kv::codec element, row_element;
  int gap;     ///< bytes between keys
  bool plain;  ///< numbers are finite
  bool lse;
  kv::logit_options logits;
};

/// The mass of one lane, whose rows see more and more of its entries.
void add_mass(folded& all, dice& random, kv::isa level, lane_options const& of, kv::attention_mass_options const& how) {
  auto const n = as_size(of.entries), dims = as_size(of.dims);
  auto const every = as_size(of.heads * of.rows);
  std::int64_t const key = of.dims * kv::bytes_of(of.element) + of.gap;
  std::int64_t const row = of.dims * kv::bytes_of(of.row_element);
  auto const extra = as_size(of.gap) * n;
  std::vector<std::byte> keys = any_rows(random, of.element, n * dims + extra, of.plain);
  std::vector<std::byte> const queries = any_rows(random, of.row_element, every * dims, true);
  std::vector<int> position(n), at(as_size(of.rows));
  for (std::size_t e = 0; e < n; ++e) position[e] = static_cast<int>(e);
  for (int r = 0; r < of.rows; ++r) at[as_size(r)] = of.entries * (r + 1) / of.rows - 1;
  std::vector<float> lse(every), mass(n + 3, 0.5f), sinks(as_size(of.heads), 0.25f);
  for (float& each : lse) each = static_cast<float>(random.real(4) + 3);
  int count = of.entries;
  kv::lanes const lanes{
      .layer_end = 1, .heads = 1, .capacity = of.entries, .count = {&count}, .position = {position.data()}};
  kv::keys from{
      {{keys.data(), of.element, of.dims, 0, 0, key, 0, kv::bytes_of(of.element)}, kv::identity_map(of.entries, 1)},
      of.logits};
  if (of.logits.soft_cap > 0) from.logits.sinks.data = sinks.data();
  kv::query_view rows{queries.data(), of.row_element, of.dims,    0, 0, row * of.rows, row,
                      of.heads,       of.rows,        {at.data()}};
  if (of.lse) rows.lse = {lse.data(), 0, 0, of.rows};
  kv::host_executor exec(1, level);
  exec.reserve(
      kv::implementation<kv::ops::compute_attention_mass_t, kv::host>::scratch({1, of.heads, 1, of.dims}, of.entries));
  auto const out = kv::contiguous_scores(lanes, kv::granularity::lane, mass.data(), of.entries + 3);
  kv::ops::compute_attention_mass(exec, from, rows, how, out);
  all.add(std::span<float const>(mass));
}

/// Every product and every reduction. Without `many`, one head has all rows; else heads are reduced apart.
std::uint64_t of_products(kv::isa level, kv::codec element, bool many) {
  folded all;
  dice random(8);
  int turn = 0;
  for (int const dims : {1, 3, 4, 7, 8, 12, 16, 20, 32, 40, 65, 128}) {
    for (int const rows : {1, 2, 4, 5, 16, 17, 32, 33, 140}) {
      ++turn;
      bool const capped = turn % 5 == 0;
      lane_options const one{.entries = turn % 4 == 0 ? 49 : 61,
                             .dims = dims,
                             .heads = many ? 3 : 1,
                             .rows = rows,
                             .element = element,
                             .row_element = turn % 2 == 0 ? kv::codec::bf16 : kv::codec::f32,
                             .gap = turn % 3 == 0 ? 64 : 0,
                             .plain = turn % 7 != 0,
                             .lse = turn % 4 == 1,
                             .logits = {.scale = capped ? 0.7f : 9.0f, .soft_cap = capped ? 2.5f : 0.0f}};
      auto const how = [](int i) {
        return i % 3 == 0 ? kv::reduction::max : i % 3 == 1 ? kv::reduction::mean : kv::reduction::sum;
      };
      add_mass(all, random, level, one,
               {.rows = how(turn / 2), .group = how(turn), .order = static_cast<kv::reduction_order>(turn / 3 % 3)});
    }
  }
  // Several stretches of entries, whose maxima rise and fall.
  for (int const rows : {1, 3, 9, 20}) {
    add_mass(all, random, level,
             {1301, 5, many ? 2 : 1, rows, element, kv::codec::f32, 0, true, false, {.scale = 20.0f}}, {});
  }
  return all.bits();
}

TEST_SUITE("ops/golden/attention") {
  TEST_CASE("compute_attention_mass gives the bits that it gave before") {
    for_each_isa([](kv::isa level) {
      if (level > kv::isa::avx512 || !has_recorded_sums) return;  // those levels round to bf16
      constexpr std::uint64_t golden[3][6] = {{0x32D0B889DFAAD4E6u, 0x3E10316A1E022BC9u, 0xA38C47FEDCAB4A46u,
                                               0xEB0148968503054Du, 0x89203FE4246EE048u, 0xA5DA39ABBC33D49Eu},
                                              {0x6D801FC00CB8CD9Cu, 0x02BC11B6686FA235u, 0xB347E0A73364D69Cu,
                                               0x7A66C7AC48BCA8BAu, 0xD16381927EEA3A33u, 0x7677F54C19BDBEDBu},
                                              {0x796854A109689D99u, 0xABAD62442EDEE6A6u, 0x419A5E30D39AD31Cu,
                                               0x2186FFBFEE700D81u, 0xFC51DDE9D61F0681u, 0x7BA4E64D4BB2F097u}};
      for (int i = 0; i < 6; ++i) {
        CAPTURE(i);
        CHECK(of_products(level, static_cast<kv::codec>(i / 2), i % 2 == 1) == golden[static_cast<int>(level)][i]);
      }
    });
  }
}

}  // namespace golden_attention_test

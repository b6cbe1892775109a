// SPDX-License-Identifier: Apache-2.0
// compute_attention_mass where all query heads of a segment come before rows, against the reference, on the host and on
// the emulated device.

#include "device/as_on_host.hpp"
#include "support/masses.hpp"

namespace heads_first_test {

using namespace kvpolicy_test;

/// The rows of all query heads of a segment reduced head by head, and then these rows.
reference::row mass_of_segment(mock_cache& cache, mock_queries& queries, std::vector<int> const& lanes,
                               kv::attention_mass_options const& how, given_logits const& logits) {
  std::vector<reference::matrix> heads;
  std::size_t entries = 0;
  for (int const i : lanes) {
    reference::lane_attention lane = reference_lane(cache, queries, cache.lane_at(i));
    logits.tell(cache.lane_at(i), lane);
    entries = lane.keys.size();
    for (reference::matrix& head : reference::attention_weights(lane, {})) heads.push_back(std::move(head));
  }
  std::size_t const all = heads.empty() ? 0 : heads[0].size();
  int const wanted = how.used().of(static_cast<int>(entries));
  std::size_t const rows = wanted > 0 ? std::min(all, as_size(wanted)) : all;
  reference::matrix reduced;
  for (std::size_t r = 0; r < rows; ++r) {
    reference::matrix of_heads;
    for (reference::matrix const& head : heads) of_heads.push_back(head[all - rows + r]);
    reference::row one = reference::reduced(of_heads, static_cast<reference::reduction>(how.group), entries);
    double const weight = static_cast<double>(how.weight(static_cast<int>(r), static_cast<int>(rows), 0));
    for (double& each : one) each *= weight;
    reduced.push_back(one);
  }
  if (reduced.empty()) return reference::row(entries, 0.0);
  return reference::reduced(reduced, static_cast<reference::reduction>(how.rows), entries);
}

kv::attention_mass_options any_options() {
  kv::attention_mass_options how;
  how.order = kv::reduction_order::all_heads_then_rows;
  how.rows = *rc::gen::element(kv::reduction::max, kv::reduction::max, kv::reduction::sum, kv::reduction::mean);
  how.group = how.lanes = *rc::gen::element(kv::reduction::mean, kv::reduction::sum, kv::reduction::max);
  int const kind = *rc::gen::inRange(0, 3);
  if (kind == 0) how.last_rows = *rc::gen::element(0, 1, 3, 40);
  if (kind == 1) how.last_part = *rc::gen::element(0.2, 1.0), how.long_part = 0.5, how.long_from = 10;
  if (kind == 2) how.last_part = 0.7, how.long_part = *rc::gen::element(0.0, 0.1, 0.9), how.long_from = 7;
  if (how.rows != kv::reduction::max && any_bool()) how.weight = {.by = kv::weight_of_row::ramp, .last = 1.5f};
  return how;
}

TEST_SUITE("device/heads_first") {
  TEST_CASE("masses are the reference's, for any reduction, shape, layout and element type") {
    holds("heads before rows == reference", 100, [] {
      current_case of({1, 2, 0, 9, 16, 17, 33}, true);
      auto& [shape, cache, rows, queries] = of;
      auto const how = any_options();
      auto const decides = *rc::gen::element(kv::granularity::layer, kv::granularity::sequence);
      dice random(shape.seed);
      bool const given = any_bool();
      given_logits const logits(random, cache.model(), given, given, given);
      kv::keys const keys = logits.keys_of(cache.view());
      kv::host_executor host(*rc::gen::element(1, 3), *rc::gen::elementOf(vector_isas()));
      device_executor device(numbers_of(*rc::gen::element(32, 64, 128), *rc::gen::element(128, 512)), shape.seed);
      auto const on_host = masses_of(host, cache, keys, queries.view(), how, decides);
      auto const on_device = masses_of(device, cache, keys, queries.view(), how, decides);
      kv::lanes const batch = cache.lanes();
      int const segments = kv::segments(batch, decides), together = batch.size() / segments;
      for (int s = 0; s < segments; ++s) {
        std::vector<int> lanes(as_size(together));
        std::iota(lanes.begin(), lanes.end(), kv::first_lane(batch, decides, s));
        reference::row const expected = mass_of_segment(cache, queries, lanes, how, logits);
        for (std::size_t e = 0; e < expected.size(); ++e) {
          std::size_t const at = as_size(s) * as_size(shape.bound + 3) + e;
          double const slack = 1e-4 * std::max(std::fabs(expected[e]), 1e-3);
          RC_ASSERT(std::fabs(static_cast<double>(on_host[at]) - expected[e]) <= slack);
          RC_ASSERT(std::fabs(static_cast<double>(on_device[at]) - expected[e]) <= slack);
        }
      }
    });
  }

  TEST_CASE("more rows than a device takes at once are folded, and no number of a launch changes a bit") {
    mock_options shape{.model = {.layers = 2, .query_heads = 6, .kv_heads = 2, .head_dim = 4}, .bound = 60};
    shape.shared_entries = true;
    mock_cache cache(shape);
    fill(cache, false);
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(60));
    filled_queries queries(cache, kv::codec::f32, 1030, 1030);
    for (int r = 0; r < 1030; ++r) queries.set_position(0, r, r * 60 / 1030);
    for (auto const rows : {kv::reduction::max, kv::reduction::mean}) {
      kv::attention_mass_options const how{.rows = rows,
                                           .group = kv::reduction::mean,
                                           .order = kv::reduction_order::all_heads_then_rows,
                                           .lanes = kv::reduction::mean};
      device_executor small(numbers_of(32, 128), 3), large(numbers_of(128, 1024), 5);
      kv::host_executor host(2);
      auto const masses = [&](auto& exec) {
        return masses_of(exec, cache, kv::keys_of(cache.view()), queries.view(), how, kv::granularity::layer);
      };
      auto const found = masses(small);
      CHECK(*std::max_element(found.begin(), found.end()) > 0);
      CHECK(masses_alike(found, masses(host), 1e-4f));
      CHECK(masses(large) == found);
    }
  }

  TEST_CASE("sums of rows that are given are taken, and what does not fit is refused") {
    mock_options shape{.model = {.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, .bound = 20};
    shape.shared_entries = true;
    mock_cache cache(shape);
    fill(cache, false);
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(20));
    filled_queries queries(cache, kv::codec::f32, 5, 5);
    for (int r = 0; r < 5; ++r) queries.set_position(0, r, 15 + r);
    kv::attention_mass_options how{.rows = kv::reduction::max,
                                   .group = kv::reduction::mean,
                                   .order = kv::reduction_order::all_heads_then_rows,
                                   .lanes = kv::reduction::mean};
    kv::attention_mass_options const plain = how;
    kv::host_executor host;
    device_executor device;
    auto const masses = [&](auto& exec) {
      return masses_of(exec, cache, kv::keys_of(cache.view()), queries.view(), how, kv::granularity::layer);
    };
    auto const computed = masses(host);
    CHECK(*std::max_element(computed.begin(), computed.end()) > 0);
    give_lse(cache, queries, [&](kv::lane one) { return reference_lane(cache, queries, one); });
    CHECK(masses_alike(masses(host), computed, 1e-4f));
    CHECK(masses_alike(masses(device), computed, 1e-4f));
    how.lanes = kv::reduction::sum;
    CHECK(
        error_of([&] { masses(host); }) ==
        "compute_attention_mass: lanes = sum, but where all heads come before rows, heads and lanes are reduced alike");
    how.lanes = kv::reduction::mean;
    how.domain = kv::key_domain::candidates;
    CHECK(error_of([&] { masses(device); }) ==
          "compute_attention_mass: domain = candidates, but where all heads come before rows, no mass is added to what "
          "is there");
    how.domain = kv::key_domain::all;
    how.long_part = 1.5;
    CHECK(error_of([&] { masses(device); }) ==
          "compute_attention_mass: long_part = 1.5, but a part of the entries, 0 to 1");
    static int const valid[] = {5, 3};
    kv::query_view unequal = queries.view();
    unequal.lse = {};
    unequal.valid_rows = {valid, 0, 0, 1};
    auto const unequal_masses = [&](auto& exec) {
      static_cast<void>(masses_of(exec, cache, kv::keys_of(cache.view()), unequal, plain, kv::granularity::layer));
      if constexpr (requires { exec.check(); }) exec.check();
    };
    CHECK(error_of([&] { unequal_masses(host); }) ==
          "compute_attention_mass: queries.rows = 3, but a lane that decides with this one has 5");
    CHECK(error_of([&] { unequal_masses(device); }) ==
          "compute_attention_mass: queries.rows (1) = 3, but lanes that decide together have equally many");
  }
}

}  // namespace heads_first_test

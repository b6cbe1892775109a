// SPDX-License-Identifier: Apache-2.0
// table_power: shares of layers by a table to a power, which the lanes of a layer share; and epi_cache.

#include "support/specs.hpp"

namespace table_power_test {

using namespace kvpolicy_test;

/// The shares of layers: a part of the average for sure, and the rest by weight, up to all entries of a layer.
std::vector<std::int64_t> shares_of(std::vector<double> const& weights, double floor, std::int64_t average,
                                    std::vector<std::int64_t> const& high) {
  std::size_t const layers = weights.size();
  auto const count = static_cast<std::int64_t>(layers);
  std::int64_t const total = count * average;
  if (std::accumulate(high.begin(), high.end(), std::int64_t{0}) <= total) return high;
  double const low = floor * static_cast<double>(average), all = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (low * static_cast<double>(layers) >= static_cast<double>(total))
    return std::vector<std::int64_t>(layers, static_cast<std::int64_t>(low + 1e-9));
  std::vector<double> x(layers);
  std::vector<bool> full(layers, false);
  for (std::size_t l = 0; l < layers; ++l) {
    double const part = all > 0 ? weights[l] / all : 1.0 / static_cast<double>(layers);
    x[l] = low + (static_cast<double>(total) - low * static_cast<double>(layers)) * part;
  }
  for (bool changed = true; changed;) {
    changed = false;
    double excess = 0, open = 0, left = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      if (full[l] || x[l] <= static_cast<double>(high[l])) continue;
      excess += x[l] - static_cast<double>(high[l]);
      x[l] = static_cast<double>(high[l]);
      full[l] = changed = true;
    }
    for (std::size_t l = 0; l < layers; ++l) open += full[l] ? 0 : weights[l], left += full[l] ? 0 : 1;
    for (std::size_t l = 0; l < layers; ++l) x[l] += full[l] ? 0 : excess * (open > 0 ? weights[l] / open : 1 / left);
  }
  std::vector<std::int64_t> made;
  std::vector<std::pair<std::int64_t, std::size_t>> rest;
  for (std::size_t l = 0; l < layers; ++l) {
    made.push_back(static_cast<std::int64_t>(x[l] + 1e-9));
    rest.emplace_back(-static_cast<std::int64_t>(1e9 * (x[l] - static_cast<double>(made[l])) + 0.5), l);
  }
  std::sort(rest.begin(), rest.end());
  std::int64_t const missing = total - std::accumulate(made.begin(), made.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < missing; ++i) ++made[rest[static_cast<std::size_t>(i)].second];
  return made;
}

void pools_by_powers() {
  int const layers = *rc::gen::inRange(1, 7), heads = *rc::gen::element(1, 2, 3), bound = *rc::gen::inRange(1, 50);
  int const tokens = *rc::gen::inRange(0, bound + 3);
  double const power = *rc::gen::element(1.0, 2.0, 0.0), floor = *rc::gen::element(0.0, 0.25, 0.5, 1.0);
  mock_cache cache({.model = {.layers = layers, .query_heads = heads, .kv_heads = heads, .head_dim = 4},
                    .bound = bound,
                    .seed = *rc::gen::inRange<std::uint64_t>(1, 1000)});
  std::vector<float> table;
  std::vector<double> weights;
  std::vector<std::int64_t> held(as_size(layers), 0);
  for (int l = 0; l < layers; ++l) {
    int const eighths = *rc::gen::element(0, 1, 2, 5, 40);
    weights.push_back(std::pow(eighths / 8.0, power));
    for (int h = 0; h < heads; ++h) table.push_back(h == 0 ? static_cast<float>(eighths) / 8 : 99.0f);
  }
  for (int i = 0; i < cache.lane_count(); ++i) {
    int const count = *rc::gen::inRange(0, bound + 1);
    cache.put(cache.lane_at(i), up_to(count));
    held[as_size(i / heads)] += count;
    for (int e = 0; e < count; ++e)
      cache.write(of::keys, cache.lane_at(i), e, {cache.random().below(64) / 8.0, 0, 0, 0});
  }
  kv::table_power const by{{{"drift"}}, power, floor, {table.data(), 0, heads, 1}};
  kv::eviction const policy{.score = kv::knorm{}, .budget = kv::shared_out{.tokens = tokens, .by = by}};
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::cache const view = cache.view();
  auto [state, plan] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
  auto const shares = shares_of(weights, floor, std::int64_t{heads} * tokens, held);
  for (int l = 0; l < layers; ++l) {
    std::vector<std::tuple<double, int, int>> order;
    std::int64_t sum = 0;
    for (int h = 0; h < heads; ++h) {
      int const i = l * heads + h;
      sum += *plan.shares().row(view.lanes.at(i));
      for (int e = 0; e < cache.committed(cache.lane_at(i)); ++e) {
        reference::row const key = cache.rows(of::keys, cache.lane_at(i), e + 1)[as_size(e)];
        order.emplace_back(key[0], h, e);  // the lowest norm is the best
      }
    }
    RC_ASSERT(sum == shares[as_size(l)]);
    std::sort(order.begin(), order.end());
    order.resize(std::min(order.size(), static_cast<std::size_t>(shares[as_size(l)])));
    for (int h = 0; h < heads; ++h) {
      std::vector<int> expected;
      for (auto const& [norm, head, e] : order) {
        if (head == h) expected.push_back(e);
      }
      std::sort(expected.begin(), expected.end());
      RC_ASSERT(listed(plan.keep(), l * heads + h) == expected);
    }
  }
}

TEST_SUITE("parts/table_power") {
  TEST_CASE("layers share by powers of a table, and the lanes of a layer keep their best ones") {
    holds("any tables", 200, pools_by_powers);
  }

  TEST_CASE("worked: two layers of two lanes, 4 entries each on average, a quarter for sure, by 1 and 3 squared") {
    // 2 + 12 * (.1, .9) = 3.2 and 12.8; the entry that is left goes to the larger fraction
    CHECK(shares_of({1, 9}, 0.25, 8, {20, 20}) == std::vector<std::int64_t>{3, 13});
  }

  TEST_CASE("by name it reads a table of the registry, and prints and reads back") {
    static float const numbers[] = {0.5f, 0.5f, 1, 1};
    kv::registry known = kv::shipped();
    known.table("drift", kv::by_lane<float const>{numbers, 0, 2, 1});
    kv::any_policy const named = known.parse("knorm | budget(16, by=table_power, table=drift, power=1.1, floor=0.25)");
    CHECK(kv::to_string(named) == "knorm | budget(16, by=table_power, table=drift, power=1.1, floor=0.25)");
    CHECK(known.parse(kv::to_string(named)) == named);
    CHECK(named.scope() == kv::budget_scope::layer);
    kv::any_policy const system = known.parse("epi_cache | budget(16)");
    CHECK(kv::to_string(system) ==
          "lookahead_kv(recent=0, pool=none, rows=max, group=max) | budget(16, by=table_power, table=drift, power=1.1, "
          "floor=0.25) | when(chunk)");
    CHECK(known.parse(kv::to_string(system)) == system);
    auto const error = [&](char const* spec) { return error_of([&] { (void)known.parse(spec); }); };
    says(error, "parse: ")({
        {"knorm | budget(16, by=table_power, table=other)",
         "column 42 = other, but a table is given to the registry by its name"},
        {"epi_cache(table=other) | budget(16)", "column 17 = other, but a table is given to the registry by its name"},
        {"epi_cache(floor=1.5) | budget(16)", "column 1: epi_cache.floor = 1.5, but a part of the average, 0 to 1"},
        {"knorm | budget(16, by=table_power, table=drift, floor=-1)",
         "column 9: table_power.floor = -1, but a part of the average, 0 to 1"},
        {"knorm | budget(16, by=table_power, table=drift, scope=global)",
         "column 55 = global, but with these shares the lanes of a layer have one budget"},
        {"knorm | budget(16, by=table_power, table=drift, scope=lane)",
         "column 55 = lane, but with these shares the lanes of a layer have one budget"},
        {"epi_cache | budget(16, scope=lane)",
         "column 30 = lane, but with these shares the lanes of a layer have one budget"},
    });
    CHECK(known.parse("knorm | budget(16, by=table_power, table=drift, power=1.1, floor=0.25, scope=layer)") == named);
    CHECK(error("epi_cache | budget(16, scope=global)") ==
          "parse: column 30 = global, but epi_cache has shares that differ, so lanes share with nobody");
    CHECK(error("epi_cache | unlimited") ==
          "parse: column 13 = unlimited, but epi_cache shares out a budget of tokens, of a ratio or of bytes");
  }
}

}  // namespace table_power_test

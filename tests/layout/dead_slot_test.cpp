// SPDX-License-Identifier: Apache-2.0
// dead_slot: what stays bit for bit, what the sentinel row is worth, and what comes back from a prefix tree.

#include "layout/any_slots.hpp"

namespace {

using namespace kvpolicy_test;

/// A sequence on a slot map whose dropped positions are redirected.
struct holed {
  using policy_type = kv::eviction<kv::reduce_lanes<kv::random_scores>, kv::sinks>;

  explicit holed(slot_options const& shape, int sinks = 0)
      : cache(shape),
        policy{.protect = {sinks}},
        view(cache.view()),
        state(kv::make_state(exec, policy, view)),
        plan(kv::make_plan(exec, policy, view)) {}

  void append(int tokens) {
    for (int t = 0; t < tokens; ++t, ++length) {
      for (int s = 0; s < cache.options.sequences; ++s) {
        cache.write_token(s, length, 10 * length + s);
        kv::append(exec, view, state, {s, 1, length});
      }
    }
  }
  void evict(int budget, kv::apply_stats* stats = nullptr) {
    policy.budget.tokens = budget;
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    kv::apply(exec, cache.redirecting(), plan, view, state, stats);
  }
  /// The slot of every position so far, as a kernel reads it that neither strips nor masks.
  [[nodiscard]] std::vector<kv::place> whole_map(kv::lane this_lane) {
    std::vector<kv::place> all;
    for (int const slot : cache.row(cache.map, this_lane, length)) all.push_back({slot, 0});
    return all;
  }
  [[nodiscard]] int dead_positions(kv::lane this_lane) {
    auto const all = cache.row(cache.map, this_lane, length);
    return static_cast<int>(std::count(all.begin(), all.end(), cache.dead()));
  }

  slot_cache cache;
  policy_type policy;
  kv::host_executor exec;
  kv::cache view;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
  int length = 0;
};

double size_of(reference::row const& values) {
  double most = 0;
  for (double const each : values) most = std::max(most, std::abs(each));
  return most;
}

double furthest(reference::row const& a, reference::row const& b) {
  reference::row difference;
  for (std::size_t d = 0; d < a.size(); ++d) difference.push_back(a[d] - b[d]);
  return size_of(difference);
}

/// Attention of the survivors, from tokens' rows alone.
reference::row wanted(holed& of, kv::lane this_lane, reference::row const& query) {
  reference::row logits;
  reference::matrix values;
  for (int const p : of.cache.positions(this_lane)) {
    logits.push_back(reference::dot(query, of.cache.token_row(true, this_lane, 10 * p + this_lane.sequence)) /
                     std::sqrt(static_cast<double>(query.size())));
    values.push_back(of.cache.token_row(false, this_lane, 10 * p + this_lane.sequence));
  }
  auto const weights = reference::softmax(logits, std::vector<bool>(logits.size(), true));
  reference::row output(values.front().size(), 0.0);
  for (std::size_t j = 0; j < values.size(); ++j) {
    for (std::size_t d = 0; d < output.size(); ++d) output[d] += weights[j] * values[j][d];
  }
  return output;
}

double log_sum_exp(holed& of, kv::lane this_lane, reference::row const& query, std::vector<kv::place> const& over) {
  double total = 0;
  for (auto const& one : over) {
    total += std::exp(reference::dot(query, of.cache.read(true, this_lane, static_cast<int>(one.unit))) /
                      std::sqrt(static_cast<double>(query.size())));
  }
  return std::log(total);
}

/// Strips, masks and corrects; each is right, and the row alone is not.
void check_sentinel(holed& of, reference::row const& query, bool against) {
  for (kv::lane const this_lane : lanes_of(of.cache)) {
    auto const expected = wanted(of, this_lane, query);
    RC_ASSERT(size_of(expected) > 1e-3);
    kv::poison(of.exec, of.view, of.cache.dead());

    RC_ASSERT(of.dead_positions(this_lane) > 0);
    auto const alone = of.cache.attend(this_lane, query, of.whole_map(this_lane));
    if (against) RC_ASSERT(size_of(alone) == 0.0);  // the softmax is all on the dead slot, whose value is zero

    RC_ASSERT(furthest(of.cache.attend(this_lane, query, of.cache.entry_places(this_lane)), expected) <= 1e-6);

    std::vector<std::byte> bits(as_size(of.cache.units + 7) / 8, std::byte{0xFF});
    std::vector<std::byte> rows;
    for (int r = 0; r < of.cache.rows; ++r) rows.insert(rows.end(), bits.begin(), bits.end());
    kv::mask const masking{
        of.cache.list_table(),
        {{rows.data(), static_cast<std::int64_t>(bits.size()), 0, 0}, kv::mask_form::bits, of.cache.units}};
    kv::show(of.exec, masking, of.view);
    std::vector<kv::place> readable;
    std::byte const* const row = rows.data() + as_size(this_lane.sequence) * bits.size();
    for (auto const& place : of.whole_map(this_lane)) {
      if ((std::to_integer<int>(row[place.unit / 8]) >> place.unit % 8 & 1) != 0) readable.push_back(place);
    }
    RC_ASSERT(furthest(of.cache.attend(this_lane, query, readable), expected) <= 1e-6);

    kv::blank(of.exec, of.view, of.cache.dead());
    auto const over = of.whole_map(this_lane);
    kv::without_dead const correct{of.dead_positions(this_lane)};
    auto const lse = static_cast<float>(log_sum_exp(of, this_lane, query, over));
    double const scale = static_cast<double>(correct.scale(lse));
    auto corrected = of.cache.attend(this_lane, query, over);
    for (double& each : corrected) each *= scale;
    // d scale = scale^2 * d share, and a share of at most 1 has at most 8 roundings of lse and exp of it.
    RC_ASSERT(furthest(corrected, expected) <= 1e-6 * scale * scale);
    double const live = log_sum_exp(of, this_lane, query, of.cache.entry_places(this_lane));
    RC_ASSERT(std::abs(static_cast<double>(correct.lse(lse)) - live) <= 2e-6 * scale);
  }
}

/// A query whose elements sum to something clearly negative: the sentinel's logit is large and positive.
reference::row query_against(dice& random, int dims) {
  reference::row query;
  double sum = 0;
  for (int d = 0; d < dims; ++d) query.push_back(random.real(1.0));
  for (double const each : query) sum += each;
  for (double& each : query) each = sum > 0 ? -each : each;
  query[0] -= 1.0;
  return query;
}

slot_options any_shape() {
  slot_options shape = any_slots(false);
  shape.model.head_dim = *rc::gen::element(4, 64, 80);
  shape.bound = *rc::gen::element(12, 33);
  shape.element = any_float();
  return shape;
}

}  // namespace

TEST_SUITE("layout/dead_slot") {
  TEST_CASE("a poisoned row attends or not by the sign of the query's sum: -22500 and +7500 at D = 4") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      slot_cache cache({.bound = 4, .element = element});
      kv::host_executor exec;
      kv::poison(exec, cache.view(), cache.dead());
      double const held = element == kv::codec::bf16 ? -9984 : -10000;
      CHECK(cache.read(true, {}, cache.dead()) == reference::row(4, held));
      CHECK(cache.read(false, {}, cache.dead()) == reference::row(4, 0.0));
      auto const logit = [&](reference::row const& q) {
        return reference::dot(q, cache.read(true, {}, cache.dead())) / 2;
      };
      CHECK(logit({1, 2, .5, 1}) == held * 2.25);
      CHECK(logit({1, -2, .5, -1}) == held * -0.75);
      if (element != kv::codec::bf16) CHECK(logit({1, 2, .5, 1}) == -22500);
      if (element != kv::codec::bf16) CHECK(logit({1, -2, .5, -1}) == 7500);
    }
  }

  TEST_CASE("with q = (1, -2, .5, -1) the poisoned row alone makes the output zero; list, mask and correction do not") {
    holed of({.bound = 8});
    of.append(8);
    of.evict(4);
    CHECK(size_of(of.cache.attend({}, {1, -2, .5, -1}, of.whole_map({}))) > 0);  // nothing is written there yet
    check_sentinel(of, {1, -2, .5, -1}, true);
    check_sentinel(of, {1, 2, .5, 1}, false);
  }

  TEST_CASE("whatever the query, attention over the live list, with the mask, or corrected is the survivors'") {
    holds("two evictions in a row", [] {
      holed of(any_shape(), 1);
      dice random(of.cache.options.seed);
      of.append(of.cache.options.bound);
      of.evict(of.cache.options.bound - random.between(1, 4));
      check_sentinel(of, query_against(random, of.cache.options.model.head_dim), true);
      of.evict(of.cache.options.bound / 2);
      check_sentinel(of, query_against(random, of.cache.options.model.head_dim), true);
      of.append(2);
      of.evict(of.cache.options.bound / 2 + 1);
      check_sentinel(of, query_against(random, of.cache.options.model.head_dim), true);
    });
    holds("all candidates dead: only the protected are left", 30, [] {
      holed of(any_shape(), 2);
      dice random(of.cache.options.seed);
      of.append(of.cache.options.bound);
      of.evict(0);
      for (int i = 0; i < of.cache.lane_count(); ++i) {
        RC_ASSERT((of.cache.positions(of.cache.lane_at(i)) == std::vector<int>{0, 1}));
      }
      check_sentinel(of, query_against(random, of.cache.options.model.head_dim), true);
    });
    holds("far more dead than alive", 20, [] {
      slot_options shape = any_shape();
      shape.bound = 400;
      shape.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
      holed of(shape);
      dice random(shape.seed);
      of.append(400);
      of.evict(3);
      check_sentinel(of, query_against(random, 64), true);
    });
  }

  TEST_CASE("rows, positions of the map, length and kept slots are bit for bit what they were") {
    holds("nothing is written but the map's dropped positions, the list, and what the lanes count", [] {
      holed of(any_shape(), *rc::gen::inRange(0, 3));
      dice random(of.cache.options.seed);
      of.append(of.cache.options.bound);
      for (int round = 0; round < 2; ++round) {
        auto const before = of.cache.save();
        auto const map_before = of.cache.map;
        std::vector<std::vector<int>> slots_before, positions_before;
        for (int i = 0; i < of.cache.lane_count(); ++i) {
          slots_before.push_back(of.cache.listed(of.cache.lane_at(i)));
          positions_before.push_back(of.cache.positions(of.cache.lane_at(i)));
        }
        of.evict(random.below(of.cache.options.bound));
        RC_ASSERT(of.cache.memory == before.memory);
        RC_ASSERT(of.cache.begin == before.tables[2]);
        RC_ASSERT(of.cache.in_flight == before.tables[5]);
        auto expected = map_before;
        for (int i = 0; i < of.cache.lane_count(); ++i) {
          kv::lane const this_lane = of.cache.lane_at(i);
          auto const positions = of.cache.positions(this_lane);
          std::set<int> const kept(positions.begin(), positions.end());
          std::vector<int> slots;
          for (std::size_t e = 0; e < slots_before[as_size(i)].size(); ++e) {
            int const position = positions_before[as_size(i)][e];
            if (kept.count(position) != 0) {
              slots.push_back(slots_before[as_size(i)][e]);
            } else {
              expected[as_size(of.cache.row_of(this_lane) * of.cache.map_row + position)] = of.cache.dead();
            }
          }
          RC_ASSERT(of.cache.listed(this_lane) == slots);
        }
        RC_ASSERT(of.cache.map == expected);
      }
    });
  }

  TEST_CASE("blank and poison write one slot and nothing else") {
    holds("in every layer and head", [] {
      holed of(any_shape());
      of.append(5);
      auto before = of.cache.memory;
      int const slot = *rc::gen::inRange(0, of.cache.units);
      bool const zeros = any_bool();
      if (zeros) kv::blank(of.exec, of.view, slot);
      if (!zeros) kv::poison(of.exec, of.view, slot);
      for (int i = 0; i < of.cache.options.model.layers * of.cache.options.model.kv_heads; ++i) {
        kv::lane const this_lane = of.cache.lane_at(i);
        for (double const each : of.cache.read(true, this_lane, slot)) RC_ASSERT((zeros ? each == 0 : each <= -9984));
        for (double const each : of.cache.read(false, this_lane, slot)) RC_ASSERT(each == 0);
        for (bool const key : {true, false}) {
          std::byte* const row = of.cache.bytes(key, this_lane, slot);
          auto const width = as_size(key ? of.cache.k_row : of.cache.v_row);
          std::copy_n(before.begin() + (row - of.cache.memory.data()), width, row);
        }
      }
      RC_ASSERT(of.cache.memory == before);
    });
  }

  TEST_CASE("the tally of a redirect: kept, freed and attended entries of all lanes") {
    holed of({.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 8});
    of.append(8);
    kv::apply_stats stats;
    of.evict(3, &stats);
    CHECK(stats == kv::apply_stats{.logical_kept = 6, .physical_freed = 10, .attended_length = 6});
    CHECK(of.cache.freed_count[0] == 5);
  }

  TEST_CASE("correction without anything alive gives nothing") {
    kv::without_dead const all{3};
    CHECK(all.scale(1.0f) == 0.0f);  // no more than the dead: e^1 < 3
    CHECK(kv::without_dead{1}.scale(0.0f) == 0.0f);
    CHECK(kv::without_dead{0}.scale(1.0f) == 1.0f);
    CHECK(kv::without_dead{0}.lse(1.0f) == 1.0f);
  }
}

// SPDX-License-Identifier: Apache-2.0
// compact_rerotated against keys that were never rotated before: turning a stored key is as rotating the raw one anew.

#include "layout/any_slots.hpp"
#include "reference/rope.hpp"

namespace {

using namespace kvpolicy_test;

/// How keys are rotated, for the library and for the reference.
struct rotation {
  kv::rope how;
  std::vector<float> frequency;  ///< empty: theta's
  int dims = 0;

  [[nodiscard]] reference::row operator()(reference::row const& raw, int position) const {
    reference::row turned(raw.begin(), raw.begin() + dims);
    if (frequency.empty()) {
      auto const pairing =
          how.style == kv::rope_style::neox ? reference::rope_pairing::halves : reference::rope_pairing::pairs;
      turned = reference::rotated(turned, position, {how.theta, pairing});
    } else {
      for (std::size_t i = 0; i < frequency.size(); ++i) {
        std::size_t const a = how.style == kv::rope_style::neox ? i : 2 * i;
        std::size_t const b = how.style == kv::rope_style::neox ? i + frequency.size() : 2 * i + 1;
        double const angle = position * static_cast<double>(frequency[i]);
        turned[a] = raw[a] * std::cos(angle) - raw[b] * std::sin(angle);
        turned[b] = raw[b] * std::cos(angle) + raw[a] * std::sin(angle);
      }
    }
    reference::row all = raw;
    std::copy(turned.begin(), turned.end(), all.begin());
    return all;
  }
};

/// `made.how.frequency` is set by the caller: the table must not move.
rotation any_rotation(int head_dim) {
  rotation made;
  made.how.theta = *rc::gen::element(10000.0, 500000.0, 2.0);
  made.how.style = *rc::gen::element(kv::rope_style::neox, kv::rope_style::gptj);
  made.how.dims = *rc::gen::element(0, head_dim, head_dim / 2, 2);
  made.dims = made.how.dims != 0 ? made.how.dims : head_dim;
  if (*rc::gen::inRange(0, 3) == 0) {
    for (int i = 0; i < made.dims / 2; ++i) {
      made.frequency.push_back(static_cast<float>(*rc::gen::inRange(-1000, 1000)) / 1000.0f);
    }
  }
  return made;
}

double roundoff(kv::codec element) {
  return element == kv::codec::f32 ? 0x1p-24 : element == kv::codec::f16 ? 0x1p-11 : 0x1p-8;
}

void turned_keys_are_rotated_keys() {
  slot_options shape = any_slots(any_bool());
  shape.one_list = false;
  shape.model.head_dim = *rc::gen::element(4, 64, 80);
  shape.bound = *rc::gen::element(8, 33);
  shape.page = *rc::gen::element(1, 4);
  shape.element = any_float();
  rotation turn = any_rotation(shape.model.head_dim);
  if (!turn.frequency.empty()) turn.how.frequency = turn.frequency.data();
  slot_cache cache(shape);
  kv::host_executor exec(*rc::gen::element(1, 3));
  using recording = kv::with_recorders<kv::random_scores, kv::record_attention_mass, kv::query_ring>;
  recording const scores{{}, {kv::record_attention_mass{}, kv::query_ring{4}}};
  auto const decides_apart = kv::eviction<recording, kv::sinks>{.score = scores, .protect = {1}};
  auto const decides_together = kv::eviction<kv::reduce_lanes<recording>, kv::sinks>{.score = {scores}, .protect = {1}};
  kv::cache view = cache.view();
  auto columns = kv::make_state(exec, decides_apart, view, kv::compact_rerotated{turn.how});
  auto apart = kv::make_plan(exec, decides_apart, view);
  auto together = kv::make_plan(exec, decides_together, view);

  std::vector<std::vector<int>> numbers(as_size(cache.lane_count()));
  dice random(shape.seed);
  int number = 0;
  for (int turns = 1; turns <= 5; ++turns) {
    for (int s = 0; s < shape.sequences; ++s) {
      cache.in_flight[as_size(s)] = 0;
      int const capacity = shape.bound - cache.held({s, 0, 0});
      int const tokens = random.below(capacity + 1);
      int const drafts = random.below(3);
      for (int t = 0; t < tokens; ++t, ++number) {
        int const position = cache.held({s, 0, 0});  // after the first eviction, the number of entries
        for (int i = 0; i < cache.lane_count(); ++i) {
          kv::lane const this_lane = cache.lane_at(i);
          if (this_lane.sequence != s) continue;
          kv::place const place = cache.where().at(this_lane, cache.held(this_lane));
          cache.write(true, this_lane, static_cast<int>(place.unit), place.token,
                      turn(cache.token_row(true, this_lane, number), position));
          cache.write(false, this_lane, static_cast<int>(place.unit), place.token,
                      cache.token_row(false, this_lane, number));
          numbers[as_size(i)].push_back(number);
        }
        kv::append(exec, view, columns, {s, 1, position, t >= tokens - drafts});
      }
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      int* const cursor = reinterpret_cast<int*>(columns.columns()[3].rows.row(cache.lane_at(i)));
      cursor[0] = 1;
      cursor[1] = 3;
    }
    auto const carry_out = [&](auto const& policy, auto& plan) {
      auto now = policy;
      now.budget.tokens = random.below(shape.bound);
      kv::decide(exec, now, kv::signals{view.lanes}, columns, plan);
      for (int i = 0; i < cache.lane_count(); ++i) {
        kv::lane const this_lane = cache.lane_at(i);
        auto& all = numbers[as_size(i)];
        std::vector<int> kept;
        for (int const e : plan.keep().listed(kv::segment_of(view.lanes, plan.decides(), i))) {
          kept.push_back(all[as_size(e)]);
        }
        for (int e = cache.committed(this_lane); e < cache.held(this_lane); ++e) kept.push_back(all[as_size(e)]);
        all = kept;
      }
      kv::apply(exec, kv::compact_rerotated{turn.how}, plan, view, columns);
    };
    if (shape.by_lane) carry_out(decides_apart, apart);
    if (!shape.by_lane) carry_out(decides_together, together);

    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const& kept = numbers[as_size(i)];
      RC_ASSERT(cache.held(this_lane) == static_cast<int>(kept.size()));
      int const* const cursor = reinterpret_cast<int const*>(columns.columns()[3].rows.row(this_lane));
      RC_ASSERT(cursor[1] == 0);
      reference::row const query = turn(cache.token_row(true, {9, 9, 9}, number), cache.held(this_lane));
      reference::row logits;
      reference::row expected(as_size(shape.model.head_dim), 0.0);
      for (int e = 0; e < cache.held(this_lane); ++e) {
        RC_ASSERT(cache.positions(this_lane)[as_size(e)] == e);
        kv::place const place = cache.where().at(this_lane, e);
        auto const key = cache.read(true, this_lane, static_cast<int>(place.unit), place.token);
        auto const wanted = turn(cache.token_row(true, this_lane, kept[as_size(e)]), e);
        logits.push_back(reference::dot(query, wanted) / std::sqrt(static_cast<double>(wanted.size())));
        // A row's pair is no longer than 3. Floats are rounded once a turn, and others when written and when turned.
        int const roundings = shape.element == kv::codec::f32 ? turns + 1 : 2;
        for (std::size_t d = 0; d < key.size(); ++d) {
          RC_ASSERT(std::abs(key[d] - wanted[d]) <= 3.0 * roundings * roundoff(shape.element) + 2e-6);
        }
        RC_ASSERT(cache.read(false, this_lane, static_cast<int>(place.unit), place.token) ==
                  cache.token_row(false, this_lane, kept[as_size(e)]));
      }
      if (shape.element != kv::codec::f32 || kept.empty()) continue;
      auto const weights = reference::softmax(logits, std::vector<bool>(logits.size(), true));
      for (std::size_t e = 0; e < kept.size(); ++e) {
        auto const value = cache.token_row(false, this_lane, kept[e]);
        for (std::size_t d = 0; d < value.size(); ++d) expected[d] += weights[e] * value[d];
      }
      auto const actual = cache.attend(this_lane, query, cache.entry_places(this_lane));
      for (std::size_t d = 0; d < actual.size(); ++d) RC_ASSERT(std::abs(actual[d] - expected[d]) <= 1e-4);
    }
  }
}

}  // namespace

TEST_SUITE("layout/compact_rerotated") {
  TEST_CASE("turned keys are the raw keys rotated at their new positions, which are 0 .. count - 1, drafts too") {
    holds("NeoX halves and GPT-J pairs, some channels, theta or a table", 200, turned_keys_are_rotated_keys);
  }

  TEST_CASE("a key (1, 2) of position 3 that goes to position 1 turns back by 2 radians") {
    slot_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2}, .bound = 4});
    kv::host_executor exec;
    kv::cache view = cache.view();
    kv::eviction const policy{.score = kv::streaming_llm{.sinks = 1}, .budget = kv::per_lane{2}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    for (int p = 0; p < 4; ++p) {
      cache.write_token(0, p, p);
      kv::append(exec, view, state, {.tokens = 1, .position = p});
    }
    cache.write(true, {}, cache.list[3], 0, {-1.272233, -1.838865});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    kv::apply_stats stats;
    kv::apply(exec, kv::compact_rerotated{{.theta = 1.0}}, plan, view, state, &stats);
    auto const key = cache.read(true, {}, cache.list[1]);
    CHECK(key[0] == doctest::Approx(-1.142640).epsilon(1e-5));
    CHECK(key[1] == doctest::Approx(1.922076).epsilon(1e-5));
    CHECK(cache.read(true, {}, cache.list[0]) == cache.token_row(true, {}, 0));  // its position did not change
    CHECK(stats == kv::apply_stats{.logical_kept = 2, .physical_freed = 2, .attended_length = 2});
  }
}

// SPDX-License-Identifier: Apache-2.0
// Every layout of the same survivors is the same attention: rows moved, listed, redirected, masked or overwritten.

#include "layout/any_slots.hpp"
#include "reference/cache_model.hpp"
#include "support/beside.hpp"

namespace {

using namespace kvpolicy_test;

enum class how { compact, list_rewrite, dead_slot, mask, overwrite };
constexpr how all_layouts[] = {how::compact, how::list_rewrite, how::dead_slot, how::mask, how::overwrite};

/// One cache, carried on by one applier.
template <class Policy>
struct subject {
  subject(slot_options const& shape, how layout, kv::mask_form mask_form, Policy const& policy, int threads)
      : cache(shape),
        exec(threads),
        state(kv::make_state(exec, policy, cache.view())),
        plan(kv::make_plan(exec, policy, cache.view())),
        applies(layout),
        form(mask_form) {
    keep_beside(state, kv::record_attention_mass{});  // columns that follow the entries, whatever the policy keeps
    visible.assign(as_size(cache.rows) * width(), std::byte{0xEE});
    kv::cache view = cache.view();
    if (applies == how::mask) kv::show(exec, masking(), view);
  }

  [[nodiscard]] std::size_t width() const { return as_size(cache.units) * 4 + 8; }
  kv::mask masking() {
    auto const row = static_cast<std::int64_t>(width());
    auto const like = cache.table(cache.count, 1);
    return {cache.list_table(),
            {{visible.data(), like.sequence * row, like.layer * row, like.head * row}, form, cache.units}};
  }
  /// What an attention kernel makes of an element of the mask.
  [[nodiscard]] bool may_read(kv::lane this_lane, int unit) const {
    std::byte const* const row = visible.data() + as_size(cache.row_of(this_lane)) * width();
    if (form == kv::mask_form::boolean) return row[unit] != std::byte{0};
    if (form == kv::mask_form::bits) return (std::to_integer<int>(row[unit / 8]) >> unit % 8 & 1) != 0;
    kv::codec const element = form == kv::mask_form::additive_f32   ? kv::codec::f32
                              : form == kv::mask_form::additive_f16 ? kv::codec::f16
                                                                    : kv::codec::bf16;
    return decoded(element, row + unit * kv::bytes_of(element)) == 0.0;
  }

  void append(int sequence, int position, int number, bool draft) {
    for (int i = 0; applies == how::mask && i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      if (this_lane.sequence != sequence) continue;
      masking().rows.set(this_lane, cache.where().at(this_lane, cache.held(this_lane)).unit, true);
    }
    cache.write_token(sequence, position, number);
    kv::cache view = cache.view();
    kv::append(exec, view, state, {sequence, 1, position, draft});
    for (kv::lane const this_lane : lanes_of(cache)) {
      if (this_lane.sequence == sequence)
        mass(this_lane)[cache.held(this_lane) - 1] = static_cast<float>(number + this_lane.head);
    }
  }
  float* mass(kv::lane this_lane) { return reinterpret_cast<float*>(state.columns().back().rows.row(this_lane)); }

  void evict(Policy const& policy) {
    kv::cache view = cache.view();
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    if (applies == how::compact) kv::apply(exec, kv::compact{}, plan, view, state);
    if (applies == how::list_rewrite) {
      kv::apply(exec, kv::list_rewrite{.list = cache.list_table(), .freed = cache.freed_list()}, plan, view, state);
    }
    if (applies == how::dead_slot) kv::apply(exec, cache.redirecting(), plan, view, state);
    if (applies == how::mask) kv::apply(exec, masking(), plan, view, state);
    if (applies == how::overwrite) kv::apply(exec, kv::overwrite{cache.list_table()}, plan, view, state);
  }

  /// Where attention looks.
  std::vector<kv::place> read_places(kv::lane this_lane) {
    if (applies != how::mask) return cache.entry_places(this_lane);
    std::vector<kv::place> over;
    for (int unit = 0; unit < cache.units; ++unit) {
      if (may_read(this_lane, unit)) over.push_back({unit, 0});
    }
    return over;
  }

  slot_cache cache;
  kv::host_executor exec;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
  how applies;
  kv::mask_form form;
  std::vector<std::byte> visible;
};

double furthest(reference::row const& a, reference::row const& b) {
  double most = 0;
  for (std::size_t d = 0; d < a.size(); ++d) most = std::max(most, std::abs(a[d] - b[d]));
  return most;
}

slot_options any_shape(bool by_lane) {
  slot_options shape = any_slots(by_lane);
  shape.model.head_dim = *rc::gen::element(4, 64, 80);
  shape.model.query_heads = shape.model.kv_heads * *rc::gen::element(1, 2, 4);
  shape.model.value_dim = *rc::gen::element(0, 3);
  shape.bound = *rc::gen::element(8, 20, 33);
  shape.element = any_float();
  return shape;
}

/// Compares all layouts with the whole history and a set of live positions.
template <class Policy>
void agree(std::vector<subject<Policy>*> const& subjects, std::vector<reference::lane_model> const& history,
           std::vector<std::set<int>> const& live, std::vector<std::vector<int>> const& number_at, dice& random) {
  slot_cache& first = subjects.front()->cache;
  for (int i = 0; i < first.lane_count(); ++i) {
    kv::lane const this_lane = first.lane_at(i);
    auto const lane = as_size(i);
    auto const& numbers = number_at[as_size(this_lane.sequence)];
    for (int h = 0; h < first.options.model.group(); ++h) {
      reference::row query;
      for (int d = 0; d < first.options.model.head_dim; ++d) query.push_back(random.real(2.0));
      reference::row const expected = history[lane].attend(query, static_cast<int>(numbers.size()), live[lane]);
      for (subject<Policy>* each : subjects) {
        reference::row const actual = each->cache.attend(this_lane, query, each->read_places(this_lane));
        RC_LOG() << "layout " << static_cast<int>(each->applies) << ", lane " << i << '\n';
        RC_ASSERT(furthest(actual, expected) <= 1e-6);
      }
    }
    for (subject<Policy>* each : subjects) {
      auto const positions = each->cache.positions(this_lane);
      RC_ASSERT(positions == std::vector<int>(live[lane].begin(), live[lane].end()));
      for (std::size_t e = 0; e < positions.size(); ++e) {
        int const number = numbers[as_size(positions[e])];
        RC_ASSERT(each->mass(this_lane)[e] == static_cast<float>(number + this_lane.head));
      }
      if (each->applies != how::dead_slot) continue;
      auto const map = each->cache.row(each->cache.map, this_lane, static_cast<int>(numbers.size()));
      for (std::size_t p = 0; p < map.size(); ++p) {
        RC_ASSERT((map[p] == each->cache.dead()) == (live[lane].count(static_cast<int>(p)) == 0));
      }
    }
  }
}

template <class Policy>
void layouts_agree(bool by_lane, Policy policy) {
  slot_options const shape = any_shape(by_lane);
  auto const form = static_cast<kv::mask_form>(*rc::gen::inRange(0, 5));
  int const threads = *rc::gen::element(1, 3);
  std::vector<std::unique_ptr<subject<Policy>>> owned;
  std::vector<subject<Policy>*> subjects;
  for (how const each : all_layouts) {
    owned.push_back(std::make_unique<subject<Policy>>(shape, each, form, policy, threads));
    subjects.push_back(owned.back().get());
  }
  slot_cache& first = subjects.front()->cache;
  auto const lanes = as_size(first.lane_count());
  auto const width = as_size(first.v_row / kv::bytes_of(shape.element));
  std::vector<reference::lane_model> history(lanes, reference::lane_model(width));
  std::vector<std::set<int>> live(lanes);
  std::vector<std::vector<int>> number_at(as_size(shape.sequences));
  dice random(shape.seed);
  int number = 0;
  for (int round = 0; round < 4; ++round) {
    for (int s = 0; s < shape.sequences; ++s) {
      first.in_flight[as_size(s)] = 0;
      for (subject<Policy>* each : subjects) each->cache.in_flight[as_size(s)] = 0;
      int capacity = shape.bound;
      for (std::size_t i = 0; i < lanes; ++i) {
        if (first.lane_at(static_cast<int>(i)).sequence == s) {
          capacity = std::min(capacity, shape.bound - static_cast<int>(live[i].size()));
        }
      }
      int const tokens = random.chance(50) ? capacity : random.below(capacity + 1);
      int const drafts = random.below(3);
      for (int t = 0; t < tokens; ++t, ++number) {
        int const position = static_cast<int>(number_at[as_size(s)].size());
        for (subject<Policy>* each : subjects) each->append(s, position, number, t >= tokens - drafts);
        number_at[as_size(s)].push_back(number);
        for (std::size_t i = 0; i < lanes; ++i) {
          kv::lane const this_lane = first.lane_at(static_cast<int>(i));
          if (this_lane.sequence != s) continue;
          history[i].append(
              {position, first.token_row(true, this_lane, number), first.token_row(false, this_lane, number), {}});
          live[i].insert(position);
        }
      }
    }
    agree(subjects, history, live, number_at, random);
    for (int again = 0; again < 1 + round % 2; ++again) {
      policy.budget.tokens = random.below(shape.bound);
      for (subject<Policy>* each : subjects) each->evict(policy);
      for (std::size_t i = 0; i < lanes; ++i) {
        kv::lane const this_lane = first.lane_at(static_cast<int>(i));
        auto const& keep = subjects.front()->plan.keep();
        std::vector<int> const before(live[i].begin(), live[i].end());
        int const drafts = first.in_flight[as_size(this_lane.sequence)];
        std::set<int> kept(before.end() - drafts, before.end());
        for (int const e : keep.listed(kv::segment_of(keep.lanes, keep.decides, static_cast<int>(i)))) {
          kept.insert(before[as_size(e)]);
        }
        live[i] = kept;
      }
      agree(subjects, history, live, number_at, random);
    }
  }
}

}  // namespace

TEST_SUITE("layout") {
  TEST_CASE("every layout of the same survivors gives the same attention, over evictions and appends") {
    holds("one list for all lanes, which decide together", 150,
          [] { layouts_agree(false, kv::eviction<kv::reduce_lanes<kv::random_scores>, kv::sinks>{.protect = {1}}); });
    holds("a list for each lane", 150,
          [] { layouts_agree(true, kv::eviction<kv::random_scores, kv::sinks>{.protect = {1}}); });
  }
}

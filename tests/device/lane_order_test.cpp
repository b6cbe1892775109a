// SPDX-License-Identifier: Apache-2.0
// Decoding with lanes.order on the device and on the host: after every step equal keep sets, positions, orders, lists,
// rows and recorded columns.

#include "device/as_on_host.hpp"
#include "device/moves.hpp"
#include "layout/lane_orders.hpp"

namespace {

using namespace kvpolicy_test;

slot_options any_shape() {
  slot_options how = any_lane_orders(70);
  if (how.sequences > 1) how.page = 1;
  return how;
}

/// An engine with lanes that have an order.
template <class Executor, class Policy>
struct engine {
  template <class... Numbers>
  engine(slot_options const& how, Policy const& by, Numbers const&... numbers)
      : exec(numbers...),
        policy(by),
        cache(how),
        view(cache.view(order)),
        state(kv::make_state(exec, policy, view)),
        plan(kv::make_plan(exec, policy, view, kv::overwrite{})) {}

  void wait() {
    if constexpr (requires { exec.check(); }) exec.check();
  }
  void append(int sequence, int tokens, int position, bool drafts) {
    for (int t = 0; t < tokens; ++t, ++position) {
      cache.write_token(sequence, position, position);
      kv::append(exec, view, state, {sequence, 1, position, drafts});
      wait();
    }
  }
  template <class Signals>
  void decide(Signals const& in) {
    observe_unless_told(exec, policy, in, state, plan);
    wait();
  }
  /// `slots`: the list changes; else rows move.
  void apply(bool slots, kv::apply_stats* stats) {
    kv::apply(exec, kv::overwrite{slots ? cache.list_table() : kv::by_lane<int>{}}, plan, view, state, stats);
    wait();
  }
  void sort(bool slots) {
    kv::restore_order(exec, view, state, slots ? cache.list_table() : kv::by_lane<int>{});
    wait();
  }
  /// The recorded columns of the entries that there are.
  [[nodiscard]] std::vector<std::byte> columns() {
    std::vector<std::byte> all;
    for (kv::recorded_column const& each : state.columns(view.lanes)) {
      for (kv::lane const one : lanes_of(cache)) {
        int const elements = each.about.extent == kv::column_extent::lane_entry ? cache.held(one) : 0;
        std::byte const* const from = each.rows.row(one);
        all.insert(all.end(), from, from + std::ptrdiff_t{each.about.bytes} * elements);
      }
    }
    return all;
  }

  Executor exec;
  Policy policy;
  slot_cache cache;
  std::vector<kv::lane_order> order;
  kv::cache view;
  kv::state<Executor> state;
  kv::plan<Executor> plan;
};

template <class Policy>
void decides_alike(Policy const& policy, slot_options const& how) {
  bool const slots = how.page == 1 && any_bool();
  engine<kv::host_executor, Policy> host(how, policy);
  engine<device_executor, Policy> device(how, policy, numbers_of(*rc::gen::element(32, 64)), how.seed);
  dice random(how.seed);
  std::vector<int> next(as_size(how.sequences), 0);
  auto const both = [&](auto const& call) { call(host), call(device); };
  for (int round = 0; round < 40; ++round) {
    for (int s = 0; s < how.sequences; ++s) {
      bool const drafts = random.below(4) == 0;
      int const wanted = round == 0 ? how.bound / 2 : random.below(drafts ? 4 : 3);
      int const some = std::min(how.bound - host.cache.held({s, 0, 0}), wanted);
      int& position = next[as_size(s)];
      position += random.below(8) == 0 ? 2 : 0;  // a position that no entry has
      if (position + some > host.cache.map_row) return;
      both([&](auto& of) { of.append(s, some, position, drafts); });
      position += some;
      int const rejected = drafts && some > 0 ? random.below(some + 1) : 0;
      position -= rejected;
      both([&](auto& of) {
        if (rejected > 0) kv::truncate(of.exec, of.view, of.state, s, position);
        if (drafts) kv::commit(of.exec, of.view, s, some - rejected);
        of.wait();
      });
    }
    std::vector<kv::apply_stats> stats(2);  // kernels write one, and cannot reach the stack
    masses const mass(host.cache);
    both([&](auto& of) { of.decide(kv::signals{of.view.lanes, kv::keys_of(of.view), mass.given}); });
    RC_ASSERT(*host.plan.keep().report == *device.plan.keep().report);
    for (int s = 0; s < host.plan.keep().segments(); ++s) {
      auto const mine = host.plan.keep().listed(s);
      auto const other = device.plan.keep().listed(s);
      RC_ASSERT(std::vector(mine.begin(), mine.end()) == std::vector(other.begin(), other.end()));
    }
    host.apply(slots, &stats[0]);
    device.apply(slots, &stats[1]);
    RC_ASSERT(stats[0] == stats[1]);
    RC_ASSERT(host.cache.save() == device.cache.save());
    RC_ASSERT(host.order == device.order);
    RC_ASSERT(host.columns() == device.columns());
    if (random.below(10) != 0) continue;
    bool full = false;
    for (int i = 0; i < host.cache.lane_count(); ++i) {
      full = full || host.cache.held(host.cache.lane_at(i)) == how.bound;
    }
    if (full && !slots) continue;  // the host sorts rows by way of a free place
    both([&](auto& of) { of.sort(slots); });
    RC_ASSERT(host.order == device.order);
    RC_ASSERT(host.columns() == device.columns());
    RC_ASSERT((host.cache.rows_follow() && device.cache.rows_follow()));
    for (int i = 0; i < host.cache.lane_count(); ++i) {
      RC_ASSERT(host.cache.positions(host.cache.lane_at(i)) == device.cache.positions(host.cache.lane_at(i)));
    }
    if (!slots) return;  // what is behind the last entry differs
  }
}

template <class Score>
void with_protections(Score const& score) {
  slot_options const how = any_shape();
  kvpolicy_test::with_protections(how, score, [&](auto const& policy) { decides_alike(policy, how); });
}

/// Entries of a batch, with columns of several widths, which two of the same options hold alike.
struct held_batch {
  explicit held_batch(slot_options const& how) : cache(how), view(cache.view(order)) {
    columns.emplace_back(cache.lane_count(), view.lanes, how.seed);
    if (how.seed % 2 == 0) columns.emplace_back(cache.lane_count(), view.lanes, how.seed + 1);  // more than eight
    for (auto const& some : columns) every.insert(every.end(), some.view().begin(), some.view().end());
  }
  template <class Executor>
  void append(Executor& exec, int sequence, int position) {
    cache.write_token(sequence, position, position);
    kv::ops::append_entries(exec, view.lanes, columns.front().view(), kv::append_request{sequence, 1, position});
  }
  [[nodiscard]] auto saved() const {
    std::vector<std::vector<std::byte>> bytes;
    for (auto const& some : columns) bytes.insert(bytes.end(), some.bytes().begin(), some.bytes().end());
    return std::tuple{cache.save(), order, bytes};
  }

  slot_cache cache;
  std::vector<kv::lane_order> order;
  kv::cache view;
  std::deque<held_bytes> columns;
  std::vector<kv::recorded_column> every;
};

/// Forces positions below a limit, the first ranks and the last ones.
struct middle {
  int limit;
  int first;
  int last;
  KVPOLICY_HD int budget(kv::lane, int) const { return 0; }
  KVPOLICY_HD bool triggers(int, int) const { return true; }
  KVPOLICY_HD bool forces(kv::entry) const { return false; }
  KVPOLICY_HD kv::ordinal_range candidates(kv::lane_entries const& of) const {
    int const low = of.first_at(limit);
    return {low > first ? low : first, of.count - last};
  }
};

/// The entries that a lane of each batch would drop, by any scores and by position.
void argmins_alike(dice& random, kv::host_executor& host, device_executor& device, held_batch const& expected,
                   held_batch const& found) {
  owned_scores scores(expected.view.lanes);
  for (float& each : scores.all()) each = static_cast<float>(random.below(4));
  kv::score_view other = scores.view();
  other.lanes = found.view.lanes;
  int const bound = expected.cache.options.bound;
  middle const rule{random.below(2 * bound), random.below(bound), random.below(bound)};
  owned_keep mine(scores.view()), theirs(other);
  mine.view().lists = theirs.view().lists = kv::side::dropped;
  for (bool const by_position : {false, true}) {
    if (by_position) {
      kv::ops::argmin_of(host, scores.view(), kv::streaming_llm::recency{}, rule, mine.view());
      kv::ops::argmin_of(device, other, kv::streaming_llm::recency{}, rule, theirs.view());
    } else {
      kv::ops::argmin(host, scores.view(), rule, mine.view());
      kv::ops::argmin(device, other, rule, theirs.view());
    }
    device.check();
    RC_ASSERT(mine.report() == theirs.report());
    for (int s = 0; s < other.segments(); ++s) RC_ASSERT(mine.kept(s) == theirs.kept(s));
  }
}

/// Drops any entries, one of each segment, and sorts now and then.
void replaces_alike() {
  slot_options how = any_shape();
  how.by_lane = any_bool();
  how.bound = *rc::gen::element(9, 40);
  how.spare = 1 + 8 * how.bound;
  bool const slots = how.page == 1 && (!how.by_lane || any_bool());
  auto const decides = how.by_lane ? kv::granularity::lane : kv::granularity::sequence;
  held_batch expected(how), found(how);
  kv::host_executor host;
  device_executor device(numbers_of(*rc::gen::element(32, 96)), how.seed);
  dice random(how.seed);
  auto const both = [&](auto const& call) {
    call(host, expected);
    call(device, found);
    device.check();
  };
  auto const table = [&](held_batch& of) { return slots ? of.cache.list_table() : kv::by_lane<int>{}; };
  for (int p = 0; p < 3 * how.bound; ++p) {
    for (int s = 0; s < how.sequences; ++s) {
      if (expected.cache.held({s, 0, 0}) < how.bound - 1) {
        both([&](auto& exec, held_batch& of) { of.append(exec, s, p); });
      }
    }
    if (p < how.bound / 2) continue;
    kv::lanes const& batch = expected.view.lanes;
    int const segments = kv::segments(batch, decides);
    std::vector<std::vector<int>> gone(as_size(segments));
    for (int i = 0; i < segments; ++i) {
      int const count = batch.committed(batch.at(kv::first_lane(batch, decides, i)));
      if (count > 0 && random.chance(95)) gone[as_size(i)].push_back(random.below(count));
    }
    both([&](auto& exec, held_batch& of) {
      listed_keep const keep(of.view.lanes, decides, gone);
      kv::ops::replace_listed(exec, keep.view(), of.view, table(of), std::span<kv::recorded_column const>(of.every));
    });
    RC_ASSERT(expected.saved() == found.saved());
    if (how.by_lane) argmins_alike(random, host, device, expected, found);
    if (!slots || how.seed % 2 == 0 || random.below(15) != 0) continue;
    both([&](auto& exec, held_batch& of) {
      kv::ops::sort_entries(exec, of.view, table(of), std::span<kv::recorded_column const>(of.every));
    });
    RC_ASSERT(expected.saved() == found.saved());
  }
  listed_keep const keep(found.view.lanes, decides,
                         std::vector(as_size(kv::segments(found.view.lanes, decides)), std::vector{0}));
  auto const verb = [&] {
    kv::ops::replace_listed(device, keep.view(), found.view, table(found),
                            std::span<kv::recorded_column const>(found.every));
    if (how.seed % 2 == 1) {
      kv::ops::sort_entries(device, found.view, table(found), std::span<kv::recorded_column const>(found.every));
    }
  };
  RC_ASSERT(is_idle_after_a_fault(device, verb, [&] { return found.saved(); }));
}

TEST_SUITE("device/lane_order") {
  TEST_CASE("any dropped entries: lists or rows, columns of all widths, positions that lanes share or do not") {
    holds("replaced and sorted", 40, replaces_alike);
  }

  TEST_CASE("decoding that puts the newest entry into the dropped one's place is the host's, step after step") {
    holds("streaming_llm", 20, [] { with_protections(kv::streaming_llm{.sinks = *rc::gen::inRange(0, 6)}); });
    holds("random", 20, [] { with_protections(kv::random_scores{}); });
    holds("knorm", 20, [] { with_protections(kv::recorded_knorm{}); });
  }

  TEST_CASE("scores that the engine gives, in any order, with NaN and ties") {
    holds("masses", 40, [] {
      slot_options const how = any_shape();
      decides_alike(kv::eviction{.score = kv::h2o{.recent = *rc::gen::inRange(-1, 9)},
                                 .budget = kv::per_lane{*rc::gen::inRange(0, how.bound)},
                                 .pick = kv::lowest_one{}},
                    how);
    });
  }

  TEST_CASE("what cannot be done is told, and changes nothing") {
    slot_options const how{.bound = 8, .by_lane = true};
    kv::eviction const policy{.score = kv::random_scores{}, .budget = kv::per_lane{6}, .pick = kv::lowest_one{}};
    engine<device_executor, decltype(policy)> of(how, policy);
    auto const step = [&](int p) {
      of.append(0, 1, p, false);
      of.decide(kv::signals{of.view.lanes});
    };
    for (int p = 0; p < 9; ++p) {
      step(p);
      of.apply(true, nullptr);
    }
    REQUIRE(!of.order[0].ascends());
    auto const order = of.order;
    auto const before = of.cache.save();
    auto const told = [&](auto const& call) {
      return error_of([&] {
        call();
        of.wait();
      });
    };
    int const newest = of.order[0].newest_of(of.cache.position.data(), of.cache.held({}));
    CHECK(newest == 8);
    CHECK(told([&] { kv::append(of.exec, of.view, of.state, {.tokens = 1, .position = newest}); }) ==
          "append: position (0) = 8, but positions ascend");
    CHECK(told([&] {
            kv::truncate(of.exec, of.view, of.state, 0, of.order[0].newest);
          }).find("but an eviction has put a later token among older ones: restore_order sorts them") !=
          std::string::npos);
    kv::eviction const all{.score = kv::random_scores{}, .budget = kv::per_lane{3}};
    auto other = kv::make_plan(of.exec, all, of.view, kv::compact{});
    CHECK(told([&] { kv::decide(of.exec, all, kv::signals{of.view.lanes}, of.state, other); }) ==
          "decide: lanes.order = given, but on a device positions ascend in every lane: leave it null");
    CHECK(of.cache.save() == before);
    CHECK(of.order == order);
    step(9);
    int const dropped = of.plan.keep().listed(0)[0];
    of.cache.list[as_size(dropped)] = 99;
    auto const damaged = of.cache.save();
    CHECK(told([&] { of.apply(true, nullptr); }) == "apply: list (0) = 99, but a slot is out of the pool");
    CHECK(of.cache.save() == damaged);
    CHECK(of.order == order);
    kv::truncate(of.exec, of.view, of.state, 0, 0);
    of.wait();
    CHECK(of.cache.held({}) == 0);
    CHECK(of.order[0] == kv::lane_order{});
  }
}

}  // namespace

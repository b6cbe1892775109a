// SPDX-License-Identifier: Apache-2.0
// Stale decisions on a device: `apply` notes a fault, `check` throws it, and nothing was changed. A decision that was
// captured in a graph counts as a new one whenever the graph is replayed.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A device that notes what is launched while it captures, and launches it again with the same arguments: what a CUDA
/// graph does.
class graph_device : public device_executor {
 public:
  using device_executor::device_executor;
  void capture(bool on) { capturing_ = on; }
  void replay() {
    for (auto const& each : noted_) each();
  }

  template <class Threads, class Kernel>
  void launch(kv::launch_shape<Threads> const& shape, Kernel const& kernel) {
    run([this, shape, kernel] { device_executor::launch(shape, kernel); });
  }
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    run([to, from, bytes] { device_executor::copy(to, from, bytes); });
  }
  template <class Number>
  void select_numbers(std::int64_t count, Number const& number, kv::selected_numbers to, std::byte* storage) {
    run([this, count, number, to, storage] { device_executor::select_numbers(count, number, to, storage); });
  }

 private:
  template <class Call>
  void run(Call const& call) {
    if (!capturing_) return call();
    noted_.emplace_back(call);
  }
  bool capturing_ = false;
  std::vector<std::function<void()>> noted_;
};

mock_options shape_of_cache() {
  mock_options how;
  how.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
  how.sequences = 3;
  how.bound = 24;
  how.rows = content::fingerprint;
  return how;
}

/// Three requests of ten tokens each; the fourth slot is free.
struct served {
  using policy_type = kv::eviction<kv::knorm>;
  mock_cache cache{shape_of_cache()};
  graph_device exec;
  policy_type policy{.budget = {6}};
  kv::cache all = cache.view();
  kv::state<graph_device> state = kv::make_state(exec, policy, all);
  kv::plan<graph_device> plan = kv::make_plan(exec, policy, all, kv::compact{});

  served() {
    for (int s = 0; s < 3; ++s) append(s, 10, 0);
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  void append(int slot, int tokens, int position) {
    kv::append(exec, all, state, {.sequence = slot, .tokens = tokens, .position = position});
  }
  void decide(kv::lanes const& batch) { kv::decide(exec, policy, kv::signals{batch, kv::keys_of(all)}, state, plan); }
  void decide() { decide(all.lanes); }
  std::string apply() {
    return error_of([&] {
      kv::apply(exec, kv::compact{}, plan, all, state);
      exec.check();
    });
  }
};

/// For lanes that decide alone, by layer, and by token; under a budget, a threshold, and a budget that lanes share: the
/// plan is refused if one layer of one sequence has changed, whichever it is, and carried out if none has.
template <class Executor>
void refuses_each_changed_layer() {
  mock_options how = shape_of_cache();
  how.model.layers = 3;
  auto const check = [&](auto const& policy, kv::granularity decides) {
    for (int changed = -1; changed < 9; ++changed) {
      int const sequence = changed / 3;
      int const layer = changed % 3;
      INFO(to_string(policy), ", ", std::string(to_string(decides)), ": layer ", layer, " of sequence ", sequence);
      mock_cache cache(how);
      Executor exec;
      kv::cache all = cache.view();
      all.lanes.in_flight = nullptr;  // drafts are counted for all layers together, and no layer could change alone
      auto [state, plan] = state_and_plan(exec, policy, all, kv::compact{});
      for (int s = 0; s < 3; ++s) kv::append(exec, all, state, {.sequence = s, .tokens = 10, .position = 0});
      for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
      kv::decide(exec, policy, kv::signals{all.lanes, kv::keys_of(all)}, state, plan);
      if (changed >= 0) {
        kv::cache part = all;
        part.lanes = all.lanes.layers_only(layer, layer + 1);
        kv::truncate(exec, part, state, sequence, 8);
        kv::append(exec, part, state, {.sequence = sequence, .tokens = 2, .position = 8});
      }
      auto const before = cache.save();
      std::string const told = error_of([&] {
        kv::apply(exec, kv::compact{}, plan, all, state);
        if constexpr (requires { exec.check(); }) exec.check();
      });
      if (changed < 0) {
        CHECK(told == "");
      } else {
        CHECK_MESSAGE(told.starts_with("apply: plan"), told);
        CHECK(cache.save() == before);
      }
    }
  };
  for (auto const decides : {kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence}) {
    kv::reduce_lanes<kv::knorm> const score{.decides = decides};
    check(kv::eviction{.score = score, .budget = kv::per_lane{6}}, decides);
    check(kv::eviction{.score = score, .pick = kv::at_least{.least = -3, .unbounded = true}}, decides);
    if (decides == kv::granularity::lane) {
      check(kv::eviction{.score = score, .budget = kv::per_layer{12}}, decides);
    }
  }
}

}  // namespace

TEST_SUITE("device/stale_plans") {
  TEST_CASE("a plan of a device is refused after every call that has changed a lane, and nothing is changed") {
    std::vector<std::byte> saved;
    struct event {
      char const* name;
      std::function<void(served&)> run;
    };
    std::vector<event> const events{
        {"reset and refill",
         [](served& now) {
           kv::reset(now.exec, now.all, now.state, 1);
           now.append(1, 10, 0);
         }},
        {"reset and fork",
         [](served& now) {
           kv::reset(now.exec, now.all, now.state, 1);
           kv::fork(now.exec, now.all, now.state, 2, 1);
         }},
        {"reset and load",
         [&](served& now) {
           saved.resize(kv::saved_bytes(now.exec, now.all, now.state, 2));
           kv::save(now.exec, now.all, now.state, 2, saved);
           kv::reset(now.exec, now.all, now.state, 1);
           kv::load(now.exec, now.all, now.state, 1, saved);
         }},
        {"reorder", [](served& now) { kv::reorder(now.exec, now.all, now.state, std::array{1, 0, 2}); }},
        {"truncate and append",
         [](served& now) {
           kv::truncate(now.exec, now.all, now.state, 1, 8);
           now.append(1, 2, 8);
         }},
        {"a first apply",
         [](served& now) {
           REQUIRE(now.apply() == "");
           for (int s = 0; s < 3; ++s) now.append(s, 4, 10);
         }},
    };
    for (event const& each : events) {
      for (bool const layer_alone : {false, true}) {
        INFO(std::string(each.name), std::string(layer_alone ? ", one layer" : ""));
        served now;
        now.decide(layer_alone ? now.all.lanes.layers_only(1, 2) : now.all.lanes);
        each.run(now);
        now.exec.check();
        auto const before = now.cache.save();
        CHECK(now.apply().starts_with("apply: plan"));
        CHECK(now.cache.save() == before);
        now.decide();
        CHECK(now.apply() == "");
        CHECK(now.cache.count({1, 1, 1}) == 6);
      }
    }
  }

  TEST_CASE("the plan of a layer outlives changes of other layers on a device") {
    served now;
    auto first = kv::make_plan(now.exec, now.policy, now.all, kv::compact{});
    kv::decide(now.exec, now.policy, kv::signals{now.all.lanes.layers_only(0, 1), kv::keys_of(now.all)}, now.state,
               first);
    now.decide(now.all.lanes.layers_only(1, 2));
    kv::apply(now.exec, kv::compact{}, first, now.all, now.state);
    CHECK(now.apply() == "");
    CHECK(now.cache.count({1, 0, 1}) == 6);
    CHECK(now.cache.count({1, 1, 1}) == 6);
  }

  TEST_CASE("a decision that a graph makes is carried out by apply, once for each replay") {
    served now;
    now.exec.capture(true);
    now.decide();
    now.exec.capture(false);
    for (int step = 0; step < 4; ++step) {
      now.exec.replay();
      CHECK(now.apply() == "");
      CHECK(now.cache.count({2, 1, 0}) == 6);
      int const position = 10 + 4 * step;
      for (int s = 0; s < 3; ++s) now.append(s, 4, position);
      auto const before = now.cache.save();
      CHECK(now.apply().starts_with("apply: plan"));
      CHECK(now.cache.save() == before);
    }
  }

  TEST_CASE("a decision and its apply in one graph are carried out in every replay, among eager ones") {
    served now;
    now.exec.capture(true);
    now.decide();
    kv::apply(now.exec, kv::compact{}, now.plan, now.all, now.state);
    now.exec.capture(false);
    for (int step = 0; step < 4; ++step) {
      if (step % 2 == 0) {
        now.exec.replay();
        CHECK(error_of([&] { now.exec.check(); }) == "");
      } else {
        now.decide();
        CHECK(now.apply() == "");
      }
      CHECK(now.cache.count({2, 1, 0}) == 6);
      for (int s = 0; s < 3; ++s) now.append(s, 4, 10 + 4 * step);
    }
  }

  TEST_CASE("a plan is refused if any layer has changed, whichever lanes decide together") {
    refuses_each_changed_layer<kv::host_executor>();
    refuses_each_changed_layer<device_executor>();
  }
}

// SPDX-License-Identifier: Apache-2.0
// Promotion of a few entries on a device against the host: what one launch decides and counts, what the next one
// writes, and how many launches there are.

#include "support/dual_sides.hpp"

namespace {

using namespace kvpolicy_test;

/// The launches of a call; `expected` where the device does not count them.
template <class Device, class Call>
int launches_of(Device& device, [[maybe_unused]] int expected, Call const& call) {
  if constexpr (requires { device.launches(); }) {
    int const before = device.launches();
    call();
    return device.launches() - before;
  } else {
    call();
    return expected;
  }
}

constexpr launch_numbers small{
    .segment_threads = 64, .entry_threads = 64, .row_threads = 64, .lane_threads = 32, .processors = 3};

/// Has the device launch clusters of so many blocks at most. A GPU has what it has.
template <class Device>
void have_clusters(Device& device, [[maybe_unused]] int blocks) {
  if constexpr (requires { device.set_clusters(blocks); }) device.set_clusters(blocks);
}

/// Random steps of both sides, until some of them are refused. Returns how many were.
template <class Policy>
int go_on(Policy const& policy, dual_options const& how, int most_tokens, std::uint64_t seed, int clusters) {
  both_sides now(how, policy, small, seed);
  have_clusters(now.device, clusters);
  dice random(seed);
  int refused = 0;
  for (int act = 0; act < 30; ++act) {
    std::vector<int> tokens(as_size(how.sequences));
    for (int& each : tokens) each = random.below(most_tokens + 1);
    if (random.chance(15)) {
      std::vector<int> accepted;
      for (int const drafts : tokens) accepted.push_back(random.below(drafts + 1));
      refused += now.ask([&](auto& on) { on.speculate(tokens, accepted); }).empty() ? 0 : 1;
    } else if (random.chance(10)) {
      int const sequence = random.below(how.sequences);
      int const position = random.below(now.expected.length[as_size(sequence)] + 1);
      now.ask([&](auto& on) { on.roll_back(sequence, position); });
    } else {
      bool const counts = random.chance(70);
      refused += now.ask([&](auto& on) { on.step(tokens, counts); }).empty() ? 0 : 1;
    }
  }
  return refused;
}
/// In one cluster where the step is small enough; in the night always, and else for every fourth seed, also in
/// launches. Both refuse as many steps, because they do as the host does.
template <class Policy>
int go_on(Policy const& policy, dual_options const& how, int most_tokens, std::uint64_t seed) {
  int const refused = go_on(policy, how, most_tokens, seed, 8);
  if (at_night() || seed % 4 == 0) CHECK(go_on(policy, how, most_tokens, seed, seed % 8 == 0 ? 1 : 4) == refused);
  return refused;
}

/// Further planes of both parts of a cache, in memory of their own: `channels` bytes a row.
struct further_planes {
  std::vector<std::byte> memory;
  std::vector<kv::plane> window, pages;

  further_planes(kv::dual_cache& both, int count, int channels) {
    std::int64_t const rows = both.pages.entries.where.units * both.pages.page();
    std::int64_t const row = both.window.k.token_stride;
    memory.resize(as_size(count) * as_size(rows * channels));
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 + i / 251);
    for (int p = 0; p < count; ++p) {
      for (auto* part : {&both.window, &both.pages.entries}) {
        kv::plane made = part->k;
        made.base = memory.data() + p * rows * channels;
        made.element = kv::codec::opaque;
        made.channels = channels;
        made.channel_stride = 1;
        for (std::int64_t* each : {&made.layer_stride, &made.unit_stride, &made.token_stride, &made.head_stride}) {
          *each = *each / row * channels;
        }
        (part == &both.window ? window : pages).push_back(made);
      }
    }
    both.window.more = window;
    both.pages.entries.more = pages;
  }
};

TEST_SUITE("device/promotion") {
  TEST_CASE("promotion of a few new tokens takes one launch of a cluster, or three launches") {
    auto const launches = [](auto const& policy, dual_options const& how, int tokens, int clusters, int expected) {
      both_sides now(how, policy, small, 1);
      have_clusters(now.device, clusters);
      std::vector<int> const each(as_size(how.sequences), tokens);
      for (int t = 0; t < 5; ++t) now.ask([&](auto& on) { on.step(each); });
      now.ask([&](auto& on) { on.step(std::vector<int>(as_size(how.sequences), 1)); });
      now.expected.promote(each);
      int const taken = launches_of(now.device, expected, [&] { now.found.promote(each); });
      CHECK((now.expected.bytes() == now.found.bytes()));
      CHECK((now.expected.decision() == now.found.decision()));
      return taken;
    };
    auto const gates = kv::policies::wg_kv({.window = 8});
    dual_options const few{.sequences = 3, .pages = 200};
    for (int const tokens : {1, 8}) {
      CHECK(launches(gates, few, tokens, 8, 1) == 1);
      CHECK(launches(gates, few, tokens, 4, 3) == 3);
      CHECK(launches(gates, few, tokens, 1, 3) == 3);
    }
    CHECK(launches(kv::policies::wg_kv({.window = 8, .cap = 2}), few, 2, 8, 1) == 1);
    CHECK(launches(kv::admission{.score = kv::head_table{}, .protect = kv::sinks{4}, .window = 8}, {}, 2, 8, 1) == 1);
    // A lane for each thread of eight blocks of 64, with a thread for each entry that may leave: four here.
    kv::shape const wide{1, 1, 1, 4};
    auto const short_window = kv::policies::wg_kv({.window = 14});
    CHECK(launches(short_window, {.model = wide, .sequences = 64, .pages = 700}, 2, 8, 1) == 1);
    CHECK(launches(short_window, {.model = wide, .sequences = 128, .pages = 700}, 1, 8, 1) == 1);
    CHECK(launches(short_window, {.model = wide, .sequences = 129, .pages = 700}, 1, 8, 3) == 3);
    CHECK(launches(gates, {.model = wide, .sequences = 70, .pages = 700}, 1, 8, 3) == 3);
  }

  TEST_CASE("rows of any size are promoted") {
    for (int const channels : {1, 3, 4, 40, 132}) {
      dual_options const how{.model = {2, 4, 2, channels}, .sequences = 2, .rows = 12, .pages = 60, .bound = 40};
      go_on(kv::policies::wg_kv({.window = 8}), how, 4, static_cast<std::uint64_t>(channels));
    }
  }

  TEST_CASE("further planes move with their rows, and more than four planes take three launches") {
    auto const moved = [](int count, int channels, int expected) {
      both_sides now({.sequences = 2, .pages = 60, .bound = 40}, kv::policies::wg_kv({.window = 8}), small, 7);
      further_planes const on_host(now.expected.both, count, channels);
      further_planes const on_device(now.found.both, count, channels);
      auto const before = on_host.memory;
      for (int t = 0; t < 12; ++t) now.ask([&](auto& on) { on.step({t % 3, 1}); });
      now.expected.promote({1, 2});
      int const taken = launches_of(now.device, expected, [&] { now.found.promote({1, 2}); });
      CHECK(before != on_host.memory);
      CHECK(on_host.memory == on_device.memory);
      return taken;
    };
    CHECK(moved(1, 3, 1) == 1);
    CHECK(moved(2, 16, 1) == 1);
    CHECK(moved(2, 24, 1) == 1);
    CHECK(moved(3, 16, 3) == 3);
    CHECK(moved(3, 6, 3) == 3);
  }

  TEST_CASE("long windows and numbers of tokens that differ among many sequences are promoted as before") {
    auto const gates = kv::policies::wg_kv({.window = 8});
    CHECK(go_on(gates, {.rows = 272, .pages = 400, .bound = 400}, 8, 3) == 0);
    CHECK(go_on(gates, {.model = {1, 1, 1, 4}, .sequences = 70, .pages = 900}, 3, 4) == 0);
  }

  TEST_CASE("any scorer that looks at each entry alone goes the host's way, until there is no room") {
    std::vector<float> const heads = {1.0f, 0.0f, 0.0f, 1.0f};
    kv::head_table const by_head{.heads = {heads.data(), 0, 2, 1}};
    kv::at_least const any{.least = -2.0f, .unbounded = true};
    int full = 0;
    for (std::uint64_t seed = 0; seed < 6; seed += at_night() ? 1u : 2u) {
      auto const few = static_cast<int>(seed);
      dual_options const how{.sequences = 1 + few % 3, .pages = 24 + 20 * few, .bound = seed % 2 == 0 ? 24 : 64};
      int const cap = seed % 3 == 1 ? 9 : -1;
      full += go_on(kv::policies::wg_kv({.window = 8, .cap = cap}), how, 8, seed);
      full += go_on(kv::policies::wg_kv({.window = 1 + few, .cap = cap}), how, 1 + few, seed);
      full += go_on(kv::admission{.score = by_head, .protect = kv::sinks{3}, .window = 9, .cap = cap}, how, 8, seed);
      full +=
          go_on(kv::admission{.score = kv::random_scores{seed}, .protect = kv::recent{1}, .window = 8}, how, 4, seed);
      full += go_on(kv::admission{.score = kv::trim_kv{}, .window = 8, .pick = any, .cap = cap}, how, 5, seed);
    }
    CHECK(full > (at_night() ? 20 : 8));
  }

  TEST_CASE("more entries leave than a warp has threads") {  // some drafts do not fit into the ring
    dual_options const how{.sequences = 2, .rows = 44, .pages = 300, .bound = 300};
    CHECK(go_on(kv::policies::wg_kv({.window = 40}), how, 40, 2) < 15);
    CHECK(go_on(kv::policies::wg_kv({.window = 40, .cap = 50}), how, 40, 3) < 15);
  }

  TEST_CASE("of several faults the window's comes first, and after a fault the next step is as any other") {
    for (int seed = 0; seed < rounds(8); ++seed) {
      both_sides now({.sequences = 3, .pages = 60, .bound = 24}, kv::policies::wg_kv({.window = 4, .threshold = 0.0f}),
                     small, static_cast<std::uint64_t>(seed));
      auto const ask = [&](std::vector<int> const& tokens) { return now.ask([&](auto& on) { on.step(tokens); }); };
      for (int t = 0; t < 8; ++t) REQUIRE(ask({1, 1, 1}).empty());
      auto const set_free = [&](int pages) {
        *now.expected.both.pages.free_pages.count = pages;
        *now.found.both.pages.free_pages.count = pages;
      };
      int const free = *now.found.both.pages.free_pages.count;
      set_free(0);
      for (auto* each : {&now.expected.both, &now.found.both}) each->window.lanes.in_flight[1] = 1;
      auto const before = now.found.bytes();
      CHECK(ask({1, 2, 1}) == "promote: in_flight (1) = 1, but drafts are committed or truncated first");
      for (auto* each : {&now.expected.both, &now.found.both}) each->window.lanes.in_flight[1] = 0;
      CHECK(ask({4, 4, 4}).starts_with("promote: pages (0) = "));
      set_free(free);
      CHECK(ask({1, 4, 0}).empty());
      CHECK((before != now.found.bytes()));
    }
  }

  TEST_CASE("what is decided where a window is refused does not depend on the order of blocks") {
    std::vector<int> first;
    for (int seed = 0; seed < rounds(12); ++seed) {
      both_sides now({.sequences = 3}, kv::policies::wg_kv({.window = 4}), small, static_cast<std::uint64_t>(seed));
      for (int t = 0; t < 8; ++t) REQUIRE(now.ask([&](auto& on) { on.step({1, 1, 1}); }).empty());
      now.found.both.window.lanes.in_flight[1] = 1;
      CHECK(error_of([&] { now.found.promote({4, 2, 4}); }).starts_with("promote: in_flight (1) = 1"));
      std::vector<int> listed;
      for (int i = 0; i < now.found.keep().segments(); ++i) {
        listed.push_back(-1);
        for (int const ordinal : now.found.keep().listed(i)) listed.push_back(ordinal);
      }
      if (seed == 0) first = listed;
      CHECK(listed == first);
    }
  }

  TEST_CASE("a fault from before stops a promotion") {
    both_sides now({.sequences = 2}, kv::policies::wg_kv({.window = 4}), small, 5);
    for (int t = 0; t < 9; ++t) now.ask([&](auto& on) { on.step({1, 2}); });
    auto const before = now.found.engine->save();
    *now.device.faults().data = kv::device_error::pack(kv::fault::span, 1, 7);
    CHECK(error_of([&] { now.found.promote({2, 2}); }).starts_with("observe: span (1) = 7"));
    CHECK((before == now.found.engine->save()));
    kv::keep_set const& keep = now.found.keep();
    for (int i = 0; i < keep.segments(); ++i) CHECK(std::ssize(keep.listed(i)) == 2);  // all that would have left
    for (int t = 0; t < 3; ++t) now.ask([&](auto& on) { on.step({2, 1}); });
  }
}

}  // namespace

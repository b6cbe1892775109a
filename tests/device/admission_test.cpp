// SPDX-License-Identifier: Apache-2.0
// Admission on a device against the host: batches that step, take chunks, roll back and run out of pages.

#include "support/dual_sides.hpp"

namespace {

using namespace kvpolicy_test;

TEST_SUITE("device/admission") {
  TEST_CASE("batches go the host's way, byte for byte") {
    dice random(5);
    int exhausted = 0;
    for (int run = 0; run < 12; ++run) {
      bool const wide = run % 6 == 5;  // more lanes than a block has threads
      int const sequences = random.between(1, 3);
      int const window = random.between(1, 9);
      int const cap = random.chance(30) ? random.between(0, 12) : -1;
      int const threads = wide ? 32 : 32 << random.below(3);
      int const heads = wide ? 6 : 2;
      int const lanes = sequences * heads * heads;
      both_sides now({.model = {heads, heads, heads, 4},
                      .sequences = sequences,
                      .rows = 12,
                      .pages = lanes * random.between(3, 10),
                      .bound = 48},
                     kv::policies::wg_kv({.window = window, .cap = cap}),
                     {.segment_threads = 64,
                      .entry_threads = threads,
                      .row_threads = 160 - threads,
                      .lane_threads = threads,
                      .processors = 3},
                     static_cast<std::uint64_t>(run));
      auto const some = [&](int most) {
        std::vector<int> numbers(as_size(sequences));
        for (int& each : numbers) each = random.below(most + 1);
        return numbers;
      };
      for (int act = 0; act < (wide ? 8 : 16); ++act) {
        int const what = random.below(10);
        auto const tokens = some(what < 5 ? std::min(window, 3) : what < 7 ? 2 : 33);
        if (what < 5) {
          exhausted += now.ask([&](auto& on) { on.step(tokens); }).empty() ? 0 : 1;
        } else if (what < 7) {
          std::vector<int> accepted;
          for (int const drafts : tokens) accepted.push_back(random.below(drafts + 1));
          now.ask([&](auto& on) { on.speculate(tokens, accepted); });
        } else if (what < 9) {
          exhausted += now.ask([&](auto& on) { on.chunk(tokens); }).empty() ? 0 : 1;
        } else {
          int const sequence = random.below(sequences);
          int const position = random.below(now.expected.length[as_size(sequence)] + 1);
          now.ask([&](auto& on) { on.roll_back(sequence, position); });
        }
      }
      for (int sequence = 0; sequence < sequences; ++sequence) {
        now.ask([&](auto& on) { on.roll_back(sequence, 0); });
      }
    }
    CHECK(exhausted > 3);
  }

  TEST_CASE("what the data do not allow is told, and nothing has changed") {
    auto const refused = [](int bound, auto const& prepare, auto const& call) {
      both_sides now({.pages = 20, .bound = bound}, kv::policies::wg_kv({.window = 4, .threshold = 0.0f}),
                     {.segment_threads = 64, .entry_threads = 64, .row_threads = 64, .lane_threads = 32}, 3);
      for (int t = 0; t < 11; ++t) now.ask([&](auto& on) { on.step({1}); });
      prepare(now.expected);
      prepare(now.found);
      auto const before = now.found.bytes();
      std::string const fault = now.ask(call);
      CHECK((before == now.found.bytes()));
      return fault;
    };
    auto const nothing = [](auto&) {};
    auto const two = [](auto& on) { on.step({2}); };
    auto const top_page = [](auto& on) -> int& { return on.engine->free_list()[as_size(on.engine->free_pages() - 1)]; };
    CHECK(refused(64, nothing, [](auto& on) { on.step({5}); }) ==
          "promote: tokens = 5, but the window has 4 rows: ingest takes longer chunks");
    CHECK(refused(
              64, [](auto& on) { on.write(0, 3, true); }, two) ==
          "promote: in_flight (0) = 3, but drafts are committed or truncated first");
    CHECK(refused(
              64, [](auto& on) { on.length[0] = 10; }, [](auto& on) { on.chunk({3}); }) ==
          "ingest: position (0) = 10, but positions ascend");
    CHECK(refused(7, nothing, [](auto& on) { on.step({1}); }) ==
          "promote: pages.lanes.count (0) = 8, but a lane holds at most `capacity` entries");
    CHECK(refused(
              64, [](auto& on) { *on.both.pages.free_pages.count = 1; }, two) ==
          "promote: pages (1) = 2, but the pool has only as many free pages as the number in parentheses");
    CHECK(refused(
              64, [&](auto& on) { top_page(on) = on.engine->sentinel(); }, two)
              .starts_with("promote: pages.free (0) = "));
    CHECK(refused(
              64, [](auto& on) { on.both.pages.entries.lanes.position.row({0, 1, 0})[5] = 7; }, two) ==
          "promote: position (2) = 7, but positions ascend");
  }

  TEST_CASE("whole steps go the host's way") {
    auto const seen = [](auto& exec) {
      kv::cache_policy<policy_type, kv::omitted, kv::omitted> const policy{
          .admit = kv::policies::wg_kv({.window = 4, .threshold = 0.0f})};
      auto const engine = std::make_unique<dual_engine>(dual_options{});
      kv::dual_cache both = engine->view();
      auto [held, plans] = state_and_plan(exec, policy, both);
      for (int t = 0; t < 12; ++t) {
        kv::step(exec, policy, kv::signals{both.window.lanes}, both, held, plans, {.tokens = 1, .position = t},
                 [&] { settle(exec); });
      }
      settle(exec);
      return dual_engine::seen(both, {0, 1, 1});
    };
    kv::host_executor host;
    device_executor device;
    CHECK(seen(device).size() == 12);
    CHECK(seen(device) == seen(host));
  }

  TEST_CASE("a step's new tokens are looked at before it begins") {
    auto const engine = std::make_unique<dual_engine>(dual_options{.sequences = 10, .rows = 8});
    kv::dual_cache const both = engine->view();
    device_executor device;
    for (int s = 0; s < 10; ++s) {
      *both.window.lanes.count.row({s, 0, 0}) = 3;
      *both.pages.entries.lanes.count.row({s, 1, 1}) = 1;
      *both.pages.entries.lanes.position.row({s, 1, 1}) = s == 9 ? 7 : -1;
    }
    auto const refused = [&](kv::append_request const& last) {
      std::vector<kv::append_request> fresh;
      for (int s = 0; s < 10; ++s) {
        if (s != last.sequence) fresh.push_back({.sequence = s, .position = 1});
      }
      fresh.push_back(last);
      return error_of([&] {
        kv::ops::refuse_new_tokens(device, "step", both.window.lanes, both.pages.entries.lanes,
                                   std::span<kv::append_request const>(fresh));
        device.check();
      });
    };
    CHECK(refused({.sequence = 8, .tokens = 1, .position = 7}).empty());
    CHECK(refused({.sequence = 9, .tokens = 1, .position = 8, .in_flight = true}).empty());
    CHECK(refused({.sequence = 9, .tokens = 0, .position = 7}).empty());
    CHECK(refused({.sequence = 9, .tokens = 1, .position = 7}) == "step: position (9) = 7, but positions ascend");
    CHECK(refused({.sequence = 8, .tokens = 1, .position = 0}) == "step: position (8) = 0, but positions ascend");
    CHECK(refused({.sequence = 9, .tokens = 6, .position = 8, .in_flight = true}) ==
          "step: tokens (9) = 6, but the ring has fewer rows for drafts");
    CHECK(refused({.sequence = 9, .tokens = 1, .position = -1}) == "step: position = -1, but positions start at 0");
    CHECK(refused({.sequence = 10, .tokens = 1, .position = 8}) ==
          "step: sequence = 10, but the batch has 10 sequences");
  }
}

}  // namespace

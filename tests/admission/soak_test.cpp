// SPDX-License-Identifier: Apache-2.0
// Many steps of decoding, 100,000 in the night: random gates, drafts that are rolled back, evictions, a pool that runs
// out.

#include "support/dual_engine.hpp"

namespace {

using namespace kvpolicy_test;

/// One sequence without end, and a plain model of what every lane may hold.
class soak {
 public:
  static constexpr int window = 6, drafts = 4, pages = 48, budget = 24;
  using admit_type = kv::admission<kv::write_gate>;

  soak()
      : engine_({.rows = 12, .page = 4, .pages = pages, .bound = 64}),
        both_(engine_.view()),
        held_{kv::make_state(exec_, admit_, both_.window, both_.window.lanes.capacity),
              kv::make_state(exec_, evict_, both_.pages.entries)},
        exits_(kv::make_plan(exec_, admit_, both_)),
        evicting_(kv::make_plan(exec_, evict_, both_.pages.entries)) {}

  void step() {
    if (!promote()) return ++exhausted, evict();
    write(1, false);
    if (random_.chance(30)) speculate();
    if (random_.chance(8)) evict();
    ++steps;
  }

  /// Pages are somewhere once; entries are at their positions; and what the model says was admitted is there.
  void check() {
    std::multiset<int> owned(engine_.free_list().begin(), engine_.free_list().begin() + engine_.free_pages());
    for (int i = 0; i < engine_.lanes(); ++i) {
      kv::lane const this_lane = both_.window.lanes.at(i);
      int const held = *both_.pages.num_pages.row(this_lane);
      owned.insert(both_.pages.table.row(this_lane), both_.pages.table.row(this_lane) + held);
      int const count = *both_.pages.entries.lanes.count.row(this_lane);
      REQUIRE(held == (count + 3) / 4);
      int const* const position = both_.pages.entries.lanes.position.row(this_lane);
      REQUIRE(std::vector<int>(position, position + count) == kept_[as_size(i)]);
      for (int e = 0; e < count; ++e) REQUIRE(dual_engine::true_rows(both_.pages.entries, this_lane, e));
      int const recent = *both_.window.lanes.count.row(this_lane);
      REQUIRE(recent >= std::min(length_, window));
      REQUIRE(recent <= window + drafts);
      for (int e = 0; e < recent; ++e) {
        REQUIRE(both_.window.lanes.position.row(this_lane)[e] == length_ - recent + e);
        REQUIRE(dual_engine::true_rows(both_.window, this_lane, e));
      }
    }
    REQUIRE(std::ssize(owned) == pages);
    REQUIRE(std::ssize(std::set<int>(owned.begin(), owned.end())) == pages);
    REQUIRE(owned.count(engine_.sentinel()) == 0);
  }

  int steps = 0, exhausted = 0, evictions = 0, rolled_back = 0;

 private:
  [[nodiscard]] static bool admitted(int lane, int position) {
    unsigned const mixed = (static_cast<unsigned>(position) * 2654435761u) ^ (static_cast<unsigned>(lane) * 40503u);
    return (mixed >> 13) % 100 < 45;
  }

  /// False if the pool had not enough pages; then nothing may have changed.
  bool promote() {
    int const count = *both_.window.lanes.count.row({});
    bool enough = true;
    auto const error =
        error_of([&] { kv::promote(exec_, admit_, kv::signals{both_.window.lanes}, both_, held_, exits_, 1); });
    enough = error.empty();
    if (!enough) {
      REQUIRE(error.starts_with("promote: pages = "));
      REQUIRE(*both_.window.lanes.count.row({}) == count);
      return false;
    }
    int const gone = std::max(0, count + 1 - window);
    for (int i = 0; i < engine_.lanes(); ++i) {
      for (int p = length_ - count; p < length_ - count + gone; ++p) {
        if (admitted(i, p)) kept_[as_size(i)].push_back(p);
      }
    }
    return true;
  }

  void write(int tokens, bool draft) {
    kv::append(exec_, both_.window, held_.window, {.tokens = tokens, .position = length_, .in_flight = draft});
    int const count = *both_.window.lanes.count.row({});
    for (int i = 0; i < engine_.lanes(); ++i) {
      for (int e = 0; e < tokens; ++e) {
        dual_engine::write(both_.window, both_.window.lanes.at(i), count - tokens + e, length_ + e);
      }
    }
    length_ += tokens;
    if (!draft) tell(tokens);
  }

  void speculate() {
    int const tokens = random_.between(1, drafts);
    write(tokens, true);
    int const kept = random_.below(tokens + 1);
    rolled_back += tokens - kept;
    length_ -= tokens - kept;
    kv::truncate(exec_, both_.window, held_.window, 0, length_);
    kv::commit(exec_, both_.window, 0, kept);
    if (kept > 0) tell(kept);
  }

  void tell(int tokens) {
    config_.clear();
    for (int i = 0; i < engine_.lanes(); ++i) {
      for (int p = length_ - tokens; p < length_; ++p) config_.push_back(admitted(i, p) ? 0.7f : 0.01f);
    }
    kv::gate fresh;
    fresh.base = reinterpret_cast<std::byte const*>(config_.data());
    fresh.head = tokens * 4;
    fresh.layer = fresh.head * 2;
    fresh.entry = 4;
    fresh.entries = tokens;
    kv::observe(exec_, admit_, kv::signals{both_.window.lanes, fresh}, held_.window);
  }

  void evict() {
    kv::decide(exec_, evict_, kv::signals{both_.pages.entries.lanes}, held_.pages, evicting_);
    for (int i = 0; i < engine_.lanes(); ++i) {
      std::vector<int>& mine = kept_[as_size(i)];
      std::vector<int> left;
      for (int const e : evicting_.keep().listed(i)) left.push_back(mine[as_size(e)]);
      mine = left;
    }
    kv::apply(exec_, kv::compact{}, evicting_, both_.pages.entries, held_.pages);
    kv::ops::release_pages(exec_, both_.pages);
    ++evictions;
  }

  kv::host_executor exec_;
  dual_engine engine_;
  admit_type admit_ = kv::policies::wg_kv({.window = window});
  decltype(kv::policies::random()) evict_ = kv::policies::random({.budget = budget});
  kv::dual_cache both_;
  kv::dual_state<kv::host_executor> held_;
  kv::exit_plan<kv::host_executor> exits_;
  kv::plan<kv::host_executor> evicting_;
  dice random_{3};
  int length_ = 0;
  std::vector<std::vector<int>> kept_ = std::vector<std::vector<int>>(4);
  std::vector<float> config_;
};

TEST_SUITE("admission") {
  TEST_CASE("a long soak: pages are conserved, positions stay true") {
    soak now;
    int const steps = rounds(100000);
    while (now.steps < steps) {
      now.step();
      if (now.steps % 500 == 0) now.check();
    }
    now.check();
    MESSAGE(now.exhausted, " times without pages, ", now.evictions, " evictions, ", now.rolled_back,
            " drafts rolled back");
    CHECK(now.exhausted > steps / 2000);
    CHECK(now.evictions > steps / 100);
    CHECK(now.rolled_back > steps / 100);
  }
}

}  // namespace

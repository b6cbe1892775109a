// SPDX-License-Identifier: Apache-2.0
// What executors of kernels refuse, and which fault is told.
#if !defined(__CUDACC__)
#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Its kernels reach all memory but one address.
class blind_executor : public emulated_executor {
 public:
  void const* unseen = nullptr;
  [[nodiscard]] bool reaches(void const* at) const { return at != unseen; }
};

struct tell {
  kv::device_error faults;
  kv::fault kind;
  int index;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    kv::detail::report_fault(block, faults, kind, index - i, 100 + i);
  }
};

TEST_SUITE("device/executor") {
  TEST_CASE("memory that kernels do not reach is refused by its name") {
    mock_cache cache(mock_options{});
    kv::cache view = cache.view();
    float const sink = 0;
    view.logits.sinks.data = &sink;
    blind_executor exec;
    auto const policy = kv::policies::knorm({});
    auto const refused = [&](void const* at) {
      exec.unseen = at;
      return error_of([&] { static_cast<void>(kv::make_plan(exec, policy, view)); });
    };
    std::string const rule =
        " = memory of the host, but the executor's kernels read it: memory of the device, or memory that both share";
    CHECK(refused(view.k.base) == "make_plan: k" + rule);
    CHECK(refused(view.v.base) == "make_plan: v" + rule);
    CHECK(refused(view.lanes.count.data) == "make_plan: lanes.count" + rule);
    CHECK(refused(view.lanes.position.data) == "make_plan: lanes.position" + rule);
    CHECK(refused(view.logits.sinks.data) == "make_plan: logits.sinks" + rule);
    CHECK(refused(&exec).empty());
    exec.unseen = view.k.base;
    CHECK(error_of([&] { static_cast<void>(kv::make_state(exec, policy, view)); }) == "make_state: k" + rule);
  }

  TEST_CASE("statistics that kernels do not reach are refused, and nothing has changed") {
    filled_cache cache(mock_options{}, false);
    kv::cache view = cache.view();
    view.logits = {};
    blind_executor exec;
    auto const policy = kv::policies::knorm({.budget = 3});
    auto [state, plan] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
    kv::apply_stats stats{};
    exec.unseen = &stats;
    int const before = *view.lanes.count.data;
    CHECK(error_of([&] { kv::apply(exec, kv::compact{}, plan, view, state, &stats); }) ==
          "apply: stats = memory of the host, but the executor's kernels read it: memory of the device, or memory that "
          "both share");
    CHECK(*view.lanes.count.data == before);
    exec.unseen = nullptr;
    kv::apply(exec, kv::compact{}, plan, view, state, &stats);
    exec.check();
    CHECK(stats.logical_kept > 0);
    CHECK(*view.lanes.count.data == 3);
  }

  TEST_CASE("of one launch the lowest fault is told, of two the first; a check clears it") {
    device_executor exec;
    auto const told = [&](kv::fault kind, int index) {
      kv::detail::launch_each(exec, 3, tell{exec.faults(), kind, index});
    };
    told(kv::fault::pages_supply, 7);
    told(kv::fault::append_bound, 1);  // a lower kind, which follows from it
    CHECK(error_of([&] { exec.check(); }) ==
          "promote: pages (5) = 102, but the pool has only as many free pages as the number in parentheses");
    CHECK(error_of([&] { exec.check(); }).empty());
    told(kv::fault::append_position, 4);
    told(kv::fault::append_bound, 9);  // one launch may find both
    CHECK(error_of([&] { exec.check(); }) == "append: tokens (7) = 102, but a lane holds at most `capacity` entries");
  }

  TEST_CASE("launch numbers that no block can have are refused") {
    auto const refused = [](kv::launch_config const& numbers) {
      return error_of([&] { kv::detail::check_launch_config("set_launch_config", numbers, 99 * 1024); });
    };
    CHECK(refused({}).empty());
    CHECK(refused({.entries_of_a_block = 0}) == "set_launch_config: entries_of_a_block = 0, but there is at least one");
    CHECK(refused({.overlapped_launches = 2}) == "set_launch_config: overlapped_launches = 2, but it is 0 or 1");
    CHECK(refused({.entries_of_a_selection = 0}) ==
          "set_launch_config: entries_of_a_selection = 0, but there is at least one");
    CHECK(refused({.shared_bytes = 1024}) == "set_launch_config: shared_bytes = 1024, but a block has 49152 to 101376");
    CHECK(refused(kv::launch_config_for(90, 132)) ==
          "set_launch_config: shared_bytes = 232448, but a block has 49152 to 101376");
    CHECK(kv::to_string(kv::launch_config{}).find("entries_of_a_block=1024") != std::string::npos);
  }
}

}  // namespace
#endif

// SPDX-License-Identifier: Apache-2.0
// What every applier promises, whatever it does to memory: one line in `every_applier` instantiates all of it.

#include "laws/applier_bench.hpp"

namespace {

using namespace kvpolicy_test;

/// Runs a call that must be refused, also where the error's own text finds no memory: nothing may have changed.
template <class Layout>
void is_refused(bench<Layout>& now) {
  auto const before = now.save(true);
  bool refused = false;
  try {
    (void)now.apply();
  } catch (kv::invalid_argument const&) {
    refused = true;
  }
  RC_ASSERT(refused);
  RC_ASSERT(now.save(true) == before);
  for (long n = 0;; ++n) {
    bool const ran_out = [&] {
      try {
        return fails_at_allocation(n, [&] { (void)now.apply(); });
      } catch (kv::invalid_argument const&) {
        until_failure = -1;
        return false;
      }
    }();
    RC_ASSERT(now.save(true) == before);
    if (!ran_out) break;
  }
}

}  // namespace

TEST_SUITE("laws/appliers") {
  TEST_CASE_TEMPLATE_DEFINE("a decision that keeps everything changes nothing", Layout, keep_all_law) {
    holds(Layout::name, 30, [] {
      auto now = any_bench<Layout>();
      now.decide(now.cache.options.bound);
      auto const before = now.save(false);
      kv::apply_stats const stats = now.apply();
      RC_ASSERT(now.save(false) == before);
      RC_ASSERT(stats.physical_freed == 0);
    });
  }
  TEST_CASE_TEMPLATE_APPLY(keep_all_law, every_applier);

  TEST_CASE_TEMPLATE_DEFINE("what was decided once is carried out once", Layout, once_law) {
    holds(Layout::name, 30, [] {
      auto now = any_bench<Layout>();
      now.decide(*rc::gen::inRange(0, now.cache.held({})));
      (void)now.apply();
      is_refused(now);  // also where nothing was to go
    });
  }
  TEST_CASE_TEMPLATE_APPLY(once_law, every_applier);

  TEST_CASE_TEMPLATE_DEFINE("drafts stay in flight, behind what was kept, with their values and columns", Layout,
                            drafts_law) {
    holds(Layout::name, 30, [] {
      auto now = any_bench<Layout>();
      int const held = now.cache.held({});
      now.decide(*rc::gen::inRange(0, held));
      (void)now.apply();
      for (int i = 0; i < now.cache.lane_count(); ++i) {
        kv::lane const this_lane = now.cache.lane_at(i);
        RC_ASSERT(now.cache.in_flight[as_size(this_lane.sequence)] == 2);
        for (int d = 1; d <= 2; ++d) {
          int const e = now.cache.held(this_lane) - d;
          int const number = held - d;
          bool const turned = std::same_as<Layout, kv::compact_rerotated>;
          RC_ASSERT(now.cache.positions(this_lane)[as_size(e)] == (turned ? e : number));
          RC_ASSERT(now.mass(i)[e] == static_cast<float>(10 * i + number));
          kv::place const at = now.view.where.at(this_lane, e);
          RC_ASSERT(now.cache.read(false, this_lane, static_cast<int>(at.unit), at.token) ==
                    now.cache.token_row(false, this_lane, 100 * this_lane.sequence + number));
        }
      }
    });
  }
  TEST_CASE_TEMPLATE_APPLY(drafts_law, every_applier);

  TEST_CASE_TEMPLATE_DEFINE("the tally counts no more than there was, and the call allocates nothing", Layout,
                            tally_law) {
    holds(Layout::name, 30, [] {
      auto now = any_bench<Layout>();
      std::int64_t committed = 0, held_before = 0, held = 0, drafts = 0;
      for (int i = 0; i < now.cache.lane_count(); ++i) {
        committed += now.cache.committed(now.cache.lane_at(i));
        held_before += now.cache.held(now.cache.lane_at(i));
        drafts += now.cache.held(now.cache.lane_at(i)) - now.cache.committed(now.cache.lane_at(i));
      }
      now.decide(*rc::gen::inRange(0, now.cache.held({})));
      kv::apply_stats stats;
      RC_ASSERT(!fails_at_allocation(0, [&] { stats = now.apply(); }));
      for (int i = 0; i < now.cache.lane_count(); ++i) held += now.cache.held(now.cache.lane_at(i));
      RC_ASSERT(stats.logical_kept <= committed);
      RC_ASSERT(stats.logical_kept + drafts <= held);
      RC_ASSERT(stats.attended_length >= held);
      RC_ASSERT(stats.physical_freed >= 0);
      RC_ASSERT(stats.physical_freed <= held_before - stats.logical_kept);
    });
  }
  TEST_CASE_TEMPLATE_APPLY(tally_law, every_applier);

  TEST_CASE_TEMPLATE_DEFINE("a refused call changes nothing, at whatever allocation its own error fails", Layout,
                            refusal_law) {
    holds(Layout::name, 15, [] {
      auto now = any_bench<Layout>();
      is_refused(now);  // no decision yet
      now.decide(2);
      kv::commit(now.exec, now.view, 0, 1);
      is_refused(now);  // other counts than those of the decision
      now.decide(2);
      kv::plane const whole = now.view.k;
      now.view.k.head_stride = now.view.k.channel_stride;
      is_refused(now);  // keys that overlap
      now.view.k = whole;
      (void)now.apply();
    });
  }
  TEST_CASE_TEMPLATE_APPLY(refusal_law, every_applier);

  TEST_CASE("every applier in the library's folder is in the list of the laws, and in that of the engines") {
    std::set<std::string> shipped, listed_here, known;
    for (auto const& file : std::filesystem::directory_iterator(KVPOLICY_SOURCE_DIR "/include/kvpolicy/layout")) {
      auto const name = file.path().stem();
      bool const no_applier = name == "append" || name == "applier" || name == "edit" || name == "effects" ||
                              name == "key_turns" || name == "restore_order";
      if (!no_applier) shipped.insert(name.string());
    }
    std::apply([&](auto const&... each) { (listed_here.insert(each.name), ...); }, every_applier{});
    for (char const* const name : names(kv::engines::applier{})) known.insert(name);
    CHECK(shipped == listed_here);
    CHECK(known == listed_here);
  }
}

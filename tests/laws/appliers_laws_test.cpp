// SPDX-License-Identifier: Apache-2.0
// What every applier promises, whatever it does to memory: one line in `every_applier` instantiates all of it.

#include "layout/slot_cache.hpp"
#include "support/beside.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Every applier that the library ships; a test compares this list with the headers.
using every_applier = std::tuple<kv::compact, kv::compact_rerotated, kv::list_rewrite<>, kv::dead_slot<>, kv::mask,
                                 kv::overwrite, kv::drop_blocks<>>;

slot_options any_shape(bool pages) {
  slot_options shape;
  shape.model = {.layers = *rc::gen::inRange(1, 3), .query_heads = 2, .kv_heads = 2, .head_dim = 4};
  shape.sequences = *rc::gen::inRange(1, 3);
  shape.bound = *rc::gen::element(12, 33);
  shape.page = pages ? 4 : 1;
  shape.by_lane = *rc::gen::arbitrary<bool>();
  shape.element = *rc::gen::element(kv::codec::f32, kv::codec::bf16);
  shape.seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
  return shape;
}

/// A batch of two turns of tokens and some drafts, with a column that follows its entries.
template <class Layout>
struct bench {
  using policy_type = kv::eviction<kv::reduce_lanes<kv::random_scores>, kv::sinks>;

  explicit bench(slot_options const& shape)
      : cache(shape),
        view(cache.view()),
        policy{.score = {.decides = shape.by_lane ? kv::granularity::lane : kv::granularity::sequence}, .protect = {1}},
        plan(kv::make_plan(exec, policy, view)),
        columns(kv::make_state(exec, policy, view)),
        hidden(as_size(cache.rows * cache.units), std::byte{1}) {
    keep_beside(columns, kv::record_attention_mass{});
    int const tokens = cache.random.between(1, shape.bound - 2);
    for (int s = 0; s < shape.sequences; ++s) {
      for (int t = 0; t < tokens + 2; ++t) {
        cache.write_token(s, t, 100 * s + t);
        kv::append(exec, view, columns, {s, 1, t, t >= tokens});
      }
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      for (int e = 0; e < cache.held(cache.lane_at(i)); ++e) mass(i)[e] = static_cast<float>(10 * i + e);
    }
  }

  [[nodiscard]] float* mass(int i) { return reinterpret_cast<float*>(columns.columns()[0].rows.row(cache.lane_at(i))); }

  [[nodiscard]] Layout layout() {
    auto const list = cache.list_table();
    auto const like = cache.table(cache.count, 1);
    std::int64_t const row = cache.units;
    if constexpr (std::same_as<Layout, kv::list_rewrite<>>) return {.list = list, .freed = cache.freed_list()};
    if constexpr (std::same_as<Layout, kv::dead_slot<>>) return cache.redirecting();
    if constexpr (std::same_as<Layout, kv::mask>) {
      return {list,
              {{hidden.data(), like.sequence * row, like.layer * row, like.head * row}, kv::mask_form::boolean, row}};
    }
    if constexpr (std::same_as<Layout, kv::overwrite>) return {list};
    if constexpr (std::same_as<Layout, kv::drop_blocks<>>) return {list, cache.freed_list()};
    if constexpr (std::same_as<Layout, kv::compact> || std::same_as<Layout, kv::compact_rerotated>) return {};
  }
  void decide(int budget) {
    policy.budget.tokens = budget;
    kv::decide(exec, policy, kv::signals{view.lanes}, columns, plan);
  }
  kv::apply_stats apply() {
    kv::apply_stats stats{-1, -1, -1};
    kv::apply(exec, layout(), plan, view, columns, &stats);
    return stats;
  }

  /// What an engine could notice: all memory and tables but the lists that are handed back, which a call makes anew.
  struct snapshot {
    std::vector<std::byte> memory, hidden;
    std::vector<std::vector<int>> tables;
    std::vector<float> mass;
    friend bool operator==(snapshot const&, snapshot const&) = default;
  };
  [[nodiscard]] snapshot save(bool with_lists) {
    auto all = cache.save();
    snapshot made{all.memory, hidden, all.tables, {}};
    for (std::size_t lists = 6; lists < 10 && !with_lists; ++lists) made.tables[lists].clear();
    for (int i = 0; i < cache.lane_count(); ++i)
      made.mass.insert(made.mass.end(), mass(i), mass(i) + cache.options.bound);
    return made;
  }

  slot_cache cache;
  kv::host_executor exec;
  kv::cache view;
  policy_type policy;
  kv::plan<kv::host_executor> plan;
  kv::state<kv::host_executor> columns;
  std::vector<std::byte> hidden;
};

template <class Layout>
bench<Layout> any_bench() {
  return bench<Layout>(any_shape(std::same_as<Layout, kv::drop_blocks<>>));
}

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

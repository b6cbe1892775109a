// SPDX-License-Identifier: Apache-2.0
// An applier and a verb of a user: `apply`, `make_plan` and the engines serve them like those of the library.
#include "support/test.hpp"

namespace user {

namespace kv = kvpolicy;

/// A verb of a user's: lists the dropped entries of a lane in scratch, then writes zeros into their keys.
struct blank_dropped_t : kv::verb<blank_dropped_t> {
  static void check(kv::keep_set const&, kv::cache const&) {}
};
inline constexpr blank_dropped_t blank_dropped{};

/// An applier of a user's: no list and no count changes, what was dropped is all zeros.
struct scrub {
  bool refuses = false;

  static constexpr auto name = "scrub";
  static constexpr kv::applier_effects effects{.moves_rows = true};
  using verbs = kv::verbs<blank_dropped_t>;

  void refuse(auto&, kv::keep_set const&, kv::cache const&) const {
    kv::expects(!refuses, "apply", "scrub.refuses", "true", "it was asked to refuse");
  }
  void edit(auto& exec, kv::keep_set const& keep, kv::cache const& part, auto&, kv::apply_stats*) const {
    blank_dropped(exec, keep, part);
  }
};
static_assert(kv::applier<scrub>);

/// An applier of a user's with a column of its own: how often it was applied to an entry. It asks the state for it.
struct aging {
  static constexpr auto name = "aging";
  static constexpr kv::applier_effects effects{};

  [[nodiscard]] std::vector<kv::column> columns(kv::cache const&) const { return {{.name = "age"}}; }
  void refuse(auto&, kv::keep_set const&, kv::cache const&, auto const& state) const {
    kv::expects(state.columns().size() == state.recorder_columns() + 1, "apply", "state", "without ages",
                "make_state was not given this applier");
  }
  void edit(auto&, kv::keep_set const&, kv::cache const& part, auto& state, kv::apply_stats*) const {
    kv::by_lane<int> const age = state.columns_from(state.recorder_columns(), part.lanes).template table<int>(0);
    for (kv::lane const one : kvpolicy_test::lanes_of(part.lanes)) {
      for (int e = 0; e < *part.lanes.count.row(one); ++e) ++age.row(one)[e];
    }
  }
};
static_assert(kv::applier<aging>);

}  // namespace user

namespace kvpolicy::inline v0 {

template <>
struct implementation<user::blank_dropped_t, host> {
  static std::size_t scratch(cache const& in) {
    return detail::scratch_of<int>(static_cast<std::size_t>(in.lanes.capacity) + 8000);
  }
  static void run(host_executor& exec, keep_set const& keep, cache const& in) {
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      int* const dropped =
          detail::scratch_arena(exec.scratch(worker)).take<int>(static_cast<std::size_t>(in.lanes.capacity));
      auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
      int const gone = detail::list_dropped(exec, kept, in.lanes.committed(this_lane), dropped);
      for (int d = 0; d < gone; ++d) {
        std::memset(in.k.row(this_lane.layer, in.where.at(this_lane, dropped[d]), this_lane.head), 0,
                    static_cast<std::size_t>(in.k.channels) * sizeof(float));
      }
    });
  }
};

}  // namespace kvpolicy::inline v0

namespace {

using namespace kvpolicy_test;

TEST_SUITE("layout/own_applier") {
  TEST_CASE("apply carries a decision out by an applier of the user's, with scratch for the user's verb") {
    mock_cache mock({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8}, .bound = 40});
    for (int i = 0; i < mock.lane_count(); ++i) mock.put(mock.lane_at(i), up_to(30));
    kv::cache view = mock.view();
    auto const policy = kv::eviction{.score = kv::streaming_llm{.sinks = 2}, .budget = kv::per_lane{10}};
    for (bool const named : {true, false}) {
      kv::host_executor exec(2);
      auto state = kv::make_state(exec, policy, view);
      auto plan = named ? kv::make_plan(exec, policy, view, user::scrub{}) : kv::make_plan(exec, policy, view);
      bool const reserved = exec.reserved() >= kv::implementation<user::blank_dropped_t, kv::host>::scratch(view);
      CHECK(reserved == named);
      kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
      CHECK((allocations_in([&] { kv::apply(exec, user::scrub{}, plan, view, state); }) == 0) == named);
      kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
      CHECK(error_of([&] { kv::apply(exec, user::scrub{.refuses = true}, plan, view, state); }) ==
            "apply: scrub.refuses = true, but it was asked to refuse");
      for (kv::lane const this_lane : kvpolicy_test::lanes_of(view.lanes)) {
        for (int e = 0; e < 30; ++e) {
          auto const* const row =
              reinterpret_cast<float const*>(view.k.row(this_lane.layer, view.where.at(this_lane, e), this_lane.head));
          bool const zeros = std::all_of(row, row + 8, [](float x) { return x == 0; });
          CHECK(zeros == (e >= 2 && e < 22));
        }
      }
    }
  }

  TEST_CASE(
      "an applier's own column is in a state that is made for it, and follows the entries like those of recorders") {
    mock_cache mock({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8}, .bound = 12});
    kv::cache view = mock.view();
    kv::host_executor exec;
    auto const policy = kv::eviction{.score = kv::h2o{}, .protect = kv::sinks{1}, .budget = kv::per_lane{3}};
    auto const other = kv::eviction{.score = kv::streaming_llm{.sinks = 1}, .budget = kv::per_lane{3}};
    for (bool const named : {true, false}) {
      auto state = named ? kv::make_state(exec, other, view, kv::compact{}, user::aging{}, kv::overwrite{})
                         : kv::make_state(exec, other, view, kv::compact{});
      auto plan = kv::make_plan(exec, other, view);
      CHECK(state.columns().size() == (named ? 1u : 0u));
      CHECK(kv::required_bytes<kv::host_executor>(other, view, user::aging{}).state ==
            kv::required_bytes<kv::host_executor>(other, view).state + std::size_t{4} * 12 * 4);
      auto const apply = [&](auto const& how) {
        kv::decide(exec, other, kv::signals{view.lanes}, state, plan);
        kv::apply(exec, how, plan, view, state);
      };
      kv::append(exec, view, state, {.tokens = 4, .position = 0});
      if (!named) {
        CHECK(error_of([&] { apply(user::aging{}); }) ==
              "apply: state = without ages, but make_state was not given this applier");
      } else {
        apply(user::aging{});
        kv::append(exec, view, state, {.tokens = 1, .position = 4});
        apply(user::aging{});
        apply(kv::compact{});  // of 0 to 4 it keeps 0, 3 and 4
        int const* const age = state.columns_from(0, view.lanes).table<int>(0).row({0, 1, 1});
        CHECK(std::vector(age, age + 3) == std::vector{2, 2, 1});
        CHECK(error_of([&] { (void)kv::decide(exec, policy, kv::signals{view.lanes}, state, plan); }) ==
              "decide: state = another policy's, but make_state makes it for the policy that observes and decides");
      }
      kv::truncate(exec, view, state, 0, 0);
    }
  }

  TEST_CASE("an applier whose type is erased has the columns of the applier inside, and does what it does") {
    mock_cache mock({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8}, .bound = 12});
    kv::cache view = mock.view();
    kv::host_executor exec;
    auto const policy = kv::eviction{.score = kv::streaming_llm{.sinks = 1}, .budget = kv::per_lane{3}};
    kv::any_applier const how{user::aging{}};
    kv::any_applier const none;
    CHECK((how.there() && how.name() == "aging" && how.effects() == kv::applier_effects{} && !how.takes_list()));
    auto state = kv::make_state(exec, policy, view, none, how);
    auto plan = kv::make_plan(exec, policy, view);
    CHECK(state.columns().size() == 1);
    kv::append(exec, view, state, {.tokens = 4, .position = 0});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    CHECK(error_of([&] { kv::apply(exec, none, plan, view, state); }) ==
          "apply: applier = none, but it carries the decision out");
    kv::apply(exec, how, plan, view, state);
    int const* const age = state.columns_from(0, view.lanes).table<int>(0).row({0, 1, 1});
    CHECK(std::vector(age, age + 4) == std::vector{1, 1, 1, 1});
    kv::any_applier const scrubs{user::scrub{.refuses = true}};
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    CHECK(error_of([&] { kv::apply(exec, scrubs, plan, view, state); }) ==
          "apply: scrub.refuses = true, but it was asked to refuse");
    CHECK(kv::any_applier{kv::list_rewrite<>{}}.takes_list());
  }

  TEST_CASE("a registry knows appliers by their names, and takes each name once") {
    kv::registry known;
    known.add(user::scrub{}).add(user::aging{});
    CHECK(known.appliers().size() == 2);
    CHECK(known.applier_of("aging").name() == "aging");
    CHECK(!known.applier_of("compact").there());
    CHECK(error_of([&] { known.add(user::scrub{}); }) ==
          "registry: name = scrub, but there is an applier of that name");
  }

  TEST_CASE("a keep set that an engine made itself has no epochs, and is compared by its counts") {
    mock_cache mock({.bound = 12});
    kv::cache view = mock.view();
    kv::host_executor exec;
    auto const policy = kv::eviction{.score = kv::streaming_llm{.sinks = 1}, .budget = kv::per_lane{3}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 4, .position = 0});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    kv::keep_set made = plan.keep();
    made.epoch = nullptr;
    plan.publish(made);
    kv::apply(exec, kv::compact{}, plan, view, state);
    CHECK(*view.lanes.count.row({}) == 3);
    plan.publish(made);
    CHECK(error_of([&] { kv::apply(exec, kv::compact{}, plan, view, state); }) != "");
  }

  TEST_CASE("what required_bytes says of scratch follows from the policy and the appliers that are named") {
    mock_cache mock({.bound = 64, .where = kv::locating::slot_map});
    kv::cache const view = mock.view();
    auto const light = kv::eviction{.score = kv::streaming_llm{}};
    auto const heavy = kv::eviction{.score = kv::snapkv{}};
    std::size_t const alone = kv::required_bytes<kv::host_executor>(light, view).scratch;
    CHECK(alone < kv::required_bytes<kv::host_executor>(heavy, view).scratch);
    CHECK(alone < kv::required_bytes<kv::host_executor>(light, view, user::scrub{}).scratch);
    CHECK(kv::required_bytes<kv::host_executor>(heavy, view, kv::compact{}).scratch ==
          kv::required_bytes<kv::host_executor>(heavy, view).scratch);
  }

  TEST_CASE("engines are asked by the effects of an applier, whoever wrote it") {
    namespace engines = kv::engines;
    auto const policy = kv::eviction{.score = kv::streaming_llm{}};
    CHECK(engines::supports(engines::vllm::can, user::scrub::effects) ==
          engines::supports(engines::vllm::can, kv::applier_effects{.moves_rows = true}));
    CHECK(engines::supports(engines::vllm::can, user::scrub::effects));
    CHECK(error_of([&] {
            engines::check(engines::capabilities{.name = "still"}, kv::granularity::sequence, "scrub",
                           user::scrub::effects);
          }) == "bind: layout = scrub, but still: its rows may not be moved");
    static_cast<void>(engines::bind<engines::vllm>(policy, user::scrub{}));
  }

  TEST_CASE("the engines' list of the shipped appliers says of each what the applier says of itself") {
    namespace engines = kv::engines;
    auto const same = [](auto const& applier) {
      CHECK(engines::effects_of(*engines::applier_named(applier.name)) == applier.effects);
    };
    same(kv::compact{});
    same(kv::compact_rerotated{});
    same(kv::list_rewrite<>{});
    same(kv::dead_slot<>{});
    same(kv::mask{});
    same(kv::overwrite{});
    same(kv::drop_blocks{});
  }
}

}  // namespace

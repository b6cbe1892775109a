// SPDX-License-Identifier: Apache-2.0
// Tables and signals whose strides are missing, and rows of an earlier forward, are refused by name.

#include "laws/refusal.hpp"

namespace strides_test {

namespace kv = kvpolicy;

/// Scores by the rows that `decide` is given, without a recorder.
struct by_current_rows {
  static constexpr auto name = "by_current_rows";
  using needs = kv::needs<kv::keys, kv::queries>;
  using verbs = kv::verbs<kv::ops::compute_attention_mass_t>;
  static constexpr auto decides = kv::granularity::lane;
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::compute_attention_mass(exec, in.template get<kv::keys>(), in.template get<kv::queries>(), {}, out);
  }
  friend bool operator==(by_current_rows const&, by_current_rows const&) = default;
};

}  // namespace strides_test

using namespace kvpolicy_test;

TEST_SUITE("core/strides") {
  TEST_CASE("counts and positions that several sequences would share are refused wherever lanes are given") {
    working_batch now;
    auto const refuses = [&](std::string const& text, std::function<void(kv::lanes&)> const& change) {
      kv::cache bad = now.view;
      change(bad.lanes);
      kv::signals const in{bad.lanes, kv::keys_of(bad), kv::queries{now.queries.view()}};
      now.refuses("make_state: lanes" + text, [&] { static_cast<void>(kv::make_state(now.exec, now.policy, bad)); });
      now.refuses("append: lanes" + text,
                  [&] { kv::append(now.exec, bad, now.state, {.sequence = 0, .tokens = 1, .position = 10}); });
      now.refuses("observe: signals.lanes" + text, [&] { kv::observe(now.exec, now.policy, in, now.state); });
      now.refuses("decide: signals.lanes" + text, [&] { kv::decide(now.exec, now.policy, in, now.state, now.plan); });
      now.refuses("apply: lanes" + text, [&] { kv::apply(now.exec, kv::compact{}, now.plan, bad, now.state); });
    };
    std::string const sequences = ", but there are 2 sequences, and each has entries of its own";
    refuses(".count.sequence = 0" + sequences, [](kv::lanes& bad) { bad.count.sequence = 0; });
    refuses(".position.sequence = 0" + sequences, [](kv::lanes& bad) { bad.position.sequence = 0; });
    refuses(".count.sequence = 0" + sequences, [](kv::lanes& bad) { bad.count = {bad.count.data}; });
    refuses(".count.layer = 0, but positions have a row for each layer, so counts do too",
            [](kv::lanes& bad) { bad.count.layer = 0; });
    refuses(".count.head = 0, but positions have a row for each head, so counts do too",
            [](kv::lanes& bad) { bad.count.head = 0; });
  }

  TEST_CASE("a table of slots or pages that several sequences would share is refused") {
    working_batch now;
    kv::cache bad = now.view;
    bad.where.table.sequence = 0;
    now.refuses("make_state: where.table.sequence = 0, but there are 2 sequences, and each has a row of its own",
                [&] { static_cast<void>(kv::make_state(now.exec, now.policy, bad)); });
    int const begin[] = {0, 3};
    bad.where.kind = kv::locating::csr_pages;
    bad.where.begin = {begin};
    now.refuses("make_state: where.begin.sequence = 0, but the pages of 2 sequences begin at different places",
                [&] { static_cast<void>(kv::make_state(now.exec, now.policy, bad)); });
  }

  TEST_CASE("query rows that several lanes would share are refused, and rows of one need no stride") {
    working_batch now;
    auto const refuses = [&](std::string const& text, std::function<void(kv::query_view&)> const& change) {
      kv::queries bad{now.queries.view()};
      change(bad);
      now.refuses("observe: queries" + text, [&] {
        kv::observe(now.exec, now.policy, kv::signals(now.view.lanes, kv::keys_of(now.view), bad), now.state);
      });
    };
    refuses(".sequence = 0, but there are 2 sequences, and each has memory of its own",
            [](kv::query_view& bad) { bad.sequence = 0; });
    refuses(".layer = 0, but there are 2 layers, and each has memory of its own",
            [](kv::query_view& bad) { bad.layer = 0; });
    refuses(".head = 0, but there are 4 query heads, and each has memory of its own",
            [](kv::query_view& bad) { bad.head = 0; });
    refuses(".row = 0, but there are 3 rows, and each has memory of its own", [](kv::query_view& bad) { bad.row = 0; });
    refuses(".position.sequence = 0, but there are 2 sequences, and each has memory of its own",
            [](kv::query_view& bad) { bad.position.sequence = 0; });
    int const one[] = {1};
    refuses(".valid_rows.sequence = 0, but there are 2 sequences, and each has memory of its own",
            [&](kv::query_view& bad) { bad.valid_rows = {one}; });
    kv::queries of_layer{now.queries.view()};
    of_layer.base = of_layer.at({0, 1, 0}, 0, 0);
    of_layer.layer = 0;
    kv::lanes const second = now.view.lanes.layers_only(1, 2);
    CHECK(error_of([&] {
            kv::observe(now.exec, now.policy, kv::signals(second, kv::keys_of(now.view), of_layer), now.state);
          }).empty());
  }

  TEST_CASE("rows of an earlier forward, and rows that are not valid, are refused") {
    working_batch now;
    auto const observe = [&] { kv::observe(now.exec, now.policy, now.signals(), now.state); };
    auto const append = [&] {
      for (int s = 0; s < 2; ++s) {
        kv::append(now.exec, now.view, now.state, {.sequence = s, .tokens = 1, .position = 10});
      }
    };
    append();  // the rows that were observed before are still there
    std::string const earlier =
        "observe: queries.position = 9 in the last row of sequence 0, but the newest entry is at 10: these rows are of "
        "an earlier forward, or positions do not count from the sequence's start";
    now.refuses(earlier, observe);
    kv::any_policy const erased = now.policy;
    now.refuses(earlier, [&] { kv::observe(now.exec, erased, now.signals(), now.state); });
    for (int s = 0; s < 2; ++s) now.queries.set_position(s, 0, 10);  // one new row, and the count of the old ones
    now.refuses(
        "observe: queries.position = 8 after 10 in row 1 of sequence 0, but positions ascend: these are not the rows "
        "of one "
        "forward, or valid_rows does not say how many are valid",
        observe);
    int valid[] = {1, 4};
    kv::queries rows{now.queries.view()};
    rows.valid_rows = {valid, 1, 0, 0};
    auto const observe_rows = [&] {
      kv::observe(now.exec, now.policy, kv::signals(now.view.lanes, kv::keys_of(now.view), rows), now.state);
    };
    now.refuses("observe: queries.valid_rows = 4 of sequence 1, but a lane has 0 to 3 rows", observe_rows);
    valid[1] = -1;
    now.refuses("observe: queries.valid_rows = -1 of sequence 1, but a lane has 0 to 3 rows", observe_rows);
    valid[1] = 1;
    CHECK(error_of(observe_rows).empty());
  }

  TEST_CASE("a scorer that reads the forward's rows refuses those of an earlier one when it decides") {
    working_batch now;
    kv::eviction<strides_test::by_current_rows> const policy{.budget = {3}};
    auto [state, plan] = state_and_plan(now.exec, policy, now.view);
    auto const decide = [&] { kv::decide(now.exec, policy, now.signals(), state, plan); };
    CHECK(error_of(decide).empty());
    for (int s = 0; s < 2; ++s) {
      kv::append(now.exec, now.view, now.state, {.sequence = s, .tokens = 1, .position = 10});
    }
    CHECK(
        error_of(decide) ==
        "decide: queries.position = 9 in the last row of sequence 0, but the newest entry is at 10: these rows are of "
        "an earlier forward, or positions do not count from the sequence's start");
  }

  TEST_CASE("numbers of new entries, and numbers of every entry, that lanes would share are refused") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, .sequences = 2});
    kv::host_executor exec;
    kv::cache view = cache.view();
    auto const policy = kv::policies::trim_kv({.budget = 4});
    auto state = kv::make_state(exec, policy, view);
    for (int s = 0; s < 2; ++s) kv::append(exec, view, state, {.sequence = s, .tokens = 2, .position = 0});
    std::vector<float> const numbers(64, -1.0f);
    kv::log_beta const right{{.base = reinterpret_cast<std::byte const*>(numbers.data()),
                              .sequence = 64,
                              .layer = 32,
                              .head = 16,
                              .entry = 4,
                              .entries = 2}};
    auto const refused = [&](auto const& change) {
      kv::log_beta bad = right;
      change(bad);
      return error_of([&] { kv::observe(exec, policy, kv::signals(view.lanes, bad), state); });
    };
    CHECK(refused([](auto& bad) { bad.sequence = 0; }) ==
          "observe: entry numbers.sequence = 0, but there are 2 sequences, and each has memory of its own");
    CHECK(refused([](auto& bad) { bad.layer = 0; }) ==
          "observe: entry numbers.layer = 0, but there are 2 layers, and each has memory of its own");
    CHECK(refused([](auto& bad) { bad.head = 0; }) ==
          "observe: entry numbers.head = 0, but there are 2 KV heads, and each has memory of its own");
    CHECK(refused([](auto& bad) {
            bad.layer = bad.sequence;
          }).starts_with("observe: entry numbers.layer = 64, but that is also the stride of sequences"));
    CHECK(refused([](auto& bad) { bad.entry = 0; }) ==
          "observe: entry numbers.entry = 0, but there are 2 new entries, and each has memory of its own");
    kv::log_beta const none{kv::entry_numbers_of(numbers.data(), view.shape, 0, {.sequences = 2})};
    CHECK(error_of([&] { kv::observe(exec, policy, kv::signals(view.lanes, none), state); }).empty());
    int const two[] = {2, 2};
    kv::log_beta const none_of_many{
        kv::entry_numbers_of(numbers.data(), view.shape, 0, {.sequences = 2, .valid_rows = two})};
    CHECK(error_of([&] { kv::observe(exec, policy, kv::signals(view.lanes, none_of_many), state); }).empty());
    CHECK(refused([&](auto& bad) { bad.counts = {two}; }) ==
          "observe: entry numbers.counts.sequence = 0, but there are 2 sequences, and each has memory of its own");
    CHECK(refused([](auto&) {}).empty());

    kv::eviction<kv::external> const by_score{.budget = {1}};
    auto [plain, plan] = state_and_plan(exec, by_score, view);
    CHECK(error_of([&] {
            kv::decide(exec, by_score, kv::signals(view.lanes, kv::external_scores{{numbers.data()}}), plain, plan);
          }) == "decide: external.sequence = 0, but there are 2 sequences, and each has memory of its own");
    kv::eviction<kv::h2o> const by_mass{.budget = {1}};
    auto [masses, h2o_plan] = state_and_plan(exec, by_mass, view);
    CHECK(error_of([&] {
            kv::decide(exec, by_mass, kv::signals(view.lanes, kv::attention_mass{{numbers.data(), 16, 8, 0}}), masses,
                       h2o_plan);
          }) == "decide: attention_mass.head = 0, but there are 2 KV heads, and each has a row of its own");
  }
}

// SPDX-License-Identifier: Apache-2.0
// Signals that do not fit the model, and states that are not the policy's, are refused by name.

#include "laws/refusal.hpp"

namespace signals_test {

namespace kv = kvpolicy;

/// A recorder of one column, whatever that is, and a scorer that has it.
struct one_column {
  using needs = kv::needs<>;
  struct provides {
    int unused = 0;
  };
  kv::column kept{"kept"};
  [[nodiscard]] std::vector<kv::column> columns(kv::shape const&, int) const { return {kept}; }
  [[nodiscard]] provides view(kv::recorded_columns const&) const { return {}; }
  void observe(auto&, auto const&, kv::recorded_columns const&) const {}
  friend bool operator==(one_column const&, one_column const&) = default;
};

struct keeps_one {
  static constexpr auto name = "keeps_one";
  using needs = kv::needs<>;
  static constexpr auto decides = kv::granularity::lane;
  kv::column kept{"kept"};
  [[nodiscard]] auto recorders() const { return std::tuple{one_column{kept}}; }
  void score(auto& exec, auto const&, kv::score_view const& out) const { kv::ops::map(exec, out, zero{}); }
  struct zero {
    float operator()(float, kv::entry) const { return 0; }
  };
  friend bool operator==(keeps_one const&, keeps_one const&) = default;
};

}  // namespace signals_test

using namespace kvpolicy_test;
using signals_test::keeps_one;

TEST_SUITE("core/signals") {
  TEST_CASE("keys and values that are null or opaque, and keys of another width, are refused") {
    working_batch now;
    auto const refuses = [&](std::string const& text, std::function<void(kv::plane&)> const& change) {
      kv::values bad = kv::values_of(now.view);
      change(bad.rows);
      now.refuses("decide: values" + text, [&] {
        kv::decide(now.exec, now.policy, kv::signals(now.view.lanes, kv::keys_of(now.view), bad), now.state, now.plan);
      });
      kv::keys worse = kv::keys_of(now.view);
      change(worse.rows);
      now.refuses("observe: keys" + text, [&] {
        kv::observe(now.exec, now.policy, kv::signals(now.view.lanes, worse, kv::queries{now.queries.view()}),
                    now.state);
      });
    };
    refuses(" = null, but a signal is the engine's memory", [](kv::plane& rows) { rows.base = nullptr; });
    refuses(" = opaque rows, but only their engine can read them",
            [](kv::plane& rows) { rows.element = kv::codec::opaque; });
    kv::keys wide = kv::keys_of(now.view);
    wide.rows.channels = 5;
    now.refuses("decide: keys.channels = 5, but the shape says 4 channels",
                [&] { kv::decide(now.exec, now.policy, kv::signals(now.view.lanes, wide), now.state, now.plan); });
    // Pointers instead of a base are memory, too.
    std::byte* base = now.view.k.base;
    kv::keys by_pointer = kv::keys_of(now.view);
    by_pointer.rows.base = nullptr;
    by_pointer.rows.bases = {&base, 0, 0, 0};
    kv::values values_by_pointer{{by_pointer.rows, now.view.where}};
    CHECK(error_of([&] {
            kv::decide(now.exec, now.policy, kv::signals(now.view.lanes, by_pointer, values_by_pointer), now.state,
                       now.plan);
          }).empty());
  }

  TEST_CASE("a view that nobody has filled in has no rows, and no stride") {
    kv::query_view const rows;
    for (std::int64_t const stride : {rows.sequence, rows.layer, rows.head, rows.row}) CHECK(stride == 0);
    for (int const count : {rows.dims, rows.heads, rows.rows}) CHECK(count == 0);
    kv::plane const plane;
    for (std::int64_t const stride :
         {plane.layer_stride, plane.unit_stride, plane.token_stride, plane.head_stride, plane.channel_stride})
      CHECK(stride == 0);
    CHECK(plane.channels == 0);
  }

  TEST_CASE("queries without rows need no memory, others need all of it") {
    working_batch now;
    auto const refusal = [&](std::function<void(kv::query_view&)> const& change) {
      kv::queries some{now.queries.view()};
      change(some);
      return error_of([&] {
        kv::observe(now.exec, now.policy, kv::signals(now.view.lanes, kv::keys_of(now.view), some), now.state);
      });
    };
    CHECK(refusal([](kv::query_view& rows) { rows.base = nullptr; }) ==
          "observe: queries = null, but a signal is the engine's memory");
    CHECK(refusal([](kv::query_view& rows) { rows.position = {}; }) ==
          "observe: queries.position = null, but every row says its position");
    CHECK(refusal([](kv::query_view& rows) { rows.rows = -1; }) ==
          "observe: queries.rows = -1, but a count cannot be negative");
    CHECK(refusal([](kv::query_view& rows) { rows.dims = 3; }) ==
          "observe: queries.dims = 3, but the shape says 4 channels");
    CHECK(refusal([](kv::query_view& rows) { rows.heads = 2; }) ==
          "observe: queries.heads = 2, but the model has 4 query heads");
    CHECK(refusal([](kv::query_view& rows) {
            rows.rows = 0;
            rows.base = nullptr;
            rows.position = {};
          }).empty());
  }

  TEST_CASE("a query row is found through the ring's first row, and by its strides") {
    std::vector<std::byte> memory(4000);
    int const first[] = {0, 3}, valid[] = {0, 2};
    kv::query_view rows{.base = memory.data(), .sequence = 1000, .layer = 300, .head = 50, .row = 7, .rows = 4};
    CHECK(rows.at({1, 2, 9}, 3, 5) == memory.data() + 1000 + 600 + 150 + 35);
    CHECK(rows.valid({1, 0, 0}) == 4);
    CHECK(rows.stored({1, 0, 0}, 2) == 2);
    rows.valid_rows = {valid, 1, 0, 0};
    CHECK(rows.valid({1, 0, 0}) == 2);
    CHECK(rows.stored({1, 0, 0}, 2) == 2);
    rows.first_row = {first, 1, 0, 0};
    CHECK(rows.stored({1, 0, 0}, 0) == 3);
    CHECK(rows.stored({1, 0, 0}, 1) == 0);
  }
}

TEST_SUITE("core/state") {
  TEST_CASE("a state whose columns differ in anything from the policy's is refused") {
    working_batch now;
    kv::eviction<keeps_one> const policy{.budget = {3}};
    auto [state, plan] = state_and_plan(now.exec, policy, now.view);
    kv::signals const in{now.view.lanes};
    auto const refusal = [&](std::function<void(kv::column&)> const& change) {
      auto other = policy;
      change(other.score.kept);
      std::string const first = error_of([&] { kv::observe(now.exec, other, in, state); });
      std::string const text =
          "state = another policy's, but make_state makes it for the policy that observes and decides";
      CHECK(error_of([&] { kv::decide(now.exec, other, in, state, plan); }) ==
            (first.empty() ? "" : "decide: " + text));
      return first == "observe: " + text ? std::string("refused") : first;
    };
    CHECK(refusal([](kv::column&) {}).empty());
    CHECK(refusal([](kv::column& kept) { kept.name = "other"; }) == "refused");
    CHECK(refusal([](kv::column& kept) { kept.extent = kv::column_extent::lane; }) == "refused");
    CHECK(refusal([](kv::column& kept) { kept.rule = kv::on_move::stay; }) == "refused");
    CHECK(refusal([](kv::column& kept) { kept.bytes = 8; }) == "refused");
    CHECK(refusal([](kv::column& kept) { kept.units = 7; }) == "refused");
    auto const none = kv::make_state(now.exec, kv::policies::knorm(), now.view);
    auto const more = kv::make_state(now.exec, kv::policies::snapkv(), now.view);
    for (auto const* held : {&none, &more}) {
      CHECK(error_of([&] { kv::decide(now.exec, policy, in, *held, plan); }) ==
            "decide: state = another policy's, but make_state makes it for the policy that observes and decides");
    }
  }

  TEST_CASE("a fork of a batch of another shape is refused, also where all sizes are the same") {
    working_batch now;
    kv::cache other = now.view;
    other.shape.query_heads = 2;
    auto const state = kv::make_state(now.exec, now.policy, other);
    CHECK(error_of([&] { now.state.copy_from(state); }) ==
          "state::copy_from: other = another kind of state, but both are made for one policy, shape and batch");
  }
}

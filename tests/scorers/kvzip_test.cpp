// SPDX-License-Identifier: Apache-2.0
// KVzip: what its decisions refuse, how lanes share its budget, chunks that come one after another, and KVzip+.

#include "support/device.hpp"
#include "support/spans.hpp"

namespace kvzip_test {

using namespace kvpolicy_test;

/// Two layers of two lanes of 12 entries, and rows about two chunks of 6, one row for each entry.
struct repeated {
  spans_case of{
      {.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, .bound = 12}, kv::codec::f32, 12, 12};
  kv::cache view = of.cache.view();
  kv::host_executor exec;

  repeated() {
    for (int i = 0; i < 4; ++i) of.cache.put(of.cache.lane_at(i), up_to(12));
    for (int r = 0; r < 12; ++r) of.set(0, r, r / 6 * 6, r / 6 * 6 + 6);
    of.draw_keys(kv::codec::f32);
  }
  /// Rows [begin, begin + count).
  [[nodiscard]] kv::external_queries rows(int begin = 0, int count = 12) const {
    kv::external_queries made{of.queries.view(), of.spans()};
    made.position = {};
    made.rows = made.spans.keys.rows = count;
    made.base += begin * made.row;
    made.spans.keys.base += begin * made.spans.keys.row;
    made.spans.begin.data += begin, made.spans.end.data += begin;
    return made;
  }
  [[nodiscard]] std::string refused(kv::external_queries const& rows) {
    kv::eviction const policy{.score = kv::kvzip{}, .budget = kv::per_sequence{6}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    return error_of([&] { kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view), rows}, state, plan); });
  }
};

/// What KVzip+ reads besides: numbers of query heads, of rows and of values.
struct for_plus {
  std::vector<float> sinks, hidden, norms;
  explicit for_plus(dice random) {
    for (int i = 0; i < 2 * 4; ++i) sinks.push_back(static_cast<float>(random.real(2)));
    for (int i = 0; i < 2 * 12; ++i) hidden.push_back(0.5f + static_cast<float>(i / 6));  // one for a chunk of a layer
    for (int i = 0; i < 4 * 12; ++i) norms.push_back(static_cast<float>(random.below(8)));
  }
  [[nodiscard]] kv::keys keys(kv::cache const& view) const {
    kv::keys made = kv::keys_of(view);
    made.logits.sinks = {sinks.data(), 4, 1};
    return made;
  }
  [[nodiscard]] kv::external_queries rows(repeated const& on) const {
    kv::external_queries made = on.rows();
    made.hidden_norm = {hidden.data(), 0, 12};
    return made;
  }
  [[nodiscard]] kv::value_norms values() const { return {{norms.data(), 0, 2 * 12, 12}}; }
  /// The score of an entry by the reference: each query head has its own sink.
  [[nodiscard]] reference::row scores(repeated& on, int lane) const {
    kv::lane const one = on.of.cache.lane_at(lane);
    reference::row most(12, 0.0);
    for (int h = 0; h < 2; ++h) {
      reference::lane_attention of = on.of.lane(one);
      of.queries = {of.queries[as_size(h)]};
      of.sinks = {static_cast<double>(sinks[as_size(one.layer * 4 + one.head * 2 + h)])};
      reference::row const p = reference::span_attention(of, on.of.spans_of(one), on.of.own_of(one), 1);
      for (std::size_t e = 0; e < 12; ++e) {
        double const by = static_cast<double>(hidden[as_size(one.layer * 12) + e]);
        most[e] = std::max(most[e], p[e] * static_cast<double>(norms[as_size(lane * 12) + e]) / by);
      }
    }
    return most;
  }
};

TEST_SUITE("scorers/kvzip") {
  TEST_CASE("rows that do not fit are refused by what is wrong with them") {
    repeated on;
    CHECK(on.refused(on.rows()).empty());
    kv::external_queries wrong = on.rows();
    wrong.spans.end = {};
    CHECK(on.refused(wrong) == "decide: external_queries.spans.end = null, but a span has a begin and an end");
    wrong = on.rows();
    wrong.spans.keys.heads = 4;
    CHECK(on.refused(wrong) == "decide: external_queries.spans.keys.heads = 4, but there are 2 KV heads");
    wrong = on.rows();
    wrong.spans.keys.layer = 0;
    CHECK(on.refused(wrong) ==
          "decide: external_queries.spans.keys.layer = 0, but there are 2 layers, and each has memory of its own");
    on.of.set(0, 7, 6, 13);
    CHECK(on.refused(on.rows()) ==
          "decide: external_queries.spans.end = 13 of row 7, but its span begins at 6, and there are 12 entries");
    on.of.set(0, 7, 6, 5);
    CHECK(on.refused(on.rows()) ==
          "decide: external_queries.spans.end = 5 of row 7, but its span begins at 6, and there are 12 entries");
  }

  TEST_CASE("all lanes share a budget by name, and each keeps the first entries") {
    repeated on;
    CHECK(kv::to_string(kv::parse("kvzip | budget(6)")) == "kvzip(sinks=4) | budget(6, scope=global)");
    kv::any_policy const policy = kv::parse("kvzip(sinks=1) | budget(6)");
    auto [state, plan] = state_and_plan(on.exec, policy, on.view);
    kv::external_queries const rows = on.rows();
    kv::keys const keys = kv::keys_of(on.view);
    kv::any_signals in(on.view.lanes);
    in.add(keys), in.add(rows);
    kv::decide(on.exec, policy, in, state, plan);
    std::size_t kept = 0;
    for (int i = 0; i < 4; ++i) {
      kept += listed(plan.keep(), i).size();
      CHECK(listed(plan.keep(), i).front() == 0);
    }
    CHECK(kept == 24);
  }

  TEST_CASE("chunks that are repeated one after another decide as all at once") {
    repeated on;
    kv::eviction const policy{.score = kv::kvzip{.sinks = 1}, .budget = kv::per_sequence{6}};
    kv::eviction const later{.score = kv::frozen<kv::kvzip>{{.sinks = 1}, kv::freezing::highest},
                             .budget = kv::per_sequence{6}};
    auto [state, plan] = decided(on.exec, kv::signals{on.view.lanes, kv::keys_of(on.view), on.rows()}, policy, on.view);
    auto [kept, made] = state_and_plan(on.exec, later, on.view);
    for (int chunk = 0; chunk < 2; ++chunk) {
      kv::observe(on.exec, later, kv::signals{on.view.lanes, kv::keys_of(on.view), on.rows(6 * chunk, 6)}, kept);
    }
    kv::decide(on.exec, later, kv::signals{on.view.lanes}, kept, made);
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 12; ++e) CHECK(made.score(i, e) == plan.score(i, e));
      CHECK(listed(made.keep(), i) == listed(plan.keep(), i));
    }
  }

  TEST_CASE("KVzip+ gives each query head its own sink, on the host and on a device") {
    repeated on;
    for_plus const more(dice(7));
    kv::eviction const policy{.score = kv::kvzip_plus{.sinks = 1}, .budget = kv::per_sequence{6}};
    auto const check = [&](auto& exec) {
      auto [state, plan] = state_and_plan(exec, policy, on.view);
      kv::signals const in{on.view.lanes, more.keys(on.view), more.rows(on), more.values()};
      kv::decide(exec, policy, in, state, plan);
      if constexpr (requires { exec.check(); }) exec.check();
      for (int i = 0; i < 4; ++i) {
        reference::row const expected = more.scores(on, i);
        for (int e = 0; e < 12; ++e) CHECK(close(static_cast<double>(plan.score(i, e)), expected[as_size(e)]));
      }
    };
    check(on.exec);
    device_executor device;
    check(device);
  }

  TEST_CASE("KVzip+ is refused without the norms of hidden states, also where it is frozen or mixed") {
    repeated on;
    for_plus const more(dice(7));
    kv::signals const in{on.view.lanes, more.keys(on.view), on.rows(), more.values()};
    std::string const why =
        "decide: external_queries.hidden_norm = null, but kvzip_plus divides by the norm of each row's hidden state";
    auto const refused = [&](auto const& policy) {
      auto [state, plan] = state_and_plan(on.exec, policy, on.view);
      std::string said = error_of([&] { kv::observe(on.exec, policy, in, state); });
      return said.empty() ? error_of([&] { kv::decide(on.exec, policy, in, state, plan); }) : said;
    };
    kv::per_sequence const six{6};
    CHECK(refused(kv::eviction{.score = kv::kvzip_plus{}, .budget = six}) == why);
    CHECK(refused(kv::eviction{.score = kv::frozen<kv::kvzip_plus>{}, .budget = six}) == why);
    CHECK(refused(kv::eviction{.score = kv::mix<kv::knorm, kv::kvzip_plus>{}, .budget = six}) == why);
    kv::external_queries same = more.rows(on);
    same.hidden_norm.layer = 0;
    auto [state, plan] = state_and_plan(on.exec, kv::eviction{.score = kv::kvzip_plus{}, .budget = six}, on.view);
    kv::signals const layers{on.view.lanes, more.keys(on.view), same, more.values()};
    CHECK(error_of([&] {
            kv::decide(on.exec, kv::eviction{.score = kv::kvzip_plus{}, .budget = six}, layers, state, plan);
          }).starts_with("decide: external_queries.hidden_norm.layer = 0, but there are 2 layers"));
  }
}

}  // namespace kvzip_test

// SPDX-License-Identifier: Apache-2.0
// A method with a parameter at its end decides as the simpler method that it then is.

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace methods_laws_test {

using namespace kvpolicy_test;

/// The attention term of R-KV, and nothing else: SnapKV whose group takes the largest logit of its query heads, with a
/// softmax over the entries before the window.
struct attention_of_window {
  int window = 8;
  kv::pooling pool = kv::max_pool{7};
  using needs = kv::needs<kv::keys, kv::recent_queries>;
  using verbs = kv::verbs<kv::ops::compute_attention_mass_t, kv::ops::pool_t>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  [[nodiscard]] constexpr kv::recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{kv::query_ring{window}}; }
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::compute_attention_mass(exec, in.template get<kv::keys>(), in.template get<kv::recent_queries>(),
                                    {.domain = kv::key_domain::past,
                                     .rows = kv::reduction::mean,
                                     .group = kv::reduction::max,
                                     .order = kv::reduction_order::group_on_logits,
                                     .last_rows = window},
                                    out);
    kv::ops::pool(exec, pool, out, window);
  }
  friend bool operator==(attention_of_window const&, attention_of_window const&) = default;
};

/// Random rows of so many tokens in every lane. Some repeat the token before them, so that keys resemble each other.
std::vector<told_of_lane> any_tokens(int tokens, int position) {
  std::vector<told_of_lane> made(told_lanes::lanes);
  for (told_of_lane& one : made) {
    auto const any_row = [] {
      reference::row row;
      for (int d = 0; d < told_lanes::dims; ++d) row.push_back(*rc::gen::inRange(-9, 10) / 4.0);
      return row;
    };
    for (int e = 0; e < tokens; ++e) {
      one.positions.push_back(position + e);
      one.log_beta.push_back(-0.5), one.born.push_back(0);
      bool const repeats = e > 0 && *rc::gen::inRange(0, 3) == 0;
      one.keys.push_back(repeats ? one.keys.back() : any_row());
      one.values.push_back(any_row());
      for (auto& head : one.queries) head.push_back(any_row());
    }
  }
  return made;
}

/// A model's lanes under a policy, in the course of a request.
template <class Policy>
struct served {
  explicit served(Policy const& of)
      : policy(of),
        state(kv::make_state(lanes.exec, policy, lanes.view())),
        plan(kv::make_plan(lanes.exec, policy, lanes.view())) {}

  void decide_after(std::vector<told_of_lane> const& tokens) {
    lanes.forward(policy, state, tokens);
    lanes.decide(policy, state, plan);
  }
  void apply() {
    kv::cache now = lanes.view();
    kv::apply(lanes.exec, kv::compact{}, plan, now, state);
  }
  [[nodiscard]] int count(int lane) {
    kv::lanes const all = lanes.view().lanes;
    return all.committed(all.at(lane));
  }
  [[nodiscard]] std::vector<float> scores(int lane) {
    std::vector<float> made;
    for (int e = 0; e < count(lane); ++e) made.push_back(plan.score(lane, e));
    return made;
  }

  told_lanes lanes{64};
  Policy policy;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
};

/// Two policies serve one request: a prompt, and steps of one token. Each decision of both is given to `same`, and
/// carried out while it returns true. Returns how many entries have gone.
template <class One, class Other, class Same>
int serve_both(One const& one, Other const& other, int prompt, int steps, Same const& same) {
  served<One> first(one);
  served<Other> second(other);
  int gone = 0;
  for (int step = 0, position = 0; step <= steps; ++step) {
    int const tokens = step == 0 ? prompt : 1;
    auto const more = any_tokens(tokens, position);
    position += tokens;
    first.decide_after(more);
    second.decide_after(more);
    int const before = first.count(0);
    if (!same(first, second)) break;
    first.apply();
    second.apply();
    gone += before - first.count(0);
  }
  return gone;
}

TEST_SUITE("laws/methods") {
  TEST_CASE("r_kv with lambda = 1 scores and decides as its attention alone, bit for bit") {
    int gone = 0;
    holds("random lanes", 100, [&] {
      kv::r_kv const score{.window = *rc::gen::inRange(1, 9),
                           .lambda = 1,
                           .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{7}, kv::avg_pool{5}),
                           .threshold = *rc::gen::element(0.0f, 0.5f, 1.0f),
                           .retain = *rc::gen::element(kv::retained_similar::last, kv::retained_similar::none)};
      kv::sinks const protect{*rc::gen::element(0, 2)};
      kv::per_lane const budget{*rc::gen::inRange(0, 30)};
      kv::eviction const one{.score = score, .protect = protect, .budget = budget};
      kv::eviction const other{
          .score = attention_of_window{score.window, score.pool}, .protect = protect, .budget = budget};
      gone += serve_both(one, other, *rc::gen::inRange(1, 30), *rc::gen::inRange(0, 12), [&](auto& a, auto& b) {
        for (int s = 0; s < told_lanes::lanes; ++s) {
          RC_ASSERT(a.scores(s) == b.scores(s));
          RC_ASSERT(listed(a.plan.keep(), s) == listed(b.plan.keep(), s));
        }
        return true;
      });
    });
    CHECK(gone > 0);
  }

  TEST_CASE("r_kv with lambda = 1 has the scores of the reference's pooled attention") {
    holds("random lanes", 100, [] {
      kv::r_kv const score{.window = *rc::gen::inRange(1, 9),
                           .lambda = 1,
                           .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{3}, kv::avg_pool{5})};
      served now(kv::eviction{.score = score, .budget = kv::per_lane{20}});
      now.decide_after(any_tokens(*rc::gen::inRange(1, 40), 0));
      for (int s = 0; s < told_lanes::lanes; ++s) {
        reference::lane_attention const lane = now.lanes.told[as_size(s)].attention();
        auto const mass = reference::attention_mass(reference::last_rows(lane, score.window),
                                                    {.domain = reference::key_domain::past,
                                                     .rows = reference::reduction::mean,
                                                     .group = reference::reduction::max,
                                                     .order = reference::reduction_order::group_on_logits});
        auto const expected = reference::pooled(mass, in_double(score.pool), score.window);
        std::vector<float> const found = now.scores(s);
        comparison const result = compare(found, expected);
        RC_LOG() << "lane " << s << ", " << result << '\n';
        RC_ASSERT(result.same);
      }
    });
  }

  TEST_CASE("scissorhands that remembers every row decides as H2O with its recent entries, over a prompt and steps") {
    // Scissorhands reduces the query heads of each row, and H2O those of the sums over a forward's rows: a maximum is
    // the same where a forward has one row.
    int gone = 0, parted = 0, cases = 0;
    holds("random lanes", 150, [&] {
      auto const group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
      int const prompt = group == kv::reduction::max ? 1 : *rc::gen::inRange(1, 30);
      int const steps = *rc::gen::inRange(0, 25);
      int const recent = *rc::gen::inRange(0, 10);
      kv::sinks const protect{*rc::gen::element(0, 2)};
      kv::per_lane const budget{*rc::gen::inRange(0, 30)};
      kv::scissorhands const score{
          .history = prompt + steps + *rc::gen::element(0, 1, 40), .recent = recent, .group = group};
      kv::eviction const one{.score = score, .protect = protect, .budget = budget};
      kv::eviction const other{.score = kv::h2o{.heavy = *rc::gen::element(-1, 0, 7), .recent = recent, .group = group},
                               .protect = protect,
                               .budget = budget};
      gone += serve_both(one, other, prompt, steps, [&](auto& a, auto& b) {
        bool same = true;
        for (int s = 0; s < told_lanes::lanes; ++s) {
          reference::row const expected = as_row(b.scores(s));
          comparison const result = compare(a.scores(s), expected);
          RC_LOG() << "lane " << s << ", " << result << '\n';
          RC_ASSERT(result.same);
          std::vector<int> const mine = listed(a.plan.keep(), s), theirs = listed(b.plan.keep(), s);
          if (mine == theirs) continue;
          same = false;  // sums in another order: they may part at equal scores alone, and go on apart
          RC_ASSERT(decided_by(mine, expected, reference::ends(a.count(s), protect.tokens, recent), budget.tokens));
        }
        parted += same ? 0 : 1;
        return same;
      });
      ++cases;
    });
    CHECK(gone > 0);
    CHECK(parted <= cases / 20);
  }

  TEST_CASE("cake without variances has the scores of snapkv's mean, over a prompt") {
    holds("random lanes", 100, [] {
      kv::cake const score{.window = *rc::gen::inRange(2, 9),
                           .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::avg_pool{5}),
                           .gamma = 0};
      kv::per_lane const budget{*rc::gen::inRange(0, 30)};
      kv::snapkv const mean{score.window, score.pool, kv::reduction::mean, kv::reduction::mean};
      kv::eviction const one{.score = score, .budget = budget};
      kv::eviction const other{.score = mean, .budget = budget};
      serve_both(one, other, *rc::gen::inRange(1, 40), 0, [&](auto& a, auto& b) {
        for (int s = 0; s < told_lanes::lanes; ++s) {
          reference::row expected = as_row(b.scores(s));
          std::vector<float> found = a.scores(s);
          auto const prefix = as_size(std::max(0, a.count(s) - score.window));
          expected.resize(prefix), found.resize(prefix);
          comparison const result = compare(found, expected);
          RC_LOG() << "lane " << s << ", " << result << '\n';
          RC_ASSERT(result.same);
        }
        return true;
      });
    });
  }
}

}  // namespace methods_laws_test

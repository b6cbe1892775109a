// SPDX-License-Identifier: Apache-2.0
// CriticalKV's stage: a part of the budget by the score, and the rest by the score times the norm of projected values.
#include "reference/methods.hpp"
#include "support/scored_layer.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// It has an output projection, too.
struct projected_layer : scored_layer {
  static constexpr int width = 3;
  std::vector<float> projection = std::vector<float>(as_size(width * 8));  ///< [channel][head][d]
  std::vector<float> norms = std::vector<float>(scores.size());            ///< those that the engine gives

  using scored_layer::scored_layer;
  [[nodiscard]] kv::output_projection by() const {
    return kv::output_projection_of(projection.data(), kv::codec::f32, width, model);
  }
  [[nodiscard]] kv::value_norms given_norms() const { return {{norms.data(), 0, 2 * entries, entries}}; }
  /// By the reference, from the values and the projection.
  [[nodiscard]] reference::row norms_of(int lane, bool l1 = true) const {
    reference::matrix rows, head;
    for (int e = 0; e < entries; ++e) {
      auto const* const row = values.data() + (2 * e + lane) * 4;
      rows.emplace_back(row, row + 4);
    }
    for (int c = 0; c < width; ++c) {
      auto const* const row = projection.data() + (2 * c + lane) * 4;
      head.emplace_back(row, row + 4);
    }
    return reference::projected_norms(rows, {head}, l1);
  }

  /// What a decision keeps of each lane, and its scores.
  template <class Policy, class... Given>
  std::pair<std::vector<std::vector<int>>, std::vector<reference::row>> decide(Policy const& policy,
                                                                               Given const&... more) {
    kv::host_executor exec(2);
    auto [state, plan] = decided(exec, kv::signals{cache.lanes, given(), kv::keys_of(cache), more...}, policy, cache);
    std::pair<std::vector<std::vector<int>>, std::vector<reference::row>> made;
    for (int s = 0; s < 2; ++s) {
      made.first.push_back(listed(plan.keep(), s));
      float const* const row = plan.scores(cache.lanes).row(s);
      made.second.emplace_back(row, row + entries);
    }
    return made;
  }
};

/// Scores, values and weights are eighths, so that products are exact; some scores are NaN.
projected_layer any_layer() {
  projected_layer made(*rc::gen::inRange(1, 70));
  dice random(*rc::gen::arbitrary<std::uint64_t>());
  int const nan = *rc::gen::element(0, 0, 5), distinct = *rc::gen::element(1, 4, 40);
  for (float& each : made.scores) each = random.chance(nan) ? NAN : static_cast<float>(random.below(distinct)) / 8;
  for (auto* const of : {&made.values, &made.projection}) {
    for (float& each : *of) each = static_cast<float>(random.below(33) - 16) / 8;
  }
  for (float& each : made.norms) each = static_cast<float>(random.below(9)) / 8;
  return made;
}

constexpr float before_all = std::numeric_limits<float>::infinity();

TEST_SUITE("scorers/stages/critical") {
  TEST_CASE("worked numbers: half of two places by the score, and the other by the product") {
    projected_layer made(4);
    for (int lane : {0, 1}) {
      std::copy_n(std::data({0.5f, 0.3f, 0.15f, 0.05f}), 4, made.scores.begin() + 4 * lane);
      std::copy_n(std::data({1.0f, 1.0f, 4.0f, 2.0f}), 4, made.norms.begin() + 4 * lane);
    }
    kv::critical<kv::external> const half{};
    auto const kept = [&](kv::critical<kv::external> const& score, int budget) {
      kv::eviction const policy{.score = score, .budget = kv::per_lane{budget}};
      return made.decide(policy, made.given_norms()).first[1];
    };
    CHECK(kept(half, 2) == std::vector<int>{0, 2});
    CHECK(kept({.first = 1}, 2) == std::vector<int>{0, 1});
    CHECK(kept({.first = 0}, 2) == std::vector<int>{0, 2});
    CHECK(kept({.first = 0}, 1) == std::vector<int>{2});
    CHECK(kept(half, 1) == std::vector<int>{0});  // one place at least is the score's
    kv::eviction const policy{.score = half, .budget = kv::per_lane{2}};
    reference::row const scores = made.decide(policy, made.given_norms()).second[0];
    CHECK(scores[0] == static_cast<double>(before_all));
    CHECK(scores[1] == doctest::Approx(0.3001));
    CHECK(scores[2] == doctest::Approx(0.6004));
    CHECK(scores[3] == doctest::Approx(0.1002));
  }

  TEST_CASE("scores and what stays are the reference's, whatever is forced; by name likewise") {
    holds("any lanes", 300, [] {
      projected_layer made = any_layer();
      int const sinks = *rc::gen::inRange(0, 9), recent = *rc::gen::inRange(0, 9);
      int const budget = *rc::gen::inRange(0, made.entries + 2);
      kv::critical<kv::external> const score{.first = *rc::gen::element(0.5, 0.0, 1.0, 0.29, 0.9, 0.01),
                                             .epsilon = *rc::gen::element(1e-4f, 0.0f, 0.25f)};
      bool const gives = any_bool();
      kv::eviction const policy{.score = score, .protect = kv::safe{sinks, recent}, .budget = kv::per_lane{budget}};
      auto const run = [&](auto const& which) {
        if (!gives) return made.decide(which, kv::values_of(made.cache), made.by());
        return made.decide(which, made.given_norms(), kv::values_of(made.cache), made.by());
      };
      auto const [kept, scores] = run(policy);
      for (int lane : {0, 1}) {
        reference::flags const forced = reference::ends(made.entries, sinks, recent);
        reference::row norms = made.norms_of(lane);
        for (int e = 0; gives && e < made.entries; ++e) {
          norms[as_size(e)] = static_cast<double>(made.norms[as_size(lane * made.entries + e)]);
        }
        auto const expected = reference::critical_scores(made.of_lane(lane), norms, forced, score.first,
                                                         static_cast<double>(score.epsilon), budget);
        for (std::size_t e = 0; e < expected.size(); ++e) {
          if (forced[e]) continue;
          double const found = scores[as_size(lane)][e];
          bool const same = found == expected[e] || (std::isnan(found) && std::isnan(expected[e])) ||
                            std::abs(found - expected[e]) <= 1e-6 * std::abs(expected[e]);
          RC_ASSERT(same);
        }
        RC_ASSERT(kept[as_size(lane)] == reference::select(scores[as_size(lane)], forced, budget).kept);
      }
      kv::any_policy const named = kv::parse(kv::to_string(policy));
      RC_ASSERT(named == kv::any_policy(policy));
      RC_ASSERT(run(named).first == kept);
    });
  }

  TEST_CASE("laws: all of the budget by the score is the scorer alone, and none of it the product alone") {
    holds("any lanes", 100, [] {
      projected_layer made = any_layer();
      int const budget = *rc::gen::inRange(0, made.entries + 1), sinks = *rc::gen::inRange(0, 4);
      auto const kept = [&](auto const& score) {
        kv::eviction const policy{.score = score, .protect = kv::sinks{sinks}, .budget = kv::per_lane{budget}};
        return made.decide(policy, kv::values_of(made.cache), made.by()).first;
      };
      using critical = kv::critical<kv::external>;
      RC_ASSERT(kept(critical{.first = 1}) == kept(kv::external{}));
      auto const by_product = kept(critical{.first = 0, .epsilon = 0});
      for (int lane : {0, 1}) {
        for (int e = 0; e < made.entries; ++e) {
          float& score = made.scores[as_size(lane * made.entries + e)];
          score *= static_cast<float>(made.norms_of(lane)[as_size(e)]);
        }
      }
      RC_ASSERT(by_product == kept(kv::external{}));
    });
  }

  TEST_CASE("around a scorer with spare rows of its own, and in a plan of a part of the layers") {
    holds("any lanes", 100, [] {
      projected_layer made = any_layer();
      for (float& each : made.keys) each = static_cast<float>(*rc::gen::inRange(-9, 10));
      int const budget = *rc::gen::inRange(0, made.entries + 1);
      kv::eviction const plain{.score = kv::keydiff{}, .budget = kv::per_lane{0}};
      kv::eviction const policy{.score = kv::critical<kv::keydiff>{.first = 0.4}, .budget = kv::per_lane{budget}};
      auto const base = made.decide(plain).second;
      auto const [kept, scores] = made.decide(policy, kv::values_of(made.cache), made.by());
      for (int lane : {0, 1}) {
        reference::flags const none(as_size(made.entries), false);
        auto const expected =
            reference::critical_scores(base[as_size(lane)], made.norms_of(lane), none, 0.4, 1e-4, budget);
        for (std::size_t e = 0; e < expected.size(); ++e) {
          double const found = scores[as_size(lane)][e];
          RC_ASSERT((found == expected[e] || std::abs(found - expected[e]) <= 1e-4));
        }
        RC_ASSERT(kept[as_size(lane)] == reference::select(scores[as_size(lane)], none, budget).kept);
      }
    });
  }

  TEST_CASE("times_norm of projected values multiplies by either norm, or by those that the engine gives") {
    holds("any lanes", 100, [] {
      projected_layer made = any_layer();
      using stage = kv::times_norm<kv::external, kv::normed_rows::projected>;
      stage const score{.norm = *rc::gen::element(kv::norm_of_row::l1, kv::norm_of_row::l2),
                        .epsilon = *rc::gen::element(0.0f, 0.25f)};
      bool const gives = any_bool();
      kv::eviction const policy{.score = score, .budget = kv::per_lane{*rc::gen::inRange(0, 40)}};
      auto const run = [&](auto const& which) {
        if (gives) return made.decide(which, made.given_norms());
        return made.decide(which, kv::values_of(made.cache), made.by());
      };
      auto const [kept, scores] = run(policy);
      for (int lane : {0, 1}) {
        reference::row const norms = made.norms_of(lane, score.norm == kv::norm_of_row::l1);
        for (int e = 0; e < made.entries; ++e) {
          std::size_t const at = as_size(lane * made.entries + e);
          double const norm = gives ? static_cast<double>(made.norms[at]) : norms[as_size(e)];
          double const expected = (static_cast<double>(made.scores[at]) + static_cast<double>(score.epsilon)) * norm;
          double const found = scores[as_size(lane)][as_size(e)];
          RC_ASSERT(
              ((std::isnan(found) && std::isnan(expected)) || std::abs(found - expected) <= 1e-6 * std::abs(expected)));
        }
      }
      kv::any_policy const named = kv::parse(kv::to_string(policy));
      RC_ASSERT(named == kv::any_policy(policy));
      RC_ASSERT(run(named).first == kept);
    });
    CHECK(kv::to_string(kv::parse("knorm | times_norm(projected, l1) | budget(9)")) ==
          "knorm | times_norm(of=projected, norm=l1, epsilon=0) | budget(9)");
    CHECK_FALSE(kv::parse("knorm | times_norm(projected) | budget(9)") == kv::parse("knorm | times_norm | budget(9)"));
  }

  TEST_CASE("a system and its spec") {
    CHECK(kv::to_string(kv::parse("critical_kv | budget(512)")) ==
          "snapkv(window=32, pool=avg:5, rows=mean, group=mean) | critical(first=0.5, epsilon=1e-04) | budget(512)");
    CHECK(kv::to_string(kv::parse("critical_kv(scores=x, first=0.25) | budget(512)")) ==
          "external(name=x) | critical(first=0.25, epsilon=1e-04) | budget(512)");
    for (char const* const spec : {"external(name=x) | critical(first=0.5, epsilon=0.0001) | budget(512)",
                                   "knorm | pooled(avg:3) | critical(1) | sinks(4) | budget(9)",
                                   "critical_kv(first=0, window=8) | budget(ratio=0.5) | span(3, 5)"}) {
      kv::any_policy const policy = kv::parse(spec);
      CHECK(kv::parse(kv::to_string(policy)) == policy);
    }
    CHECK(kv::detail::listed_names(kv::parse("critical_kv | budget(9)").needs()) ==
          "queries, keys, value_norms or values, value_norms or output_projection");
  }

  TEST_CASE("what it cannot do is refused") {
    says(parse_error, "parse: ")({
        {"knorm | critical(1.5)", "column 9: critical.first = 1.5, but a part of the budget, 0 to 1"},
        {"knorm | critical(epsilon=-1)", "column 9: critical.epsilon = -1, but it is added to every score, 0 or more"},
        {"tova | critical", "column 8: critical.score_of = tova(force_last=false), but a value belongs to one lane"},
        {"knorm | put_first(tokens=3) | critical",
         "column 31: critical.score_of = knorm | put_first(tokens=3, then=recency), but it puts single entries first"},
        {"critical_kv(first=2) | budget(9)", "column 1: critical_kv.first = 2, but a part of the budget, 0 to 1"},
        {"critical_kv | critical", "column 15 = critical, but its system has one of its own"},
        {"knorm | critical | at_least(0.5)", "column 9 = critical, but at_least has no places"},
    });
    std::string const inside = "knorm | critical(first=0.5, epsilon=1e-04)";
    for (std::string const stage : {"times_norm", "normalised", "pooled", "noise", "decayed", "mix",
                                    "reduce_lanes(token)", "blocks", "put_first(3)"}) {
      CHECK(parse_error("knorm | critical | " + stage) ==
            "parse: column 20: " + stage.substr(0, stage.find('(')) + ".score_of = " + inside +
                (stage == "blocks" ? ", but it puts single entries first"
                                   : ", but it puts entries first and has the scores of the others, and no stage "
                                     "may be around it"));
    }
  }

  TEST_CASE("a missing signal is named") {
    projected_layer made(9);
    kv::any_policy const policy = kv::parse("external | critical | budget(3)");
    auto const said = [&](auto const&... more) { return error_of([&] { (void)made.decide(policy, more...); }); };
    CHECK(said() == "decide: signals = external, keys, but critical needs signal value_norms or values");
    CHECK(said(kv::values_of(made.cache)) ==
          "decide: signals = external, keys, values, but critical needs signal value_norms or output_projection");
    CHECK(said(made.by()) ==
          "decide: signals = external, keys, output_projection, but critical needs signal value_norms or values");
    CHECK(said(made.given_norms()).empty());
    CHECK(said(made.by(), kv::values_of(made.cache)).empty());
  }
}

}  // namespace

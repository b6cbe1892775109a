// SPDX-License-Identifier: Apache-2.0
// The stages that change scores entry by entry or lane by lane, against naive references.
#include "support/scored_layer.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

using row = std::vector<double>;

/// Its positions have gaps, and its keys and values count.
struct gapped_layer : scored_layer {
  explicit gapped_layer(int count) : scored_layer(count) {
    for (int i = 0; i < 2 * count; ++i) positions[as_size(i)] = 2 * (i % count) + (i % count > count / 2 ? 5 : 0);
  }
  [[nodiscard]] int position(int e) const { return positions[as_size(e)]; }
  [[nodiscard]] double norm(std::vector<float> const& rows, int lane, int e) const {
    double sum = 0;
    for (int c = 0; c < 4; ++c) sum += std::pow(double{rows[as_size((2 * e + lane) * 4 + c)]}, 2);
    return std::sqrt(sum);
  }
  /// What a decision keeps of each lane, and the scores by which it does.
  template <class Policy>
  std::pair<std::vector<std::vector<int>>, std::vector<float>> decide(Policy const& policy) {
    kv::host_executor exec(2);
    auto [state, plan] =
        decided(exec, kv::signals{cache.lanes, given(), kv::keys_of(cache), kv::values_of(cache)}, policy, cache);
    std::pair<std::vector<std::vector<int>>, std::vector<float>> made;
    for (int s = 0; s < plan.keep().segments(); ++s) {
      made.first.push_back(listed(plan.keep(), s));
      float const* const from = plan.scores(cache.lanes).row(s);
      made.second.insert(made.second.end(), from, from + entries);
    }
    return made;
  }
  /// The scores of a scorer, in a decision that keeps nothing.
  template <class Score>
  row scores_by(Score const& score) {
    std::vector<float> const made = decide(kv::eviction{.score = score, .budget = kv::per_lane{0}}).second;
    return {made.begin(), made.end()};
  }
};

/// Scores are eighths, some of which are NaN.
gapped_layer any_layer() {
  gapped_layer made(*rc::gen::element(1, 31, 32, 33, *rc::gen::inRange(1, 70)));
  int const nan = *rc::gen::element(0, 0, 5), distinct = *rc::gen::element(1, 4, 40);
  dice random(*rc::gen::arbitrary<std::uint64_t>());
  for (float& each : made.scores) {
    each = random.chance(nan) ? NAN : static_cast<float>(random.below(distinct + 2) - 2) / 8;
  }
  for (auto* const rows : {&made.keys, &made.values}) {
    for (float& each : *rows) each = static_cast<float>(random.below(33) - 16) / 8;
  }
  return made;
}

bool alike(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= 2e-5 * std::max(1.0, std::abs(b));
}

/// The stage gives the scores of a reference, and the same ones by name: it prints and reads back.
template <class Score>
void agrees(gapped_layer& made, Score const& score, row const& expected) {
  row const scores = made.scores_by(score);
  RC_ASSERT(scores.size() == expected.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!alike(scores[i], expected[i])) RC_LOG() << "entry " << i << ": " << scores[i] << ", not " << expected[i];
    RC_ASSERT(alike(scores[i], expected[i]));
  }
  kv::eviction const typed{.score = score, .protect = kv::sinks{2}, .budget = kv::per_lane{*rc::gen::inRange(0, 40)}};
  kv::any_policy const named = kv::parse(kv::to_string(typed));
  RC_ASSERT(named == kv::any_policy(typed));
  RC_ASSERT(kv::to_string(named) == kv::to_string(typed));
  RC_ASSERT(made.decide(named).first == made.decide(typed).first);
}

/// Both lanes after `stage(lane, scores)`.
template <class Stage>
row both_lanes(gapped_layer const& made, Stage const& stage) {
  row all = stage(0, made.of_lane(0));
  row const second = stage(1, made.of_lane(1));
  all.insert(all.end(), second.begin(), second.end());
  return all;
}
template <class Change>
row each_entry(gapped_layer const& made, Change const& change) {
  return both_lanes(made, [&](int lane, row scores) {
    for (int e = 0; e < made.entries; ++e) scores[as_size(e)] = change(scores[as_size(e)], lane, e);
    return scores;
  });
}

row normalised_by(kv::normalising how, row scores) {
  row known;  // scores of -inf take no part
  for (double const each : scores) {
    if (each != -INFINITY) known.push_back(each);
  }
  double low = INFINITY, high = -INFINITY, sum = 0, powers = 0, squares = 0;
  for (double const each : known) {
    low = each < low ? each : low;
    high = each > high ? each : high;
    sum += each;
  }
  double const mean = sum / static_cast<double>(known.size());
  for (double const each : known) {
    powers += std::exp(each - high);
    squares += (each - mean) * (each - mean);
  }
  double const deviation = std::sqrt(squares / static_cast<double>(known.size()));
  row const given = scores;
  auto const worse = [&](std::size_t mine) {
    int found = 0;
    for (std::size_t e = 0; e < given.size(); ++e) {
      if (given[e] == -INFINITY) continue;
      found += std::isnan(given[e]) || given[e] < given[mine] || (given[e] == given[mine] && e > mine) ? 1 : 0;
    }
    return std::isnan(given[mine]) ? NAN : static_cast<double>(found);
  };
  auto const part = [](double a, double b) { return a == 0 && b == 0 ? 0 : a / b; };
  for (double& each : scores) {
    if (each == -INFINITY) continue;
    if (how == kv::normalising::sum) each = part(each, sum);
    if (how == kv::normalising::min_max) each = part(each - low, high - low);
    if (how == kv::normalising::z) each = (each - mean) / (deviation < 1e-6 ? 1e-6 : deviation);
    if (how == kv::normalising::softmax) each = std::exp(each - high) / powers;
    if (how == kv::normalising::rank) each = worse(as_size(&each - scores.data())) / static_cast<double>(known.size());
  }
  return scores;
}

/// The same of each block of so many scores; 0: of all.
row normalised_by(kv::normalising how, row const& scores, int block) {
  row made;
  for (std::size_t e = 0; e < scores.size();) {
    std::size_t const size = block == 0 ? scores.size() : std::min(as_size(block), scores.size() - e);
    auto const begin = scores.begin() + static_cast<std::ptrdiff_t>(e);
    row const of = normalised_by(how, row(begin, begin + static_cast<std::ptrdiff_t>(size)));
    made.insert(made.end(), of.begin(), of.end());
    e += size;
  }
  return made;
}

row pooled_by(kv::pooling by, row const& scores) {
  int const count = static_cast<int>(scores.size()), reach = by.width / 2;
  row made = scores;
  for (int e = 0; e < count && by.how != kv::pooling::kind::none; ++e) {
    double most = -INFINITY, sum = 0;
    bool has_nan = false;
    for (int at = std::max(0, e - reach); at <= std::min(count - 1, e + reach); ++at) {
      has_nan = has_nan || std::isnan(scores[as_size(at)]);
      most = std::max(most, scores[as_size(at)]);
      sum += scores[as_size(at)];
    }
    made[as_size(e)] = has_nan ? NAN : by.how == kv::pooling::kind::max ? most : sum / by.width;
  }
  return made;
}

/// The number of an entry of `random`, and the noise that is made of it.
double uniform(std::uint64_t seed, int lane, int position) {
  return double{kv::random_scores::uniform{seed}(0, {.lane = {0, 0, lane}, .position = position})};
}
double noise_of(std::uint64_t seed, int lane, int position) {
  return -std::log(-std::log(std::max(uniform(seed, lane, position), 0x1p-25)));
}

float any_part() { return *rc::gen::element(0.0f, 0.07f, 0.5f, 0.75f); }

/// A scorer that ranks the entries that compete: -inf stays.
struct ranks_given {
  static constexpr auto name = "ranks_given";
  static constexpr auto fields() { return kv::make_fields(); }
  using needs = kv::needs<kv::external_scores>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  static constexpr bool ranks_candidates = true;
  struct given {
    kv::by_lane<float const> scores;
    float operator()(float old, kv::entry at) const { return std::isinf(old) ? old : scores.row(at.lane)[at.ordinal]; }
  };
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::map(exec, out, given{in.template get<kv::external_scores>().score});
  }
  friend bool operator==(ranks_given const&, ranks_given const&) = default;
};

TEST_SUITE("scorers/stages/small_stages") {
  TEST_CASE("recency ranks by age alone") {
    holds("any lanes", 100, [] {
      gapped_layer made = any_layer();
      agrees(made, kv::recency{}, each_entry(made, [](double, int, int e) { return e; }));
      int const budget = *rc::gen::inRange(0, made.entries + 1);
      RC_ASSERT(
          made.decide(kv::eviction{.score = kv::recency{}, .budget = kv::per_lane{budget}}).first ==
          made.decide(kv::eviction{.score = kv::streaming_llm{.sinks = 0}, .budget = kv::per_lane{budget}}).first);
    });
    CHECK(kv::to_string(kv::parse("recency | sinks(4) | budget(9)")) == "recency | sinks(4) | budget(9)");
    CHECK(kv::parse("recency").needs().empty());
  }

  TEST_CASE("times_norm multiplies by the norms of values") {
    holds("any lanes", 150, [] {
      gapped_layer made = any_layer();
      float const epsilon = *rc::gen::element(0.0f, 0.02f, 1.0f);
      agrees(made, kv::times_norm{.score_of = kv::external{}, .epsilon = epsilon},
             each_entry(made, [&](double score, int lane, int e) {
               return (score + double{epsilon}) * made.norm(made.values, lane, e);
             }));
    });
  }

  TEST_CASE("times_norm needs values by name, too") {
    kv::any_policy const policy = kv::parse("knorm | times_norm | budget(2)");
    CHECK(kv::to_string(policy) == "knorm | times_norm(of=values, norm=l2, epsilon=0) | budget(2)");
    CHECK(policy.needs() == std::vector<std::string>{"keys", "values"});
    kv::eviction const typed{.score = kv::times_norm{.score_of = kv::knorm{}}, .budget = kv::per_lane{2}};
    CHECK(kv::describe(typed).reads == kv::describe(policy).reads);
    gapped_layer made(5);
    kv::host_executor exec;
    auto [state, plan] = state_and_plan(exec, policy, made.cache);
    CHECK(error_of([&] {
            kv::decide(exec, policy, kv::signals{made.cache.lanes, kv::keys_of(made.cache)}, state, plan);
          }) == "decide: signals = keys, but times_norm needs signal values");
  }

  TEST_CASE("a signal that a stage and its scorer both read is named once") {
    kv::eviction const both{.score = kv::mix<kv::times_norm<kv::knorm>, kv::knorm>{}, .budget = kv::per_lane{2}};
    CHECK(kv::describe(both).reads == std::vector<std::string>{"keys", "values"});
    CHECK(kv::any_policy(both).needs() == std::vector<std::string>{"keys", "values"});
    CHECK(kv::to_string(both) ==
          "knorm | times_norm(of=values, norm=l2, epsilon=0) | mix(lambda=0.5, with=knorm) | "
          "budget(2)");
  }

  TEST_CASE("normalised gives each lane or block one scale") {
    holds("any lanes", 300, [] {
      gapped_layer made = any_layer();
      auto const how = *rc::gen::element(kv::normalising::sum, kv::normalising::min_max, kv::normalising::z,
                                         kv::normalising::softmax, kv::normalising::rank);
      int const block = *rc::gen::element(how == kv::normalising::rank ? 100 : 0, 1, 3, 5);
      agrees(made, kv::normalised{.score_of = kv::external{}, .how = how, .block = block},
             both_lanes(made, [&](int, row const& scores) { return normalised_by(how, scores, block); }));
    });
  }

  TEST_CASE("ranks in blocks keep the same part of each") {
    gapped_layer made(8);
    for (std::size_t i = 0; i < made.scores.size(); ++i) made.scores[i] = static_cast<float>(i * i);
    CHECK(made.decide(kv::parse("external | budget(4)")).first[0] == std::vector{4, 5, 6, 7});
    CHECK(made.decide(kv::parse("external | normalised(rank, 4) | budget(4)")).first[0] == std::vector{2, 3, 6, 7});
    CHECK(made.decide(kv::parse("external | normalised(rank, 4) | budget(3)")).first[0] == std::vector{2, 3, 7});
  }

  TEST_CASE("pooled pools all entries of a lane") {
    holds("any lanes", 200, [] {
      gapped_layer made = any_layer();
      auto const by = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{7}, kv::max_pool{1}, kv::max_pool{3},
                                                     kv::avg_pool{5}, kv::avg_pool{99});
      agrees(made, kv::pooled{.score_of = kv::external{}, .pool = by},
             both_lanes(made, [&](int, row const& scores) { return pooled_by(by, scores); }));
    });
  }

  TEST_CASE("noise adds the number of an entry, again and again") {
    holds("any lanes", 150, [] {
      gapped_layer made = any_layer();
      auto const seed = *rc::gen::element<std::uint64_t>(42, 0, 7, 1ull << 60);
      kv::noise const score{.score_of = kv::external{}, .seed = seed};
      agrees(made, score, each_entry(made, [&](double old, int lane, int e) {
               return old + noise_of(seed, lane, made.position(e));
             }));
    });
  }

  TEST_CASE("noise is finite where its number is 0, and a draw by the softmax of the scores") {
    kv::random_scores::uniform const of{42};
    int const zero = 4285648;
    kv::entry const at{.position = zero};
    REQUIRE(of(0, at) == 0);
    CHECK(alike(double{kv::noise<kv::external>::gumbel{of}(1, at)}, 1 - std::log(25 * std::log(2.0))));
    // Of two entries whose scores are log 3 apart, the better one stays three times of four.
    gapped_layer made(2);
    made.scores = {std::log(3.0f), 0, std::log(3.0f), 0};
    int first = 0;
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      kv::eviction const one{.score = kv::noise{.score_of = kv::external{}, .seed = seed}, .budget = kv::per_lane{1}};
      for (auto const& kept : made.decide(one).first) first += kept == std::vector{0} ? 1 : 0;
    }
    CHECK(first > 2880);
    CHECK(first < 3120);
  }

  TEST_CASE("decayed takes the power of the age in positions") {
    holds("any lanes", 150, [] {
      gapped_layer made = any_layer();
      float const decay = *rc::gen::element(1.0f, 0.99f, 0.5f, 0.001f);
      int const newest = made.position(made.entries - 1);
      agrees(made, kv::decayed{.score_of = kv::external{}, .decay = decay},
             each_entry(made, [&](double score, int, int e) {
               return score * std::pow(double{decay}, newest - made.position(e));
             }));
    });
  }

  TEST_CASE("mix takes one score less another") {
    holds("any lanes", 200, [] {
      gapped_layer made = any_layer();
      float const part = any_part();
      auto const mixed = [&](auto const& other) {
        return each_entry(made, [&](double score, int lane, int e) {
          return double{part} * score - (1 - double{part}) * other(lane, e);
        });
      };
      using kv::external;
      agrees(made, kv::mix<external>{.lambda = part}, mixed([](int, int e) { return e; }));
      agrees(made, kv::mix<external, kv::knorm>{.lambda = part},
             mixed([&](int lane, int e) { return -made.norm(made.keys, lane, e); }));
      agrees(made, kv::mix<external, kv::random_scores>{.lambda = part},
             mixed([&](int lane, int e) { return uniform(42, lane, made.position(e)); }));
    });
  }

  TEST_CASE("mix with a lambda of 1 is its scorer") {
    holds("any lanes", 200, [] {
      gapped_layer made = any_layer();
      for (float& each : made.keys) each = *rc::gen::inRange(0, 30) == 0 ? NAN : each;
      int const budget = *rc::gen::inRange(0, made.entries + 1);
      auto const kept = [&](auto const& score) {
        return made.decide(kv::eviction{.score = score, .protect = kv::sinks{1}, .budget = kv::per_lane{budget}}).first;
      };
      auto const same = [&]<class Score>(Score const& score) {
        RC_ASSERT(kept(kv::mix<Score>{score, 1}) == kept(score));
        RC_ASSERT(kept(kv::mix<Score, kv::knorm>{score, 1}) == kept(score));
        RC_ASSERT(kept(kv::mix<Score, kv::random_scores>{score, 1}) == kept(score));
      };
      same(kv::external{});
      same(kv::knorm{});
      same(kv::any_scorer(kv::random_scores{*rc::gen::arbitrary<std::uint64_t>()}));
    });
  }

  TEST_CASE("mix has rows of its own beside those of the scorers inside") {
    holds("any lanes", 100, [] {
      gapped_layer made = any_layer();
      row const inner = made.scores_by(kv::keydiff{}), other = made.scores_by(kv::knorm{});
      row once = inner, twice = inner;
      for (std::size_t i = 0; i < inner.size(); ++i) {
        once[i] = 0.75 * inner[i] - 0.25 * other[i];
        twice[i] = 0.5 * once[i] - 0.5 * static_cast<double>(i % as_size(made.entries));
      }
      kv::mix<kv::keydiff, kv::knorm> const mixed{.lambda = 0.75f};
      agrees(made, mixed, once);
      row const both = made.scores_by(kv::mix<kv::mix<kv::keydiff, kv::knorm>>{mixed, 0.5f});
      for (std::size_t i = 0; i < both.size(); ++i) RC_ASSERT(alike(both[i], twice[i]));
      row const lowered = made.scores_by(kv::reduce_lanes{mixed, kv::granularity::sequence, kv::reduction::max});
      for (int e = 0; e < made.entries; ++e) {
        RC_ASSERT(alike(lowered[as_size(e)], std::max(once[as_size(e)], once[as_size(e + made.entries)])));
      }
    });
  }

  TEST_CASE("entries that do not compete keep -inf, and do not count") {
    holds("any lanes", 200, [] {
      gapped_layer made = any_layer();
      int const sinks = *rc::gen::inRange(0, 5), newest = made.position(made.entries - 1);
      auto const check = [&](auto const& score, auto const& stage) {
        kv::eviction const policy{.score = score, .protect = kv::sinks{sinks}, .budget = kv::per_lane{0}};
        auto const [kept, scores] = made.decide(policy);
        for (int lane : {0, 1}) {
          row of = made.of_lane(lane);
          for (int e = 0; e < made.entries; ++e) {
            if (made.position(e) < sinks) of[as_size(e)] = -INFINITY;
          }
          row const expected = stage(of);
          for (int e = 0; e < made.entries; ++e) {
            double const score_of = double{scores[as_size(lane * made.entries + e)]};
            bool const forced = made.position(e) < sinks;
            RC_ASSERT((forced ? score_of == -INFINITY : alike(score_of, expected[as_size(e)])));
          }
        }
        kv::any_policy named(policy);
        RC_ASSERT(made.decide(named).first == kept);
      };
      auto const each = [&](auto const& change) {
        return [&made, change](row of) {
          for (int e = 0; e < made.entries; ++e) of[as_size(e)] = change(of[as_size(e)], e);
          return of;
        };
      };
      for (auto const how : {kv::normalising::sum, kv::normalising::min_max, kv::normalising::z,
                             kv::normalising::softmax, kv::normalising::rank}) {
        int const block = how == kv::normalising::rank ? 3 : 0;
        check(kv::normalised{.score_of = ranks_given{}, .how = how, .block = block},
              [&](row const& of) { return normalised_by(how, of, block); });
      }
      for (float& one : made.values) one = 0;
      check(kv::times_norm{.score_of = ranks_given{}}, each([](double old, int) { return old * 0; }));
      check(kv::decayed{.score_of = ranks_given{}, .decay = 0.5f},
            each([&](double old, int e) { return old * std::pow(0.5, newest - made.position(e)); }));
      check(kv::mix<ranks_given>{.lambda = 0}, each([](double old, int e) { return old * 0 - e; }));
      check(kv::mix<ranks_given>{.lambda = 1}, each([](double old, int) { return old; }));
    });
  }

  TEST_CASE("a chain of stages prints and reads back") {
    char const* const chain =
        "external(name=) | times_norm(of=values, norm=l2, epsilon=0.02) | normalised(how=z, block=0) | "
        "pooled(pool=avg:5) | decayed(decay=0.99) | noise(seed=7) | mix(lambda=0.7, with=knorm) | budget(512)";
    CHECK(kv::to_string(kv::parse(chain)) == chain);
    for (char const* const spec :
         {chain, "snapkv(pool=none) | pooled | noise | budget(5)", "external | mix | blocks(4) | budget(9)",
          "knorm | normalised(softmax) | mix(0.3, random) | reduce_lanes(token, sum) | budget(9)",
          "external | normalised(min_max) | put_first(tokens=3) | budget(9, scope=layer)",
          "tova | normalised | pooled | noise | decayed(0.5) | budget(7)", "dapq | frozen | noise(3) | budget(9)"}) {
      kv::any_policy const policy = kv::parse(spec);
      CHECK(kv::parse(kv::to_string(policy)) == policy);
    }
    CHECK(kv::parse("external | mix(0.3, knorm) | budget(9)") ==
          kv::any_policy(
              kv::eviction{.score = kv::mix<kv::external, kv::knorm>{.lambda = 0.3f}, .budget = kv::per_lane{9}}));
  }

  TEST_CASE("what these stages cannot do is refused") {
    says(parse_error, "parse: ")({
        {"knorm | times_norm(keys)", "column 20 = keys, but times_norm's of is values or projected"},
        {"knorm | times_norm(norm=l1)",
         "column 9: times_norm.norm = l1, but values as they are have l2; l1 is of projected ones"},
        {"knorm | times_norm(epsilon=-1)",
         "column 9: times_norm.epsilon = -1, but it is added to every score, 0 or more"},
        {"tova | times_norm",
         "column 8: times_norm.score_of = tova(force_last=false), but a value belongs to one lane"},
        {"knorm | normalised(sum, -1)",
         "column 9: normalised.block = -1, but a count cannot be negative; 0 is all of a lane"},
    });
    for (std::string const block : {"0", "4097"}) {
      CHECK(parse_error("knorm | normalised(rank, " + block + ")") ==
            "parse: column 9: normalised.block = " + block + ", but a block of ranks has 1 to 4096 entries");
    }
    says(parse_error, "parse: ")({
        {"knorm | normalised(most)", "column 20 = most, but normalised's how is sum, min_max, z, softmax or rank"},
        {"knorm | pooled(max:4)", "column 9: pooled.pool = 4, but a pool has an odd width"},
        {"intent_kv(mode=memory) | reduce_lanes(token, sum) | decayed(0)",
         "column 53: decayed.decay = 0, but older entries count less, and not nothing: 0 to 1"},
        {"knorm | decayed(1.5)",
         "column 9: decayed.decay = 1.5, but older entries count less, and not nothing: 0 to 1"},
        {"knorm | mix(2)", "column 9: mix.lambda = 2, but the part of the score so far, 0 to 1"},
        {"knorm | mix(with=full)", "column 18 = full, but mix's with is recency, knorm or random"},
        {"knorm | reduce_lanes(layer, sum) | mix",
         "column 36: mix.score_of = knorm | reduce_lanes(layer, sum), but the other score is one of a lane"},
    });
    for (std::string const stage : {"times_norm", "normalised", "pooled", "noise", "decayed", "mix"}) {
      std::string const spec = "knorm | blocks(4) | " + stage;
      CHECK(parse_error(spec) ==
            "parse: column 21: " + stage +
                ".score_of = knorm | blocks(size=4, how=mean), but its entries are in blocks already");
    }
    std::string const ranked = parse_error("intent_kv | pooled");
    CHECK(ranked.starts_with("parse: column 13: pooled.score_of = intent_kv("));
    CHECK(ranked.ends_with("), but it ranks the entries that compete, and pooled needs a score of every entry"));
  }
}

}  // namespace

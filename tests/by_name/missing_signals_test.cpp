// SPDX-License-Identifier: Apache-2.0
// A signal that nobody gave: every scorer, system and recorder of the registry, with each of its signals missing in
// turn.
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr int entries = 20;
constexpr int bound = 24;

/// One sequence of two layers with two lanes, and every signal that an engine may give about it.
struct all_signals {
  mock_cache cache{{.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8}, .bound = bound}};
  std::vector<float> numbers = std::vector<float>(2u * 4 * bound * bound, 0.25f);
  std::vector<int> positions = std::vector<int>(entries);
  int const stale[2] = {3, 5};
  kv::lanes const lanes;

  all_signals() : lanes(filled()) {}

  kv::lanes filled() {
    std::iota(positions.begin(), positions.end(), 0);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01f * static_cast<float>(1 + i * 29 % 97);
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), positions);
      for (int e = 0; e < entries; ++e) {
        cache.write(of::keys, cache.lane_at(i), e, std::vector<double>(8, 0.1 * (e * 7 % 11)));
      }
    }
    return cache.lanes();
  }
  [[nodiscard]] std::byte const* memory() const { return reinterpret_cast<std::byte const*>(numbers.data()); }
  [[nodiscard]] kv::query_view rows() const {
    return {.base = memory(),
            .dims = 8,
            .sequence = 2 * 4 * entries * 32,
            .layer = 4 * entries * 32,
            .head = entries * 32,
            .row = 32,
            .heads = 4,
            .rows = entries,
            .position = {positions.data(), entries, 0, 0}};
  }
  template <class Numbers>
  [[nodiscard]] Numbers of_entries() const {
    return {{.base = memory(), .sequence = 4 * 80, .layer = 2 * 80, .head = 80, .entry = 4, .entries = entries}};
  }
  [[nodiscard]] kv::by_lane<float const> table() const { return {numbers.data(), 4 * bound, 2 * bound, bound}; }

  kv::keys keys = kv::keys_of(cache.view());
  kv::values values = kv::values_of(cache.view());
  kv::queries queries{rows()};
  kv::attention_probabilities probabilities{.base = memory(),
                                            .sequence = 2 * 4 * entries * bound * 4,
                                            .layer = 4 * entries * bound * 4,
                                            .head = entries * bound * 4,
                                            .row = bound * 4,
                                            .heads = 4,
                                            .rows = entries,
                                            .entries = bound,
                                            .position = {positions.data(), entries, 0, 0}};
  kv::turn_queries turn{rows()};
  kv::external_queries lookahead{rows(), {}, {numbers.data(), 0, entries}};
  kv::query_model profile = profile_of(numbers.data());
  kv::pre_rope_queries before_rope{rows()};
  kv::pre_rope_keys unturned{kv::row_view(kv::values_of(cache.view()))};
  kv::value_norms norms{table()};
  kv::output_projection projection = kv::output_projection_of(numbers.data(), kv::codec::f32, 1, cache.model());
  kv::log_beta log_beta = of_entries<kv::log_beta>();
  kv::gate gate = of_entries<kv::gate>();
  kv::birth_score born = of_entries<kv::birth_score>();
  kv::external_scores external{table()};
  kv::stale_spans spans{stale, stale + 1, 1, 2};

  [[nodiscard]] kv::query_model profile_of(float const* from) const {
    kv::query_model made = kv::query_model_of(from, from, cache.model(), {});
    made.square = {.base = memory(), .dims = 8, .layer = 4 * 8 * 32, .head = 8 * 32, .row = 32, .heads = 4, .rows = 8};
    return made;
  }

  /// All of them but the one of this name: "queries", or "queries or attention_probabilities", which are two.
  [[nodiscard]] kv::any_signals without(std::string const& missing) const {
    kv::any_signals made(lanes);
    auto const add = [&]<class Signal>(Signal const& one) {
      std::string const padded = " " + missing + " ";
      if (padded.find(" " + std::string(Signal::name) + " ") == std::string::npos) made.add(one);
    };
    add(keys), add(values), add(queries), add(probabilities), add(turn), add(lookahead), add(log_beta), add(gate);
    add(born), add(external), add(spans), add(unturned), add(profile), add(before_rope), add(norms), add(projection);
    return made;
  }
};

kv::registry known() {
  static std::vector<int> const shares(4, 6);
  kv::registry all = kv::shipped();
  all.table("lu_kv", kv::by_lane<int const>{shares.data(), 4, 2, 1});
  static std::vector<float> const directions(32, 0.5f);
  all.table("q_filters", kv::rows_of_heads{{directions.data(), 0, 16, 8}, 8});
  static std::vector<float> const thresholds(8, 0.5f);
  all.table("thresholds", kv::rows_of_heads{{thresholds.data(), 0, 4, 2}, 2});
  all.table("voters", kv::rows_of_heads{{thresholds.data(), 0, 4, 2}, 2});
  all.table("drift", kv::by_lane<float const>{thresholds.data(), 0, 2, 1});
  static std::vector<int> const classes(64, 0);
  all.table("token_class", kv::by_lane<int const>{classes.data()});
  return all;
}

/// Those that add up what all query rows gave.
constexpr std::string_view sums_rows_of_all_tokens[] = {"h2o",         "observed_attention", "received_attention",
                                                        "keys_values", "received_by_value",  "openvino",
                                                        "fastgen",     "cheapest_recipe"};

/// Every policy of the registry, and every scorer that can be frozen, frozen.
std::vector<std::string> every_spec() {
  std::vector<std::string> made;
  for (kv::scorer_info const& each : known().list()) {
    std::string spec = each.name;
    if (spec == "pyramid_kv") spec += "(window=4)";
    if (spec == "lazy_eviction") spec += "(window=1)";
    if (spec == "chunk_kv") spec += "(chunk=4, window=4)";
    if (spec == "critical_kv") spec += "(window=4)";
    if (spec == "neural_gc") spec += "(block=4, every=1)";
    if (spec == "lag_kv") spec += "(lag=2, sinks=1)";
    if (spec == "simlayer_kv" || spec == "lazy_layers") spec += "(threshold=0, initial=1, recent=2)";
    if (spec == "mp_cache_prompt") spec += "(threshold=0.9)";
    if (spec == "openvino") spec += "(start=2, recent=4, block=4)";
    if (spec == "pyramid_infer") spec += "(rows=0, first=0.5, least=1, sinks=0)";
    std::string const frozen = spec + " | frozen | budget(6)";
    if (!each.has_no_budget && spec != "full") spec += " | budget(6)";
    made.push_back(spec);
    if (error_of([&] { (void)known().parse(frozen); }).empty()) made.push_back(frozen);
  }
  return made;
}

TEST_SUITE("printed: missing signals") {
  TEST_CASE("each signal that a policy of the registry needs is refused by its name when it alone is missing") {
    all_signals given;
    kv::host_executor exec;
    kv::cache const view = given.cache.view();
    int refused = 0;
    int frozen = 0;
    for (std::string const& spec : every_spec()) {
      CAPTURE(spec);
      kv::any_policy const policy = known().parse(spec);
      auto plan = kv::make_plan(exec, policy, view);
      frozen += spec.find("frozen") != std::string::npos ? 1 : 0;
      for (std::string const& missing : policy.needs()) {
        CAPTURE(missing);
        auto state = kv::make_state(exec, policy, view);
        kv::any_signals const in = given.without(missing);
        std::string said = error_of([&] { kv::observe(exec, policy, in, state); });
        if (said.empty()) said = error_of([&] { kv::decide(exec, policy, in, state, plan); });
        bool const by_stage = spec.starts_with("critical") && missing.starts_with("value_norms");
        std::string const whose = by_stage ? "critical" : std::string(policy.score.name_inside());
        CHECK(said.find(", but " + whose + " needs signal " + missing) != std::string::npos);
        CHECK_FALSE(plan.decided());
        ++refused;
      }
    }
    CHECK(refused >= 25);
    CHECK(frozen >= 5);
  }

  TEST_CASE("what observe records is counted as unobserved while nobody has called it") {
    all_signals given;
    kv::host_executor exec;
    kv::cache const view = given.cache.view();
    int counted = 0;
    for (std::string const& spec : every_spec()) {
      CAPTURE(spec);
      kv::any_policy const policy = known().parse(spec);
      auto [state, plan] = state_and_plan(exec, policy, view);
      kv::any_signals const in = given.without("");
      kv::decide(exec, policy, in, state, plan);
      bool const records = !std::get<0>(policy.score.recorders()).signals().empty();
      bool const drops = plan.report().triggered > 0;
      // A layer that nobody observed keeps everything, and where all entries are forced, they are all the shares.
      bool const by_scores = policy.budget.by == kv::sharing::allotted && policy.scope() == kv::budget_scope::lane;
      bool const is_window = records && by_scores;
      bool const keeps_all = spec.starts_with("simlayer_kv") || spec.starts_with("fastgen") || is_window;
      CHECK(drops == (spec != "full" && !keeps_all));
      CHECK(plan.report().unobserved == (records ? plan.report().triggered : 0));
      std::string const why = kv::detail::why_unobserved("decide", policy, plan.report());
      CHECK(why.empty() == (!records || keeps_all));
      if (records && !keeps_all)
        CHECK(why.find(std::get<0>(policy.score.recorders()).signals().front()) != std::string::npos);
      observe_and_decide(exec, policy, in, state, plan);
      CHECK(plan.report().unobserved == 0);
      counted += records ? 1 : 0;
    }
    CHECK(counted >= 15);
  }

  TEST_CASE("a selection and an admission name a signal that is missing, too") {
    all_signals given;
    kv::host_executor exec;
    kv::cache const view = given.cache.view();
    auto const page_policy = [&](kv::any_page_scorer const& score) {
      kv::selection const policy{.score = score, .budget = kv::per_lane{8}, .dense_layers = 0};
      for (std::string const& missing : score.signals()) {
        CAPTURE(missing);
        auto [state, plan] = state_and_plan(exec, policy, view);
        kv::any_signals const in = given.without(missing);
        std::string said = error_of([&] { kv::detail::observe_given(exec, policy, in, state); });
        if (said.empty()) said = error_of([&] { kv::detail::select_given(exec, policy, in, state, plan); });
        CHECK(said.find("needs signal " + missing) != std::string::npos);
      }
    };
    page_policy(kv::any_page_scorer(kv::quest{.page = 4}));
    page_policy(kv::any_page_scorer(kv::page_gates{}));
    for (kv::any_scorer const& score : {kv::any_scorer(kv::write_gate{}), kv::any_scorer(kv::carried{})}) {
      kv::admission const policy{.score = score, .window = 4};
      auto state = kv::make_state(exec, policy, view);
      for (std::string const& missing : score.signals()) {
        CHECK(error_of([&] {
                kv::detail::observe_given(exec, policy, given.without(missing), state);
              }).find("needs signal " + missing) != std::string::npos);
      }
    }
  }

  TEST_CASE("a policy that sums over the rows of all tokens is refused where rows are missing, and no other is") {
    all_signals given;
    kv::host_executor exec;
    mock_cache growing(given.cache.options());
    kv::cache view = growing.view();
    auto const shown = [&](int first, int count) {
      kv::queries some = given.queries;
      some.base += 32 * first;
      some.rows = count;
      some.position = {given.positions.data() + first, count, 0, 0};
      return some;
    };
    for (std::string const& spec : every_spec()) {
      CAPTURE(spec);
      auto const& all = sums_rows_of_all_tokens;
      bool const sums =
          std::find(std::begin(all), std::end(all), spec.substr(0, spec.find_first_of("( "))) != std::end(all);
      kv::any_policy const policy = known().parse(spec);
      auto state = kv::make_state(exec, policy, view);
      auto const missing = [&](std::string const& call, int entries_without) {
        return !sums ? ""
                     : call + ": queries = missing of " + std::to_string(entries_without) +
                           " entries of layer 0 of sequence 0, but " + std::string(policy.score.name_inside()) +
                           " sums over the rows of all tokens: observe them";
      };
      auto const observes = [&](int first, int count) {
        kv::queries const rows = shown(first, count);
        kv::keys const keys = kv::keys_of(view);
        kv::values const values = kv::values_of(view);
        kv::any_signals in(view.lanes);
        in.add(keys);
        in.add(rows);
        in.add(values);
        std::string const said = error_of([&] { kv::refuse_missed_rows("observe", policy, in, state, true); });
        if (sums && said.empty()) kv::observe(exec, policy, in, state);
        return said;
      };
      auto const decides = [&] {
        kv::any_signals const in(view.lanes);
        return error_of([&] { kv::refuse_missed_rows("decide", policy, in, state, false); });
      };
      auto const append = [&](int tokens, int position) {
        kv::append(exec, view, state, {.tokens = tokens, .position = position});
      };
      append(20, 0);
      CHECK(decides() == missing("decide", 20));
      CHECK(observes(12, 8) == missing("observe", 12));
      kv::attention_mass const mass{given.table()};  // where the engine sums itself, nothing is missing
      kv::any_signals summed(view.lanes);
      summed.add(mass);
      CHECK(error_of([&] { kv::refuse_missed_rows("decide", policy, summed, state, false); }).empty());
      kv::reset(exec, view, state, 0);
      append(8, 0);
      CHECK(observes(0, 8).empty());  // a prompt in chunks
      append(2, 8);
      CHECK(observes(9, 1) == missing("observe", 1));
      CHECK(decides() == missing("decide", 2));
      CHECK(observes(8, 2).empty());
      append(9, 10);
      CHECK(observes(10, 9).empty());
      append(1, 19);
      CHECK(observes(19, 1).empty());  // a step
      CHECK(decides().empty());
      kv::reset(exec, view, state, 0);
    }
    kv::eviction const typed{.score = kv::h2o{}, .budget = kv::per_lane{6}};
    auto state = kv::make_state(exec, typed, given.cache.view());
    kv::signals const in{given.lanes, given.keys, shown(12, 8)};
    CHECK(error_of([&] {
            kv::refuse_missed_rows("observe", typed, in, state, true);
          }).starts_with("observe: queries = missing of 12 entries of layer 0 of sequence 0, but h2o sums over"));
    kv::eviction const window{.score = kv::snapkv{.window = 8}, .budget = kv::per_lane{12}};
    auto last = kv::make_state(exec, window, given.cache.view());
    CHECK(error_of([&] { kv::refuse_missed_rows("observe", window, in, last, true); }).empty());
  }

  TEST_CASE("an interface refuses a policy that needs what it does not have, by the signal's name") {
    for (std::string const& spec : every_spec()) {
      CAPTURE(spec);
      kv::any_policy const policy = known().parse(spec);
      std::string missing;
      for (std::string const& need : policy.needs()) {
        bool const is_there = need.starts_with("keys") || need.ends_with(" or keys") || need.starts_with("queries");
        if (!is_there && missing.empty()) missing = need;
      }
      std::string const said =
          error_of([&] { kv::detail::refuse_needs_beyond("make", policy, {"keys", "queries"}, "arrays do"); });
      std::string const name(policy.score.name_inside());
      CHECK(said == (missing.empty() ? ""
                                     : "make: policy = " + name + ", but it needs the signal " + missing +
                                           ", which arrays do not have"));
    }
  }
}

// Typed: a policy without one of its signals is no policy that `decide` takes, and a recorder without one does not
// compile.
template <class... Signals>
struct list {};
template <class Gone, class... Signals>
consteval auto without(list<Signals...>) {
  return []<class... Kept>(std::tuple<Kept...>*) {
    return static_cast<kv::signals<Kept...>*>(nullptr);
  }(static_cast<decltype(std::tuple_cat(
             std::conditional_t<std::same_as<Signals, Gone>, std::tuple<>, std::tuple<Signals>>{}...))*>(nullptr));
}
using engine_gives = list<kv::keys, kv::values, kv::queries, kv::turn_queries, kv::external_queries, kv::log_beta,
                          kv::gate, kv::birth_score, kv::external_scores, kv::stale_spans>;

template <class Signal, class Reader>
consteval bool missed_by() {  // of a need that several signals satisfy, `keys` or `queries` is given here
  using left = std::remove_pointer_t<decltype(without<Signal>(engine_gives{}))>;
  return !kv::detail::has_all<left>(typename Reader::needs{});
}
template <class Reader, class... Needed>
consteval bool misses_each(kv::needs<Needed...>) {
  return ([] {
    if constexpr (requires { typename Needed::options; }) {
      return true;
    } else {
      return missed_by<Needed, Reader>();
    }
  }() && ...);
}
template <class Score>
consteval bool recorders_miss_each() {
  return []<class... Recorders>(std::tuple<Recorders...>*) {
    return (misses_each<Recorders>(typename Recorders::needs{}) && ...);
  }(static_cast<decltype(kv::recorders_of(std::declval<Score const&>()))*>(nullptr));
}
template <class... Scores>
consteval bool all_miss() {
  return (recorders_miss_each<Scores>() && ...);
}
static_assert(all_miss<kv::snapkv, kv::tova, kv::h2o, kv::observed_attention, kv::intent_kv, kv::trim_kv,
                       kv::trim_kv_norm, kv::db_trim_kv, kv::carried, kv::fast_kvzip, kv::write_gate,
                       kv::recorded_knorm, kv::quest, kv::frozen<kv::lookahead_kv>>());
static_assert(misses_each<kv::knorm>(kv::knorm::needs{}) && misses_each<kv::external>(kv::external::needs{}) &&
              misses_each<kv::not_stale>(kv::not_stale::needs{}) &&
              misses_each<kv::lookahead_kv>(kv::lookahead_kv::needs{}) && misses_each<kv::kvzip>(kv::kvzip::needs{}));
static_assert(!kv::can_decide<kv::eviction<kv::knorm>, kv::signals<kv::queries>, kv::host_executor> &&
              !kv::can_decide<kv::eviction<kv::snapkv>, kv::signals<kv::queries>, kv::host_executor>);

}  // namespace

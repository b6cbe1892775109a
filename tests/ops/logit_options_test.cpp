// SPDX-License-Identifier: Apache-2.0
// attention_mass with an attention scale, a soft cap and sink logits, against the reference in double.

#include "reference/methods.hpp"
#include "support/masses.hpp"

namespace {

using namespace kvpolicy_test;
using kv::reduction;
using kv::reduction_order;

constexpr float nan_float = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

/// A batch as the reference sees it, too.
struct batch : mass_batch {
  batch(mock_options const& shape, kv::codec queries_of, int rows, bool scale, bool cap, bool sinks)
      : mass_batch(shape, queries_of, rows, rows, scale, cap, sinks) {}

  void hold_all() {
    mass_batch::hold_all();
    fill(queries, cache, content::smooth);
    int const rows = queries.rows();
    for (int r = 0; r < rows; ++r) queries.set_position(0, r, cache.options().bound - rows + r);
  }

  [[nodiscard]] reference::lane_attention lane(kv::lane this_lane) {
    reference::lane_attention made = reference_lane(cache, queries, this_lane);
    logits.tell(this_lane, made);
    return made;
  }

  /// Gives every row its log-sum-exp over the entries that it sees and the sink.
  void give_lse() {
    kvpolicy_test::give_lse(cache, queries, [&](kv::lane at) { return lane(at); });
  }

  [[nodiscard]] reference::row expected(kv::lane this_lane, kv::attention_mass_options const& how) {
    return reference::attention_mass(lane(this_lane), in_double(how));
  }

  void mass(kv::attention_mass_options const& how, kv::isa simd_level, bool lse, kv::score_view const& out) {
    kv::host_executor exec(1, simd_level);
    kv::query_view rows = queries.view();
    if (!lse) rows.lse = {};
    write_masses(exec, cache.model(), logits.keys_of(cache.view()), rows, how, out);
  }

  /// The first lane that differs from the reference.
  comparison agrees(kv::attention_mass_options const& how, kv::isa simd_level, bool lse) {
    owned_scores out(cache.lanes());
    mass(how, simd_level, lse, out.view());
    for (int i = 0; i < cache.lane_count(); ++i) {
      int const committed = cache.committed(cache.lane_at(i));
      auto const result = compare(out.row(i, committed), expected(cache.lane_at(i), how));
      if (!result) return result;
    }
    return {};
  }
};

mock_options one_lane(int dims, int group, int bound, kv::codec element) {
  return {.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = dims},
          .bound = bound,
          .element = element,
          .seed = static_cast<std::uint64_t>(dims + bound + group)};
}

}  // namespace

TEST_SUITE("core/logit_options") {
  TEST_CASE("windows of many bf16 rows give the reference's mass, also where the keys are read twice") {
    auto const agrees = [](int bound, int dims, int rows) {
      int const group = *rc::gen::element(1, 4, 8);
      rows = std::min(bound, rows);
      mock_options shape = one_lane(dims, group, bound, kv::codec::bf16);
      shape.rows = *rc::gen::element(content::smooth, content::troubled);  // the latter has NaN and infinite keys
      batch of(shape, kv::codec::bf16, rows, any_bool(), false, any_bool());
      of.hold_all();
      kv::attention_mass_options const how{
          .domain = *rc::gen::element(kv::key_domain::all, kv::key_domain::past),
          .rows = *rc::gen::element(reduction::sum, reduction::mean),
          .group = *rc::gen::element(reduction::sum, reduction::mean),
          .order = *rc::gen::element(reduction_order::rows_then_group, reduction_order::group_then_rows)};
      RC_LOG() << bound << " entries, " << group << " heads, " << rows << " rows, D " << dims << '\n';
      assert_same(of.agrees(how, *rc::gen::element(kv::isa::amx, kv::isa::avx512_bf16), false));
    };
    holds("mass of many bf16 rows == reference", [&] {
      agrees(*rc::gen::element(1, 23, 24, 25, 48, 49, 200), *rc::gen::element(5, 16, 31, 32, 33, 64, 80, 128),
             *rc::gen::element(9, 17, 33, 40, 66, 130));
    });
    constexpr int tiles = 6168;  // of 24 keys, and more than a second-level cache keeps logits of
    holds("mass of many bf16 rows and many entries == reference", 16, [&] {
      agrees(*rc::gen::element(tiles - 1, tiles, tiles + 1, tiles + 23), *rc::gen::element(5, 32, 33, 64),
             *rc::gen::element(33, 40, 66));
    });
  }

  TEST_CASE("a scale, a cap and sinks give the reference's mass for the shapes of models") {
    kv::attention_mass_options const options[] = {
        {.rows = reduction::sum, .group = reduction::mean},
        {.rows = reduction::sum, .group = reduction::max, .order = reduction_order::group_then_rows},
        {.rows = reduction::max, .group = reduction::sum, .order = reduction_order::rows_then_group},
        {.rows = reduction::mean, .group = reduction::mean, .order = reduction_order::group_on_logits},
        {.rows = reduction::sum, .group = reduction::max, .order = reduction_order::group_on_logits}};
    kv::codec const elements[] = {kv::codec::f32, kv::codec::f16, kv::codec::bf16};
    std::size_t turn = 0;
    for (int const dims : {64, 80, 128, 256, 576}) {
      for (int const group : {1, 4, 8}) {
        for (int const bound : {1, 31, 32, 33, 4097}) {
          for (kv::codec const element : elements) {
            ++turn;
            if (bound == 4097 && element != elements[turn % 3] && dims > 64) continue;
            if (bound == 4097 && under_address_sanitizer && (dims > 64 || group != 4)) continue;
            int const rows = bound == 1 ? 1 : static_cast<int>(turn % 4) + 1;
            batch of(one_lane(dims, group, bound, element), turn % 2 == 0 ? kv::codec::f32 : element, rows, true,
                     turn % 3 != 0, turn % 3 != 1);
            of.hold_all();
            auto const how = options[turn / 2 % std::size(options)];
            INFO("dims ", dims, ", group ", group, ", bound ", bound, ", turn ", turn);
            for (bool const lse : {false, true}) {
              if (lse) of.give_lse();
              CAPTURE(lse);
              if (bound == 4097 || under_address_sanitizer) {
                CHECK(of.agrees(how, every_isa[turn % 4], lse));
                continue;
              }
              for (kv::isa const simd_level : every_isa) CHECK(of.agrees(how, simd_level, lse));
            }
          }
        }
      }
    }
  }

  TEST_CASE("every layer and head has its own sink, in every memory, domain, reduction and order") {
    holds("attention mass with logit options == reference", 150, [] {
      mock_options shape = any_mock();
      RC_LOG() << shape << '\n';
      int const rows = std::min(*rc::gen::element(1, 2, 3, 0, 16, 17, 33), shape.bound + 10);
      auto const coin = [] { return any_bool(); };
      batch of(shape, *rc::gen::element(kv::codec::f32, kv::codec::bf16), rows, coin(), coin(), coin());
      fill(of.cache, coin());
      fill(of.queries, of.cache, content::smooth);
      auto const how = any_mass_options({kv::key_domain::all, kv::key_domain::past});
      bool const lse = coin();
      if (lse) of.give_lse();
      assert_same(of.agrees(how, *rc::gen::element(every_isa[0], every_isa[1], every_isa[2]), lse));
    });
  }

  TEST_CASE("the softmax of candidates has the sink, and leaves the others out") {
    batch of(one_lane(64, 4, 40, kv::codec::f32), kv::codec::f32, 3, true, true, true);
    of.hold_all();
    owned_scores out(of.cache.lanes());
    kv::query_view rows = of.queries.view();
    rows.position = {};
    reference::lane_attention some = of.lane({});
    std::vector<int> candidates;
    for (int e = 0; e < 40; ++e) {
      bool const candidate = e % 3 != 1;
      out.all()[as_size(e)] = candidate ? 0 : -infinite;
      if (candidate) candidates.push_back(e);
    }
    for (int e = 39; e >= 0; --e) {
      if (e % 3 != 1) continue;
      some.keys.erase(some.keys.begin() + e);
      some.key_positions.erase(some.key_positions.begin() + e);
    }
    some.query_positions.assign(3, 40);
    auto const expected = reference::attention_mass(some, {});
    kv::host_executor exec;
    write_masses(exec, of.cache.model(), of.logits.keys_of(of.cache.view()), rows,
                 {.domain = kv::key_domain::candidates}, out.view());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      CHECK(close(static_cast<double>(out.all()[as_size(candidates[i])]), expected[i]));
    }
  }

  TEST_CASE("a cap is exact to 1e-6 from the smallest logits to infinite ones") {
    std::vector<double> logits{0, -0.0, 1e-30, -1e-10, 1e-4, 0.3, 0.62, 0.6249, 0.6251, 0.63, 1, -2, 5, 9, -30, 200};
    logits.insert(logits.end(), {1e30, -1e30, reference::infinity, -reference::infinity});
    for (int i = 1; i < 200; ++i) logits.push_back(0.011 * i * (i % 2 == 0 ? 1 : -1));
    int const count = static_cast<int>(logits.size());
    for (kv::isa const simd_level : every_isa) {
      for (float const cap : {0.5f, 1.0f, 2.5f}) {
        mock_cache cache(one_lane(1, 1, count, kv::codec::f32));
        mock_queries queries(cache, kv::codec::f32, 1, 1);
        cache.put({}, up_to(count));
        for (int e = 0; e < count; ++e) cache.write(of::keys, {}, e, {logits[as_size(e)]});
        queries.write(0, 0, 0, 0, {1});
        queries.set_position(0, 0, count);
        queries.set_position(0, 0, count - 1);
        queries.bring_lse();
        kv::keys keys = kv::keys_of(cache.view());
        keys.logits.soft_cap = cap;
        owned_scores out(cache.lanes());
        kv::host_executor exec(1, simd_level);
        write_masses(exec, cache.model(), keys, queries.view(), {}, out.view());
        for (int e = 0; e < count; ++e) {
          double const x = static_cast<double>(static_cast<float>(logits[as_size(e)]));
          double const c = static_cast<double>(cap);
          double const wanted = c * std::tanh(x / c);
          double const found = std::log(static_cast<double>(out.all()[as_size(e)]));
          CAPTURE(x);
          CHECK(std::abs(found - wanted) <= 1e-6 * std::abs(wanted) + 2.5e-7);  // e^x has 2 units in the last place
        }
      }
    }
  }

  TEST_CASE("on latent rows of 576, snapkv keeps what the reference keeps only with the model's scale") {
    mock_options const shape = one_lane(576, 16, 1024, kv::codec::f32);
    mock_cache cache(shape);
    mock_queries queries(cache, kv::codec::f32, 32, 32);
    cache.put({}, up_to(1024));
    fill(queries, cache, content::smooth);
    for (int r = 0; r < 32; ++r) queries.set_position(0, r, 992 + r);
    reference::lane_attention lane = reference_lane(cache, queries, {});
    lane.scale = 1 / std::sqrt(192.0);
    auto const expected =
        reference::snapkv(lane, {.window = 32, .budget = 128, .pool = {reference::pool_kind::maximum, 7}});
    auto const kept_with = [&](std::optional<float> scale) {
      kv::cache view = cache.view();
      view.logits.scale = scale;
      kv::host_executor exec;
      kv::eviction const policy{.score = kv::snapkv{.window = 32, .pool = kv::max_pool{7}},
                                .budget = kv::per_lane{128}};
      auto [state, plan] = state_and_plan(exec, policy, view);
      kv::signals const in{view.lanes, kv::keys_of(view), kv::recent_queries{queries.view()}};
      kv::decide(exec, policy, in, state, plan);
      return listed(plan.keep(), 0);
    };
    auto const differing = [&](std::vector<int> const& kept) {
      std::set<int> const wanted(expected.result.kept.begin(), expected.result.kept.end());
      return std::count_if(kept.begin(), kept.end(), [&](int e) { return wanted.count(e) == 0; });
    };
    CHECK(expected.result.kept.size() == 128);
    CHECK(differing(kept_with(static_cast<float>(1 / std::sqrt(192.0)))) == 0);
    CHECK(differing(kept_with({})) >= 10);
  }

  TEST_CASE("a cache says what its model makes of q.k, and its keys say so too") {
    mock_options const shape = one_lane(576, 16, 8, kv::codec::f32);
    mock_cache latent(shape), capped(one_lane(256, 2, 8, kv::codec::f32)), sunk(one_lane(64, 8, 8, kv::codec::f32));
    std::vector<float> const learned(36 * 64, 0.5f);
    float const* const sinks = learned.data();
    kv::cache deepseek = latent.view(), gemma_2 = capped.view(), gpt_oss = sunk.view();
    // example-begin
    deepseek.logits = {.scale = 1 / std::sqrt(192.0f)};        // latent rows of 576 channels, heads of 128 + 64
    gemma_2.logits = {.scale = 1 / 16.0f, .soft_cap = 50};     // query_pre_attn_scalar 256, attn_logit_softcapping
    gpt_oss.logits = {.sinks = {.data = sinks, .layer = 64}};  // [layer, 64 query heads]
    kv::keys const keys = kv::keys_of(deepseek);               // copies them
    // example-end
    CHECK(keys.logits.scale == 1 / std::sqrt(192.0f));
    CHECK(kv::keys_of(gemma_2).logits.soft_cap == 50);
    CHECK(kv::keys_of(gpt_oss).logits.sinks.at(35, 63) == 0.5f);
    CHECK(kv::keys_of(gpt_oss).logits.sinks.data + 35 * 64 + 63 == &learned.back());
    CHECK_FALSE(kv::keys_of(latent.view()).logits.scale.has_value());
  }

  TEST_CASE("what no softmax can have is refused in one line, and nothing changes") {
    mock_options shape = one_lane(4, 2, 8, kv::codec::f32);
    shape.model.layers = 2;
    batch of(shape, kv::codec::f32, 1, false, false, true);
    of.hold_all();
    kv::host_executor exec;
    kv::eviction<kv::h2o> const policy{.score = {.heavy = 1, .recent = 1}, .budget = {2}};
    auto state = kv::make_state(exec, policy, of.cache.view());
    exec.reserve(kv::implementation<kv::ops::compute_attention_mass_t, kv::host>::scratch(shape.model, 8));
    owned_scores out(of.cache.lanes());
    auto const mass = [&](kv::logit_options const& logits) {
      kv::keys keys = kv::keys_of(of.cache.view());
      keys.logits = logits;
      return error_of([&] { kv::ops::compute_attention_mass(exec, keys, of.queries.view(), {}, out.view()); });
    };
    auto const observed = [&](kv::logit_options const& logits) {
      kv::cache view = of.cache.view();
      view.logits = logits;
      kv::signals const in{view.lanes, kv::keys_of(view), kv::queries{of.queries.view()}};
      return error_of([&] { kv::observe(exec, policy, in, state); });
    };
    std::string const scale = " but the factor of q.k is a finite number above 0";
    CHECK(mass({.scale = 0.0f}) == "compute_attention_mass: keys.logits.scale = 0," + scale);
    CHECK(mass({.scale = -0.125f}) == "compute_attention_mass: keys.logits.scale = -0.125," + scale);
    CHECK(mass({.scale = nan_float}) == "compute_attention_mass: keys.logits.scale = nan," + scale);
    CHECK(observed({.scale = infinite}) == "observe: keys.logits.scale = inf," + scale);
    std::string const cap = " but a cap is a finite number above 0, and 0 stands for none";
    CHECK(mass({.soft_cap = -50}) == "compute_attention_mass: keys.logits.soft_cap = -50," + cap);
    CHECK(observed({.soft_cap = nan_float}) == "observe: keys.logits.soft_cap = nan," + cap);
    CHECK(mass({.soft_cap = infinite}) == "compute_attention_mass: keys.logits.soft_cap = inf," + cap);
    kv::logit_options shared = of.logits.options();
    shared.sinks.layer = 0;
    CHECK(observed(shared) ==
          "observe: keys.logits.sinks.layer = 0, but there are 2 layers, and each has memory of its own");
    of.logits.sinks()[6] = nan_float;
    std::string const sink = " but a sink is a number, or -inf for a head without one";
    CHECK(mass(of.logits.options()) ==
          "compute_attention_mass: keys.logits.sinks (layer 1, query head 1) = nan," + sink);
    of.logits.sinks()[6] = infinite;
    CHECK(observed(of.logits.options()) ==
          "compute_attention_mass: keys.logits.sinks (layer 1, query head 1) = inf," + sink);
    CHECK(std::all_of(out.all().begin(), out.all().end(), [](float each) { return each == 0.5f; }));
    kv::cache view = of.cache.view();
    view.logits.scale = 0.0f;
    CHECK(error_of([&] { static_cast<void>(kv::make_plan(exec, policy, view)); }) ==
          "make_plan: logits.scale = 0," + scale);
    CHECK(observed({.scale = 2.0f}) == "");
  }
}

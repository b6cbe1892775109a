// SPDX-License-Identifier: Apache-2.0
// make_state and make_plan refuse what is not sound, name the argument and its value, and change nothing.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

/// What is said of a cache, and what makes a sound one such a cache.
struct refused_cache {
  std::string text;
  std::function<void(kv::cache&)> change;
};

/// Expects the same sentence from every call that takes a cache.
void refuses_caches(std::vector<refused_cache> const& all) {
  for (auto const& [text, change] : all) {
    working_batch now;
    kv::cache bad = now.view;
    change(bad);
    now.refuses("make_state: " + text, [&] { (void)kv::make_state(now.exec, now.policy, bad); });
    now.refuses("make_plan: " + text, [&] { (void)kv::make_plan(now.exec, now.policy, bad); });
    now.refuses("apply: " + text, [&] { kv::apply(now.exec, kv::compact{}, now.plan, bad, now.state); });
  }
}

template <class Policy>
void refuses_policy(std::string const& text, Policy const& policy) {
  working_batch now;
  now.refuses("make_state: " + text, [&] { (void)kv::make_state(now.exec, policy, now.view); });
  now.refuses("make_plan: " + text, [&] { (void)kv::make_plan(now.exec, policy, now.view); });
  now.refuses("decide: " + text, [&] { kv::decide(now.exec, policy, now.signals(), now.state, now.plan); });
}

template <class Score>
auto only(Score const& score) {
  return kv::eviction{.score = score, .budget = kv::per_lane{4}};
}

template <class Protect>
auto protecting(Protect const& protect) {
  return kv::eviction{.score = kv::knorm{}, .protect = protect, .budget = kv::per_lane{4}};
}

}  // namespace

TEST_SUITE("laws/refused_makings") {
  TEST_CASE("a sound cache is not refused") {
    working_batch now;
    CHECK(error_of([&] { (void)kv::make_state(now.exec, now.policy, now.view); }).empty());
    CHECK(error_of([&] { (void)kv::make_plan(now.exec, now.policy, now.view); }).empty());
    CHECK(error_of([&] { kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state); }).empty());
  }

  TEST_CASE("shapes without layers, heads or channels, and groups that do not divide, are refused") {
    refuses_caches({
        {"shape.layers = 0, but a model has at least one layer", [](auto& bad) { bad.shape.layers = 0; }},
        {"shape.kv_heads = 0, but a model has at least one KV head", [](auto& bad) { bad.shape.kv_heads = 0; }},
        {"shape.query_heads = 0, but a model has at least one query head",
         [](auto& bad) { bad.shape.query_heads = 0; }},
        {"shape.query_heads = 5, but it must be a multiple of the KV heads (2)",
         [](auto& bad) { bad.shape.query_heads = 5; }},
        {"shape.head_dim = -4, but a head has at least one channel", [](auto& bad) { bad.shape.head_dim = -4; }},
        {"shape.value_dim = -1, but a size cannot be negative", [](auto& bad) { bad.shape.value_dim = -1; }},
    });
  }

  TEST_CASE("lanes that are not the model's, or without memory, are refused") {
    refuses_caches({
        {"lanes.sequences = 0, but a batch has at least one sequence", [](auto& bad) { bad.lanes.sequences = 0; }},
        {"lanes.heads = 1, but every KV head of the model (2) is a lane", [](auto& bad) { bad.lanes.heads = 1; }},
        {"lanes.layer_begin = -1, but layers are a range that is not empty",
         [](auto& bad) { bad.lanes.layer_begin = -1; }},
        {"lanes.layer_begin = 2, but layers are a range that is not empty",
         [](auto& bad) { bad.lanes.layer_begin = 2; }},
        {"lanes.layer_end = 3, but the model has 2 layers", [](auto& bad) { bad.lanes.layer_end = 3; }},
        {"lanes = 536870912 sequences, 2 layers, 2 heads, but lanes are numbered in 32 bits: their product is less "
         "than 2^31",
         [](auto& bad) { bad.lanes.sequences = 1 << 29; }},
        {"lanes.capacity = 0, but an upper limit of the entries of a lane is needed",
         [](auto& bad) { bad.lanes.capacity = 0; }},
        {"lanes.count = null, but every lane says how many entries it holds",
         [](auto& bad) { bad.lanes.count.data = nullptr; }},
        {"lanes.position = null, but every entry says its position",
         [](auto& bad) { bad.lanes.position.data = nullptr; }},
    });
  }

  TEST_CASE("locators without a pool, a table or room are refused") {
    refuses_caches({
        {"where.units = 0, but a pool has at least one unit", [](auto& bad) { bad.where.units = 0; }},
        {"where.unit_tokens = 0, but a unit holds at least one token", [](auto& bad) { bad.where.unit_tokens = 0; }},
        {"where.table = null, but this locator reads a table", [](auto& bad) { bad.where.table.data = nullptr; }},
        {"where.units = 1, but every sequence has a row of its own",
         [](auto& bad) { bad.where = kv::identity_map(16, 1); }},
        {"where.unit_tokens = 15, but a row holds `capacity` tokens (16)",
         [](auto& bad) { bad.where = kv::identity_map(15, 2); }},
    });
    refuses_caches({{"where.unit_tokens = 15, but a row holds `capacity` tokens (16)",
                     [](auto& bad) { bad.where = {kv::locating::ring, bad.where.table, 15, 2}; }}});
  }

  TEST_CASE("planes that are null, of another width, or whose elements share bytes are refused") {
    refuses_caches({
        {"k = null, but a plane is the engine's memory", [](auto& bad) { bad.k.base = nullptr; }},
        {"v = null, but a plane is the engine's memory", [](auto& bad) { bad.v.base = nullptr; }},
        {"k.channels = 3, but the shape says 4 channels", [](auto& bad) { bad.k.channels = 3; }},
        {"v.channels = 4, but the shape says 2 channels", [](auto& bad) { bad.shape.value_dim = 2; }},
        {"k = strides, but two of its elements share bytes", [](auto& bad) { bad.k.head_stride = 0; }},
        {"k = strides, but two of its elements share bytes", [](auto& bad) { bad.k.channel_stride = 2; }},
        {"k = strides, but two of its elements share bytes", [](auto& bad) { bad.k.channel_stride = 3; }},
        {"v = strides, but two of its elements share bytes", [](auto& bad) { bad.v.layer_stride = bad.v.head_stride; }},
        {"v = strides, but two of its elements share bytes", [](auto& bad) { bad.v.unit_stride = 4; }},
    });
  }

  TEST_CASE("keys and values that overlap are refused, and planes that interleave are not") {
    refuses_caches({
        {"k and v = overlapping, but keys and values are different memory", [](auto& bad) { bad.v = bad.k; }},
        {"k and v = overlapping, but keys and values are different memory",
         [](auto& bad) { bad.v.base = bad.k.base + 4; }},
        {"k and v = overlapping, but keys and values are different memory",
         [](auto& bad) { bad.v.base = bad.k.base + bad.k.layer_stride; }},
    });
    for (auto const memory : {arrangement::packed_rows, arrangement::packed_units}) {
      mock_cache packed({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .memory = memory});
      CHECK(refusal_of_cache(packed.view()).empty());
    }
  }

  TEST_CASE("keys and transposed values may take turns layer by layer in one buffer") {
    constexpr int heads = 2, dims = 4, tokens = 8;
    std::vector<float> buffer(2 * 2 * heads * dims * tokens);
    mock_cache lanes({.model = {.layers = 2, .query_heads = 2, .kv_heads = heads, .head_dim = dims}, .bound = tokens});
    kv::cache view = lanes.view();
    auto* const base = reinterpret_cast<std::byte*>(buffer.data());
    std::int64_t const block = heads * dims * tokens * 4;
    view.where = kv::identity_map(tokens);
    view.k = {base, kv::codec::f32, dims, 2 * block, block, heads * dims * 4, dims * 4, 4};
    view.v = {base + block, kv::codec::f32, dims, 2 * block, block, 4, dims * tokens * 4, tokens * 4};
    CHECK(refusal_of_cache(view).empty());
    view.v.base = base + block - 4;
    CHECK(refusal_of_cache(view) == "make_plan: k and v = overlapping, but keys and values are different memory");
  }

  TEST_CASE("policies whose parameters have no meaning are refused") {
    refuses_policy("budget.tokens = -1, but a count cannot be negative",
                   kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{-1}});
    refuses_policy("over_budget.slack = -2, but a count cannot be negative",
                   kv::eviction{.score = kv::knorm{}, .trigger = kv::over_budget{-2}});
    refuses_policy("streaming_llm.sinks = -1, but a count cannot be negative", only(kv::streaming_llm{-1}));
    refuses_policy("h2o.heavy = -2, but a count, or -1 for what the budget leaves", only(kv::h2o{.heavy = -2}));
    refuses_policy("h2o.recent = -7, but a count, or -1 for what the budget leaves", only(kv::h2o{.recent = -7}));
    refuses_policy("h2o.group = last, but query heads have no order", only(kv::h2o{.group = kv::reduction::last}));
    refuses_policy("sinks.tokens = -1, but a count cannot be negative", protecting(kv::sinks{-1}));
    refuses_policy("recent.tokens = -1, but a count cannot be negative", protecting(kv::recent{-1}));
    refuses_policy("span.begin = -1, but positions start at 0", protecting(kv::position_span{-1, 3}));
    refuses_policy("span.end = 2, but a span does not end before it begins (3)", protecting(kv::position_span{3, 2}));
    refuses_policy("sinks.tokens = -5, but a count cannot be negative",
                   protecting(kv::position_span{1, 2} | kv::sinks{-5}));
  }

  TEST_CASE("SnapKV without a window, with an even pool or an order of heads is refused") {
    working_batch now;
    auto const refuses = [&](std::string const& text, kv::snapkv const& score) {
      now.refuses("make_state: " + text, [&] { (void)kv::make_state(now.exec, only(score), now.view); });
      now.refuses("make_plan: " + text, [&] { (void)kv::make_plan(now.exec, only(score), now.view); });
    };
    refuses("snapkv.window = 0, but at least one row observes", {.window = 0});
    refuses("snapkv.pool = 4, but a pool has an odd width", {.pool = kv::max_pool{4}});
    refuses("snapkv.group = last, but query heads have no order", {.group = kv::reduction::last});
  }

  TEST_CASE("an executor has at least one thread") {
    CHECK(error_of([] { kv::host_executor const none(0); }) ==
          "host_executor: threads = 0, but at least the caller works");
  }
}

// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "models.hpp"
#include "support/error_of.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

auto const snapkv = kv::policies::snapkv({.budget = 24, .score = {.window = 8}});
using engine_type = llama_cpp::engine<std::remove_const_t<decltype(snapkv)>>;

bytes letters(int length) {
  bytes made;
  for (int i = 0; i < length; ++i) made.push_back(static_cast<std::uint8_t>('a' + i * 7 % 26));
  return made;
}

std::string error_of_model(llama_model* with, llama_cpp::engine_options const& options = exact(256, 64)) {
  return error_of([&] { engine_type const engine(with, snapkv, options); });
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("refusals: models whose cache cannot be evicted from") {
    CHECK(error_of_model(nullptr) == "llama_cpp::engine: model = null, but llama_model_load_from_file has failed");
    CHECK(
        error_of_model(gemma3(32).get()) ==
        "llama_cpp::engine: model = a sliding window of 32, but llama.cpp masks by the positions of cells, which mean "
        "nothing after an eviction");
    CHECK(error_of_model(mamba().get()) ==
          "llama_cpp::engine: model = recurrent, but its state has no rows that could be evicted");
  }

  TEST_CASE("refusals: the same model without a window is served") {
    model_pointer const served = gemma3(0);
    engine_type engine(served.get(), snapkv, exact(256, 64));
    CHECK(engine.shape() == kv::shape{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16});
    std::vector<llama_token> const tokens(100, 7);
    engine.prefill(0, {.tokens = tokens});
    CHECK(engine.count(0) == 24);
  }

  TEST_CASE("refusals: a cache tensor is known by its exact name") {
    std::unique_ptr<ggml_context, void (*)(ggml_context*)> const memory(
        ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = false}), &ggml_free);
    llama_cpp::decode_watch watch;
    watch.begin_probe(2);
    auto const show = [&](char const* name) {
      ggml_tensor* const cache = ggml_new_tensor_2d(memory.get(), GGML_TYPE_F32, 32, 8);
      ggml_set_name(cache, name);
      ggml_tensor* const reads = ggml_cont(memory.get(), ggml_view_1d(memory.get(), cache, 32, 0));
      llama_cpp::decode_watch::callback(reads, true, &watch);
      return cache;
    };
    ggml_tensor* const k = show("cache_k_l1");
    ggml_tensor* const v = show("cache_v_l1");
    CHECK(watch.stray().empty());
    show("cache_swa_k_l0");
    show("cache_k_l0 (view)");
    show("cache_k_l7");
    CHECK(watch.stray() == "cache_swa_k_l0");
    CHECK(watch.layers()[1].k == k);
    CHECK(watch.layers()[1].v == v);
    CHECK(watch.layers()[0].k == nullptr);
  }

  TEST_CASE("refusals: policies whose lanes would keep different numbers of entries") {
    auto const refused = [](char const* spec) {
      return error_of([&] { llama_cpp::engine const engine(model(), kv::parse(spec), exact(256, 64)); });
    };
    CHECK(refused("snapkv | budget(24, scope=layer)") ==
          "bind: policy.budget = pooled by layer, but llama_cpp has one length for lanes that would keep different "
          "numbers of entries");
    CHECK(refused("knorm | budget(24, scope=global)") ==
          "bind: policy.budget = pooled by global, but llama_cpp has one length for lanes that would keep different "
          "numbers of entries");
    kv::eviction const typed{.score = kv::knorm{}, .budget = kv::per_layer{.tokens = 24}};
    CHECK(error_of([&] { llama_cpp::engine const engine(model(), typed, exact(256, 64)); }) ==
          "bind: policy.budget = pooled by layer, but llama_cpp has one length for lanes that would keep different "
          "numbers of entries");
    CHECK(refused("snapkv | reduce_lanes(layer, sum) | budget(24)") == "");
    CHECK(refused("knorm | budget(bytes=400000)") == "");
  }

  TEST_CASE("refusals: picks that no cells can be freed by") {
    auto const refused = [](auto const& policy) {
      return error_of([&] { llama_cpp::engine const engine(model(), policy, exact(256, 64)); });
    };
    std::string const lists =
        ", but lowest_one lists the entry that is dropped, and llama.cpp's cells are freed by moving those that are "
        "kept: without it the budget alone decides";
    CHECK(refused(kv::parse("knorm | budget(24) | lowest_one")) ==
          "llama_cpp::engine: policy = knorm | budget(24) | lowest_one" + lists);
    CHECK(refused(kv::policies::streaming_llm_decode({.budget = 24})).ends_with(lists));
    std::string const counts =
        ", but lanes that each keep what reaches a threshold keep different numbers of entries, and lanes of llama.cpp "
        "share their cells: an admission goes through by_token";
    CHECK(refused(kv::parse("knorm | at_least(-3)")) ==
          "llama_cpp::engine: policy = knorm | unlimited | at_least(least=-3, strict=false, unbounded=true)" + counts);
    CHECK(refused(kv::parse("knorm | reduce_lanes(layer, mean) | at_least(-3)")).ends_with(counts));
    CHECK(refused(kv::parse("knorm | reduce_lanes(token, mean) | at_least(-3)")) == "");
  }

  TEST_CASE("refusals: budgets that differ between lanes") {
    std::vector<int> const numbers{24, 24, 24, 20, 24, 24, 24, 24}, equal(8, 24);
    std::vector<float> const weights(8, 1.0f);
    kv::registry known = kv::shipped();
    known.table("shares", kv::by_lane<int const>{numbers.data(), 0, 2, 1});
    known.table("equal", kv::by_lane<int const>{equal.data(), 0, 2, 1});
    known.table("weights", kv::by_lane<float const>{weights.data(), 0, 2, 1});
    auto const refused = [&](std::string_view spec) {
      return error_of([&] { llama_cpp::engine const engine(model(), kv::parse(spec, known), exact(256, 64)); });
    };
    std::string const rule =
        ", but lanes of llama.cpp share their cells, so that all of them keep equally many entries";
    CHECK(refused("snapkv | budget(100, by=ramp)") ==
          "llama_cpp::engine: policy.budget = 101 of 101 entries in layer 0, head 0, and 100 in layer 1, head 0" +
              rule);
    CHECK(refused("snapkv | budget(ratio=0.5, by=ramp)").ends_with(rule));
    CHECK(refused("pyramid_kv | budget(100)").ends_with(rule));
    CHECK(refused("h2o | budget(ratio=0.5, by=ramp)").ends_with(rule));  // of the tokens that were seen
    CHECK(refused("knorm | budget(24, by=table, table=shares)") ==
          "llama_cpp::engine: policy.budget = 24 of 25 entries in layer 0, head 0, and 20 in layer 1, head 1" + rule);
    CHECK(refused("knorm | budget(24, by=importance, table=weights)") ==
          "llama_cpp::engine: policy.budget = different for each layer" + rule);
    CHECK(refused("knorm | budget(24, by=table, table=equal)") == "");
    CHECK(refused("snapkv | budget(100, by=ramp, beta=1)") == "");
    kv::eviction const ramp{.score = kv::knorm{}, .budget = kv::ramp{.tokens = 24}};
    CHECK(error_of([&] { llama_cpp::engine const engine(model(), ramp, exact(256, 64)); }).ends_with(rule));
    using by_weight = kv::proportional<kv::table_of_layers>;
    kv::eviction const shared{.score = kv::knorm{},
                              .budget = by_weight{.of = {{weights.data(), 0, 2, 1}}, .tokens = 24}};
    CHECK(error_of([&] { llama_cpp::engine const engine(model(), shared, exact(256, 64)); }) ==
          "llama_cpp::engine: policy.budget = different for each layer" + rule);
  }

  TEST_CASE("refusals: a policy by name is refused when the engine is made, or serves a prompt and steps") {
    std::vector<std::string> specs;
    for (auto const& scorer : kv::shipped().list()) {
      for (char const* more :
           {" | budget(24)", " | budget(ratio=0.75)", " | budget(ratio=0.75, by=seen)",
            " | sinks(4) | budget(24) | over_budget(8)", " | budget(100, by=ramp)", " | budget(ratio=0.5, by=ramp)",
            " | lowest_one", " | at_least(0.1)", " | reduce_lanes(layer, max) | budget(24)",
            " | reduce_lanes(token, sum) | budget(24) | full_buffer(5)", " | budget(0)", " | span(0, 40) | budget(24)"})
        specs.push_back(std::string(scorer.name) + more);
    }
    int served = 0;
    for (std::string const& spec : specs) {
      std::optional<kv::any_policy> policy;
      if (error_of([&] { policy = kv::parse(spec); }) != "") continue;
      for (auto const decide : {llama_cpp::when::after_prefill, llama_cpp::when::every_decode}) {
        CAPTURE(spec);
        std::optional<llama_cpp::engine<kv::any_policy>> engine;
        llama_cpp::engine_options options = exact(256, 64, 2);
        options.decide = decide;
        std::string const refused = error_of([&] { engine.emplace(model(), *policy, options); });
        if (!refused.empty()) {
          CHECK(refused.find(", but ") != std::string::npos);
          continue;
        }
        ++served;
        auto const serve = [&] {
          reader<llama_cpp::engine<kv::any_policy>> one{*engine};
          one.prefill(letters(150));
          for (std::uint8_t const byte : letters(10)) one.step(byte);
          one.prefill(letters(40));
        };
        CHECK(error_of(serve) == "");
      }
    }
    MESSAGE(served, " served of ", 2 * specs.size());
    CHECK(served > 60);
  }

  TEST_CASE("refusals: an element type whose blocks would hold channels of two heads") {
    model_pointer const small_heads = gemma3(0);  // 16 channels
    for (bool const flash : {true, false}) {
      llama_cpp::engine_options options = exact(256, 64);
      options.context.flash_attention = flash;
      options.context.type_k = GGML_TYPE_Q8_0;
      CHECK(
          error_of_model(small_heads.get(), options) ==
          "llama_cpp::engine: type_k = q8_0 with heads of 16 channels, but a block of this type has 32 channels, and a "
          "head is whole blocks");
    }
    llama_cpp::engine_options options = exact(256, 64);
    options.context.flash_attention = true;
    options.context.type_v = GGML_TYPE_Q4_0;
    CHECK(error_of_model(small_heads.get(), options) ==
          "llama_cpp::engine: type_v = q4_0 with heads of 16 channels, but a block of this type has 32 channels, and a "
          "head is whole blocks");
  }

  TEST_CASE("refusals: a policy that needs a signal which quantised rows do not give") {
    llama_cpp::engine_options options = exact(256, 64);
    options.context.type_k = options.context.type_v = GGML_TYPE_Q8_0;
    options.context.flash_attention = true;
    CHECK(error_of([&] { llama_cpp::engine const engine(model(), kv::parse("knorm | budget(24)"), options); }) ==
          "decide: signals = none, but knorm needs signal keys");
    options.context.flash_attention = false;
    CHECK(error_of([&] { llama_cpp::engine const engine(model(), kv::parse("full"), options); }) ==
          "llama_cpp::engine: type_v = q8_0, but quantised values need flash attention");
  }

  TEST_CASE("refusals: options, sequences and tokens") {
    llama_cpp::engine_options options = exact(256, 64);
    options.context.chunk = 0;
    CHECK(error_of_model(model(), options) == "llama_cpp::engine: chunk = 0, but it must be at least 1");
    options = exact(256, 64, 256);
    CHECK(error_of_model(model(), options) ==
          "llama_cpp::engine: sequences = 256, but llama.cpp has at most 255 beside the engine's own");
    engine_type engine(model(), snapkv, exact(256, 64));
    reader<engine_type> one{engine};
    one.prefill(letters(200));
    CHECK(engine.count(0) == 24);
    std::vector<float> const before(one.step('a'));
    int const length = engine.length(0), count = engine.count(0);
    auto const rows = llama_cpp::tinylm_embeddings(tinylm_test::fixture::get().lm.parameters(), letters(240), 0);
    std::span<float const> const all(rows);
    CHECK(error_of([&] { engine.prefill(1, {.tokens = {}, .embeddings = all}); }) ==
          "prefill: sequence = 1, but the engine has 1 sequences");
    CHECK(error_of([&] { engine.prefill(0, {.tokens = {}, .embeddings = all}); }) ==
          "prefill: tokens = 240, but the cache has 231 free cells");
    CHECK(error_of([&] { engine.prefill(0, {.tokens = {}, .embeddings = all.first(100)}); }) ==
          "prefill: embeddings = 100, but a token has 256 numbers");
    CHECK(error_of([&] { engine.prefill(0, {}); }) == "prefill: tokens = 0, but at least one token is read");
    CHECK(error_of([&] { engine.step(0, {.tokens = {}, .embeddings = all.first(65 * 256)}); }) ==
          "step: tokens = 65, but a decode has at most 64 tokens");
    CHECK(error_of([&] { engine.truncate(0, 150); }) ==
          "truncate: position = 150, but the lanes hold different tokens since the eviction at 200");
    CHECK(engine.length(0) == length);
    CHECK(engine.count(0) == count);
    CHECK(one.step('b').size() == 256);
  }

  TEST_CASE("refusals: a context of few cells reads a longer prompt in smaller chunks") {
    engine_type engine(model(), snapkv, exact(10, 64));  // llama.cpp makes 256 cells of 10, and batches of 10 tokens
    reader<engine_type> one{engine};
    one.prefill(letters(100));
    CHECK(engine.length(0) == 100);
    CHECK(engine.count(0) == 24);
    CHECK(error_of([&] { one.prefill(letters(300)); }) == "prefill: tokens = 300, but the cache has 232 free cells");
  }

  TEST_CASE("refusals: a context shift after an eviction") {
    engine_type engine(model(), snapkv, exact(256, 64));
    reader<engine_type> one{engine};
    one.prefill(letters(200));
    llama_memory_t const memory = llama_get_memory(engine.get());
    llama_memory_seq_add(memory, 0, 0, -1, -100);  // what a context shift does
    std::string const text =
        "step: sequence = 0, whose last cell is at position 99, but the engine left it at 199: cells are moved, "
        "shifted and "
        "removed by the engine's own calls only";
    CHECK(error_of([&] { one.step('a'); }) == text);
    one.text.pop_back();
    CHECK(engine.length(0) == 200);
    CHECK(error_of([&] { engine.evict(0); }) == "evict" + text.substr(4));
    engine.reset(0);  // a new request is served
    one.text.clear();
    one.prefill(letters(100));
    CHECK(engine.count(0) == 24);
  }
}

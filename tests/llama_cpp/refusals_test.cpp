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

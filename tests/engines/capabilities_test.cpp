// SPDX-License-Identifier: Apache-2.0
// Which appliers follow from an engine's facts, and what is refused, where and with which words.

#include "engines/histories.hpp"

namespace {

using namespace kvpolicy_test;

void supports_exactly(engines::capabilities const& can, std::initializer_list<applier> expected) {
  for (std::size_t i = 0; i < engines::names(applier{}).size(); ++i) {
    auto const by = static_cast<applier>(i);
    INFO(can.name, " by ", engines::names(by)[i]);
    CHECK(engines::supports(can, by) == (std::find(expected.begin(), expected.end(), by) != expected.end()));
    CHECK(error_of([&] { engines::check(can, kv::granularity::sequence, engines::names(by)[i]); }).empty() ==
          engines::supports(can, by));
  }
}

constexpr engines::capabilities everything{.name = "everything",
                                           .tables = kv::granularity::lane,
                                           .lengths = kv::granularity::lane,
                                           .masks = kv::granularity::lane,
                                           .frees_tokens = true,
                                           .frees_blocks = true,
                                           .moves_rows = true,
                                           .position_gaps = true,
                                           .reserved_slot = true};

std::string why_not(engines::capabilities const& can, applier by, kv::codec keys = kv::codec::f32) {
  char const* const why = engines::refusal(can, by, keys);
  return why != nullptr ? why : "";
}

}  // namespace

TEST_SUITE("engines/capabilities") {
  TEST_CASE("each engine supports the appliers that its facts allow") {
    using enum applier;
    supports_exactly(engines::llama_cpp::can, {compact, compact_rerotated, list_rewrite, mask, overwrite});
    supports_exactly(engines::llama_cpp_flash::can, {compact, compact_rerotated, list_rewrite, mask, overwrite});
    supports_exactly(engines::sglang::can, {compact, compact_rerotated, list_rewrite, dead_slot, overwrite});
    supports_exactly(engines::vllm::can, {compact, compact_rerotated, drop_blocks});
    supports_exactly(engines::tensorrt_llm::can, {compact, compact_rerotated});
    supports_exactly(engines::flashinfer::can,
                     {compact, compact_rerotated, list_rewrite, dead_slot, overwrite, drop_blocks});
    supports_exactly(engines::flashinfer_heads::can,
                     {compact, compact_rerotated, list_rewrite, dead_slot, overwrite, drop_blocks});
    supports_exactly(engines::openvino::can, {drop_blocks});
    supports_exactly(everything, {compact, compact_rerotated, list_rewrite, dead_slot, mask, overwrite, drop_blocks});
    supports_exactly({.name = "nothing"}, {});
  }

  TEST_CASE("each missing fact refuses the appliers that need it, and says why") {
    using enum applier;
    auto without = everything;
    without.moves_rows = false;
    for (applier const by : {compact, compact_rerotated, overwrite})
      CHECK(why_not(without, by) == "its rows may not be moved");
    CHECK(why_not(without, list_rewrite).empty());
    without = everything;
    without.frees_tokens = false;
    for (applier const by : {list_rewrite, dead_slot, overwrite}) {
      CHECK(why_not(without, by) == "no single token can leave a sequence");
    }
    without = everything;
    without.frees_blocks = false;
    CHECK(why_not(without, drop_blocks) == "no block can leave a sequence but the last");
    without = everything;
    without.reserved_slot = false;
    CHECK(why_not(without, dead_slot) == "no slot is reserved that could be the dead one");
    without = everything;
    without.masks.reset();
    CHECK(why_not(without, mask) == "its kernels read no mask over the pool");
    without = everything;
    without.position_gaps = false;
    for (applier const by : {compact, list_rewrite, overwrite, drop_blocks}) {
      CHECK(why_not(without, by) == "it takes positions from places, so none may be missing");
    }
    for (applier const by : {compact_rerotated, dead_slot, mask}) CHECK(why_not(without, by).empty());
  }

  TEST_CASE("opaque rows are moved and listed, and neither turned nor scored") {
    for (auto const& can : {engines::sglang::can, engines::vllm::can, engines::flashinfer::can}) {
      CHECK(why_not(can, applier::compact_rerotated, kv::codec::opaque) == "only the engine can turn opaque rows");
      CHECK(why_not(can, applier::compact, kv::codec::opaque).empty());
    }
    CHECK(error_of([] {
            engines::check(engines::sglang::can, kv::granularity::lane, "compact_rerotated", kv::codec::opaque);
          }) == "bind: layout = compact_rerotated, but sglang: only the engine can turn opaque rows");
    sglang_mock pool({.element = kv::codec::opaque});
    kv::cache view = pool.view();
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::knorm{}, .budget = kv::per_lane{2}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 4, .position = 0});
    kv::append(exec, view, state, {.sequence = 1, .tokens = 4, .position = 0});
    CHECK(error_of([&] { kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, plan); }) ==
          "decide: keys = opaque rows, but only their engine can read them");
    kv::eviction const by_place{.score = kv::streaming_llm{1}, .budget = kv::per_lane{2}};
    kv::decide(exec, by_place, kv::signals{view.lanes}, state, plan);
    auto const turn = engines::bind<engines::sglang>(by_place, kv::compact_rerotated{});
    CHECK(error_of([&] { kv::apply(exec, turn, plan, view, state); }).find("opaque") != std::string::npos);
    CHECK(pool.count({0, 0, 0}) == 4);
    kv::apply(exec, engines::bind<engines::sglang>(by_place, kv::compact{}), plan, view, state);
    CHECK(pool.count({0, 0, 0}) == 2);
  }

  TEST_CASE("a decision finer than the tables is refused by value and by name") {
    auto const lanes = kv::eviction{.score = kv::reduce_lanes<kv::knorm>{.decides = kv::granularity::lane}};
    auto const refused = error_of([&] { (void)engines::bind<engines::sglang>(lanes, kv::list_rewrite<>{}); });
    CHECK(refused ==
          "bind: policy.decides = lane, but this engine's tables cannot tell these lanes apart; lower the policy with "
          "reduce_lanes, or choose another layout");
    CHECK(error_of([] {
            engines::check(engines::sglang::can, kv::granularity::layer, "list_rewrite");
          }).find("reduce_lanes") != std::string::npos);
    CHECK(error_of([] { engines::check(engines::tensorrt_llm::can, kv::granularity::sequence, "list_rewrite"); }) ==
          "bind: layout = list_rewrite, but tensorrt_llm: no single token can leave a sequence");
    CHECK(error_of([] { engines::check(engines::vllm::can, kv::granularity::sequence, "pack"); }) ==
          "bind: layout = pack, but it is none of the appliers");
    auto const tokens = kv::eviction{.score = kv::reduce_lanes<kv::knorm>{.decides = kv::granularity::sequence}};
    auto const how = engines::bind<engines::sglang>(tokens, kv::list_rewrite<>{});
    CHECK(how.policy == tokens);
    CHECK(how.can == engines::sglang::can);
    CHECK(engines::finest(engines::flashinfer_heads::can, applier::list_rewrite) == kv::granularity::lane);
    CHECK(engines::finest(engines::llama_cpp_flash::can, applier::mask) == kv::granularity::layer);
  }

  TEST_CASE("lanes that share a length may not keep different numbers of entries") {
    tensorrt_mock pool({.sequences = 1});
    kv::cache view = pool.view();
    kv::host_executor exec;
    kv::eviction const policy{.score = by_number{}, .budget = kv::per_sequence{6}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 12, .position = 0});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    auto const before = pool.memory();
    kv::eviction const even{.score = by_number{}, .budget = kv::per_lane{6}};  // the plan is another policy's
    auto const how = engines::bind<engines::tensorrt_llm>(even, kv::compact{});
    auto const refused = error_of([&] { kv::apply(exec, how, plan, view, state); });
    INFO(refused);
    CHECK(refused.find("tensorrt_llm has one length for this lane and another that keeps") != std::string::npos);
    CHECK(pool.memory() == before);
    CHECK(pool.count({0, 0, 0}) == 12);
    kv::apply(exec, engines::bind<engines::flashinfer_heads>(policy, kv::compact{}), plan, view, state);
    CHECK(pool.count({0, 0, 0}) < 12);
  }

  TEST_CASE("a pooled budget is refused where lanes that share it have one length") {
    kv::eviction const pooled{.score = kv::knorm{}, .budget = kv::per_layer{6}};
    CHECK(error_of([&] { (void)engines::bind<engines::tensorrt_llm>(pooled, kv::compact{}); }) ==
          "bind: policy.budget = pooled by layer, but tensorrt_llm has one length for lanes that would keep different "
          "numbers of entries");
    CHECK_NOTHROW((void)engines::bind<engines::flashinfer_heads>(pooled, kv::compact{}));
    CHECK_NOTHROW((void)engines::bind<engines::llama_cpp>(pooled, kv::mask{}));
    auto const check = [](engines::capabilities const& can, kv::granularity decides, kv::budget_scope scope) {
      return error_of([&] { engines::check(can, decides, "compact", kv::codec::f32, scope); }).empty();
    };
    using enum kv::granularity;
    CHECK(check(engines::vllm::can, sequence, kv::budget_scope::sequence));
    CHECK(check(engines::flashinfer::can, layer, kv::budget_scope::sequence));
    CHECK_FALSE(check(engines::flashinfer::can, lane, kv::budget_scope::layer));
    CHECK_FALSE(check(engines::vllm::can, layer, kv::budget_scope::sequence));
    CHECK(check(engines::vllm::can, layer, kv::budget_scope::layer));
    CHECK(check(engines::vllm::can, lane, kv::budget_scope::lane));
  }

  TEST_CASE("one layer's decision alone is refused where all layers have one length") {
    tensorrt_mock pool({.sequences = 1});
    kv::cache view = pool.view();
    kv::host_executor exec;
    kv::eviction const policy{.score = by_number{}, .budget = kv::per_lane{3}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 12, .position = 0});
    kv::decide(exec, policy, kv::signals{view.lanes.layers_only(1, 2)}, state, plan);
    auto const how = engines::bind<engines::tensorrt_llm>(policy, kv::compact{});
    CHECK(error_of([&] { kv::apply(exec, how, plan, view, state); }) ==
          "apply: plan.keep = 3 entries of a lane, but tensorrt_llm has one length for this lane and another that "
          "keeps 12");
    CHECK(pool.count({0, 1, 0}) == 12);
  }
}

TEST_SUITE("engines/tensor") {
  TEST_CASE("strides follow from the order of the axes") {
    engines::extents const of{3, 5, 2, 4, 8};
    CHECK(engines::stride_along('D', "BLSHND", of, 2) == 2);
    CHECK(engines::stride_along('N', "BLSHND", of, 2) == 16);
    CHECK(engines::stride_along('B', "BLSHND", of, 2) == 3 * 2 * 2 * 4 * 8 * 2);
    CHECK(engines::stride_along('L', "BNHD", of, 2) == 0);
    CHECK(engines::is_order("LBHNSD"));
    CHECK(engines::is_order("BNHD"));
    CHECK_FALSE(engines::is_order("LBHN"));
    CHECK_FALSE(engines::is_order("LBHNDD"));
    CHECK_FALSE(engines::is_order("LBHNXD"));
  }

  TEST_CASE("views refuse what their engine does not have") {
    std::vector<std::byte> some(1 << 12);
    std::vector<std::byte*> pointers(2, some.data());
    int table[2] = {1, 2};
    kv::shape const model{2, 2, 1, 4, 0};
    engines::llama_cpp const cells{
        .shape = model, .k = pointers.data(), .v = pointers.data(), .type_v = kv::codec::opaque, .kv_size = 4};
    CHECK(error_of([&] { (void)cells.view({}); }) ==
          "llama_cpp.view: type_v = opaque, but quantised values need flash attention");
    engines::vllm blocks{.shape = model, .order = "LBHND", .base = some.data(), .num_blocks = 4, .block_table = table};
    CHECK(error_of([&] { (void)blocks.view({}); }).starts_with("vllm.view: order = LBHND, but an order names each"));
    blocks.order = engines::vllm::flash_attention;
    CHECK(error_of([&] { (void)blocks.view({}); }) ==
          "vllm.view: k and v = null, but every layer has a tensor of its own");
    blocks.order = engines::vllm::packed_blhn;
    blocks.element = kv::codec::opaque;
    CHECK(error_of([&] { (void)blocks.view({}); }) ==
          "vllm.view: row_bytes = 0, but an opaque row says how many bytes a head's row has");
    engines::tensorrt_llm pool{.shape = {2, 2, 1, 4, 3}, .pool = some.data(), .max_blocks = 4};
    CHECK(error_of([&] { (void)pool.view({}); }) ==
          "tensorrt_llm.view: shape.value_dim = 3, but keys and values of one tensor have equally many channels");
    engines::flashinfer pages{.shape = model, .table = {.data = table, .head = 1}};
    CHECK(error_of([&] { (void)pages.view({}); }) ==
          "flashinfer.view: table.head = 1, but these kernels take one table for all heads");
  }

  TEST_CASE("TensorRT-LLM's offsets become block numbers") {
    engines::tensorrt_llm const pool{.shape = {3, 2, 1, 4, 0}, .max_blocks = 8};
    std::int32_t const offsets[] = {0, 12, 42};
    int ids[3] = {};
    pool.read_offsets(offsets, ids);
    CHECK(std::vector<int>(ids, ids + 3) == std::vector<int>{0, 2, 7});
    for (std::int32_t const wrong : {-6, 2147483647, 13, 48}) {
      std::int32_t const row[] = {6, wrong};
      CHECK(error_of([&] { pool.read_offsets(row, ids); }).starts_with("tensorrt_llm.read_offsets: offset = "));
      CHECK(ids[0] == 0);
    }
  }
}

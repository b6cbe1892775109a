// SPDX-License-Identifier: Apache-2.0
// Whoever adds a scorer or a ready policy and forgets the laws is told so: the registry, the headers and the lists of
// the laws name the same things, and every ready policy keeps its promises under its own name.

#include <regex>

#include "laws/subjects.hpp"
#include "support/words.hpp"

namespace {

using namespace kvpolicy_test;

/// Every ready policy: one line each, with a budget of eight where it takes one. A test compares this with the headers.
std::map<std::string, kv::any_policy> every_policy() {
  namespace ready = kv::policies;
  return {{"full", ready::full()},
          {"streaming_llm", ready::streaming_llm({.budget = 8})},
          {"snapkv", ready::snapkv({.budget = 8, .score = {.window = 3}})},
          {"pyramid_kv", ready::pyramid_kv({.budget = 8, .score = {.window = 3}})},
          {"h2o", ready::h2o({.budget = 8})},
          {"tova", ready::tova({.budget = 8})},
          {"intent_kv", ready::intent_kv({.budget = 8, .score = {.tail = 2}})},
          {"trim_kv", ready::trim_kv({.budget = 8})},
          {"knorm", ready::knorm({.budget = 8})},
          {"random", ready::random({.budget = 8})},
          {"snapkv_class", ready::snapkv_class(8)},
          {"snapkv_installed", ready::snapkv_installed(8)},
          {"snapkv_longbench", ready::snapkv_longbench(8)},
          {"snapkv_kvpress", ready::snapkv_kvpress()},
          {"h2o_summarisation", ready::h2o_summarisation(4, 4)},
          {"h2o_streaming", ready::h2o_streaming(2, 6)},
          {"streaming_llm_class", ready::streaming_llm_class(2, 6)},
          {"tova_kvpress", ready::tova_kvpress(8)},
          {"ada_snapkv", ready::ada_snapkv(8)}};
}

std::string text_of(std::filesystem::path const& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_SUITE("laws/shipped") {
  TEST_CASE("every scorer of the registry is in the list of the laws, but those with tests of their own") {
    std::set<std::string> known, listed_here = described_methods();
    for (std::string const& each :
         words("external intent_kv trim_kv observed_attention carried fast_kvzip lookahead_kv dapq pyramid_kv nacl "
               "sir_llm locret lu_kv not_stale side_quest recency window_attention received_attention "
               "received_by_value keys_values chunk_kv neural_gc openvino dynamic_kv critical_kv critical_ada_kv "
               "compress_kv lazy_layers simlayer_kv fastgen late_attention pyramid_infer kvzip_plus "
               "layer_defensive_kv peak_attention mp_cache_prompt epi_cache")) {
      listed_here.insert(each);
    }
    for (auto const& each : kv::shipped().list()) known.insert(each.name);
    std::apply([&](auto const&... each) { (listed_here.insert(each.name), ...); }, named_scorers{});
    CHECK(known == listed_here);
  }

  TEST_CASE("every function that returns a ready policy is in the list of this test") {
    std::set<std::string> shipped, listed_here;
    std::regex const returned(R"(constexpr auto (\w+)\()");
    for (auto const& file : std::filesystem::directory_iterator(KVPOLICY_SOURCE_DIR "/include/kvpolicy/policies")) {
      std::string const text = text_of(file.path());
      for (std::sregex_iterator at(text.begin(), text.end(), returned), end; at != end; ++at) shipped.insert((*at)[1]);
    }
    for (char const* const made_of : {"keep_best", "drop_worst"}) CHECK(shipped.erase(made_of) == 1);
    // Not evictions by top-k: tests/admission, tests/selection and tests/scorers hold their laws.
    for (char const* const other : {"wg_kv", "local_attention", "duo_attention", "quest", "trim_kv_decode",
                                    "h2o_decode", "streaming_llm_decode", "knorm_decode", "side_quest"}) {
      CHECK(shipped.erase(other) == 1);
    }
    for (auto const& [name, policy] : every_policy()) listed_here.insert(name);
    CHECK(shipped == listed_here);
    CHECK(shipped.size() > 10);
  }

  TEST_CASE("a ready policy keeps what it forces, at most its budget beside that, in order; again changes nothing") {
    for (auto const& [name, policy] : every_policy()) {
      INFO(name);
      mock_cache cache({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                        .sequences = 2,
                        .bound = 33,
                        .shared_entries = true});
      fill(cache, true);
      current_queries rows(cache, kv::codec::f32, 5, 5);
      kv::host_executor exec(2);
      kv::cache view = cache.view();
      auto [state, plan] = state_and_plan(exec, policy, view);
      std::vector<float> const lasting(8, -0.5f);  // of each lane
      kv::signals const in{view.lanes,
                           kv::keys_of(view),
                           kv::values_of(view),
                           kv::queries{rows.view()},
                           kv::turn_queries{rows.view()},
                           kv::log_beta{{.base = reinterpret_cast<std::byte const*>(lasting.data()),
                                         .sequence = 16,
                                         .layer = 8,
                                         .head = 4,
                                         .entries = 1}}};
      kv::observe(exec, policy, in, state);
      auto const before = cache.save();
      kv::decide(exec, policy, in, state, plan);
      CHECK(cache.save() == before);
      std::vector<std::vector<int>> first;
      for (int s = 0; s < plan.keep().segments(); ++s) {
        first.push_back(listed(plan.keep(), s));
        int const committed = cache.committed(view.lanes.at(kv::first_lane(view.lanes, plan.decides(), s)));
        for (std::size_t i = 0; i < first.back().size(); ++i) {
          CHECK(first.back()[i] < committed);
          if (i > 0) CHECK(first.back()[i] > first.back()[i - 1]);
        }
      }
      kv::decide(exec, policy, in, state, plan);
      for (int s = 0; s < plan.keep().segments(); ++s) CHECK(listed(plan.keep(), s) == first[as_size(s)]);
    }
  }
}

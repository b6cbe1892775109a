// SPDX-License-Identifier: Apache-2.0
// Every verb and every applier for CUDA, compiled once through the umbrella.
#include <kvpolicy/cuda.cuh>

namespace compiled {

namespace kv = kvpolicy;

using kv::cuda_executor;

/// State, plan, observe, decide: the verbs of a policy's scorer and pick.
template <class Policy, class... Given>
void decide(cuda_executor& exec, Policy const& policy, kv::cache& cache, kv::signals<Given...> const& in) {
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = 1, .position = 0});
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);
  kv::truncate(exec, cache, state, 0, 0);
  kv::commit(exec, cache, 0, 0);
}

void policies(cuda_executor& exec, kv::cache& cache, kv::queries const& rows, kv::turn_queries const& turn,
              kv::log_beta const& retention, kv::attention_mass const& mass) {
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache), rows, retention, mass};
  decide(exec, kv::policies::snapkv({.budget = 16}), cache, in);
  decide(exec, kv::policies::h2o({}), cache, in);
  decide(exec, kv::policies::knorm({}), cache, in);
  decide(exec, kv::eviction{.score = kv::keydiff{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::tri_attention{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::query_model{}});
  decide(exec, kv::eviction{.score = kv::expected_attention{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), kv::pre_rope_queries{}});
  decide(exec, kv::eviction{.score = kv::expected_margin{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::query_model{}});
  decide(exec, kv::eviction{.score = kv::kvzip{}, .budget = kv::per_sequence{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::external_queries{rows}});
  decide(exec, kv::eviction{.score = kv::scissorhands{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::lazy_eviction{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::r_kv{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::cur{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::lag_kv{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::leverage{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::pre_rope_keys{}});
  decide(exec, kv::eviction{.score = kv::compactor{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), rows, kv::pre_rope_keys{}});
  decide(exec, kv::eviction{.score = kv::cap_kv{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), kv::pre_rope_queries{}});
  kv::at_least const lazy{0.5f};
  decide(exec, kv::eviction{.score = kv::lazy_layers{}, .budget = kv::unlimited{}, .pick = lazy}, cache, in);
  decide(exec, kv::eviction{.score = kv::late_attention{}, .budget = kv::shared_out{.by = kv::depth{}}}, cache, in);
  decide(exec, kv::eviction{.score = kv::cheapest_recipe{}, .budget = kv::unlimited{}, .pick = lazy}, cache, in);
  decide(exec, kv::eviction{.score = kv::openvino{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::critical<kv::knorm>{}, .budget = kv::per_lane{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), kv::output_projection{}});
  decide(exec, kv::eviction{.score = kv::defensive_kv{}, .budget = kv::per_layer{16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), rows, kv::output_projection{}});
  kv::blocks const by_blocks{.score_of = kv::received_by_value{}};
  decide(exec, kv::eviction{.score = by_blocks, .budget = kv::unlimited{}, .pick = kv::lowest{}}, cache, in);
  decide(exec, kv::eviction{.score = kv::snapkv{}, .budget = kv::per_layer{16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_lane{16}, .pick = kv::at_least{0.5f}}, cache, in);
  decide(exec, kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_lane{16}, .pick = kv::lowest_one{}}, cache, in);
  decide(exec, kv::eviction{.score = kv::cake{}, .budget = kv::shared_out<kv::moments>{.tokens = 16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::finch{}, .budget = kv::shared_out<kv::hits>{.tokens = 16}}, cache, in);
  decide(exec, kv::eviction{.score = kv::snapkv{}, .budget = kv::shared_out<kv::pooled_share>{.tokens = 16}}, cache,
         in);
  decide(exec, kv::eviction{.score = kv::kvcompose{}, .budget = kv::shared_out<kv::ranks>{.tokens = 16}}, cache,
         kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), kv::external_queries{}});
  decide(exec, kv::eviction{.score = kv::recency{}, .budget = kv::per_lane{16}}, cache, in);
  // Each of these stages once, around the one before.
  using smooth = kv::pooled<kv::normalised<kv::times_norm<kv::snapkv>>>;
  using mixed = kv::mix<kv::noise<kv::decayed<smooth>>, kv::knorm>;
  decide(exec, kv::eviction{.score = mixed{}, .budget = kv::per_lane{16}}, cache, in);
  decide(exec, kv::policies::intent_kv({}), cache, kv::signals{cache.lanes, kv::keys_of(cache), turn});
}

/// The appliers beside compact.
void layouts(cuda_executor& exec, kv::cache& cache, kv::by_lane<int> list) {
  auto const policy = kv::eviction{.score = kv::streaming_llm{}, .budget = kv::per_lane{16}};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::apply_stats* const stats = nullptr;
  kv::apply(exec, kv::compact_rerotated{}, plan, cache, state, stats);
  kv::apply(exec, kv::list_rewrite<>{.list = list}, plan, cache, state, stats);
  kv::dead_slot<> const dead{.list = list, .map = list};
  kv::apply(exec, dead, plan, cache, state, stats);
  kv::relist(exec, dead, cache, 0, 16);
  kv::blank(exec, cache, 0);
  kv::apply(exec, kv::mask{.list = list}, plan, cache, state, stats);
  kv::show(exec, kv::mask{.list = list}, cache);
  kv::apply(exec, kv::overwrite{.list = list}, plan, cache, state, stats);
  kv::restore_order(exec, cache, state, list);
  kv::apply(exec, kv::drop_blocks{.table = list}, plan, cache, state, stats);
}

/// Admission, selection and eviction in one step.
void steps(cuda_executor& exec, kv::dual_cache& both, kv::gate const& gates, kv::log_beta const& retention,
           kv::queries const& rows) {
  kv::cache_policy const policy{.admit = kv::policies::wg_kv({.window = 16}),
                                .select = kv::policies::quest({}),
                                .evict = kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_lane{16}}};
  auto state = kv::make_state(exec, policy, both);
  auto plans = kv::make_plan(exec, policy, both);
  kv::signals const in{both.window.lanes};
  kv::step(exec, policy, in, both, state, plans, {.tokens = 1, .position = 0}, [&] {
    kv::observe(exec, policy, kv::signals{both.window.lanes, gates, retention}, state);
    kv::select_pages(exec, policy, kv::signals{both.pages.entries.lanes, rows}, state.pages, plans);
  });
}

void gates(cuda_executor& exec, kv::cache const& cache, kv::write_gate_weights const& write,
           kv::retention_gate_weights const& retention, kv::hidden_rows const& hidden, kv::by_lane<float> out) {
  kv::row_view const rows = kv::keys_of(cache);
  kv::ops::write_gates.reserve(exec, write);
  kv::ops::write_gates(exec, cache.lanes, rows, rows, write, out);
  kv::ops::retention_gates.reserve(exec, retention);
  kv::ops::retention_gates(exec, cache.lanes, hidden, retention, out);
}

}  // namespace compiled

// SPDX-License-Identifier: Apache-2.0
// Policies by name: what the library ships, and the parser.
#pragma once

#include <kvpolicy/by_name/basic_registry.hpp>
#include <kvpolicy/by_name/mix_by_name.hpp>
#include <kvpolicy/by_name/times_norm_by_name.hpp>
#include <kvpolicy/parts/table_power.hpp>
#include <kvpolicy/parts/variance.hpp>
#include <kvpolicy/scorers/cap_kv.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/compactor.hpp>
#include <kvpolicy/scorers/cur.hpp>
#include <kvpolicy/scorers/db_trim_kv.hpp>
#include <kvpolicy/scorers/defensive_kv.hpp>
#include <kvpolicy/scorers/expected_attention.hpp>
#include <kvpolicy/scorers/expected_margin.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <kvpolicy/scorers/finch.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/h2o.hpp>
#include <kvpolicy/scorers/head_table.hpp>
#include <kvpolicy/scorers/intent_kv.hpp>
#include <kvpolicy/scorers/keydiff.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/kvzip.hpp>
#include <kvpolicy/scorers/lag_kv.hpp>
#include <kvpolicy/scorers/lazy_eviction.hpp>
#include <kvpolicy/scorers/lazy_layers.hpp>
#include <kvpolicy/scorers/leverage.hpp>
#include <kvpolicy/scorers/lookahead_kv.hpp>
#include <kvpolicy/scorers/not_stale.hpp>
#include <kvpolicy/scorers/observed_attention.hpp>
#include <kvpolicy/scorers/openvino.hpp>
#include <kvpolicy/scorers/page_gates.hpp>
#include <kvpolicy/scorers/peak_attention.hpp>
#include <kvpolicy/scorers/q_filters.hpp>
#include <kvpolicy/scorers/quest.hpp>
#include <kvpolicy/scorers/r_kv.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/received_attention.hpp>
#include <kvpolicy/scorers/recency.hpp>
#include <kvpolicy/scorers/scissorhands.hpp>
#include <kvpolicy/scorers/snapkv.hpp>
#include <kvpolicy/scorers/stages/blocks.hpp>
#include <kvpolicy/scorers/stages/critical.hpp>
#include <kvpolicy/scorers/stages/decayed.hpp>
#include <kvpolicy/scorers/stages/noise.hpp>
#include <kvpolicy/scorers/stages/normalised.hpp>
#include <kvpolicy/scorers/stages/pooled.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>
#include <kvpolicy/scorers/tova.hpp>
#include <kvpolicy/scorers/tri_attention.hpp>
#include <kvpolicy/scorers/trim_kv.hpp>
#include <kvpolicy/scorers/window_attention.hpp>
#include <kvpolicy/scorers/write_gate.hpp>

namespace KVPOLICY_NAMESPACE {

/// A registry for the host.
using registry = basic_registry<host_executor>;

/// The registry of what the library ships.
template <executor Executor = host_executor>
[[nodiscard]] basic_registry<Executor> shipped() {
  basic_registry<Executor> all;
  all.add(full{})
      .add(streaming_llm{})
      .add(snapkv{})
      .add(h2o{})
      .add(tova{})
      .add(knorm{})
      .add(random_scores{})
      .add(recency{})
      .add(external{});
  all.add(intent_kv{}).add(trim_kv{}).add(observed_attention{}).add(carried{});
  all.add(fast_kvzip{}).add(lookahead_kv{}).add(dapq{}).add(kvzip_by_name{}).add(kvzip_plus{});
  all.add(not_stale{}).add(db_trim_kv{}).add(keydiff{}).add(r_kv{}).add(q_filters{}).add(tri_attention{});
  all.add(scissorhands{}).add(lazy_eviction{}).add(window_attention{}).add(received_attention{});
  all.add(received_by_value{}).add(keys_values{}).add(chunk_kv{}).add(neural_gc{}).add(openvino{}).add(critical_kv{});
  all.add(pyramid_kv{}).add(nacl{}).add(sir_llm{}).add(locret{}).add(lu_kv{}).add(side_quest{});
  all.add(voted_attention{})
      .add(compress_kv{})
      .add(critical_ada_kv{})
      .add(dynamic_kv{})
      .add(cake_with_moments{})
      .add(finch{});
  all.add(kvcompose_with_ranks{}).add(cheapest_recipe{}).add(fastgen{}).add(late_attention{}).add(pyramid_infer{});
  all.add(defensive_kv{}).add(layer_defensive_kv{});
  all.add(leverage{}).add(compactor{}).add(cap_kv{});
  all.add(cur{}).add(lag_kv{}).add(lazy_layers{}).add(simlayer_kv{});
  all.add(expected_attention{}).add(expected_margin{});
  all.add(kvzap{}).add(attention_gate{}).add(ada_ea{});
  all.add_stage(reduce_lanes<full>{}).add_stage(put_first<full>{}).add_stage(blocks<full>{});
  all.add_stage(times_norm_by_name<full>{}).add_stage(normalised<full>{}).add_stage(pooled<full>{});
  all.add_stage(noise<full>{}).add_stage(decayed<full>{}).add_stage(mix_by_name<full>{}).add_stage(critical<full>{});
  all.add(hits{}).add(pooled_share{}).add(moments{}).add(ranks{}).add(depth{}).add(variance{});
  all.add(table_power{}).add(epi_cache{}).add(peak_attention{}).add(mp_cache_prompt{});
  all.add_to_admissions(write_gate{}).add_to_admissions(head_table{}).add(quest{}).add(page_gates{});
  return all;
}

/// Parses the policy that a spec describes. Parsing the text that `print` returns for it gives an equal policy.
///
///     kv::any_policy policy = kv::parse("snapkv(window=32, pool=max:7) | sinks(4) | budget(1024)");
/// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
template <executor Executor = host_executor>
[[nodiscard]] basic_any_policy<Executor> parse(std::string_view text,
                                               basic_registry<Executor> const& known = shipped<Executor>()) {
  return known.parse(text);
}

}  // namespace KVPOLICY_NAMESPACE

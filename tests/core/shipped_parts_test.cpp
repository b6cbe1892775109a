// SPDX-License-Identifier: Apache-2.0
// Every part of the library satisfies the concept that it claims. The check is here, and not beside each part, because
// every program that includes the headers would compile it.

#include "support/test.hpp"

namespace kvpolicy {

// Scorers.
static_assert(scorer<admitted_attention>);
static_assert(scorer<cap_kv>);
static_assert(scorer<carried>);
static_assert(scorer<compactor>);
static_assert(scorer<cur>);
static_assert(scorer<dapq>);
static_assert(scorer<db_trim_kv>);
static_assert(scorer<defensive_kv>);
static_assert(scorer<keydiff>);
static_assert(scorer<expected_attention>);
static_assert(scorer<expected_margin>);
static_assert(scorer<external>);
static_assert(scorer<fast_kvzip>);
static_assert(scorer<full>);
static_assert(scorer<h2o>);
static_assert(scorer<head_table>);
static_assert(scorer<cake>);
static_assert(scorer<cheapest_recipe>);
static_assert(scorer<late_attention>);
static_assert(scorer<finch>);
static_assert(scorer<peak_attention>);
static_assert(scorer<intent_kv>);
static_assert(scorer<knorm>);
static_assert(scorer<kvcompose>);
static_assert(scorer<kvzip>);
static_assert(scorer<kvzip_plus>);
static_assert(system_of_parts<kvzip_by_name>);
static_assert(scorer<lag_kv>);
static_assert(scorer<layer_defensive_kv>);
static_assert(scorer<lazy_eviction>);
static_assert(scorer<lazy_layers>);
static_assert(scorer<leverage>);
static_assert(scorer<lookahead_kv>);
static_assert(scorer<not_stale>);
static_assert(scorer<observed_attention>);
static_assert(scorer<openvino>);
static_assert(scorer<page_gates>);
static_assert(scorer<q_filters>);
static_assert(scorer<quest>);
static_assert(scorer<r_kv>);
static_assert(scorer<random_scores>);
static_assert(scorer<received_attention>);
static_assert(scorer<received_by_value>);
static_assert(scorer<recency>);
static_assert(scorer<recorded_knorm>);
static_assert(scorer<scissorhands>);
static_assert(scorer<snapkv>);
static_assert(scorer<streaming_llm>);
static_assert(scorer<tova>);
static_assert(scorer<tri_attention>);
static_assert(scorer<trim_kv>);
static_assert(scorer<trim_kv_norm>);
static_assert(scorer<voted_attention>);
static_assert(scorer<window_attention>);
static_assert(scorer<write_gate>);

// Stages, which are scorers around one.
static_assert(scorer<blocks<full>>);
static_assert(scorer<critical<full>>);
static_assert(scorer<decayed<full>>);
static_assert(scorer<frozen<lookahead_kv>>);
static_assert(scorer<mix<full>> && scorer<mix<full, knorm>>);
static_assert(scorer<noise<full>>);
static_assert(scorer<normalised<full>>);
static_assert(scorer<pooled<full>>);
static_assert(scorer<put_first<full>>);
static_assert(scorer<reduce_lanes<full>>);
static_assert(scorer<times_norm<full>> && scorer<times_norm<full, normed_rows::projected>>);

// Recorders.
static_assert(recorder<query_ring>);
static_assert(recorder<record_attention_mass>);
static_assert(recorder<record_birth_score>);
static_assert(recorder<record_gate>);
static_assert(recorder<record_mass_ring>);
static_assert(recorder<record_stamps>);
static_assert(recorder<record_key_norms>);
static_assert(recorder<record_key_sums>);
static_assert(recorder<record_page_bounds>);
static_assert(recorder<record_query_memory>);
static_assert(recorder<record_retention>);
static_assert(recorder<record_value_mass>);

// Protections.
static_assert(protection<any_protection>);
static_assert(protection<everything>);
static_assert(protection<forced_ends> && has_candidates<forced_ends>);
static_assert(protection<marks>);
static_assert(protection<nothing>);
static_assert(protection<position_span>);
static_assert(protection<prompt>);
static_assert(protection<recent>);
static_assert(protection<safe>);
static_assert(protection<sinks>);

// Budgets.
static_assert(budget<any_budget>);
static_assert(budget<detail::budget_numbers>);
static_assert(budget<lowest_part>);
static_assert(budget<per_lane>);
static_assert(budget<ramp>);
static_assert(budget<seen> && detail::allots<seen>);
static_assert(budget<shared_out<hits>>);
static_assert(allotter<ranks>);
static_assert(budget<unlimited>);

// Picks.
static_assert(detail::pick_hooks<any_pick>::sound);
static_assert(detail::pick_hooks<at_least>::sound);
static_assert(detail::pick_hooks<lowest>::sound);
static_assert(detail::pick_hooks<lowest_one>::sound);
static_assert(detail::pick_hooks<top>::sound);

// Triggers.
static_assert(trigger<any_trigger>);
static_assert(trigger<every>);
static_assert(trigger<full_buffer>);
static_assert(trigger<over_budget>);
static_assert(trigger<over_total>);

// Appliers.
static_assert(applier<compact>);
static_assert(applier<compact_rerotated>);
static_assert(applier<dead_slot<>>);
static_assert(applier<drop_blocks<>>);
static_assert(applier<list_rewrite<>>);
static_assert(applier<mask>);
static_assert(applier<overwrite>);

// Systems that specs name.
static_assert(system_of_parts<chunk_kv>);
static_assert(system_of_parts<critical_kv>);
static_assert(system_of_parts<keys_values>);
static_assert(system_of_parts<locret>);
static_assert(system_of_parts<lu_kv>);
static_assert(system_of_parts<nacl>);
static_assert(system_of_parts<neural_gc>);
static_assert(system_of_parts<pyramid_kv>);
static_assert(system_of_parts<side_quest>);
static_assert(system_of_parts<simlayer_kv>);
static_assert(system_of_parts<pyramid_infer>);
static_assert(system_of_parts<mp_cache_prompt>);
static_assert(system_of_parts<epi_cache>);
static_assert(system_of_parts<sir_llm>);

// Policies that are known by name.
static_assert(entry_decision<any_policy>);
static_assert(admission_policy<any_admission>);
static_assert(selection_policy<any_selection>);

// Executors.
static_assert(executor<host_executor>);

}  // namespace kvpolicy

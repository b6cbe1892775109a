// SPDX-License-Identifier: Apache-2.0
// The instances of templates that kvpolicy::compiled holds: what a named policy needs, `append`, `truncate` and
// `apply`, and the ready compositions with keys and query rows. The umbrella includes it where KVPOLICY_COMPILED is
// defined; src/compositions.cpp includes it with another KVPOLICY_INSTANCE, and so defines what is declared here.
#pragma once

#include <kvpolicy/by_name/registry.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/make.hpp>
#include <kvpolicy/decision/observe.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/layout/compact.hpp>
#include <kvpolicy/layout/list_rewrite.hpp>
#include <kvpolicy/layout/overwrite.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/argmin.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/count_rows.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/fold.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/pool.hpp>
#include <kvpolicy/ops/host/ring_append.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/ops/host/units.hpp>
#include <kvpolicy/policies/policies.hpp>

#if defined(KVPOLICY_COMPILED) || defined(KVPOLICY_INSTANCE)
#if !defined(KVPOLICY_INSTANCE)
#define KVPOLICY_INSTANCE extern template
#endif

namespace KVPOLICY_NAMESPACE {

namespace detail {

using host_state = kvpolicy::state<host_executor>;
using host_plan = kvpolicy::plan<host_executor>;
using keys_and_queries = signals<keys, queries>;
using best_of_snapkv = eviction<snapkv, sinks>;
using best_of_h2o = eviction<h2o, sinks>;
using best_of_tova = eviction<tova, sinks>;
using best_of_streaming_llm = eviction<streaming_llm>;

KVPOLICY_INSTANCE void check_append(char const*, cache const&, host_state const&, append_request const&);
KVPOLICY_INSTANCE void append_checked(host_executor&, cache const&, host_state&, append_request const&);
KVPOLICY_INSTANCE void check_decided(host_plan const&, cache const&, host_state const&, bool);

}  // namespace detail

namespace detail {

KVPOLICY_INSTANCE void observe_given(host_executor&, any_policy const&, any_signals const&, host_state&);
KVPOLICY_INSTANCE void decide_given(host_executor&, any_policy const&, any_signals const&, host_state const&,
                                    host_plan&);
KVPOLICY_INSTANCE void observe_given(host_executor&, any_admission const&, any_signals const&, host_state&);
KVPOLICY_INSTANCE void decide_given(host_executor&, any_admission const&, any_signals const&, host_state const&,
                                    host_plan&);
KVPOLICY_INSTANCE void observe_given(host_executor&, any_selection const&, any_signals const&, host_state&);
KVPOLICY_INSTANCE void select_given(host_executor&, any_selection const&, any_signals const&, host_state const&,
                                    selection_plan<host_executor>&);

}  // namespace detail

KVPOLICY_INSTANCE detail::host_state make_state(host_executor&, any_policy const&, cache const&, int);
KVPOLICY_INSTANCE std::string explain(any_policy const&, detail::host_plan&, int, int);
KVPOLICY_INSTANCE bool forces(any_policy const&, detail::host_plan const&, int, int);
KVPOLICY_INSTANCE basic_registry<host_executor> shipped<host_executor>();
KVPOLICY_INSTANCE any_policy parse<host_executor>(std::string_view, registry const&);

KVPOLICY_INSTANCE void append(host_executor&, cache&, detail::host_state&, append_request const&);
KVPOLICY_INSTANCE void truncate(host_executor&, cache&, detail::host_state&, int, int);
KVPOLICY_INSTANCE void apply(host_executor&, compact const&, detail::host_plan const&, cache&, detail::host_state&,
                             apply_stats*);
KVPOLICY_INSTANCE void apply(host_executor&, list_rewrite<> const&, detail::host_plan const&, cache&,
                             detail::host_state&, apply_stats*);
KVPOLICY_INSTANCE void apply(host_executor&, overwrite const&, detail::host_plan const&, cache&, detail::host_state&,
                             apply_stats*);

KVPOLICY_INSTANCE detail::host_state make_state(host_executor&, detail::best_of_snapkv const&, cache const&, int);
KVPOLICY_INSTANCE detail::host_plan make_plan(host_executor&, detail::best_of_snapkv const&, cache const&,
                                              compact const&);
KVPOLICY_INSTANCE void observe(host_executor&, detail::best_of_snapkv const&, detail::keys_and_queries const&,
                               detail::host_state&);
KVPOLICY_INSTANCE void decide(host_executor&, detail::best_of_snapkv const&, detail::keys_and_queries const&,
                              detail::host_state const&, detail::host_plan&);

KVPOLICY_INSTANCE detail::host_state make_state(host_executor&, detail::best_of_h2o const&, cache const&, int);
KVPOLICY_INSTANCE detail::host_plan make_plan(host_executor&, detail::best_of_h2o const&, cache const&, compact const&);
KVPOLICY_INSTANCE void observe(host_executor&, detail::best_of_h2o const&, detail::keys_and_queries const&,
                               detail::host_state&);
KVPOLICY_INSTANCE void decide(host_executor&, detail::best_of_h2o const&, detail::keys_and_queries const&,
                              detail::host_state const&, detail::host_plan&);

KVPOLICY_INSTANCE detail::host_state make_state(host_executor&, detail::best_of_tova const&, cache const&, int);
KVPOLICY_INSTANCE detail::host_plan make_plan(host_executor&, detail::best_of_tova const&, cache const&,
                                              compact const&);
KVPOLICY_INSTANCE void observe(host_executor&, detail::best_of_tova const&, detail::keys_and_queries const&,
                               detail::host_state&);
KVPOLICY_INSTANCE void decide(host_executor&, detail::best_of_tova const&, detail::keys_and_queries const&,
                              detail::host_state const&, detail::host_plan&);

KVPOLICY_INSTANCE detail::host_state make_state(host_executor&, detail::best_of_streaming_llm const&, cache const&,
                                                int);
KVPOLICY_INSTANCE detail::host_plan make_plan(host_executor&, detail::best_of_streaming_llm const&, cache const&,
                                              compact const&);
KVPOLICY_INSTANCE void observe(host_executor&, detail::best_of_streaming_llm const&, detail::keys_and_queries const&,
                               detail::host_state&);
KVPOLICY_INSTANCE void decide(host_executor&, detail::best_of_streaming_llm const&, detail::keys_and_queries const&,
                              detail::host_state const&, detail::host_plan&);

}  // namespace KVPOLICY_NAMESPACE

#undef KVPOLICY_INSTANCE
#endif

// Everything for the host: include this, or the parts that you use.
#pragma once

// IWYU pragma: begin_exports
#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/eviction/decide.hpp>
#include <kvpolicy/eviction/eviction.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/layout/compact.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/pool.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/policies/policies.hpp>
#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/recorders/accumulate.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/h2o.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/snapkv.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>
#include <kvpolicy/trigger/trigger.hpp>
#include <kvpolicy/version.hpp>
// IWYU pragma: end_exports

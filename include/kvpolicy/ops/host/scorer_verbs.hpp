// SPDX-License-Identifier: Apache-2.0
// The host implementations of all verbs that shipped scorers and recorders run.
#pragma once

#include <kvpolicy/ops/host/add_probabilities.hpp>
#include <kvpolicy/ops/host/add_shares.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/attention_moments.hpp>
#include <kvpolicy/ops/host/block_scores.hpp>
#include <kvpolicy/ops/host/count_cover.hpp>
#include <kvpolicy/ops/host/count_rows.hpp>
#include <kvpolicy/ops/host/feature_sums.hpp>
#include <kvpolicy/ops/host/fold.hpp>
#include <kvpolicy/ops/host/future_queries.hpp>
#include <kvpolicy/ops/host/key_sums.hpp>
#include <kvpolicy/ops/host/lag_spread.hpp>
#include <kvpolicy/ops/host/leverage.hpp>
#include <kvpolicy/ops/host/logits.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/map_lanes.hpp>
#include <kvpolicy/ops/host/mean_row.hpp>
#include <kvpolicy/ops/host/normalise.hpp>
#include <kvpolicy/ops/host/pair_norms.hpp>
#include <kvpolicy/ops/host/pool.hpp>
#include <kvpolicy/ops/host/pooled_attention.hpp>
#include <kvpolicy/ops/host/projected_norm.hpp>
#include <kvpolicy/ops/host/quadratic_form.hpp>
#include <kvpolicy/ops/host/query_moments.hpp>
#include <kvpolicy/ops/host/redundancy.hpp>
#include <kvpolicy/ops/host/residual.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/host/row_stats.hpp>
#include <kvpolicy/ops/host/similarity.hpp>
#include <kvpolicy/ops/host/span_attention.hpp>
#include <kvpolicy/ops/host/update_query_memory.hpp>
#include <kvpolicy/ops/host/visit_attention.hpp>

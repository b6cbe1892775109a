// SPDX-License-Identifier: Apache-2.0
// Every verb as kernels, for any backend that runs kernels. A program includes this file in all of its sources or in
// none: the verbs that a backend has decide how much scratch its plans reserve.
#pragma once

// IWYU pragma: begin_exports
#include <kvpolicy/ops/cuda/add_probabilities.hpp>
#include <kvpolicy/ops/cuda/add_shares.hpp>
#include <kvpolicy/ops/cuda/admission/release_pages.hpp>
#include <kvpolicy/ops/cuda/admission/window_counts.hpp>
#include <kvpolicy/ops/cuda/admission/window_rows.hpp>
#include <kvpolicy/ops/cuda/append_column.hpp>
#include <kvpolicy/ops/cuda/append_rows.hpp>
#include <kvpolicy/ops/cuda/apply_stats.hpp>
#include <kvpolicy/ops/cuda/argmin.hpp>
#include <kvpolicy/ops/cuda/attention_mass.hpp>
#include <kvpolicy/ops/cuda/attention_moments.hpp>
#include <kvpolicy/ops/cuda/block_scores.hpp>
#include <kvpolicy/ops/cuda/compact_rows.hpp>
#include <kvpolicy/ops/cuda/copy_rows.hpp>
#include <kvpolicy/ops/cuda/count_cover.hpp>
#include <kvpolicy/ops/cuda/count_rows.hpp>
#include <kvpolicy/ops/cuda/entries.hpp>
#include <kvpolicy/ops/cuda/feature_sums.hpp>
#include <kvpolicy/ops/cuda/fetched_keep.hpp>
#include <kvpolicy/ops/cuda/fill_row.hpp>
#include <kvpolicy/ops/cuda/fold.hpp>
#include <kvpolicy/ops/cuda/future_queries.hpp>
#include <kvpolicy/ops/cuda/gather_rows.hpp>
#include <kvpolicy/ops/cuda/key_sums.hpp>
#include <kvpolicy/ops/cuda/lag_spread.hpp>
#include <kvpolicy/ops/cuda/leverage.hpp>
#include <kvpolicy/ops/cuda/lists.hpp>
#include <kvpolicy/ops/cuda/lists/drop_listed.hpp>
#include <kvpolicy/ops/cuda/lists/list_checks.hpp>
#include <kvpolicy/ops/cuda/lists/masks.hpp>
#include <kvpolicy/ops/cuda/lists/units_holes.hpp>
#include <kvpolicy/ops/cuda/logits.hpp>
#include <kvpolicy/ops/cuda/map.hpp>
#include <kvpolicy/ops/cuda/map_lanes.hpp>
#include <kvpolicy/ops/cuda/mean_row.hpp>
#include <kvpolicy/ops/cuda/normalise.hpp>
#include <kvpolicy/ops/cuda/page_bounds.hpp>
#include <kvpolicy/ops/cuda/page_scores.hpp>
#include <kvpolicy/ops/cuda/pair_norms.hpp>
#include <kvpolicy/ops/cuda/pool.hpp>
#include <kvpolicy/ops/cuda/pooled_attention.hpp>
#include <kvpolicy/ops/cuda/projected_norm.hpp>
#include <kvpolicy/ops/cuda/quadratic_form.hpp>
#include <kvpolicy/ops/cuda/query_moments.hpp>
#include <kvpolicy/ops/cuda/redundancy.hpp>
#include <kvpolicy/ops/cuda/rerotate.hpp>
#include <kvpolicy/ops/cuda/residual.hpp>
#include <kvpolicy/ops/cuda/retention_gates.hpp>
#include <kvpolicy/ops/cuda/ring_append.hpp>
#include <kvpolicy/ops/cuda/row_norm.hpp>
#include <kvpolicy/ops/cuda/row_stats.hpp>
#include <kvpolicy/ops/cuda/select_if.hpp>
#include <kvpolicy/ops/cuda/similarity.hpp>
#include <kvpolicy/ops/cuda/sort_scores.hpp>
#include <kvpolicy/ops/cuda/span_attention.hpp>
#include <kvpolicy/ops/cuda/top_k.hpp>
#include <kvpolicy/ops/cuda/units.hpp>
#include <kvpolicy/ops/cuda/update_query_memory.hpp>
#include <kvpolicy/ops/cuda/visit_attention.hpp>
#include <kvpolicy/ops/cuda/write_gates.hpp>
// IWYU pragma: end_exports

// The verbs of kvpolicy::compiled that compute scores and columns: declared here, defined in the library.
//
// The target kvpolicy::compiled defines KVPOLICY_COMPILED. Then the headers of this folder declare their verbs by this
// one, and a program compiles none of the code. The library compiles the same headers without the macro, so both ways
// give the same bits.
#pragma once

#if defined(KVPOLICY_COMPILED)

#include <kvpolicy/ops/add_probabilities.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/feature_sums.hpp>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/host/compiled_entries.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/key_sums.hpp>
#include <kvpolicy/ops/page_bounds.hpp>
#include <kvpolicy/ops/page_scores.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <kvpolicy/ops/retention_gates.hpp>
#include <kvpolicy/ops/ring_append.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>
#include <kvpolicy/ops/write_gates.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::add_probabilities_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, lanes const& batch, attention_probabilities const& from, reduction group,
                  by_lane<float> const& mass);
};

template <>
struct implementation<ops::compute_attention_mass_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const& model, int bound);
  static void run(host_executor& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
                  score_view const& out);
};

template <>
struct implementation<ops::fold_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, score_view const& part, ops::fold_step const& step, score_view const& out);
};

template <>
struct implementation<ops::ring_append_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int);
  static void run(host_executor& exec, lanes const& batch, query_view const& from, query_ring_view const& ring);
};

template <>
struct implementation<ops::ring_truncate_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int);
  static void run(host_executor&, lanes const& batch, query_ring_view const& ring, int sequence, int position);
};

template <>
struct implementation<ops::extend_bounds_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const& model, int);
  static void run(host_executor& exec, lanes const& batch, keys const& from, page_bound_memory const& to);
};

template <>
struct implementation<ops::forget_bounds_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int);
  static void run(host_executor&, lanes const& batch, by_lane<int> const& known, int sequence, int position);
};

template <>
struct implementation<ops::count_pages_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int);
  static void run(host_executor&, lanes const& batch, int page, lanes const& pages,
                  layer_runs const& runs = layer_runs());
};

template <>
struct implementation<ops::page_scores_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const& model, int);
  static void run(host_executor& exec, lanes const& batch, page_bound_view const& bounds, query_view const& rows,
                  reduction group, score_view const& out);
};

template <>
struct implementation<ops::pool_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int bound);
  static void run(host_executor& exec, pooling const& by, score_view const& scores, int tail);
};

template <>
struct implementation<ops::feature_sums_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const& model, int);
  static void run(host_executor& exec, keys const& from, query_view const& memory, key_sums const& recorded,
                  score_view const& scores, token_features const& out);
};

template <>
struct implementation<ops::record_key_sums_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const& model, int);
  static void run(host_executor& exec, keys const& from, lanes const& batch, key_sums const& to);
};

template <>
struct implementation<ops::residual_t, host> {
  static constexpr bool provided = true;
  template <class Executor>
  static void run(Executor& exec, token_features const& features, turn_queries const& turn, residual_head const& head,
                  residual_options const& how, score_view const& out, float* temp_storage) {
    among_ranks(exec, ranks_of(exec), features, turn, head, how, out, temp_storage);
  }
  static void among_ranks(host_executor& exec, int ranks, token_features const& features, turn_queries const& turn,
                          residual_head const& head, residual_options const& how, score_view const& out,
                          float* temp_storage);
};

template <>
struct implementation<ops::retention_gates_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(retention_gate_weights const& weights);
  static void run(host_executor& exec, lanes const& batch, hidden_rows const& hidden,
                  retention_gate_weights const& weights, by_lane<float> const& out);
};

template <>
struct implementation<ops::refuse_spans_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, turn_queries const& turn, char const* call);
};

template <>
struct implementation<ops::update_query_memory_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const& model, int);
  static void run(host_executor& exec, lanes const& batch, turn_queries const& turn, query_memory_update const& how,
                  by_lane<float> const& memory);
};

template <>
struct implementation<ops::write_gates_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(write_gate_weights const& weights);
  static void run(host_executor& exec, lanes const& batch, row_view const& pre, row_view const& post,
                  write_gate_weights const& weights, by_lane<float> const& out);
};

}  // namespace KVPOLICY_NAMESPACE

#endif

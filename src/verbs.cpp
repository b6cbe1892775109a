// The host's verbs and checks, for programs that define KVPOLICY_COMPILED. Their definitions are inline in the headers;
// a table of their addresses makes the compiler write each of them down here.
#include <kvpolicy/core/contract/check_pointers.hpp>
#include <kvpolicy/ops/host/add_probabilities.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/append_rows.hpp>
#include <kvpolicy/ops/host/argmin.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/copy_rows.hpp>
#include <kvpolicy/ops/host/count_rows.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/feature_sums.hpp>
#include <kvpolicy/ops/host/fill_row.hpp>
#include <kvpolicy/ops/host/fold.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/kernels/norms.hpp>
#include <kvpolicy/ops/host/key_sums.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/mask_rows.hpp>
#include <kvpolicy/ops/host/page_bounds.hpp>
#include <kvpolicy/ops/host/page_scores.hpp>
#include <kvpolicy/ops/host/pool.hpp>
#include <kvpolicy/ops/host/rerotate.hpp>
#include <kvpolicy/ops/host/residual.hpp>
#include <kvpolicy/ops/host/retention_gates.hpp>
#include <kvpolicy/ops/host/select.hpp>
#include <kvpolicy/ops/host/select_pool.hpp>
#include <kvpolicy/ops/host/units.hpp>
#include <kvpolicy/ops/host/update_query_memory.hpp>
#include <kvpolicy/ops/host/write_gates.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {
namespace {

[[gnu::used]] auto const verbs_of_the_library = std::tuple{
    &implementation<ops::add_probabilities_t, host>::run,
    &implementation<ops::append_column_t, host>::run,
    &implementation<ops::append_rows_t, host>::run,
    &implementation<ops::drop_listed_t, host>::run,
    &implementation<ops::count_dropped_t, host>::run,
    &implementation<ops::compute_attention_mass_t, host>::scratch,
    &implementation<ops::compute_attention_mass_t, host>::run,
    &implementation<ops::copy_rows_t, host>::run,
    &implementation<ops::count_rows_t, host>::run,
    &implementation<ops::append_entries_t, host>::refuse,
    &implementation<ops::append_entries_t, host>::run,
    &implementation<ops::truncate_entries_t, host>::refuse,
    &implementation<ops::truncate_entries_t, host>::run,
    &implementation<ops::commit_entries_t, host>::refuse,
    &implementation<ops::commit_entries_t, host>::run,
    &implementation<ops::raise_epochs_t, host>::run,
    &implementation<ops::refuse_stale_t, host>::run,
    &implementation<ops::refuse_ragged_t, host>::run,
    &implementation<ops::set_counts_t, host>::run,
    &implementation<ops::free_tails_t, host>::scratch,
    &implementation<ops::free_tails_t, host>::run,
    &implementation<ops::clear_stats_t, host>::run,
    &implementation<ops::add_counters_t, host>::run,
    &implementation<ops::count_kept_t, host>::run,
    &implementation<ops::fill_row_t, host>::run,
    &implementation<ops::fold_t, host>::run,
    &implementation<ops::gather_rows_t, host>::scratch,
    &implementation<ops::gather_rows_t, host>::run,
    &implementation<ops::permute_columns_t, host>::run,
    &implementation<ops::ring_append_t, host>::scratch,
    &implementation<ops::ring_append_t, host>::run,
    &implementation<ops::ring_truncate_t, host>::scratch,
    &implementation<ops::ring_truncate_t, host>::run,
    &implementation<ops::relist_t, host>::run,
    &implementation<ops::hide_dropped_t, host>::scratch,
    &implementation<ops::hide_dropped_t, host>::run,
    &implementation<ops::show_entries_t, host>::run,
    &implementation<ops::extend_bounds_t, host>::scratch,
    &implementation<ops::extend_bounds_t, host>::run,
    &implementation<ops::forget_bounds_t, host>::scratch,
    &implementation<ops::forget_bounds_t, host>::run,
    &implementation<ops::count_pages_t, host>::scratch,
    &implementation<ops::count_pages_t, host>::run,
    &implementation<ops::page_scores_t, host>::scratch,
    &implementation<ops::page_scores_t, host>::run,
    &implementation<ops::pool_t, host>::scratch,
    &implementation<ops::pool_t, host>::run,
    &implementation<ops::rerotate_t, host>::scratch,
    &implementation<ops::rerotate_t, host>::run,
    &implementation<ops::feature_sums_t, host>::scratch,
    &implementation<ops::feature_sums_t, host>::run,
    &implementation<ops::record_key_sums_t, host>::scratch,
    &implementation<ops::record_key_sums_t, host>::run,
    &implementation<ops::residual_t, host>::among_ranks,
    &implementation<ops::retention_gates_t, host>::scratch,
    &implementation<ops::retention_gates_t, host>::run,
    &implementation<ops::fill_holes_t, host>::scratch,
    &implementation<ops::fill_holes_t, host>::run,
    &implementation<ops::drop_units_t, host>::scratch,
    &implementation<ops::drop_units_t, host>::drop,
    &implementation<ops::check_units_t, host>::scratch,
    &implementation<ops::check_units_t, host>::run,
    &implementation<ops::refuse_spans_t, host>::run,
    &implementation<ops::update_query_memory_t, host>::scratch,
    &implementation<ops::update_query_memory_t, host>::run,
    &implementation<ops::drop_oldest_t, host>::all_lose,
    &implementation<ops::drop_oldest_t, host>::run,
    &implementation<ops::enter_rows_t, host>::refuse,
    &implementation<ops::enter_rows_t, host>::run,
    &implementation<ops::release_pages_t, host>::run,
    &implementation<ops::count_exits_t, host>::run,
    &implementation<ops::count_passing_t, host>::run,
    &implementation<ops::refuse_new_tokens_t, host>::run,
    &implementation<ops::write_gates_t, host>::scratch,
    &implementation<ops::write_gates_t, host>::run,
};

using slot_rows = void (*)(char const*, int const*, int, int, int);
using slot_lists = void (*)(char const*, lanes const&, bool);
using some_counts = void (*)(char const*, lanes const&, int, int);

[[gnu::used]] auto const kernels_of_the_library = std::tuple{
    &detail::bounds_of_isa,      &detail::element_rows_of_isa, &detail::gates_of_isa,        &detail::listing_of_isa,
    &detail::lowest_of_isa,      &detail::norms_of_isa,        &detail::pools_of_isa,        &detail::residual_of_isa,
    &detail::ropes_of_isa,       &detail::select_of_isa,       &detail::slots_of_isa,        &detail::transpose_of_isa,
    &detail::products_of_isa<4>, &detail::products_of_isa<16>, &detail::products_of_isa<32>, &detail::softmax_of_isa<4>,
    &detail::softmax_of_isa<16>, &detail::softmax_of_isa<32>,
};

[[gnu::used]] auto const checks_of_the_library = std::tuple{
    &detail::strided_square_sum,
    &detail::count_nan,
    &detail::find_cut,
    &detail::find_cut_of_rows,
    &detail::find_cut_of_pool,
    &detail::check_shape,
    &detail::check_locator,
    &detail::check_places,
    &detail::check_held,
    &detail::check_same_table,
    &detail::check_cache,
    &detail::check_whole,
    &detail::check_lanes,
    &detail::check_sequence,
    &detail::check_decided_about,
    &detail::check_same_lanes,
    &detail::spell_lane_of,
    &detail::spell_slot_of,
    static_cast<some_counts>(&detail::refuse_counts),
    &detail::refuse_other_positions,
    &detail::refuse_other_tokens,
    &detail::refuse_other_tokens_in_runs,
    &detail::apart_in,
    &detail::refuse_scales_left_behind,
    static_cast<slot_rows>(&detail::refuse_slots),
    static_cast<slot_lists>(&detail::refuse_slots),
};

}  // namespace

template void detail::check_rows_given(char const*, char const*, query_view const&, shape const&);
template void detail::check_row_strides(char const*, char const*, query_view const&, lanes const&);
template void detail::check_row_positions(char const*, char const*, query_view const&, lanes const&, bool);
template void detail::check_row_positions(char const*, char const*, queries const&, lanes const&, bool);

}  // namespace KVPOLICY_NAMESPACE

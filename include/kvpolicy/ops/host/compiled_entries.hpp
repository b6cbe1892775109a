// The verbs of kvpolicy::compiled that move, count and list entries: declared here, defined in the library.
#pragma once

#if defined(KVPOLICY_COMPILED)

#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/copy_rows.hpp>
#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/fill_row.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <kvpolicy/ops/mask_rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::append_column_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, lanes const& batch, entry_numbers const& new_numbers,
                  by_lane<float> const& column);
};

template <>
struct implementation<ops::append_rows_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, std::span<promoted const> sources, paged_lanes const& to,
                  std::span<recorded_column const> columns, int cap, promotion_stats* stats);
};

template <>
struct implementation<ops::drop_listed_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns);
};

template <>
struct implementation<ops::count_dropped_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, keep_set const& keep, lanes const& batch, apply_stats* stats);
};

template <>
struct implementation<ops::copy_rows_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, cache const& from, cache const& to);
};

template <>
struct implementation<ops::count_rows_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, row_positions const& from, counted_rows const& to);
};

template <>
struct implementation<ops::append_entries_t, host> {
  static constexpr bool provided = true;
  static void refuse(host_executor&, lanes const& batch, append_request const& new_tokens);
  static void run(host_executor&, lanes const& batch, std::span<recorded_column const> columns,
                  append_request const& new_tokens, by_lane<std::uint64_t> const& epochs = by_lane<std::uint64_t>());
};

template <>
struct implementation<ops::truncate_entries_t, host> {
  static constexpr bool provided = true;
  static void refuse(host_executor&, lanes const& batch, int sequence, int position);
  static void run(host_executor&, lanes const& batch, int sequence, int position,
                  by_lane<std::uint64_t> const& epochs = by_lane<std::uint64_t>());
};

template <>
struct implementation<ops::commit_entries_t, host> {
  static constexpr bool provided = true;
  static void refuse(host_executor&, lanes const& batch, int sequence, int tokens);
  static void run(host_executor&, lanes const& batch, int sequence, int tokens);
};

template <>
struct implementation<ops::raise_epochs_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, by_lane<std::uint64_t> const& epochs, int const* changed);
};

template <>
struct implementation<ops::refuse_stale_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, keep_set const& keep);
};

template <>
struct implementation<ops::refuse_ragged_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, keep_set const& keep);
};

template <>
struct implementation<ops::set_counts_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, keep_set const& keep);
};

template <>
struct implementation<ops::free_tails_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(cache const& in);
  static void run(host_executor& exec, keep_set const& keep, cache const& in, std::int64_t* freed);
};

template <>
struct implementation<ops::clear_stats_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, apply_stats* stats);
};

template <>
struct implementation<ops::add_counters_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, std::int64_t const* from, int count, std::int64_t* to, bool anew);
};

template <>
struct implementation<ops::count_kept_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, keep_set const& keep, lanes const& batch, bool masked, apply_stats* stats);
};

template <>
struct implementation<ops::fill_row_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, cache const& in, place at, float key, float value);
};

template <>
struct implementation<ops::gather_rows_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int);
  static void run(host_executor& exec, keep_set const& keep, cache const& in, std::span<recorded_column const> columns);
};

template <>
struct implementation<ops::permute_columns_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, keep_set const& keep, cache const& in, std::span<recorded_column const> columns);
};

template <>
struct implementation<ops::relist_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, cache const& in, by_lane<int> const& list, by_lane<int> const& map,
                  by_lane<int const> const& map_begin, int dead, int sequence, int length);
};

template <>
struct implementation<ops::hide_dropped_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int bound);
  static void run(host_executor& exec, keep_set const& keep, cache const& in, mask_rows const& mask);
};

template <>
struct implementation<ops::show_entries_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor& exec, cache const& in, mask_rows const& mask);
};

template <>
struct implementation<ops::rerotate_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(cache const& in);
  static void run(host_executor& exec, lanes const& batch, cache const& in, rope const& how,
                  first_keys const& first = first_keys());
};

template <>
struct implementation<ops::fill_holes_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(cache const& in);
  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns);
};

template <>
struct implementation<ops::drop_units_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(cache const& in);
  template <class Shared>
  static void run(host_executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit,
                  std::span<recorded_column const> columns, std::int64_t* entries) {
    drop(exec, keep, in, detail::with_any_shared(edit), columns, entries);
  }
  static void drop(host_executor& exec, keep_set const& keep, cache const& in,
                   list_edit<detail::any_shared> const& edit, std::span<recorded_column const> columns,
                   std::int64_t* entries);
};

template <>
struct implementation<ops::check_units_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(cache const& in);
  static void run(host_executor& exec, keep_set const& keep, cache const& in, bool moves);
};

template <>
struct implementation<ops::drop_oldest_t, host> {
  static constexpr bool provided = true;
  static int all_lose(int const* entries, int sequences);
  static void run(host_executor& exec, cache const& window, by_lane<int> const& oldest,
                  std::span<recorded_column const> columns, int const* entries, int slid,
                  epochs_of_parts const& epochs = epochs_of_parts());
};

template <>
struct implementation<ops::enter_rows_t, host> {
  static constexpr bool provided = true;
  static void refuse(host_executor&, cache const& from, cache const& window);
  static void run(host_executor& exec, cache const& from, std::span<recorded_column const> from_columns,
                  cache const& window, std::span<recorded_column const> columns, int const* first);
};

template <>
struct implementation<ops::release_pages_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, paged_lanes const& in);
};

template <>
struct implementation<ops::count_exits_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& batch, ring_request const& asked, int* exits);
};

template <>
struct implementation<ops::count_passing_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, lanes const& chunk, int window, int* new_tokens, int* below);
};

template <>
struct implementation<ops::refuse_new_tokens_t, host> {
  static constexpr bool provided = true;
  static void run(host_executor&, char const* call, lanes const& window, lanes const& pages,
                  std::span<append_request const> new_tokens);
};

}  // namespace KVPOLICY_NAMESPACE

#endif

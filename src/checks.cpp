// SPDX-License-Identifier: Apache-2.0
// The checks of arguments that programs which define KVPOLICY_COMPILED only declare. Their definitions are inline in
// the headers; a table of their addresses makes the compiler write each of them down here.
#include <kvpolicy/core/contract/check_pointers.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {
namespace {

using slot_rows = void (*)(char const*, int const*, int, int, int);
using slot_lists = void (*)(char const*, lanes const&, bool);
using some_counts = void (*)(char const*, lanes const&, int, int);

[[gnu::used]] auto const checks_of_the_library = std::tuple{
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

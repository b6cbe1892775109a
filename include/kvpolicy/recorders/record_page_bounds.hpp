// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the bounds of the keys of every page.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/page_bounds.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {

/// The names of the element types in text, in the order of `codec`.
[[nodiscard]] constexpr std::array<char const*, 4> names(codec) { return {"f32", "f16", "bf16", "opaque"}; }

/// Signal: the maximum and the minimum of each channel over the post-RoPE keys of each page.
struct page_bounds : page_bound_view {
  static constexpr auto name = "page_bounds";
  static constexpr auto tensor = "keys";
  void check(char const* call, shape const& model) const {
    detail::check_page_bounds(call, *this);
    expects(dims == model.head_dim, call, "page_bounds.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
  }
};

/// Keeps the bounds of each page of `page` entries (Quest, Tang et al. 2024, arXiv:2406.10774, section 3.3). Observe
/// after every forward and after every apply: all pages from the first new or changed entry on are computed again.
/// Bounds do not include drafts, dropped entries and places that were never written.
struct record_page_bounds {
  int page = 16;
  codec element = codec::f32;  ///< the element type of the bounds: that of the keys, or f32; f32 for keys of fp8

  using needs = kvpolicy::needs<keys>;
  using provides = page_bounds;
  using verbs = kvpolicy::verbs<ops::extend_bounds_t>;

  [[nodiscard]] std::array<column, 2> columns(shape const& model, int bound) const {
    constexpr char const* rows[] = {"page_bounds.f32",    "page_bounds.f16",  "page_bounds.bf16",
                                    "page_bounds.opaque", "page_bounds.e4m3", "page_bounds.e5m2"};
    return {column{rows[static_cast<int>(element)], column_extent::lane_page, on_move::stay,
                   2 * model.head_dim * bytes_of(element), detail::pages_for(bound, page), page},
            column{"page_bounds.known", column_extent::lane, on_move::recompute, sizeof(int), 1}};
  }

  [[nodiscard]] page_bounds view(recorded_columns const& recorded) const {
    return {{recorded.table<std::byte const>(0), recorded.table<int const>(1), element, recorded.model.head_dim, page}};
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::extend_bounds(exec, in.lanes, in.template get<keys>(),
                       page_bound_memory{recorded.table<std::byte>(0), recorded.table<int>(1), element,
                                         recorded.model.head_dim, page});
  }

  void forget(auto& exec, lanes const& batch, recorded_columns const& recorded, int sequence, int position) const {
    ops::forget_bounds(exec, batch, recorded.table<int>(1), sequence, position);
  }

  friend bool operator==(record_page_bounds const&, record_page_bounds const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE

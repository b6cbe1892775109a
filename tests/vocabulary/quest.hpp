// Consumer 5: Quest. Pages are chosen by bounds of their keys; nothing is dropped.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// Signal: channel-wise min and max of the keys of each page, [pages][2][D] a lane.
struct page_bounds {
  static constexpr auto name = "page_bounds";
  kv::by_lane<float const> low_high{};
  int page = 16;
};

/// Recorder: bounds are kept up to date on append. They cannot be permuted: after entries moved they are made again.
struct bound_pages {
  int page = 16;
  using needs = kv::needs<kv::keys>;
  using provides = page_bounds;
  std::array<kv::column, 1> columns(kv::shape const& model, int bound) const {
    int const pages = (bound + page - 1) / page;
    return {kv::column{"page_bounds", kv::per::lane_page, kv::on_move::recompute, 8 * model.head_dim, pages}};
  }
  page_bounds view(kv::held_columns const& held) const { return {held.table<float const>(0), page}; }
  void observe(auto&, auto const&, kv::held_columns const&) const {}
  friend bool operator==(bound_pages const&, bound_pages const&) = default;
};
static_assert(kv::recorder<bound_pages>);

/// U(P) = sum_d max(q_d max_d, q_d min_d), the highest over the group; a page is the unit that is scored and read.
struct quest {
  int page = 16;
  using needs = kv::needs<page_bounds, kv::queries>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  static constexpr kv::unit scores_of = kv::unit::page;
  auto recorders() const { return std::tuple{bound_pages{page}}; }
  void score(auto&, auto const& in, kv::score_view const&) const {
    [[maybe_unused]] page_bounds const bounds = in.template get<page_bounds>();
    [[maybe_unused]] kv::queries const rows = in.template get<kv::queries>();
  }
  friend bool operator==(quest const&, quest const&) = default;
};
static_assert(kv::scorer<quest>);

/// A read set is a keep set of pages.
inline bool is_read_set(kv::keep_set const& chosen) { return chosen.of == kv::unit::page; }

}  // namespace vocabulary

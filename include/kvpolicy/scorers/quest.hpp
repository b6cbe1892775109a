// Quest: the pages in which a query can find most.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/page_scores.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/recorders/record_page_bounds.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Bounds of q k over each page (Tang et al. 2024, arXiv:2406.10774, algorithm 1).
///
///     U(P) = sum over channels of max(q_d max_d, q_d min_d)      max, min: over the keys of page P; no 1/sqrt(D)
///     U'   = max over the group's query heads of U
///
/// Scores pages, so it is part of a selection: what is chosen is read, nothing is dropped. Differs from the released
/// code: one set of pages per KV head (the code asserts one query head each), scores stay float32, and bounds begin
/// with a page's first key, where the code begins with +-65504.
struct quest {
  int page = 16;
  reduction group = reduction::max;  ///< over the query heads of a KV head
  codec bounds = codec::f32;         ///< what bounds are held in: the keys' own type, or f32

  static constexpr auto name = "quest";
  static constexpr auto fields() {
    return std::tuple{field{"page", &quest::page}, field{"group", &quest::group}, field{"bounds", &quest::bounds}};
  }
  using needs = kvpolicy::needs<page_bounds, queries>;
  using verbs = kvpolicy::verbs<ops::page_scores_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr unit scores_of = unit::page;

  void check(char const* call) const {
    expects(page >= 1, call, "quest.page", page, "a page holds at least one entry");
    expects(group != reduction::last, call, "quest.group", "last", "query heads have no order");
    expects(bounds != codec::opaque, call, "quest.bounds", "opaque", "bounds are numbers");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_page_bounds{page, bounds}}; }

  /// Bounds that an engine keeps itself are of pages of this size.
  void refuse(auto&, auto const& in) const {
    int const given = in.template get<page_bounds>().page;
    expects(given == page, "select", "page_bounds.page", given,
            [&] { return "quest reads pages of " + std::to_string(page); });
  }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::page_scores(exec, in.lanes, in.template get<page_bounds>(), in.template get<queries>(), group, out);
  }

  friend bool operator==(quest const&, quest const&) = default;
};
static_assert(scorer<quest>);

}  // namespace KVPOLICY_NAMESPACE

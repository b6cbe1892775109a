// SPDX-License-Identifier: Apache-2.0
// Quest reads the pages whose keys can have the largest dot product with the query.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/page_scores.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/recorders/record_page_bounds.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each page by an upper bound of q k over its keys (Tang et al. 2024, arXiv:2406.10774, algorithm 1).
///
///     U(P) = sum over channels of max(q_d max_d, q_d min_d)      max, min: over the keys of page P; no 1/sqrt(D)
///     U'   = max over the group's query heads of U
///
/// It scores pages, so it belongs in a selection: attention reads the chosen pages, and nothing is dropped.
///
/// It differs from the released code in three ways. Each KV head has one set of pages (the code asserts one query head
/// for each KV head), scores stay float32, and the bounds of a page start from its first key (the code starts from
/// +-65504).
struct quest {
  int page = 16;
  reduction group = reduction::max;  ///< how the query heads of a KV head are reduced
  codec bounds = codec::f32;         ///< the element type of the bounds: that of the keys, or f32

  static constexpr auto name = "quest";
  static constexpr auto fields() {
    return make_fields(field{"page", &quest::page}, field{"group", &quest::group}, field{"bounds", &quest::bounds});
  }
  using needs = kvpolicy::needs<page_bounds, queries>;
  using verbs = kvpolicy::verbs<ops::page_scores_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr item scores_of = item::page;

  void check(char const* call) const {
    expects(page >= 1, call, "quest.page", page, "a page holds at least one entry");
    expects(group != reduction::last, call, "quest.group", "last", "query heads have no order");
    expects(bounds != codec::opaque, call, "quest.bounds", "opaque", "bounds are numbers");
    detail::check_not_fp8(call, "quest.bounds", bounds);
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_page_bounds{page, bounds}}; }

  /// Refuses bounds whose page size differs from `page`, if the engine computes the bounds itself.
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

}  // namespace KVPOLICY_NAMESPACE

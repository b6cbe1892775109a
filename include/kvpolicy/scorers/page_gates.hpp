// SPDX-License-Identifier: Apache-2.0
// Page gates: the scores of pages come from outside of the library.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <limits>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Signal: one score for each page of a lane, computed by the engine or by a model beside it for the step's query. The
/// library does not interpret it.
///
/// - shape: float32, `score.row(lane)[p]` for page p of a lane, which holds its entries [p * page, (p + 1) * page).
struct page_gate {
  static constexpr auto name = "page_gate";
  static constexpr auto tensor = "page_gate.NAME";
  by_lane<float const> score{};
  int page = 64;  ///< entries of a page
  int pages = 0;  ///< scores in a row; pages behind them have none, and are read
  void check(char const* call, shape const&) const {
    detail::check_numbers_given(call, name, score);
    expects(page >= 1, call, "page_gate.page", page, "a page holds at least one entry");
    expects(pages >= 0, call, "page_gate.pages", pages, "a count cannot be negative");
  }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_stride(call, "page_gate.sequence", score.sequence, "sequences", batch.sequences);
  }
};

/// Scores each page by a number that is given: of a trained gate (SeerAttention-R, Gao et al. 2025, arXiv:2506.08889)
/// or of the attention itself (MoBA, arXiv:2502.13189; NSA, arXiv:2502.11089; with pages of one entry DSA of
/// DeepSeek-V3.2). If an engine offers several, `of` names the one that it must give; the scorer does not read `of`.
///
/// It scores pages, so it belongs in a selection: attention reads the chosen pages, and nothing is dropped. The last
/// page is always read. An engine that always reads other pages, such as the first, gives them a score of +inf.
///
///     kv::selection{.score = kv::page_gates{.page = 64}, .budget = kv::per_lane{4096}, .dense_layers = 0}
struct page_gates {
  label of{};
  int page = 64;

  static constexpr auto name = "page_gates";
  static constexpr auto fields() {
    return make_fields(field{"name", &page_gates::of}, field{"page", &page_gates::page});
  }
  using needs = kvpolicy::needs<page_gate>;
  static constexpr granularity decides = granularity::lane;
  static constexpr item scores_of = item::page;

  void check(char const* call) const {
    expects(page >= 1, call, "page_gates.page", page, "a page holds at least one entry");
  }
  void refuse(auto&, auto const& in) const {
    int const given = in.template get<page_gate>().page;
    expects(given == page, "select", "page_gate.page", given,
            [&] { return "page_gates reads pages of " + std::to_string(page); });
  }

  /// The score of a page is its gate, and +inf if it has none.
  struct copy_gate {
    static constexpr float first = std::numeric_limits<float>::infinity();  // device code may not call `infinity`
    by_lane<float const> score;
    int pages;
    KVPOLICY_HD float operator()(float, entry at) const {
      return at.ordinal < pages ? score.row(at.lane)[at.ordinal] : first;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    auto const& given = in.template get<page_gate>();
    ops::map(exec, out, copy_gate{given.score, given.pages});
  }

  friend bool operator==(page_gates const&, page_gates const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Quest written out: bounds of pages, and which pages a query reads.
#pragma once

#include "basics.hpp"
#include "selection.hpp"

namespace kvpolicy_reference {

/// The smallest and the largest value of each channel over the keys of a page.
struct page_bounds {
  row low, high;
};

/// How many pages `count` entries fill.
inline int pages_of(int count, int page) {
  require(count >= 0 && page >= 1, "a page holds entries");
  return (count + page - 1) / page;
}

/// Bounds of pages of `page` ordinals; the last page's are over the entries it has so far. A NaN stays NaN.
inline std::vector<page_bounds> bounds_of(matrix const& keys, int page) {
  std::vector<page_bounds> result;
  for (std::size_t j = 0; j < keys.size(); ++j) {
    if (j % static_cast<std::size_t>(page) == 0) {
      result.push_back({keys[j], keys[j]});
      continue;
    }
    for (std::size_t d = 0; d < keys[j].size(); ++d) {
      result.back().high[d] = larger(result.back().high[d], keys[j][d]);
      result.back().low[d] = -larger(-result.back().low[d], -keys[j][d]);
    }
  }
  return result;
}

/// U = sum over channels of max(q_d high_d, q_d low_d): no key of the page has a larger product with q. No scale.
inline double upper_bound(row const& query, page_bounds const& of) {
  double total = 0.0;
  for (std::size_t d = 0; d < query.size(); ++d) total += larger(query[d] * of.high[d], query[d] * of.low[d]);
  return total;
}

/// A lane's score of each page: the maximum over the query heads of its group. `queries` has a row for each.
inline row page_scores(matrix const& keys, matrix const& queries, int page) {
  row result;
  for (page_bounds const& one : bounds_of(keys, page)) {
    double highest = -infinity;
    for (row const& query : queries) highest = larger(highest, upper_bound(query, one));
    result.push_back(highest);
  }
  return result;
}

/// The pages that a lane of Quest reads: all of a dense layer; else max(1, tokens div page) pages, of which the last,
/// the current one, always is one and the others have the highest scores, ties to the lower page.
inline std::vector<int> quest_pages(row const& scores, int page, int tokens, bool dense = false) {
  require(page >= 1 && tokens >= 0, "a budget of tokens in pages");
  if (dense) return every_ordinal(scores.size());
  int const last = scores.empty() ? 0 : 1;
  return select(scores, ends(static_cast<int>(scores.size()), 0, last), tokens / page).kept;
}

/// The layer that chooses the pages of a layer: behind the dense ones, the first of every `inherit` layers.
inline int choosing_layer(int layer, int dense, int inherit) {
  require(inherit >= 1, "a run has a layer that chooses");
  int chooser = layer;
  for (int next = dense; next <= layer; next += inherit) chooser = next;
  return chooser;
}

/// WG-KV's way of Quest: over a lane's global pages only, its `local` tokens always being read. ceil(max(tokens -
/// local, 0) / page) pages; if that is any, a partial last page is one of them.
inline std::vector<int> quest_global_pages(row const& scores, int entries, int page, int tokens, int local) {
  require(static_cast<int>(scores.size()) == pages_of(entries, page), "a score for every page");
  int const capacity = pages_of(std::max(tokens - local, 0), page);
  bool const partial = capacity > 0 && entries % page != 0;
  return select(scores, ends(static_cast<int>(scores.size()), 0, partial ? 1 : 0), capacity).kept;
}

/// Entries of these pages of a lane of `count`, ascending.
inline std::vector<int> entries_of(std::vector<int> const& pages, int page, int count) {
  std::vector<int> result;
  for (int const one : pages) {
    for (int j = one * page; j < std::min(count, (one + 1) * page); ++j) result.push_back(j);
  }
  return result;
}

}  // namespace kvpolicy_reference

// SPDX-License-Identifier: Apache-2.0
// Writes the arrays with which kernels of paged attention read the pages or tokens of a selection. Every KV head is a
// request of its own.
#pragma once

#include <algorithm>
#include <kvpolicy/engines/page_tables.hpp>
#include <kvpolicy/ops/page_bounds.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// The tables of FlashAttention's paged kernels, with one row for every sequence and KV head: block_table[rows,
/// max_pages] and seqlens[rows].
struct row_tables {
  std::int32_t* block_table = nullptr;
  std::int32_t* seqlens = nullptr;
  int max_pages = 0;
  std::int32_t padding = 0;  ///< written after a row's last page, to its end
};

namespace detail {

/// Calls visit(page) for the pages that a lane reads, in ascending order: the chosen ones, and those of its drafts.
template <class Visit>
void for_each_read_page(keep_set const& chosen, lanes const& batch, lane one, int page, Visit const& visit) {
  for (int const each : chosen.listed(chosen.lanes.index(one))) visit(each);
  int const all = kvpolicy::detail::pages_for(*batch.count.row(one), page);
  for (int each = kvpolicy::detail::pages_for(batch.committed(one), page); each < all; ++each) visit(each);
}

struct read_size {
  std::int64_t pages = 0;
  std::int64_t entries = 0;
};

/// The number of pages and entries that a lane reads. Only its last page may be partial.
[[nodiscard]] inline read_size size_of(keep_set const& chosen, lanes const& batch, lane one, int page) {
  read_size size;
  for_each_read_page(chosen, batch, one, page, [&](int each) {
    size.entries += std::min(page, *batch.count.row(one) - each * page);
    ++size.pages;
  });
  return size;
}

/// Checks that the pages of `page` entries were chosen for these lanes, and that the lanes have not grown since.
inline void check_chosen(char const* call, keep_set const& chosen, lanes const& batch, int page, int layer) {
  expects(chosen.indices != nullptr, call, "chosen", "empty", "select comes before reading");
  expects(chosen.items == item::page, call, "chosen.items", "tokens", "a selection chooses pages");
  expects(page >= 1, call, "page", page, "a page holds at least one entry");
  expects(layer >= chosen.lanes.layer_begin && layer < chosen.lanes.layer_end, call, "layer", layer, [&] {
    return "the selection is of layers " + std::to_string(chosen.lanes.layer_begin) + " to " +
           std::to_string(chosen.lanes.layer_end);
  });
  for (int row = 0; row < batch.sequences * batch.heads; ++row) {
    lane const one{batch.sequence_begin + row / batch.heads, layer, row % batch.heads};
    int const seen = chosen.entry_count[chosen.lanes.index(one)];
    int const now = kvpolicy::detail::pages_for(batch.committed(one), page);
    expects(
        seen == now, call, "chosen", [&] { return "made for " + std::to_string(seen) + " pages of a lane"; },
        [&] { return "the lane has " + std::to_string(now) + " of " + std::to_string(page) + ": select again"; });
  }
}

inline void check_arrays(char const* call, page_arrays const& out, int rows, std::int64_t total) {
  auto const all = static_cast<std::size_t>(rows);
  expects(out.indptr.size() > all, call, "indptr", out.indptr.size(),
          "it has a number for each sequence and head, and one more");
  expects(out.last_page_len.size() >= all, call, "last_page_len", out.last_page_len.size(),
          "it has a number for each sequence and head");
  expects(total <= std::numeric_limits<std::int32_t>::max(), call, "indices", total,
          "the kernel's offsets have 32 bits");
  expects(total <= std::ssize(out.indices), call, "indices", out.indices.size(),
          [&] { return "the selection reads " + std::to_string(total); });
}

}  // namespace detail

/// Writes FlashInfer's indptr, indices and last_page_len of one layer's chosen pages, for a selection whose pages are
/// the pages of the pool. Sequence s and KV head h have row s * heads + h, where FlashInfer expects a sequence. Pages
/// ascend, those of drafts included, so only the last can be partial. Returns the number of indices. Counts and tables
/// must be in host memory.
///
/// - throws: `invalid_argument` if the selection was made for other counts or other layers, the cache is not paged, or
///   an array is too short. Nothing is written then.
inline int write_chosen_pages(keep_set const& chosen, cache const& in, int layer, page_arrays const& out) {
  int const page = in.where.unit_tokens;
  int const rows = in.lanes.sequences * in.lanes.heads;
  detail::check_paged("write_chosen_pages", in, layer);
  detail::check_chosen("write_chosen_pages", chosen, in.lanes, page, layer);
  auto const lane_of = [&](int row) { return lane{row / in.lanes.heads, layer, row % in.lanes.heads}; };
  std::int64_t total = 0;
  for (int row = 0; row < rows; ++row) total += detail::size_of(chosen, in.lanes, lane_of(row), page).pages;
  detail::check_arrays("write_chosen_pages", out, rows, total);
  std::int32_t at = 0;
  for (int row = 0; row < rows; ++row) {
    lane const this_lane = lane_of(row);
    out.indptr[static_cast<std::size_t>(row)] = at;
    detail::for_each_read_page(chosen, in.lanes, this_lane, page, [&](int each) {
      out.indices[static_cast<std::size_t>(at++)] = in.where.list(this_lane)[each];
    });
    auto const size = detail::size_of(chosen, in.lanes, this_lane, page);
    out.last_page_len[static_cast<std::size_t>(row)] =
        size.pages == 0 ? 0 : static_cast<std::int32_t>(size.entries - (size.pages - 1) * page);
  }
  out.indptr[static_cast<std::size_t>(rows)] = at;
  return at;
}

/// Writes FlashAttention's block table and lengths of one layer's chosen pages, with the rows of `write_chosen_pages`.
///
/// - throws: `invalid_argument` in the cases of `write_chosen_pages`, or if a row reads more than `max_pages` pages.
///   Nothing is written then.
inline void write_chosen_tables(keep_set const& chosen, cache const& in, int layer, row_tables const& out) {
  int const page = in.where.unit_tokens;
  int const rows = in.lanes.sequences * in.lanes.heads;
  detail::check_paged("write_chosen_tables", in, layer);
  detail::check_chosen("write_chosen_tables", chosen, in.lanes, page, layer);
  expects(out.block_table != nullptr && out.seqlens != nullptr, "write_chosen_tables", "out", "null",
          "tables are the engine's memory");
  auto const lane_of = [&](int row) { return lane{row / in.lanes.heads, layer, row % in.lanes.heads}; };
  for (int row = 0; row < rows; ++row) {
    std::int64_t const pages = detail::size_of(chosen, in.lanes, lane_of(row), page).pages;
    expects(pages <= out.max_pages, "write_chosen_tables", "max_pages", out.max_pages,
            [&] { return "a lane reads " + std::to_string(pages) + " pages"; });
  }
  for (int row = 0; row < rows; ++row) {
    lane const this_lane = lane_of(row);
    std::int32_t* to = out.block_table + std::int64_t{row} * out.max_pages;
    std::int32_t* const end = to + out.max_pages;
    detail::for_each_read_page(chosen, in.lanes, this_lane, page,
                               [&](int each) { *to++ = in.where.list(this_lane)[each]; });
    std::fill(to, end, out.padding);
    out.seqlens[row] = static_cast<std::int32_t>(detail::size_of(chosen, in.lanes, this_lane, page).entries);
  }
}

/// Writes the ascending ordinals of a lane's entries in its chosen pages of `page` entries, and of its drafts. Returns
/// how many there are.
///
/// - throws: `invalid_argument` if the selection was made for other counts, or if there are more than `out` can hold.
///   Nothing is written then.
inline int tokens_of(keep_set const& chosen, int page, lanes const& batch, lane one, std::span<int> out) {
  detail::check_chosen("tokens_of", chosen, batch, page, one.layer);
  std::int64_t const entries = detail::size_of(chosen, batch, one, page).entries;
  expects(entries <= std::ssize(out), "tokens_of", "out", out.size(),
          [&] { return "the lane reads " + std::to_string(entries) + " entries"; });
  std::size_t made = 0;
  detail::for_each_read_page(chosen, batch, one, page, [&](int each) {
    int const end = std::min(*batch.count.row(one), each * page + page);
    for (int e = each * page; e < end; ++e) out[made++] = e;
  });
  return static_cast<int>(made);
}

/// Writes one layer's chosen tokens as FlashInfer's arrays with pages of one token, for caches whose units are not the
/// selection's pages of `page` entries. An index is unit * unit_tokens + token. The rows are those of
/// `write_chosen_pages`. Returns the number of indices.
///
/// - throws: as `write_chosen_pages`, but the cache need not be paged.
inline int write_chosen_tokens(keep_set const& chosen, int page, cache const& in, int layer, page_arrays const& out) {
  int const rows = in.lanes.sequences * in.lanes.heads;
  detail::check_chosen("write_chosen_tokens", chosen, in.lanes, page, layer);
  expects(in.where.units * in.where.unit_tokens <= std::numeric_limits<std::int32_t>::max(), "write_chosen_tokens",
          "where.units", in.where.units, "the kernel's indices have 32 bits");
  auto const lane_of = [&](int row) { return lane{row / in.lanes.heads, layer, row % in.lanes.heads}; };
  std::int64_t total = 0;
  for (int row = 0; row < rows; ++row) total += detail::size_of(chosen, in.lanes, lane_of(row), page).entries;
  detail::check_arrays("write_chosen_tokens", out, rows, total);
  std::int32_t at = 0;
  for (int row = 0; row < rows; ++row) {
    lane const this_lane = lane_of(row);
    std::int32_t const first = at;
    out.indptr[static_cast<std::size_t>(row)] = first;
    detail::for_each_read_page(chosen, in.lanes, this_lane, page, [&](int each) {
      int const end = std::min(*in.lanes.count.row(this_lane), each * page + page);
      for (int e = each * page; e < end; ++e) {
        place const found = in.where.at(this_lane, e);
        out.indices[static_cast<std::size_t>(at++)] =
            static_cast<std::int32_t>(found.unit * in.where.unit_tokens + found.token);
      }
    });
    out.last_page_len[static_cast<std::size_t>(row)] = at > first ? 1 : 0;
  }
  out.indptr[static_cast<std::size_t>(rows)] = at;
  return at;
}

}  // namespace KVPOLICY_NAMESPACE::engines

// SPDX-License-Identifier: Apache-2.0
// Writes the arrays that kernels of paged attention read, from the counts and tables of a cache: pages in CSR form, one
// table for each KV head, and the slots of new tokens.
#pragma once

#include <algorithm>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <limits>
#include <span>

namespace KVPOLICY_NAMESPACE::engines {

/// The page arrays of a batch: sequence s has the pages indices[indptr[s]] .. indices[indptr[s + 1] - 1], and the last
/// of them holds last_page_len[s] entries (0 if the sequence has no page).
struct page_arrays {
  std::span<std::int32_t> indptr;  ///< sequences + 1
  std::span<std::int32_t> indices;
  std::span<std::int32_t> last_page_len;  ///< sequences
};

/// The tables of every KV head: block_tables[heads, sequences, max_pages] and seq_lens[heads, sequences].
struct head_tables {
  std::int32_t* block_tables = nullptr;
  std::int32_t* seq_lens = nullptr;
  int max_pages = 0;
  std::int32_t padding = 0;  ///< written after a lane's last page, to the end of its row
};

namespace detail {

inline void check_paged(char const* call, cache const& in, int layer) {
  bool const paged = in.where.kind == locating::slot_map || in.where.kind == locating::block_table ||
                     in.where.kind == locating::csr_pages;
  expects(paged, call, "where", "no table", "pages are read from a slot map or a block table");
  expects(layer >= in.lanes.layer_begin && layer < in.lanes.layer_end, call, "layer", layer, [&] {
    return "the layers are " + std::to_string(in.lanes.layer_begin) + " to " + std::to_string(in.lanes.layer_end);
  });
  expects(in.where.units <= std::numeric_limits<std::int32_t>::max(), call, "where.units", in.where.units,
          "the kernel's page numbers have 32 bits");
}

/// The pages that hold a lane's entries.
[[nodiscard]] inline std::span<int const> pages_of(cache const& in, lane this_lane) {
  int const page = in.where.unit_tokens;
  return {in.where.list(this_lane), static_cast<std::size_t>((*in.lanes.count.row(this_lane) + page - 1) / page)};
}

/// True if `drop_blocks` keeps a block, because it holds a kept entry or a draft.
[[nodiscard]] inline bool block_stays(keep_set const& keep, cache const& in, lane this_lane, int block) {
  auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, keep.lanes.index(this_lane)));
  int const end = std::min(*in.lanes.count.row(this_lane), (block + 1) * in.where.unit_tokens);
  auto const next = std::lower_bound(kept.begin(), kept.end(), block * in.where.unit_tokens);
  return end > in.lanes.committed(this_lane) || (next != kept.end() && *next < end);
}

/// Refuses a layer whose heads have different tables or counts: one table cannot describe them all.
inline void refuse_ragged_heads(cache const& in, int layer) {
  for (int s = in.lanes.sequence_begin; s < in.lanes.sequence_end(); ++s) {
    for (int head = 1; head < in.lanes.heads; ++head) {
      lane const first{s, layer, 0};
      lane const this_lane{s, layer, head};
      bool const same = *in.lanes.count.row(this_lane) == *in.lanes.count.row(first) &&
                        std::ranges::equal(pages_of(in, this_lane), pages_of(in, first));
      expects(same, "write_page_arrays", "head", head,
              "it holds other entries than head 0: write_head_tables gives each head its own table");
    }
  }
}

}  // namespace detail

/// Writes indptr, indices and last_page_len of one layer, for kernels that take one table for all heads. Returns the
/// number of indices. The host reads the counts and tables, so they must be in host memory.
///
/// - throws: `invalid_argument` if the cache is not paged or lacks the layer, if heads hold different entries, if an
///   array is too short, or if numbers do not fit into 32 bits. Nothing is written then.
inline int write_page_arrays(cache const& in, int layer, page_arrays const& out) {
  detail::check_paged("write_page_arrays", in, layer);
  detail::refuse_ragged_heads(in, layer);
  auto const sequences = static_cast<std::size_t>(in.lanes.sequences);
  expects(out.indptr.size() > sequences, "write_page_arrays", "indptr", out.indptr.size(),
          "it has a number for each sequence, and one more");
  expects(out.last_page_len.size() >= sequences, "write_page_arrays", "last_page_len", out.last_page_len.size(),
          "it has a number for each sequence");
  std::int64_t total = 0;
  int const first = in.lanes.sequence_begin;
  for (int s = first; s < in.lanes.sequence_end(); ++s) total += std::ssize(detail::pages_of(in, {s, layer, 0}));
  expects(total <= std::numeric_limits<std::int32_t>::max(), "write_page_arrays", "pages", total,
          "the kernel's offsets have 32 bits");
  expects(total <= std::ssize(out.indices), "write_page_arrays", "indices", out.indices.size(),
          [&] { return "the batch has " + std::to_string(total) + " pages"; });
  std::int32_t at = 0;
  for (std::size_t s = 0; s < sequences; ++s) {
    lane const this_lane{first + static_cast<int>(s), layer, 0};
    int const count = *in.lanes.count.row(this_lane);
    out.indptr[s] = at;
    for (int const page : detail::pages_of(in, this_lane)) out.indices[static_cast<std::size_t>(at++)] = page;
    out.last_page_len[s] = count == 0 ? 0 : (count - 1) % in.where.unit_tokens + 1;
  }
  out.indptr[sequences] = at;
  return at;
}

/// Writes the tables and lengths of every KV head of one layer, for kernels that take one table for each head. The host
/// reads the counts and tables, so they must be in host memory.
///
/// - throws: `invalid_argument` if the cache is not paged or lacks the layer, if a lane has more pages than a row of a
///   table, or if numbers do not fit into 32 bits. Nothing is written then.
inline void write_head_tables(cache const& in, int layer, head_tables const& out) {
  detail::check_paged("write_head_tables", in, layer);
  expects(out.block_tables != nullptr && out.seq_lens != nullptr, "write_head_tables", "out", "null",
          "tables and lengths are the caller's memory");
  for (int s = in.lanes.sequence_begin; s < in.lanes.sequence_end(); ++s) {
    for (int head = 0; head < in.lanes.heads; ++head) {
      auto const pages = std::ssize(detail::pages_of(in, {s, layer, head}));
      expects(pages <= out.max_pages, "write_head_tables", "max_pages", out.max_pages,
              [&] { return "a lane has " + std::to_string(pages) + " pages"; });
    }
  }
  for (int head = 0; head < in.lanes.heads; ++head) {
    for (int s = 0; s < in.lanes.sequences; ++s) {
      lane const this_lane{in.lanes.sequence_begin + s, layer, head};
      std::int64_t const row = std::int64_t{head} * in.lanes.sequences + s;
      std::int32_t* const to = out.block_tables + row * out.max_pages;
      auto const pages = detail::pages_of(in, this_lane);
      std::fill(std::copy(pages.begin(), pages.end(), to), to + out.max_pages, out.padding);
      out.seq_lens[row] = *in.lanes.count.row(this_lane);
    }
  }
}

/// Writes the places of the entries `first`, `first + 1`, ... of a lane as page * page_size + token. This is the slot
/// mapping of tokens that are about to be appended. After an eviction a place follows from the ordinal of an entry, not
/// from its position.
///
/// - throws: `invalid_argument` if the lane has no table, or fewer places than are asked for.
inline void write_slot_mapping(cache const& in, lane this_lane, int first, std::span<std::int64_t> out) {
  detail::check_paged("write_slot_mapping", in, this_lane.layer);
  expects(first >= 0 && first + std::ssize(out) <= in.lanes.capacity, "write_slot_mapping", "first", first,
          [&] { return "a lane has room for " + std::to_string(in.lanes.capacity) + " entries"; });
  for (std::size_t i = 0; i < out.size(); ++i) {
    place const at = in.where.at(this_lane, first + static_cast<int>(i));
    out[i] = at.unit * in.where.unit_tokens + at.token;
  }
}

/// Writes the blocks that `drop_blocks` will drop from a lane, for engines that take such a list: blocks with no kept
/// entry and no draft, as ascending indices into the lane's table. Returns how many there are. Call it before `apply`.
///
/// - throws: `invalid_argument` if there are more than `out` can hold.
inline int dropped_blocks(keep_set const& keep, cache const& in, lane this_lane, std::span<int> out) {
  int const blocks = static_cast<int>(detail::pages_of(in, this_lane).size());
  int made = 0;
  for (int block = 0; block < blocks; ++block) {
    if (detail::block_stays(keep, in, this_lane, block)) continue;
    expects(made < std::ssize(out), "dropped_blocks", "out", out.size(), "a table may lose all of its blocks");
    out[static_cast<std::size_t>(made++)] = block;
  }
  return made;
}

/// Writes the ascending positions of the entries that a lane will lose, for engines that remove tokens by position.
/// Returns how many there are. Call it before `apply`.
///
/// - throws: `invalid_argument` if there are more than `out` can hold. Nothing is written then.
inline int dropped_positions(keep_set const& keep, cache const& in, lane this_lane, std::span<int> out) {
  auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, keep.lanes.index(this_lane)));
  int const committed = in.lanes.committed(this_lane);
  expects(committed - std::ssize(kept) <= std::ssize(out), "dropped_positions", "out", out.size(),
          [&] { return std::to_string(committed - std::ssize(kept)) + " entries are dropped"; });
  int const* const position = in.lanes.position.row(this_lane);
  int made = 0;
  auto next = kept.begin();
  for (int e = 0; e < committed; ++e) {
    if (next != kept.end() && *next == e) {
      ++next;
    } else {
      out[static_cast<std::size_t>(made++)] = position[e];
    }
  }
  return made;
}

}  // namespace KVPOLICY_NAMESPACE::engines

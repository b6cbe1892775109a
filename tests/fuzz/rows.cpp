// SPDX-License-Identifier: Apache-2.0
// The verbs that write rows of an engine's memory: gather_rows byte for byte, rerotate against rotation in double,
// fill_row, and masks.
#include <kvpolicy/kvpolicy.hpp>

#include "fuzz/bytes.hpp"
#include "reference/rope.hpp"
#include "support/mock_batch.hpp"
#include "support/scratch.hpp"

namespace {

using namespace kvpolicy_fuzz;
using namespace kvpolicy_test;

/// Keep sets of any ordinals, one list a segment.
struct keep_lists {
  keep_lists(bytes& from, mock_cache& cache, kv::lanes const& batch, kv::granularity decides) {
    offset.push_back(0);
    for (int segment = 0; segment < kv::segments(batch, decides); ++segment) {
      int committed = batch.capacity;  // lanes that decide together share what the shortest holds
      for (int i = 0; i < batch.size(); ++i) {
        if (kv::segment_of(batch, decides, i) == segment) committed = std::min(committed, cache.committed(batch.at(i)));
      }
      lists.emplace_back();
      std::vector<bool> const kept = from.flags(committed);
      for (int e = 0; e < committed; ++e) {
        if (kept[static_cast<std::size_t>(e)]) lists.back().push_back(e);
      }
      ordinal.insert(ordinal.end(), lists.back().begin(), lists.back().end());
      offset.push_back(static_cast<std::int64_t>(ordinal.size()));
    }
    keep.lanes = batch;
    keep.decides = decides;
    keep.indptr = offset.data();
    keep.indices = ordinal.data();
    keep.capacity = static_cast<std::int64_t>(ordinal.size());
  }
  keep_lists(keep_lists const&) = delete;
  keep_lists& operator=(keep_lists const&) = delete;

  std::vector<std::vector<int>> lists;
  std::vector<std::int64_t> offset;
  std::vector<int> ordinal;
  kv::keep_set keep;
};

/// A column of bytes, each a hash of where it is.
struct hashed_column {
  hashed_column(mock_cache const& of, kv::column about) : row(about.bytes * of.options().bound) {
    for (int i = 0; i < of.lane_count() * row; ++i)
      memory.push_back(static_cast<std::byte>(static_cast<unsigned>(i) * 2654435761u >> 7));
    std::int64_t const layer = std::int64_t{row} * of.model().kv_heads;
    view = {about, {memory.data(), layer * of.model().layers, layer, row}};
  }
  hashed_column(hashed_column const&) = delete;
  hashed_column& operator=(hashed_column const&) = delete;

  int row;
  std::vector<std::byte> memory;
  kv::recorded_column view;
};

void copy_entry(mock_cache& cache, mock_cache::snapshot& to, mock_cache::snapshot const& from, kv::lane this_lane,
                int target, int source) {
  auto const width = static_cast<std::size_t>(kv::bytes_of(cache.options().element));
  for (of const plane : {of::keys, of::values}) {
    for (int d = 0; d < (plane == of::keys ? cache.model().head_dim : cache.value_dim()); ++d) {
      std::memcpy(to.memory.data() + cache.offset_of(cache.element(plane, this_lane, target, d)),
                  from.memory.data() + cache.offset_of(cache.element(plane, this_lane, source, d)), width);
    }
  }
  int const row =
      (cache.options().shared_entries ? this_lane.sequence : cache.index(this_lane)) * cache.options().bound;
  to.position[static_cast<std::size_t>(row + target)] = from.position[static_cast<std::size_t>(row + source)];
}

void try_gather(bytes& from, kv::host_executor& exec, mock_cache& cache, kv::granularity decides) {
  kv::lanes const batch = cache.lanes();
  keep_lists const kept(from, cache, batch, decides);
  hashed_column moved(cache, {"moved", kv::column_extent::lane_entry, kv::on_move::permute, from.one_of({4, 3, 8})});
  hashed_column fixed(cache, {"fixed", kv::column_extent::lane_entry, kv::on_move::stay, 4});
  std::vector<std::byte> column = moved.memory;
  std::vector<std::byte> const stays = fixed.memory;
  auto const before = cache.save();
  auto expected = before;
  auto const wide = static_cast<std::size_t>(moved.view.about.bytes);
  for (int i = 0; i < batch.size(); ++i) {
    kv::lane const lane = batch.at(i);
    std::vector<int> order = kept.lists[static_cast<std::size_t>(kv::segment_of(batch, decides, i))];
    for (int d = cache.committed(lane); d < cache.count(lane); ++d) order.push_back(d);
    for (std::size_t e = 0; e < order.size(); ++e) {
      copy_entry(cache, expected, before, lane, static_cast<int>(e), order[e]);
      std::size_t const row = static_cast<std::size_t>(i * moved.row);
      std::memcpy(column.data() + row + e * wide, moved.memory.data() + row + static_cast<std::size_t>(order[e]) * wide,
                  wide);
    }
  }
  std::vector<kv::recorded_column> const columns{moved.view, fixed.view};
  kv::cache view = cache.view();
  kv::ops::gather_rows(exec, kept.keep, view, std::span<kv::recorded_column const>(columns));
  require(cache.save() == expected, "gather_rows moves kept rows and positions, and no other byte");
  require(moved.memory == column && fixed.memory == stays, "gather_rows moves columns that follow their entries");
}

double roundoff(kv::codec element) {
  return element == kv::codec::f32 ? 0x1p-23 : element == kv::codec::f16 ? 0x1p-11 : 0x1p-8;
}

void try_rerotate(bytes& from, kv::host_executor& exec, mock_cache& cache) {
  kv::rope how;
  how.theta = from.one_of({10000.0, 500000.0, 2.0});
  how.style = from.coin() ? kv::rope_style::gptj : kv::rope_style::neox;
  int const whole = cache.model().head_dim / 2 * 2;
  if (whole == 0) return;
  how.dims = whole != cache.model().head_dim || from.coin() ? std::min(whole, from.one_of({2, 64, 256})) : 0;
  int const dims = how.dims != 0 ? how.dims : whole;
  kv::lanes const batch = cache.lanes();
  std::vector<reference::matrix> rows;
  std::vector<std::vector<int>> positions;
  for (int i = 0; i < batch.size(); ++i) {
    rows.push_back(cache.rows(of::keys, batch.at(i), cache.count(batch.at(i))));
    positions.push_back(cache.positions(batch.at(i), cache.count(batch.at(i))));
  }
  auto const before = cache.save();
  auto const pairing =
      how.style == kv::rope_style::neox ? reference::rope_pairing::halves : reference::rope_pairing::pairs;
  kv::ops::rerotate(exec, batch, cache.view(), how);
  for (int i = 0; i < batch.size(); ++i) {
    kv::lane const lane = batch.at(i);
    for (int e = 0; e < cache.count(lane); ++e) {
      reference::row expected = rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(e)];
      int const turn = e - positions[static_cast<std::size_t>(i)][static_cast<std::size_t>(e)];
      reference::row const head =
          reference::rotated({expected.begin(), expected.begin() + dims}, turn, {how.theta, pairing});
      std::copy(head.begin(), head.end(), expected.begin());
      reference::row const now = cache.row(of::keys, lane, e);
      // A pair is no longer than 3. Angles are exact to a float's rounding of sine and cosine.
      double const bound = turn == 0 ? 0 : 3 * roundoff(cache.options().element) + 2e-6;
      for (std::size_t d = 0; d < now.size(); ++d) {
        require(std::abs(now[d] - expected[d]) <= (static_cast<int>(d) < dims ? bound : 0), "rerotate turns keys");
      }
      require(cache.position(lane, e) == e, "positions become ordinals");
      require(cache.row(of::values, lane, e).size() == static_cast<std::size_t>(cache.value_dim()), "values are there");
    }
  }
  // Whatever is not a key of an entry is as it was: put the keys back and compare.
  for (int i = 0; i < batch.size(); ++i) {
    for (int e = 0; e < cache.count(batch.at(i)); ++e) {
      auto const at = [&](int d) { return cache.element(of::keys, batch.at(i), e, d); };
      auto const width = static_cast<std::size_t>(kv::bytes_of(cache.options().element));
      for (int d = 0; d < cache.model().head_dim; ++d) {
        std::memcpy(at(d), before.memory.data() + cache.offset_of(at(d)), width);
      }
    }
  }
  require(cache.save().memory == before.memory, "rerotate writes keys only");
}

void try_fill_row(bytes& from, kv::host_executor& exec, mock_cache& cache) {
  kv::cache view = cache.view();
  if (cache.options().where != kv::locating::slot_map || cache.options().memory == arrangement::one_pool) return;
  kv::lane const any = cache.lane_at(from.below(cache.lane_count()));
  int const ordinal = from.below(cache.options().bound);
  kv::place const at = view.where.at(any, ordinal);
  auto const before = cache.save();
  auto expected = before;
  for (int i = 0; i < cache.lane_count(); ++i) {
    kv::lane this_lane = cache.lane_at(i);
    this_lane.sequence = any.sequence;
    for (of const plane : {of::keys, of::values}) {
      for (int d = 0; d < (plane == of::keys ? cache.model().head_dim : cache.value_dim()); ++d) {
        std::byte* const base = plane == of::keys ? view.k.base : view.v.base;
        kv::plane const& p = plane == of::keys ? view.k : view.v;
        std::byte* const to = base + this_lane.layer * p.layer_stride + at.unit * p.unit_stride +
                              this_lane.head * p.head_stride + d * p.channel_stride;
        encode(cache.options().element, plane == of::keys ? -96.0 : 3.0, expected.memory.data() + cache.offset_of(to));
      }
    }
  }
  kv::ops::fill_row(exec, view, at, -96.0f, 3.0f);
  require(cache.save() == expected, "fill_row writes one place in every layer and head, and nothing else");
}

void try_mask(bytes& from, kv::host_executor& exec, mock_cache& cache) {
  kv::cache view = cache.view();
  if (cache.options().where != kv::locating::slot_map) return;
  auto const form = static_cast<kv::mask_form>(from.below(5));
  std::int64_t const units = view.where.units;
  std::int64_t const row = form == kv::mask_form::additive_f32 ? 4 * units
                           : form == kv::mask_form::boolean    ? units
                           : form == kv::mask_form::bits       ? (units + 7) / 8
                                                               : 2 * units;
  std::vector<std::byte> memory(static_cast<std::size_t>(row * cache.lane_count()), std::byte{0});
  std::int64_t const layer = row * cache.model().kv_heads;
  kv::mask_rows const mask{{memory.data(), layer * cache.model().layers, layer, row}, form, units};
  keep_lists const kept(from, cache, cache.lanes(), kv::granularity::lane);
  auto const before = cache.save();
  auto const readable = [&](int lane, std::int64_t unit) {
    std::byte const* const at = memory.data() + lane * row;
    if (form == kv::mask_form::bits) return (std::to_integer<int>(at[unit / 8]) >> unit % 8 & 1) != 0;
    if (form == kv::mask_form::boolean) return std::to_integer<int>(at[unit]) == 1;
    std::uint32_t value = 0;
    bool const wide = form == kv::mask_form::additive_f32;
    std::memcpy(&value, at + (wide ? 4 : 2) * unit, wide ? 4 : 2);
    std::uint32_t const infinite = wide ? 0xFF800000u : form == kv::mask_form::additive_f16 ? 0xFC00u : 0xFF80u;
    require(value == 0 || value == infinite, "a mask holds 0 or minus infinity");
    return value == 0;
  };
  kv::ops::show_entries(exec, view, mask);
  for (bool const hidden : {false, true}) {
    if (hidden) kv::ops::hide_dropped(exec, kept.keep, view, mask);
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const& list = kept.lists[static_cast<std::size_t>(i)];
      std::vector<bool> expected(static_cast<std::size_t>(units), false);
      for (int e = 0; e < cache.count(this_lane); ++e) {
        bool const stays = e >= cache.committed(this_lane) || std::binary_search(list.begin(), list.end(), e);
        expected[static_cast<std::size_t>(view.where.at(this_lane, e).unit)] = stays || !hidden;
      }
      for (std::int64_t unit = 0; unit < units; ++unit) {
        require(readable(i, unit) == expected[static_cast<std::size_t>(unit)], "a mask says what may be read");
      }
    }
  }
  require(cache.save() == before, "masks change nothing but the mask");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bytes from(data, size);
  kv::host_executor exec(1, any_isa(from));
  int const verb = from.one_of({0, 0, 1, 2, 3});
  auto const decides = static_cast<kv::granularity>(from.below(3));
  bool const drafts = from.coin();
  mock_options shape = any_mock(from);
  shape.rows = from.one_of({content::smooth, content::fingerprint});
  shape.shared_entries = verb == 0 && decides == kv::granularity::sequence;
  mock_cache cache(shape);
  fill(cache, drafts);
  kv::cache const view = cache.view();
  exec.reserve(scratch_of_every_verb<kv::host>(view));
  if (verb == 0) try_gather(from, exec, cache, decides);
  if (verb == 1) try_rerotate(from, exec, cache);
  if (verb == 2) try_fill_row(from, exec, cache);
  if (verb == 3) try_mask(from, exec, cache);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// gather_rows moves kept rows, positions and columns together, and no other byte of the engine's memory.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A column of `bytes` an entry for every lane, each byte a hash of where it is.
class owned_column {
 public:
  owned_column(mock_cache const& of, kv::column about) : row_(about.bytes * of.options().bound) {
    for (int i = 0; i < of.lane_count() * row_; ++i)
      memory_.push_back(static_cast<std::byte>(static_cast<unsigned>(i) * 2654435761u >> 7));
    std::int64_t const layer = std::int64_t{row_} * of.model().kv_heads;
    view_ = {about, {memory_.data(), layer * of.model().layers, layer, row_}};
  }
  owned_column(owned_column const&) = delete;
  owned_column& operator=(owned_column const&) = delete;
  [[nodiscard]] kv::recorded_column const& view() const { return view_; }
  [[nodiscard]] std::vector<std::byte> const& memory() const { return memory_; }
  [[nodiscard]] std::size_t entry(int lane, int ordinal) const {
    return as_size(lane * row_ + ordinal * view_.about.bytes);
  }

 private:
  int row_;
  std::vector<std::byte> memory_;
  kv::recorded_column view_;
};

/// What the memory must be: each row byte by byte where the kept entry's was.
void move_expected(mock_cache& cache, mock_cache::snapshot& to, mock_cache::snapshot const& from, kv::lane this_lane,
                   std::vector<int> const& order) {
  auto const width = as_size(kv::bytes_of(cache.options().element));
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (of const plane : {of::keys, of::values}) {
      for (int d = 0; d < (plane == of::keys ? cache.model().head_dim : cache.value_dim()); ++d) {
        auto const target = cache.offset_of(cache.element(plane, this_lane, static_cast<int>(i), d));
        auto const source = cache.offset_of(cache.element(plane, this_lane, order[i], d));
        std::memcpy(to.memory.data() + target, from.memory.data() + source, width);
      }
    }
    if (cache.options().scales == scaling::token) {
      std::size_t const target = cache.scale_index(this_lane, static_cast<int>(i));
      std::size_t const source = cache.scale_index(this_lane, order[i]);
      to.key_scale[target] = from.key_scale[source];
      if (!cache.latent()) to.value_scale[target] = from.value_scale[source];
    }
    int const row =
        (cache.options().shared_entries ? this_lane.sequence : cache.index(this_lane)) * cache.options().bound;
    to.position[as_size(row) + i] = from.position[as_size(row + order[i])];
  }
}

/// All entries but some that follow one another, as StreamingLLM keeps them.
std::vector<int> all_but_a_run(mock_cache& cache, int entries) {
  int const begin = cache.random().below(entries + 1);
  int const end = begin + cache.random().below(entries - begin + 1);
  std::vector<int> kept;
  for (int e = 0; e < entries; ++e) {
    if (e < begin || e >= end) kept.push_back(e);
  }
  return kept;
}

}  // namespace

TEST_SUITE("ops/gather_rows") {
  TEST_CASE("moves kept rows through every locator and layout, byte for byte, and nothing else") {
    holds("gather_rows == a copy row by row", 300, [] {
      mock_options shape = any_mock();
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence);
      shape.shared_entries = decides == kv::granularity::sequence;
      RC_LOG() << shape << '\n';
      filled_cache cache(shape);
      int const begin = decides == kv::granularity::sequence ? 0 : *rc::gen::inRange(0, shape.model.layers);
      auto const lanes = cache.lanes().layers_only(begin, shape.model.layers);
      bool const drops_a_run = any_bool();
      std::vector<std::vector<int>> kept;
      for (int segment = 0; segment < kv::segments(lanes, decides); ++segment) {
        int committed = shape.bound;  // lanes that decide together hold equally many; here they share the smallest
        for (int i = 0; i < lanes.size(); ++i) {
          if (kv::segment_of(lanes, decides, i) == segment)
            committed = std::min(committed, cache.committed(lanes.at(i)));
        }
        kept.push_back(drops_a_run ? all_but_a_run(cache, committed)
                                   : cache.random().subset(committed, cache.random().below(committed + 1)));
      }
      listed_keep const keep(lanes, decides, kept);
      owned_column moved(cache, {"moved", kv::column_extent::lane_entry, kv::on_move::permute, 4});
      owned_column narrow(cache, {"narrow", kv::column_extent::lane_entry, kv::on_move::permute, 3});
      owned_column fixed(cache, {"fixed", kv::column_extent::lane_entry, kv::on_move::stay, 4});
      owned_column window(cache, {"window", kv::column_extent::window_row, kv::on_move::permute, 4});

      auto const before = cache.save();
      auto expected = before;
      std::vector<std::byte> columns[] = {moved.memory(), narrow.memory(), fixed.memory(), window.memory()};
      for (int i = 0; i < lanes.size(); ++i) {
        kv::lane const this_lane = lanes.at(i);
        std::vector<int> order = kept[as_size(kv::segment_of(lanes, decides, i))];
        for (int d = cache.committed(this_lane); d < cache.count(this_lane); ++d) order.push_back(d);
        move_expected(cache, expected, before, this_lane, order);
        for (owned_column const* each : {&moved, &narrow}) {
          auto const bytes = as_size(each->view().about.bytes);
          for (std::size_t e = 0; e < order.size(); ++e) {
            std::memcpy(columns[each == &narrow].data() + each->entry(cache.index(this_lane), static_cast<int>(e)),
                        each->memory().data() + each->entry(cache.index(this_lane), order[e]), bytes);
          }
        }
      }
      kv::host_executor exec(*rc::gen::element(1, 3));
      std::vector<kv::recorded_column> const all{moved.view(), narrow.view(), fixed.view(), window.view()};
      kv::cache view = cache.view();
      view.lanes = lanes;
      kv::ops::gather_rows(exec, keep.view(), view, std::span<kv::recorded_column const>(all));
      RC_ASSERT(cache.save() == expected);
      RC_ASSERT(moved.memory() == columns[0]);
      RC_ASSERT(narrow.memory() == columns[1]);
      RC_ASSERT(fixed.memory() == columns[2]);
      RC_ASSERT(window.memory() == columns[3]);
    });
  }

  TEST_CASE("moves every keep set of 8 entries, with and without drafts behind them") {
    for (int drafts = 0; drafts <= 2; ++drafts) {
      for (int mask = 0; mask < 256; ++mask) {
        mock_cache cache(
            {.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2}, .rows = content::fingerprint});
        kv::lane const this_lane{0, 0, 0};
        std::vector<int> positions, order;
        for (int e = 0; e < 8 + drafts; ++e) positions.push_back(3 * e + 1);
        cache.put(this_lane, positions);
        cache.set_drafts(0, drafts);
        for (int e = 0; e < 8; ++e) {
          if ((mask >> e & 1) != 0) order.push_back(e);
        }
        listed_keep const keep(cache.lanes(), kv::granularity::lane, {order});
        kv::host_executor exec;
        kv::ops::gather_rows(exec, keep.view(), cache.view(), std::span<kv::recorded_column const>{});
        for (int d = 0; d < drafts; ++d) order.push_back(8 + d);
        for (std::size_t i = 0; i < order.size(); ++i) {
          int const at = static_cast<int>(i);
          REQUIRE(cache.position(this_lane, at) == 3 * order[i] + 1);
          REQUIRE(cache.row(of::keys, this_lane, at) == cache.fingerprint(of::keys, this_lane, 3 * order[i] + 1));
          REQUIRE(cache.row(of::values, this_lane, at) == cache.fingerprint(of::values, this_lane, 3 * order[i] + 1));
        }
      }
    }
  }
}

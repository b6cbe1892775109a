// SPDX-License-Identifier: Apache-2.0
// Device implementation of span_attention: each block reads the keys that some rows see, once for the statistics of
// their softmax, and those of the chunk once more for the probabilities.
#pragma once

#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/attention/mass_rows.hpp>
#include <kvpolicy/ops/cuda/attention/mma.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/span_attention.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct clear_scores {
  score_view out;
  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    for (int e = of.begin + first; e < of.end; e += step) out.row(segment)[e] = 0;
  }
};

/// One block for each `rows_of_block` rows of a lane, or for the rows of each chunk of entries. Heads of a row are
/// neighbours in `task`.
template <class Product>
struct span_kernel {
  attention_task task;
  Product product;
  Product own_product;  ///< the same with keys of rows
  row_view own;         ///< keys of rows; without memory: there are none
  row_targets targets;
  span_attention_options how;
  int rows_of_block;
  int blocks_of_lane;

  /// A block's shared memory: that of a tile, and the statistics of its rows.
  struct storage : attention_storage {
    running_sum sums[tile_rows];
    row_sums known[tile_rows];  ///< the same, once they are complete
    collective_storage collective;
  };
  [[nodiscard]] std::size_t shared() const { return sizeof(storage) + product.bytes(); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / blocks_of_lane;
    lane const one = task.scores.lanes.at(index);
    int const valid = task.rows.valid(one);
    shared_arena arena(block);
    storage& temp_storage = *arena.take<storage>(1);
    used_rows used{{}, task, one};
    used.entries = task.scores.lanes.committed(one);
    int const of_first_chunk = targets.chunks.size > 0 ? targets.chunks.first - (used.entries - valid) : 0;
    int const last = of_first_chunk + block.index() % blocks_of_lane * rows_of_block + rows_of_block;
    int const end = last < valid ? last : valid;
    used.begin = last - rows_of_block > 0 ? last - rows_of_block : 0;
    for (; used.begin < end; used.begin += used.count) {
      used.count = 1;
      while (used.begin + used.count < end && targets.alike(one, used.begin, used.begin + used.count, used.entries))
        ++used.count;
      chunk about{one, index, targets.of(one, used.begin, used.entries), 0};
      if (about.entries.begin >= about.entries.end) continue;
      about.first_row = has_own() ? first_row(block, temp_storage, one, used.begin, used.entries) : 0;
      for (int base = 0; base < used.count * task.group; base += product.tile())
        add_rows(block, temp_storage, arena, used, about, base);
      add_padding(block, about);
    }
  }

 private:
  struct chunk {
    kvpolicy::lane lane;
    int index;  ///< of the lane
    ordinal_range entries;
    int first_row;
  };
  /// Which keys a tile has.
  struct stretch {
    bool own;
    int begin, end;
  };
  struct kept_sums {
    row_sums const* known;
    int base;
    KVPOLICY_HD row_sums operator()(used_rows const& used, query_row const& row) const {
      return known[row.number * used.task.group + row.head - base];
    }
  };

  [[nodiscard]] KVPOLICY_HD bool has_own() const { return own.rows.base != nullptr; }

  /// The first row of the chunk that `row` belongs to. Collective.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD int first_row(Block& block, storage& temp_storage, lane one, int row, int entries) const {
    for (int end = row; end > 0; end -= block.threads()) {
      int const probe = end - 1 - block.thread();
      bool const other = probe >= 0 && !targets.alike(one, row, probe, entries);
      int const before = block.reduce(&temp_storage.collective, other ? probe : -1, max_op{});
      block.sync();
      if (before >= 0) return before + 1;
    }
    return 0;
  }

  /// Handles a tile of rows, from row `base` of `used` on.
  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, storage& temp_storage, shared_arena const& arena, used_rows const& used,
                            chunk const& about, int base) const {
    int const all = used.count * task.group;
    int const count = all - base < product.tile() ? all - base : product.tile();
    block.sync();
    for (int i = block.thread(); i < tile_rows; i += block.threads()) temp_storage.sums[i] = running_sum::nothing();
    product.prepare(block, used, arena);
    int const rows_end = used.begin + (base + count - 1) / task.group + 1;
    int const near = how.sinks < about.entries.begin ? how.sinks : about.entries.begin;
    int const missing = targets.chunks.missing_in(about.entries);
    auto const count_in = [&](int, int) { detail::add_rows(block, temp_storage, count, temp_storage.sums); };
    auto const each = [&](stretch const& of, auto const& sums_of, auto const& take) {
      for (int e = of.begin; e < of.end; e += tile_entries) {
        multiply(block, temp_storage, arena, used, about, {of.own, e, of.end}, base, count, sums_of);
        take(e, of.end);
      }
    };
    if (has_own()) each({true, about.first_row, rows_end}, no_sums{}, count_in);
    each({false, 0, near}, no_sums{}, count_in);
    each({false, about.entries.begin, about.entries.end}, no_sums{}, count_in);
    block.sync();
    for (int i = block.thread(); i < count; i += block.threads()) {
      running_sum whole = temp_storage.sums[i];
      if (task.has_sinks()) whole = whole.with({task.sink(about.index, base + i), 1.0f});
      if (missing > 0) whole = whole.with({0.0f, static_cast<float>(missing)});
      float scale = 1.0f / whole.sum;
      if (how.divide_by.data != nullptr)
        scale /= how.divide_by.row(about.lane)[task.rows.stored(about.lane, used.begin + (base + i) / task.group)];
      temp_storage.known[i] = {running_sum::exp_offset(whole.row_max), scale};
    }
    float* const out = task.scores.row(about.index);
    each({false, about.entries.begin, about.entries.end}, kept_sums{temp_storage.known, base},
         [&](int begin, int end) { raise(block, temp_storage, count, out, begin, end); });
  }

  /// Adds what rows of zeros that fill the chunk up give to each of its entries.
  template <class Block>
  KVPOLICY_HD void add_padding(Block& block, chunk const& about) const {
    int const missing = targets.chunks.missing_in(about.entries);
    if (missing == 0) return;
    float share = 0;
    for (int h = 0; h < task.group; ++h) {
      float const logit = task.has_sinks() ? task.sink(about.index, h) : running_sum::lowest();
      share += share_of_padding(about.entries.end - about.entries.begin, missing, logit);
    }
    block.sync();
    for (int e = about.entries.begin + block.thread(); e < about.entries.end; e += block.threads())
      task.scores.row(about.index)[e] += share;
  }

  /// Computes the logits of a tile of keys from `of.begin` on. Ends with a barrier.
  template <class Block, class Sums>
  KVPOLICY_HD void multiply(Block& block, storage& temp_storage, shared_arena const& arena, used_rows const& used,
                            chunk const& about, stretch const& of, int base, int count, Sums const& sums_of) const {
    block.sync();
    temp_storage.take_rows(block, used, base, count, sums_of);
    if (of.own) {
      for (int i = block.thread(); i < tile_entries; i += block.threads()) {
        bool const there = of.begin + i < of.end;
        temp_storage.key[i] = there ? own.row(about.lane, of.begin + i) : nullptr;
        temp_storage.position[i] = there ? of.begin + i : no_position;
      }
      for (int i = block.thread(); i < count; i += block.threads())
        temp_storage.last[i] = used.begin + used.row(base + i).number;
    } else {
      temp_storage.take_entries(block, used, of.begin, of.end);
    }
    (of.own ? own_product : product).run(block, lane_tile{used, temp_storage}, arena, base, count);
    block.sync();
    temp_storage.apply_cap(block, task, count);
  }

  /// Raises the scores of the tile's entries to the highest probability that its rows give to each. As whole numbers,
  /// the bits of such floats are in the order of the floats, and those of a NaN are above them. In chunks of entries it
  /// adds all of them; no other block has these entries, and the same thread always has the same of a tile.
  template <class Block>
  KVPOLICY_HD void raise(Block& block, storage& temp_storage, int count, float* out, int begin, int end) const {
    bool const in_sum = targets.chunks.size > 0;
    for (int e = block.thread(); e < tile_entries && begin + e < end; e += block.threads()) {
      float most = 0;
      for (int i = 0; i < count; ++i) {
        fold_into(most, temp_storage.probability(i, e), !in_sum, false);
      }
      if (in_sum) {
        out[begin + e] += most;
      } else {
        block.atomic_max(reinterpret_cast<unsigned*>(out + begin + e), same_bits<unsigned>(most));
      }
    }
  }
};

}  // namespace detail

/// Takes two launches and no scratch. Tensor cores multiply 16-bit keys, where keys of rows have the same type.
template <kernel_backend Backend>
struct implementation<ops::span_attention_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view const& rows, row_spans const& spans,
                  span_attention_options const& how, score_view const& out) {
    detail::launch_entries(exec, out, detail::clear_scores{out});
    if (rows.rows == 0 || out.segments() == 0) return;
    row_view const own = detail::keys_of_rows(rows, spans);
    detail::check_aligned("span_attention", "keys", from.rows);
    detail::check_aligned("span_attention", rows);
    if (spans.keys.rows > 0) detail::check_aligned("span_attention", "keys of rows", own.rows);
    using detail::mma_product;
    bool const alike = spans.keys.rows == 0 || (own.rows.element == from.rows.element && mma_product::takes(own.rows));
    detail::attention_task const task = task_of(from, rows, out);
    if (alike && mma_product::takes(from.rows)) {
      std::size_t const others = sizeof(detail::span_kernel<mma_product>::storage);
      auto const product = mma_product::of(from.rows, rows, rows_of_block(task) * task.group,
                                           static_cast<std::size_t>(exec.config().shared_bytes) - others);
      launch(exec, task, product, own, spans, how);
    } else {
      launch(exec, task, detail::fma_product::of(from.rows, rows), own, spans, how);
    }
  }

 private:
  [[nodiscard]] static int rows_of_block(detail::attention_task const& task) {
    return task.group < detail::tile_rows ? detail::tile_rows / task.group : 1;
  }
  static detail::attention_task task_of(keys const& from, query_view const& rows, score_view const& out) {
    detail::attention_task task;
    task.from = from;
    task.rows = rows;
    task.rows.position = {};
    task.scores = out;
    task.group = rows.heads / out.lanes.heads;
    task.scale = detail::scale_of(from.logits, from.rows.channels);
    task.soft_cap = from.logits.soft_cap;
    task.sinks = from.logits.sinks;
    task.rows_apart = false;
    return task;
  }

  template <class Executor, class Product>
  static void launch(Executor& exec, detail::attention_task const& task, Product const& product, row_view const& own,
                     row_spans const& spans, span_attention_options const& how) {
    Product of_rows = product;
    if (own.rows.base != nullptr) of_rows.keys = detail::reader_of(own.rows);
    if constexpr (requires { of_rows.scaled; }) of_rows.scaled = false;
    int const capacity = task.scores.lanes.capacity > 0 ? task.scores.lanes.capacity : 1;
    int const of_chunk = how.chunks.size < capacity ? how.chunks.size : capacity;
    int const at_once = of_chunk > 0 ? of_chunk : rows_of_block(task);
    int const blocks = ((of_chunk > 0 ? capacity : task.rows.rows) - 1) / at_once + 1;
    detail::row_targets const targets{task.rows, spans, how.chunks};
    detail::span_kernel<Product> const kernel{task, product, of_rows, own, targets, how, at_once, blocks};
    exec.launch(launch_shape{task.scores.segments() * blocks,
                             detail::at_most<detail::tile_entries>(exec.threads().entry), kernel.shared()},
                kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Kernels of residual: entries attend to the span, with four heads.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/perceptron/residual_storage.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Divides sums by their count, one thread for each. The last thread finds the live entries at the span's positions.
struct means_body {
  token_features features;
  turn_queries turn;
  residual_options how;
  kvpolicy::lanes lanes;
  int ranks;
  int sequence;
  int* range;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one{lanes.sequence_begin + sequence, lanes.layer_begin, 0};
    if (i == (std::int64_t{lanes.capacity} + 1) * features.dims) return find_span(one);
    int const row = static_cast<int>(i / features.dims);
    if (row > lanes.committed(one)) return;
    auto const by = static_cast<float>(lanes.layers() * ranks * (row == 0 ? turn.heads : lanes.heads));
    features.row(sequence, row)[i % features.dims] /= by;
  }

 private:
  KVPOLICY_HD void find_span(lane one) const {
    range[0] = 0;
    range[1] = 0;
    if (!how.cross_attention) return;
    ordinal_range const rows = turn.span(one, how.tail);
    if (rows.begin >= rows.end) return;
    lane_entries const live{one, lanes.committed(one), 0, lanes.position.row(one)};
    range[0] = live.first_at(turn.position_of(one, rows.begin));
    range[1] = live.first_at(turn.position_of(one, rows.end - 1) + 1);
  }
};

/// Computes keys and values of a tile of the span's entries, one block for each tile and 64 columns of either.
struct project_kernel {
  residual_head head;
  residual_storage temp_storage;
  float const* features;  ///< the features of entry 0
  int first;              ///< the first entry of the span that is in scratch

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    shared_arena arena(block);
    product_tile<Block> const product(block, arena);
    int const slices = (head.width + tile_sizes::units - 1) / tile_sizes::units;
    int const begin = block.index() / (2 * slices) * product.rows();
    int const left = temp_storage.there(first) - begin;
    if (left <= 0) return;
    int const rows = left < product.rows() ? left : product.rows();
    int const column = block.index() % slices * tile_sizes::units;
    int const columns = head.width - column < tile_sizes::units ? head.width - column : tile_sizes::units;
    bool const is_key = block.index() / slices % 2 == 0;
    float_rows const weights{(is_key ? head.w_k : head.w_v) + std::int64_t{column} * head.dims, head.dims};
    float_rows const from{features + (std::int64_t{temp_storage.range[0]} + first + begin) * head.dims, head.dims};
    tile_sums sums;
    product.multiply(rows, columns, head.dims, from, weights, sums);
    for (int i = 0; i < tile_sizes::each; ++i) {
      for (int j = 0; j < tile_sizes::each; ++j) {
        int const r = product.first_row() + i;
        int const c = product.first_unit() + j;
        if (r < rows && c < columns) put(is_key, begin + r, column + c, sums.of[i][j]);
      }
    }
  }

 private:
  KVPOLICY_HD void put(bool is_key, int row, int column, float sum) const {
    if (is_key) {
      temp_storage.keys[std::int64_t{row} * temp_storage.width + column] = sum + head.w_k_bias[column];
    } else {
      temp_storage.values[std::int64_t{column} * temp_storage.span + row] = sum + head.w_v_bias[column];
    }
  }
};

/// The entries of one sequence that fit in the scratch for states at once.
struct residual_group {
  residual_head head;
  residual_storage temp_storage;
  token_features features;
  score_view out;
  int sequence;
  int begin;  ///< the first of these entries

  [[nodiscard]] KVPOLICY_HD float const* memory() const { return features.row(sequence, 0); }
  /// The features of the i-th of these entries.
  [[nodiscard]] KVPOLICY_HD float const* row(int i) const { return features.row(sequence, 1 + begin + i); }
  [[nodiscard]] KVPOLICY_HD float* scores() const { return out.row(sequence) + begin; }
  [[nodiscard]] KVPOLICY_HD int count() const {
    int const left = out.lanes.committed(out.lane_of(sequence)) - begin;
    return left < temp_storage.entries ? left : temp_storage.entries;
  }
};

/// Rows in shared memory that are stored channel by channel.
struct shared_columns {
  float const* from;
  int stride;
  [[nodiscard]] KVPOLICY_HD float operator()(int r, int c) const { return from[c * stride + r]; }
};

/// Bytes of shared memory of a block of attend_kernel.
[[nodiscard]] inline std::size_t attend_bytes(residual_storage const& temp_storage, int threads) {
  int const stride = tile_sizes::row_stride(threads);
  return tile_sizes::bytes(threads) + shared_arena::bytes_of_piece<float>(temp_storage.head_width * stride) +
         shared_arena::bytes_of_piece<float>(tile_sizes::units * stride) +
         shared_arena::bytes_of_piece<float>(tile_sizes::rows(threads)) +
         shared_arena::bytes_of_piece<float>(tile_sizes::units);
}

/// A tile of entries attends to the part of the span that is in scratch, with one head and one slice of its columns.
/// The softmax is a running one, over steps of 64 entries of the span.
template <class Block>
class attend_task {
 public:
  KVPOLICY_HD attend_task(Block& block, residual_group const& group, int head, int slice, int begin, int rows)
      : block_(block),
        arena_(block),
        product_(block, arena_),
        group_(group),
        head_(head),
        slice_(slice),
        begin_(begin),
        rows_(rows),
        stride_(tile_sizes::row_stride(block.threads())),
        query_(arena_.take<float>(group.temp_storage.head_width * stride_)),
        weight_(arena_.take<float>(tile_sizes::units * stride_)),
        rule_(arena_.take<float>(product_.rows())),
        constant_(arena_.take<float>(tile_sizes::units)) {}

  /// Attends to `there` entries of the span. They are the first ones, or the state continues from earlier ones.
  KVPOLICY_HD void run(int there, bool is_first) {
    if (!read_rule_scores(block_, group_.scores() + begin_, rows_, rule_)) return;
    make_queries();
    if (!is_first) with_state(true, [](float& of_thread, float const& in_scratch) { of_thread = in_scratch; });
    for (int s = 0; s < there; s += tile_sizes::units) {
      attend(s, there - s < tile_sizes::units ? there - s : tile_sizes::units);
    }
    bool const is_first_of_row = product_.first_unit() == 0;
    with_state(is_first_of_row, [](float const& of_thread, float& in_scratch) { in_scratch = of_thread; });
  }

 private:
  using sizes = tile_sizes;

  KVPOLICY_HD void make_queries() {
    residual_head const& head = group_.head;
    int const width = group_.temp_storage.head_width;
    std::int64_t const columns = 3 * std::int64_t{head.dims} + 1;
    for (int unit = 0; unit < width; unit += sizes::units) {
      int const units = width - unit < sizes::units ? width - unit : sizes::units;
      int const first = head_ * width + unit;
      folded_rows const weights{head.w_q + first * columns, columns, head.dims, group_.memory()};
      block_.sync();
      fold_constants(block_, weights, head.w_q_bias + first, units, constant_);
      tile_sums sums;
      product_.multiply(rows_, units, head.dims, float_rows{group_.row(begin_), head.dims}, weights, sums);
      for (int j = 0; j < sizes::each; ++j) {
        int const u = product_.first_unit() + j;
        if (u >= units) break;
        for (int i = 0; i < sizes::each; ++i) {
          int const r = product_.first_row() + i;
          if (r < rows_) {
            query_[(unit + u) * stride_ + r] = sums.of[i][j] + constant_[u] + rule_[r] * weights.slope(u);
          }
        }
      }
    }
  }

  KVPOLICY_HD void attend(int s, int there) {
    residual_storage const& temp_storage = group_.temp_storage;
    int const width = temp_storage.head_width;
    int const column = head_ * width + slice_ * sizes::units;
    int const columns = width - slice_ * sizes::units < sizes::units ? width - slice_ * sizes::units : sizes::units;
    float_rows const keys{temp_storage.keys + std::int64_t{s} * temp_storage.width + head_ * width, temp_storage.width};
    float_rows const values{temp_storage.values + std::int64_t{column} * temp_storage.span + s, temp_storage.span};
    tile_sums logits;
    product_.multiply(rows_, there, width, shared_columns{query_, stride_}, keys, logits);
    float rescale[sizes::each];
    float const scale = 1.0f / ::sqrtf(static_cast<float>(width));
    for (int i = 0; i < sizes::each; ++i) rescale[i] = advance(i, logits.of[i], there, scale);
    tile_sums more;
    product_.multiply(rows_, columns, there, shared_columns{weight_, stride_}, values, more);
    for (int i = 0; i < sizes::each; ++i) {
      for (int j = 0; j < sizes::each; ++j) sum_.of[i][j] = sum_.of[i][j] * rescale[i] + more.of[i][j];
    }
  }

  /// Advances a row's running softmax by one step: writes the weights, and returns the factor that rescales the sums so
  /// far.
  KVPOLICY_HD float advance(int i, float const* logits, int there, float scale) {
    float now = row_max_[i];
    for (int j = 0; j < sizes::each; ++j) {
      float const logit = logits[j] * scale;
      if (product_.first_unit() + j < there && logit > now) now = logit;
    }
    now = product_.max_across(now);
    float total = 0;
    for (int j = 0; j < sizes::each; ++j) {
      int const u = product_.first_unit() + j;
      if (u >= there) break;
      float const weight = ::expf(logits[j] * scale - now);
      weight_[u * stride_ + product_.first_row() + i] = weight;
      total += weight;
    }
    float const rescale = row_max_[i] == now ? 1.0f : ::expf(row_max_[i] - now);
    total_[i] = total_[i] * rescale + product_.sum_across(total);
    row_max_[i] = now;
    return rescale;
  }

  /// Calls each(of_thread, in_scratch) for the numbers of the thread's rows, and for their statistics if it is asked
  /// to: threads that share a row have the same ones.
  template <class Each>
  KVPOLICY_HD void with_state(bool statistics_too, Each const& each) {
    residual_storage const& temp_storage = group_.temp_storage;
    int const column = slice_ * sizes::units + product_.first_unit();
    for (int i = 0; i < sizes::each; ++i) {
      int const entry = begin_ + product_.first_row() + i;
      if (entry >= begin_ + rows_) return;
      float* const statistics = temp_storage.statistics(entry, head_, slice_);
      if (statistics_too) each(row_max_[i], statistics[0]);
      if (statistics_too) each(total_[i], statistics[1]);
      for (int j = 0; j < sizes::each; ++j) {
        if (column + j < temp_storage.head_width) {
          each(sum_.of[i][j], temp_storage.state_of(entry)[head_ * temp_storage.head_width + column + j]);
        }
      }
    }
  }

  Block& block_;
  shared_arena arena_;
  product_tile<Block> product_;
  residual_group const& group_;
  int head_;
  int slice_;
  int begin_;
  int rows_;
  int stride_;
  float* query_;     ///< [head_width][rows]
  float* weight_;    ///< [64][rows]
  float* rule_;      ///< [rows]
  float* constant_;  ///< [64]
  float row_max_[tile_sizes::each] = {same_bits<float>(0xFF800000u), same_bits<float>(0xFF800000u),
                                      same_bits<float>(0xFF800000u), same_bits<float>(0xFF800000u)};
  float total_[tile_sizes::each] = {};
  tile_sums sum_;
};

/// One block for each tile of entries, head and slice of its columns.
struct attend_kernel {
  residual_group group;
  int first;  ///< the first entry of the span that is in scratch

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const there = group.temp_storage.there(first);
    int const parts = residual_head::heads * group.temp_storage.slices;
    int const begin = block.index() / parts * tile_sizes::rows(block.threads());
    int const left = group.count() - begin;
    if (there <= 0 || left <= 0) return;
    int const most = tile_sizes::rows(block.threads());
    int const head = block.index() % residual_head::heads;
    int const slice = block.index() / residual_head::heads % group.temp_storage.slices;
    attend_task<Block> task(block, group, head, slice, begin, left < most ? left : most);
    task.run(there, first == 0);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

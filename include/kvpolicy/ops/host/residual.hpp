// Host implementation of feature_sums and residual: tiles of entries through blocks of weights, tasks of entries a
// worker.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/host/block_kernels.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/residual_kernels.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Rows of weights in blocks of 32, ready to be multiplied: [block][in][32], and what does not depend on the key.
struct packed_rows {
  std::int64_t out = 0;
  std::int64_t in = 0;
  float* weights = nullptr;
  float* constant = nullptr;  ///< [out, padded]
  float* slope = nullptr;     ///< [out, padded]: by the rule's score

  packed_rows() = default;
  packed_rows(std::int64_t rows, std::int64_t columns, float*& room)
      : out(rows), in(columns), weights(room), constant(room + padded() * columns), slope(constant + padded()) {
    std::fill_n(weights, padded() * (columns + 2), 0.0f);
    room = slope + padded();
  }
  [[nodiscard]] std::int64_t padded() const { return residual_sizes::padded(out); }
  [[nodiscard]] std::int64_t blocks() const { return padded() / residual_sizes::block; }
  [[nodiscard]] float* block(std::int64_t b) const { return weights + b * in * residual_sizes::block; }
  [[nodiscard]] float& at(std::int64_t o, std::int64_t i) const {
    return block(o / residual_sizes::block)[i * residual_sizes::block + o % residual_sizes::block];
  }
};

/// A head with one sequence's memory folded into it: phi = [k | m | k m | rule] is linear in k and rule, m being fixed.
struct folded_head {
  packed_rows query, key, value, of_key, of_context;
  float* last = nullptr;  ///< fc2, padded

  folded_head(residual_head const& head, float const* memory, float*& room)
      : query(head.width, head.dims, room),
        key(head.width, head.dims, room),
        value(head.width, head.dims, room),
        of_key(head.hidden, head.dims, room) {
    of_context.out = head.hidden;
    of_context.in = head.width;
    of_context.weights = room;
    last = room + of_key.padded() * head.width;
    room = last + of_key.padded();
    std::fill(of_context.weights, room, 0.0f);
    std::int64_t const phi = 3 * std::int64_t{head.dims} + 1;
    fold(query, head.w_q, head.w_q_bias, phi, memory);
    fold(of_key, head.fc1, head.fc1_bias, phi + head.width, memory);
    copy(key, head.w_k, head.w_k_bias);
    copy(value, head.w_v, head.w_v_bias);
    for (std::int64_t o = 0; o < head.hidden; ++o) {
      for (std::int64_t i = 0; i < head.width; ++i) of_context.at(o, i) = head.fc1[o * (phi + head.width) + phi + i];
      last[o] = head.fc2[o];
    }
  }

 private:
  /// `columns`: of a row of `from`, of which the first 3 D + 1 belong to phi.
  static void fold(packed_rows const& to, float const* from, float const* bias, std::int64_t columns,
                   float const* memory) {
    for (std::int64_t o = 0; o < to.out; ++o, from += columns) {
      double constant = static_cast<double>(bias[o]);
      for (std::int64_t d = 0; d < to.in; ++d) {
        to.at(o, d) = from[d] + from[2 * to.in + d] * memory[d];
        constant += static_cast<double>(from[to.in + d]) * static_cast<double>(memory[d]);
      }
      to.constant[o] = static_cast<float>(constant);
      to.slope[o] = from[3 * to.in];
    }
  }
  static void copy(packed_rows const& to, float const* from, float const* bias) {
    for (std::int64_t o = 0; o < to.out; ++o) {
      for (std::int64_t d = 0; d < to.in; ++d) to.at(o, d) = from[o * to.in + d];
      to.constant[o] = bias[o];
    }
  }
};

/// Takes up to `entries_of_a_task` entries through the head.
class residual_task {
 public:
  using sizes = residual_sizes;
  static constexpr int heads = residual_head::heads;

  residual_task(isa speaks, residual_head const& head, folded_head const& folded, float* room)
      : blocks_(blocks_for<sizes::block>(speaks)),
        kernels_(residual_for(speaks)),
        head_(head),
        folded_(folded),
        head_width_(head.width / heads),
        padded_(sizes::padded(head_width_)),
        query_(take(room, sizes::entries_of_a_task * folded.query.padded())),
        sum_of_values_(take(room, sizes::entries_of_a_task * heads * padded_)),
        highest_(take(room, sizes::entries_of_a_task * heads)),
        sum_(take(room, sizes::entries_of_a_task * heads)),
        keys_(take(room, sizes::span_of_a_step * std::int64_t{head.width})),
        values_(take(room, sizes::span_of_a_step * heads * padded_)),
        first_(take(room, sizes::rows_of_a_tile * sizes::block)),
        second_(take(room, sizes::rows_of_a_tile * sizes::block)),
        rule_(take(room, sizes::rows_of_a_tile)),
        shrink_(take(room, sizes::rows_of_a_tile)),
        context_(take(room, sizes::rows_of_a_tile * std::int64_t{head.width})),
        projected_(take(room, sizes::rows_of_a_tile * folded.key.padded())) {}

  /// Entries of these features (`count` rows), attending to `span` of them, which begin at `features + span_begin`.
  void run(float const* features, int count, float const* span, int span_rows, float* scores) {
    features_ = features;
    count_ = count;
    scores_ = scores;
    if (span_rows > 0) {
      for (int e = 0; e < count; e += sizes::rows_of_a_tile) make_queries(e);
      std::fill_n(sum_of_values_, count * heads * padded_, 0.0f);
      std::fill_n(highest_, sizes::entries_of_a_task * heads, -std::numeric_limits<float>::infinity());
      std::fill_n(sum_, sizes::entries_of_a_task * heads, 0.0f);
      for (int s = 0; s < span_rows; s += sizes::span_of_a_step) {
        int const rows = std::min(sizes::span_of_a_step, span_rows - s);
        project(span + std::ptrdiff_t{s} * head_.dims, rows);
        for (int e = 0; e < count; e += sizes::rows_of_a_tile) attend(e, rows);
      }
    }
    for (int e = 0; e < count; e += sizes::rows_of_a_tile) finish(e, span_rows > 0);
  }

 private:
  static float* take(float*& room, std::int64_t floats) {
    float* const here = room;
    room += floats;
    return here;
  }
  [[nodiscard]] int rows_at(int e) const { return std::min(sizes::rows_of_a_tile, count_ - e); }

  /// out[row][32] = rows [count][stride] . a block of weights.
  void multiply(float const* rows, std::int64_t stride, int count, std::int64_t dims, float const* weights, float scale,
                float* out) {
    for (int i = 0; i < 2 * keys_of_a_tile; ++i) address_[i] = rows + std::min(i, count - 1) * stride;
    blocks_.logits(address_, count, static_cast<int>(dims), weights, scale, out);
  }

  void take_rules(int e) {
    for (int i = 0; i < rows_at(e); ++i) {
      rule_[i] = scores_[e + i];
      if (rule_[i] == -std::numeric_limits<float>::infinity()) rule_[i] = 0;
    }
  }

  void make_queries(int e) {
    int const rows = rows_at(e);
    packed_rows const& by = folded_.query;
    take_rules(e);
    for (std::int64_t b = 0; b < by.blocks(); ++b) {
      multiply(features_ + std::ptrdiff_t{e} * head_.dims, head_.dims, rows, by.in, by.block(b), 1, first_);
      for (int i = 0; i < rows; ++i) {
        float* const to = query_ + (e + i) * by.padded() + b * sizes::block;
        for (int o = 0; o < sizes::block; ++o) {
          to[o] = first_[i * sizes::block + o] + by.constant[b * sizes::block + o] +
                  rule_[i] * by.slope[b * sizes::block + o];
        }
      }
    }
  }

  /// A step's entries of the span as keys [head][block of entries][head width][32] and values [head][block of
  /// columns][entries][32].
  void project(float const* span, int rows) {
    std::fill_n(keys_, sizes::span_of_a_step * std::int64_t{head_.width}, 0.0f);
    std::fill_n(values_, sizes::span_of_a_step * heads * padded_, 0.0f);
    for (int s = 0; s < rows; s += sizes::rows_of_a_tile) {
      int const count = std::min(sizes::rows_of_a_tile, rows - s);
      project_tile(folded_.key, span + std::ptrdiff_t{s} * head_.dims, count);
      for (int i = 0; i < count; ++i) {
        for (int o = 0; o < head_.width; ++o) key_at(o, s + i) = projected_[i * folded_.key.padded() + o];
      }
      project_tile(folded_.value, span + std::ptrdiff_t{s} * head_.dims, count);
      for (int i = 0; i < count; ++i) {
        for (int o = 0; o < head_.width; ++o) value_at(o, s + i) = projected_[i * folded_.value.padded() + o];
      }
    }
  }
  void project_tile(packed_rows const& by, float const* rows, int count) {
    for (std::int64_t b = 0; b < by.blocks(); ++b) {
      multiply(rows, head_.dims, count, by.in, by.block(b), 1, first_);
      for (int i = 0; i < count; ++i) {
        for (int o = 0; o < sizes::block; ++o) {
          projected_[i * by.padded() + b * sizes::block + o] =
              first_[i * sizes::block + o] + by.constant[b * sizes::block + o];
        }
      }
    }
  }
  [[nodiscard]] float* keys_of(std::int64_t head, int row) const {
    return keys_ + head * sizes::span_of_a_step * head_width_ + row / sizes::block * sizes::block * head_width_;
  }
  [[nodiscard]] float& key_at(int column, int row) const {
    return keys_of(column / head_width_, row)[column % head_width_ * sizes::block + row % sizes::block];
  }
  [[nodiscard]] float* values_of(std::int64_t head, std::int64_t columns) const {
    return values_ + (head * padded_ + columns) * sizes::span_of_a_step;
  }
  [[nodiscard]] float& value_at(int column, int row) const {
    std::int64_t const inside = column % head_width_;
    return values_of(column / head_width_,
                     inside / sizes::block * sizes::block)[row * sizes::block + inside % sizes::block];
  }

  /// A tile of entries attends to a step's entries of the span.
  void attend(int e, int span_rows) {
    int const rows = rows_at(e);
    std::int64_t const row = folded_.query.padded();
    float const scale = 1.0f / std::sqrt(static_cast<float>(head_width_));
    for (int h = 0; h < heads; ++h) {
      std::ptrdiff_t const at = std::ptrdiff_t{h} * sizes::entries_of_a_task + e;
      for (int s = 0; s < span_rows; s += sizes::block) {
        multiply(query_ + e * row + h * head_width_, row, rows, head_width_, keys_of(h, s), scale, first_);
        kernels_.advance(first_, rows, std::min(sizes::block, span_rows - s), highest_ + at, sum_ + at, shrink_);
        for (std::int64_t c = 0; c < padded_; c += sizes::block) {
          float const* const values = values_of(h, c) + std::ptrdiff_t{s} * sizes::block;
          multiply(first_, sizes::block, rows, sizes::block, values, 1, second_);
          kernels_.blend(second_, rows, shrink_, sum_of_values_ + (e * heads + h) * padded_ + c, heads * padded_);
        }
      }
    }
  }

  void make_context(int e, bool attended) {
    std::int64_t const width = head_.width;
    for (int i = 0; i < rows_at(e); ++i) {
      for (std::int64_t o = 0; o < width; ++o) {
        std::int64_t const h = o / head_width_;
        context_[i * width + o] = !attended ? 0.0f
                                            : sum_of_values_[((e + i) * heads + h) * padded_ + o % head_width_] /
                                                  sum_[h * sizes::entries_of_a_task + e + i];
      }
    }
  }

  void finish(int e, bool attended) {
    int const rows = rows_at(e);
    float out[sizes::rows_of_a_tile] = {};
    take_rules(e);
    make_context(e, attended);
    packed_rows const& by = folded_.of_key;
    for (std::int64_t b = 0; b < by.blocks(); ++b) {
      multiply(features_ + std::ptrdiff_t{e} * head_.dims, head_.dims, rows, by.in, by.block(b), 1, first_);
      multiply(context_, head_.width, rows, head_.width, folded_.of_context.block(b), 1, second_);
      std::int64_t const at = b * sizes::block;
      kernels_.perceive({first_, second_, by.constant + at, by.slope + at, folded_.last + at, rule_, rows}, out);
    }
    float const alpha = std::clamp(head_.alpha, -5.0f, 5.0f);
    for (int i = 0; i < rows; ++i) {
      bool const candidate = scores_[e + i] != -std::numeric_limits<float>::infinity();
      if (candidate) scores_[e + i] += alpha * (out[i] + head_.fc2_bias[0]);
    }
  }

  block_kernels const& blocks_;
  residual_kernels const& kernels_;
  residual_head const& head_;
  folded_head const& folded_;
  std::int64_t head_width_;
  std::int64_t padded_;  ///< columns of a head's values
  float* query_;         ///< [entries][width, padded]
  float* sum_of_values_;
  float* highest_;  ///< [head][entries]
  float* sum_;
  float* keys_;
  float* values_;
  float* first_;  ///< tiles [24][32]
  float* second_;
  float* rule_;
  float* shrink_;
  float* context_;
  float* projected_;
  float const* features_ = nullptr;
  float* scores_ = nullptr;
  int count_ = 0;
  void const* address_[2 * keys_of_a_tile] = {};
};

}  // namespace detail

template <>
struct implementation<ops::feature_sums_t, host> {
  static constexpr bool provided = true;
  static constexpr int entries_of_a_task = 128;

  static std::size_t scratch(shape const& model, int) {
    return detail::scratch_of<float>(static_cast<std::size_t>(model.head_dim));
  }

  static void run(host_executor& exec, keys const& from, query_view const& memory, score_view const& among,
                  token_features const& out) {
    lanes const& who = among.who;
    int const tasks = (who.bound + entries_of_a_task - 1) / entries_of_a_task;
    exec.for_each(who.sequences * (tasks + 1), [&](int i, int worker) {
      int const sequence = i / (tasks + 1);
      int const task = i % (tasks + 1);
      auto* const row = reinterpret_cast<float*>(exec.scratch(worker).data());
      if (task == tasks) return add_memory(exec.speaks(), who, memory, sequence, row, out.row(sequence, 0));
      int const begin = task * entries_of_a_task;
      int const end = std::min(begin + entries_of_a_task, who.committed({sequence, who.layer_begin, 0}));
      if (begin < end) add_keys(exec.speaks(), who, from, {sequence, begin, end}, row, out);
    });
  }

 private:
  struct stretch {
    int sequence;
    int begin;
    int end;
  };

  static void add_memory(isa speaks, lanes const& who, query_view const& memory, int sequence, float* row, float* to) {
    std::fill_n(to, memory.dims, 0.0f);
    for (int layer = who.layer_begin; layer < who.layer_end; ++layer) {
      for (int head = 0; head < memory.heads; ++head) {
        std::byte const* const from = memory.at({sequence, layer, 0}, head, 0);
        detail::load_row(memory.element, from, bytes_of(memory.element), memory.dims, row);
        detail::residual_for(speaks).add(row, memory.dims, to);
      }
    }
  }

  static void add_keys(isa speaks, lanes const& who, keys const& from, stretch const& part, float* row,
                       token_features const& out) {
    int const dims = from.rows.dims;
    auto const& blocks = detail::blocks_for<16>(speaks);
    auto const& kernels = detail::residual_for(speaks);
    float* const to = out.row(part.sequence, 1);
    std::fill(to + std::ptrdiff_t{part.begin} * dims, to + std::ptrdiff_t{part.end} * dims, 0.0f);
    for (int layer = who.layer_begin; layer < who.layer_end; ++layer) {
      for (int head = 0; head < who.heads; ++head) {
        lane const one{part.sequence, layer, head};
        for (int e = part.begin; e < part.end; ++e) {
          std::byte const* const key = from.row(one, e);
          if (from.rows.contiguous()) {
            blocks.widen(from.rows.element, key, dims, row);
          } else {
            detail::load_row(from.rows.element, key, from.rows.dim, dims, row);
          }
          kernels.add(row, dims, to + std::ptrdiff_t{e} * dims);
        }
      }
    }
  }
};

template <>
struct implementation<ops::residual_t, host> {
  static constexpr bool provided = true;
  using sizes = residual_sizes;

  template <class Executor>
  static void run(Executor& exec, token_features const& features, turn_queries const& turn, residual_head const& head,
                  residual_options const& how, score_view const& out, float* room) {
    if (head.alpha == 0) return;
    for (int sequence = 0; sequence < out.who.sequences; ++sequence) {
      make_means(exec, features, turn.heads, ranks_of(exec), sequence, out);
      one_sequence(exec, features, span_of(out.who, turn, sequence, how), head, sequence, out, room);
    }
  }

 private:
  static void make_means(host_executor& exec, token_features const& features, int query_heads, int ranks, int sequence,
                         score_view const& out) {
    constexpr int rows = 512;
    int const count = 1 + out.who.committed(out.lane_of(sequence));
    int const layers = out.who.layers() * ranks;
    exec.for_each((count + rows - 1) / rows, [&](int task, int) {
      for (int i = task * rows; i < std::min(count, (task + 1) * rows); ++i) {
        auto const by = static_cast<float>(layers * (i == 0 ? query_heads : out.who.heads));
        for (int d = 0; d < features.dims; ++d) features.row(sequence, i)[d] /= by;
      }
    });
  }

  /// The live entries at the span's positions.
  static ordinal_range span_of(lanes const& who, turn_queries const& turn, int sequence, residual_options const& how) {
    lane const one{sequence, who.layer_begin, 0};
    ordinal_range const rows = turn.span(one, how.tail);
    if (!how.cross_attention || rows.begin >= rows.end) return {0, 0};
    lane_entries const live{one, who.committed(one), 0, who.position.row(one)};
    return {live.first_at(turn.position_of(one, rows.begin)), live.first_at(turn.position_of(one, rows.end - 1) + 1)};
  }

  static void one_sequence(host_executor& exec, token_features const& features, ordinal_range const& span,
                           residual_head const& head, int sequence, score_view const& out, float* room) {
    int const count = out.who.committed(out.lane_of(sequence));
    int const dims = features.dims;
    float* const row = features.row(sequence, 1);
    detail::folded_head const folded(head, features.row(sequence, 0), room);
    sizes const all(head, out.who.bound);
    int const tasks = static_cast<int>(all.tasks());
    exec.for_each(tasks, [&](int task, int) {
      detail::residual_task one(exec.speaks(), head, folded, room + task * all.task());
      for (int e = task * sizes::entries_of_a_task; e < count; e += tasks * sizes::entries_of_a_task) {
        one.run(row + std::ptrdiff_t{e} * dims, std::min(sizes::entries_of_a_task, count - e),
                row + std::ptrdiff_t{span.begin} * dims, span.end - span.begin, out.row(sequence) + e);
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

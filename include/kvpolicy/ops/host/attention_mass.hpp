// Host implementation of attention_mass: blocks of query rows, one head at a time, a lane a worker.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Folds `value` into `into`; the first of a series replaces it.
inline void fold(float& into, float value, reduction how, bool first) {
  if (first) {
    into = value;
  } else if (how == reduction::max) {
    into = !(into >= value) && into == into ? value : into;  // a NaN on either side stays
  } else {
    into += value;
  }
}

/// The mass of one lane. Probabilities of `block` rows of one head at a time; what is reduced first decides the loops.
class lane_mass {
 public:
  static constexpr int block = 16;

  static std::size_t scratch(shape const& model, int bound) {
    auto const n = static_cast<std::size_t>(bound);
    auto const d = static_cast<std::size_t>(model.head_dim);
    return 2 * scratch_of<float>(block * n) + 2 * scratch_of<float>(n) + scratch_of<float>((block + 1) * d);
  }

  lane_mass(keys const& from, query_view const& rows, attention_mass_options const& how, lanes const& among, lane who,
            int group, std::span<std::byte> memory)
      : keys_(from), rows_(rows), how_(how), who_(who), group_(group), position_(among.position.row(who)) {
    entries_ = among.committed(who);
    scratch_arena arena(memory);
    auto const n = static_cast<std::size_t>(entries_);
    head_ = arena.take<float>(block * n);
    combined_ = arena.take<float>(block * n);
    row_sum_ = arena.take<float>(n);
    total_ = arena.take<float>(n);
    query_ = arena.take<float>((block + 1) * static_cast<std::size_t>(from.rows.dims));
    choose_rows();
  }

  /// Writes the lane's mass, or folds it into what the segment's earlier lanes wrote.
  void write(float* out, bool first) {
    std::fill_n(total_, entries_, 0.0f);
    if (begin_ < end_) how_.order == reduction_order::rows_then_group ? rows_first() : group_first();
    reduction const how = how_.accumulate ? reduction::sum : how_.lanes;
    for (int e = 0; e < entries_; ++e) fold(out[e], total_[e], how, first && !how_.accumulate);
  }

 private:
  [[nodiscard]] bool sees_all() const { return rows_.position.data == nullptr; }
  [[nodiscard]] int position_of(int row) const { return rows_.position.row(who_)[rows_.stored(who_, row)]; }

  /// Entries at positions below `limit`: visible sets are prefixes, because ordinals ascend in position.
  [[nodiscard]] int entries_before(int limit) const {
    return static_cast<int>(std::lower_bound(position_, position_ + entries_, limit) - position_);
  }

  void choose_rows() {
    end_ = rows_.valid(who_);
    while (!sees_all() && end_ > 0 && (entries_ == 0 || position_of(end_ - 1) > position_[entries_ - 1])) --end_;
    begin_ = how_.last_rows > 0 ? std::max(0, end_ - how_.last_rows) : 0;
    domain_ = entries_;
    if (how_.domain == key_domain::past && begin_ < end_ && !sees_all()) domain_ = entries_before(position_of(begin_));
    if (how_.rows == reduction::last) begin_ = std::max(begin_, end_ - 1);
  }

  [[nodiscard]] int visible(int row) const {
    return sees_all() ? domain_ : std::min(domain_, entries_before(position_of(row) + 1));
  }

  /// Logits of rows [first, first + count) of one query head, into head_[row][entry].
  void logits(int query_head, int first, int count) {
    int const dims = keys_.rows.dims;
    for (int r = 0; r < count; ++r) {
      load_row(rows_.element, rows_.at(who_, query_head, rows_.stored(who_, first + r)), bytes_of(rows_.element), dims,
               query_ + r * dims);
    }
    float const scale = 1.0f / std::sqrt(static_cast<float>(dims));
    int const seen = visible(first + count - 1);
    for (int e = 0; e < seen; ++e) {
      float const* const key = row_as_float(keys_, who_, e, query_ + block * dims);
      for (int r = 0; r < count; ++r) head_[index(r, e)] = scale * dot(query_ + r * dims, key, dims);
    }
  }

  /// Rows of logits become probabilities in place; what a row does not see gets 0.
  void softmax(float* logit, int first, int count) const {
    for (int r = 0; r < count; ++r) {
      float* const row = logit + index(r, 0);
      int const seen = visible(first + r);
      float highest = -std::numeric_limits<float>::infinity();
      for (int e = 0; e < seen; ++e) highest = std::max(highest, row[e]);
      float sum = 0;
      for (int e = 0; e < seen; ++e) sum += row[e] = std::exp(row[e] - highest);
      float const share = sum == 0 ? 0.0f : 1.0f / sum;
      for (int e = 0; e < seen; ++e) row[e] *= share;
      std::fill(row + seen, row + entries_, 0.0f);
    }
  }

  /// Adds a block's rows to row_sum_; after the last block of a mean, divides.
  void fold_rows(float const* block_rows, int first, int count) {
    for (int r = 0; r < count; ++r) {
      for (int e = 0; e < entries_; ++e) fold(row_sum_[e], block_rows[index(r, e)], how_.rows, first + r == begin_);
    }
    if (how_.rows == reduction::mean && first + count == end_) scale(row_sum_, entries_, end_ - begin_);
  }

  void rows_first() {
    for (int h = 0; h < group_; ++h) {
      for (int first = begin_; first < end_; first += block) {
        int const count = std::min(block, end_ - first);
        logits(who_.head * group_ + h, first, count);
        softmax(head_, first, count);
        fold_rows(head_, first, count);
      }
      for (int e = 0; e < entries_; ++e) fold(total_[e], row_sum_[e], how_.group, h == 0);
    }
    if (how_.group == reduction::mean) scale(total_, entries_, group_);
  }

  void group_first() {
    bool const on_logits = how_.order == reduction_order::group_on_logits;
    for (int first = begin_; first < end_; first += block) {
      int const count = std::min(block, end_ - first);
      for (int h = 0; h < group_; ++h) {
        logits(who_.head * group_ + h, first, count);
        if (!on_logits) softmax(head_, first, count);
        int const seen = on_logits ? visible(first + count - 1) : entries_;
        for (int r = 0; r < count; ++r) {
          for (int e = 0; e < seen; ++e) fold(combined_[index(r, e)], head_[index(r, e)], how_.group, h == 0);
        }
      }
      if (how_.group == reduction::mean) scale(combined_, count * entries_, group_);
      if (on_logits) softmax(combined_, first, count);
      fold_rows(combined_, first, count);
    }
    std::copy_n(row_sum_, entries_, total_);
  }

  static void scale(float* values, int count, int by) {
    for (int i = 0; i < count; ++i) values[i] /= static_cast<float>(by);
  }

  [[nodiscard]] std::ptrdiff_t index(int row, int e) const { return static_cast<std::ptrdiff_t>(row) * entries_ + e; }

  keys const& keys_;
  query_view const& rows_;
  attention_mass_options const& how_;
  lane who_;
  int group_;
  int const* position_;
  int entries_ = 0;
  int begin_ = 0;
  int end_ = 0;
  int domain_ = 0;
  float* head_ = nullptr;
  float* combined_ = nullptr;
  float* row_sum_ = nullptr;
  float* total_ = nullptr;
  float* query_ = nullptr;
};

}  // namespace detail

template <>
struct implementation<ops::attention_mass_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const& model, int bound) { return detail::lane_mass::scratch(model, bound); }

  static void run(host_executor& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
                  score_view const& out) {
    int const together = out.who.size() / out.segments();
    exec.for_each(out.segments(), [&](int segment, int worker) {
      int const first = first_lane(out.who, out.decides, segment);
      for (int i = 0; i < together; ++i) {
        detail::lane_mass(from, rows, how, out.who, out.who.at(first + i), rows.heads / out.who.heads,
                          exec.scratch(worker))
            .write(out.row(segment), i == 0);
      }
      if (how.lanes != reduction::mean || together == 1) return;
      int const count = out.who.committed(out.lane_of(segment));
      for (int e = 0; e < count; ++e) out.row(segment)[e] /= static_cast<float>(together);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <kvpolicy/admission/admission.hpp>
#include <limits>
#include <utility>

namespace tinylm {
namespace {

using matrix =
    Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
using const_matrix =
    Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> const, 0, Eigen::OuterStride<>>;

/// The attention of a few query rows of all query heads that read one KV head.
class lane_attention {
 public:
  static constexpr int block = 32;  ///< the number of query rows that read a page together

  lane_attention(attention_call const& call, kv::lane this_lane, int first, int rows, std::vector<float>& scratch)
      : call_(call),
        lanes_(this_lane),
        first_(first),
        rows_(rows),
        dims_(call.entries.shape.head_dim),
        all_(rows * call.entries.shape.group()),
        position_(call.entries.lanes.position.row(this_lane)),
        entries_(*call.entries.lanes.count.row(this_lane)) {
    seen_ = visible(rows - 1);
    auto const floats = static_cast<std::size_t>(all_) * static_cast<std::size_t>(seen_ + 2 * dims_);
    if (scratch.size() < floats) scratch.resize(floats);
    query_ = scratch.data();
    out_ = query_ + all_ * dims_;
    weight_ = out_ + all_ * dims_;
  }

  void run() {
    load_queries();
    matrix weight(weight_, all_, seen_, Eigen::OuterStride<>(seen_));
    matrix const query(query_, all_, dims_, Eigen::OuterStride<>(dims_));
    matrix out(out_, all_, dims_, Eigen::OuterStride<>(dims_));
    for_each_page(call_.entries.k, [&](int at, const_matrix const& keys) {
      weight.middleCols(at, keys.rows()).noalias() = query * keys.transpose();
    });
    for (int i = 0; i < all_; ++i) softmax(weight_ + std::ptrdiff_t{i} * seen_, i % rows_);
    out.setZero();
    for_each_page(call_.entries.v, [&](int at, const_matrix const& values) {
      out.noalias() += weight.middleCols(at, values.rows()) * values;
    });
    store();
  }

 private:
  [[nodiscard]] int position_of(int row) const { return call_.seen_first + first_ - call_.first + row; }

  /// The number of entries at positions up to a row's own. They are a prefix, because positions ascend.
  [[nodiscard]] int visible(int row) const {
    return static_cast<int>(std::upper_bound(position_, position_ + entries_, position_of(row)) - position_);
  }

  [[nodiscard]] std::byte const* row_of(kv::plane const& rows, int ordinal) const {
    return rows.row(lanes_.layer, call_.entries.where.at(lanes_, ordinal), lanes_.head);
  }

  /// The number of adjacent rows from an entry on: the rest of its page, or the rows whose pointers are adjacent.
  [[nodiscard]] int run_of(kv::plane const& rows, int at) const {
    if (rows.bases.data == nullptr) return std::min(call_.entries.where.unit_tokens, seen_ - at);
    int run = 1;
    std::byte const* const begin = row_of(rows, at);
    while (at + run < seen_ && row_of(rows, at + run) == begin + run * rows.token_stride) ++run;
    return run;
  }

  /// Calls visit(ordinal of the first row, rows) for every page that a query of this block sees.
  template <class Visit>
  void for_each_page(kv::plane const& rows, Visit const& visit) const {
    for (int at = 0, run = 0; at < seen_; at += run) {
      run = run_of(rows, at);
      auto const* const begin = reinterpret_cast<float const*>(row_of(rows, at));
      visit(at, const_matrix(begin, run, dims_, Eigen::OuterStride<>(rows.token_stride / 4)));
    }
  }

  void load_queries() {
    float const scale = 1.0f / std::sqrt(static_cast<float>(dims_));
    for (int i = 0; i < all_; ++i) {
      float const* const from = call_.queries.row(lanes_.layer, query_head(i), first_ + i % rows_);
      for (int d = 0; d < dims_; ++d) query_[i * dims_ + d] = from[d] * scale;
    }
  }

  /// Hides the entries before the window that were not admitted.
  void hide_by_slash(float* logits, int row, int visible) const {
    std::uint8_t const* const admitted = call_.slash->admitted.row(lanes_);
    for (int e = 0; e < visible; ++e) {
      bool const seen = kv::visible(position_of(row), position_[e], call_.slash->window, admitted[e] != 0);
      if (!seen) logits[e] = -std::numeric_limits<float>::infinity();
    }
  }

  /// Turns the logits of a query row into probabilities. Hidden entries, and those after the last that it sees, get 0.
  void softmax(float* row, int of) const {
    int const visible = this->visible(of);
    if (call_.slash != nullptr) hide_by_slash(row, of, visible);
    if (call_.hidden.data != nullptr) {
      std::uint8_t const* const hidden = call_.hidden.row(lanes_);
      for (int e = 0; e < visible; ++e) {
        if (hidden[position_[e]] != 0) row[e] = -std::numeric_limits<float>::infinity();
      }
    }
    if (call_.mask != nullptr) {
      auto const* const addend = reinterpret_cast<float const*>(call_.mask->rows.row(lanes_));
      for (int e = 0; e < visible; ++e) row[e] += addend[call_.entries.where.at(lanes_, e).unit];
    }
    Eigen::Map<Eigen::ArrayXf> logits(row, visible);
    logits = (logits - logits.maxCoeff()).exp();
    logits /= logits.sum();
    std::fill(row + visible, row + seen_, 0.0f);
  }

  void store() const {
    int const heads = call_.entries.shape.query_heads;
    for (int i = 0; i < all_; ++i) {
      std::copy_n(out_ + i * dims_, dims_,
                  call_.out + ((first_ - call_.first + i % rows_) * heads + query_head(i)) * dims_);
    }
  }

  [[nodiscard]] int query_head(int i) const { return lanes_.head * call_.entries.shape.group() + i / rows_; }

  attention_call const& call_;
  kv::lane lanes_;
  int first_;
  int rows_;
  int dims_;
  int all_;  ///< the number of query rows of all heads of the group, which are stored head by head
  int const* position_;
  int entries_;
  int seen_ = 0;
  float* query_ = nullptr;
  float* out_ = nullptr;
  float* weight_ = nullptr;
};

}  // namespace

void attend(kv::host_executor& exec, std::span<attention_call const> calls, std::vector<std::vector<float>>& scratch) {
  std::vector<std::pair<std::size_t, int>> blocks;  // the call of each block of rows, and the block's first row in it
  for (std::size_t c = 0; c < calls.size(); ++c) {
    for (int at = 0; at < calls[c].rows; at += lane_attention::block) blocks.emplace_back(c, at);
  }
  if (blocks.empty()) return;
  int const heads = calls.front().entries.shape.kv_heads;
  exec.for_each(static_cast<int>(blocks.size()) * heads, [&](int i, int worker) {
    auto const [which, at] = blocks[static_cast<std::size_t>(i / heads)];
    attention_call const& call = calls[which];
    kv::lane const this_lane{call.sequence, call.layer, i % heads};
    lane_attention(call, this_lane, call.first + at, std::min(lane_attention::block, call.rows - at),
                   scratch[static_cast<std::size_t>(worker)])
        .run();
  });
}

}  // namespace tinylm

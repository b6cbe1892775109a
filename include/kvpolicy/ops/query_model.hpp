// SPDX-License-Identifier: Apache-2.0
// Signals: what is known of a model's queries before any of them is seen, and queries before RoPE.
#pragma once

#include <kvpolicy/core/query_view.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the mean query of each query head before RoPE, how long its pairs are on average, and the covariance of its
/// channels, as a profile of the model found them. They are views of one row for each layer and query head, the
/// covariance of D rows; rows have no position, and the memory is the engine's, which the executor can read. A scorer
/// reads some of them: what it does not read may be null, but for the mean.
struct query_model {
  static constexpr auto name = "query_model";
  static constexpr auto tensor = "query_model.mean";
  query_view mean{};      ///< rows of D channels: E q
  query_view radius{};    ///< rows of a number for each pair that turns: E |q_f|, the length of pair f
  kvpolicy::rope rope{};  ///< how the model rotates
  query_view square{};    ///< D rows of D channels: E (q - E q) (q - E q)^T

  /// The channels that turn, from the first on; the pairs are half as many.
  [[nodiscard]] KVPOLICY_HD int turned() const { return rope.dims != 0 ? rope.dims : mean.dims; }
  /// The two channels of a pair.
  [[nodiscard]] KVPOLICY_HD int first_of(int pair) const { return rope.style == rope_style::neox ? pair : 2 * pair; }
  [[nodiscard]] KVPOLICY_HD int second_of(int pair) const {
    return rope.style == rope_style::neox ? pair + turned() / 2 : 2 * pair + 1;
  }

  void check(char const* call, shape const& model) const {
    check_rows_of(call, "query_model.mean", mean, model.head_dim, model);
    expects(turned() >= 2 && turned() <= mean.dims && turned() % 2 == 0, call, "query_model.rope.dims", rope.dims,
            "pairs of channels turn, at most all");
    if (radius.base != nullptr) check_rows_of(call, "query_model.radius", radius, turned() / 2, model);
    if (square.base != nullptr) {
      check_rows_of(call, "query_model.square", square, model.head_dim, model);
      expects(square.rows == model.head_dim, call, "query_model.square.rows", square.rows,
              [&] { return "a covariance of " + std::to_string(model.head_dim) + " channels has as many rows"; });
    }
    expects(rope.frequency || (rope.theta > 0 && rope.theta - rope.theta == 0), call, "query_model.rope.theta",
            rope.theta, "it is a finite number above 0");
  }
  void check_strides(char const* call, lanes const& batch) const {
    for (query_view const* const one : {&mean, &radius, &square}) {
      if (one->base == nullptr) continue;
      detail::check_stride(call, "query_model.layer", one->layer, "layers", batch.layers());
      detail::check_stride(call, "query_model.head", one->head, "query heads", one->heads);
      detail::check_stride(call, "query_model.row", one->row, "rows", one->rows);
    }
  }
  /// Refuses a profile without the part that a scorer reads.
  static void expect_part(char const* call, char const* whose, char const* which, query_view const& part) {
    expects(
        part.base != nullptr, call, [which] { return std::string("query_model.") + which; }, "null",
        [whose] { return std::string(whose) + " reads it"; });
  }

 private:
  static void check_rows_of(char const* call, char const* which, query_view const& rows, int dims, shape const& model) {
    expects(rows.base != nullptr, call, which, "null", "a signal is the engine's memory");
    detail::check_readable(call, which, rows.element);
    detail::check_not_fp8(call, which, rows.element);
    auto const member = [which](char const* of) { return [=] { return std::string(which) + of; }; };
    expects(rows.dims == dims, call, member(".dims"), rows.dims,
            [&] { return "the model's heads have " + std::to_string(dims); });
    expects(rows.heads == model.query_heads, call, member(".heads"), rows.heads,
            [&] { return "the model has " + std::to_string(model.query_heads) + " query heads"; });
  }
};

/// Signal: the query rows of a prompt before RoPE, one for each of its tokens, and how the model rotates.
struct pre_rope_queries : query_view {
  static constexpr auto name = "pre_rope_queries";
  kvpolicy::rope rope{};

  void check(char const* call, shape const& model) const {
    detail::check_rows_given(call, name, *this, model);
    expects(dims == model.head_dim, call, "pre_rope_queries.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
    int const turned = rope.dims != 0 ? rope.dims : dims;
    expects(turned >= 2 && turned <= dims && turned % 2 == 0, call, "pre_rope_queries.rope.dims", rope.dims,
            "pairs of channels turn, at most all");
    expects(rope.frequency || (rope.theta > 0 && rope.theta - rope.theta == 0), call, "pre_rope_queries.rope.theta",
            rope.theta, "it is a finite number above 0");
  }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_row_strides(call, name, *this, batch);
  }
  void check_rows(char const* call, lanes const& batch) const { detail::check_row_positions(call, name, *this, batch); }
};

/// One query head of each KV head's group, as rows of one query head for each KV head.
[[nodiscard]] inline query_view one_of_group(query_view from, int which, int group) {
  if (from.base != nullptr) from.base += which * from.head;
  if (from.lse.data != nullptr) from.lse.data += which * from.lse.head;
  from.lse.head *= group;
  from.head *= group;
  from.heads /= group;
  return from;
}
/// What is known of one query head of each lane's group.
[[nodiscard]] inline query_model one_of_group(query_model const& from, int which, int group) {
  return {one_of_group(from.mean, which, group), one_of_group(from.radius, which, group), from.rope,
          one_of_group(from.square, which, group)};
}

/// A profile in contiguous float32: `mean` [layer][query head][D] before RoPE, and `radius` [layer][query head][pair]
/// of the pairs that turn, in the executor's memory.
[[nodiscard]] inline query_model query_model_of(float const* mean, float const* radius, shape const& model,
                                                rope const& turns) {
  auto const rows = [&](float const* from, int width) {
    query_view made;
    made.base = reinterpret_cast<std::byte const*>(from);
    made.dims = width;
    made.head = std::int64_t{4} * width;
    made.layer = made.head * model.query_heads;
    made.heads = model.query_heads;
    made.rows = 1;
    return made;
  };
  return {rows(mean, model.head_dim), rows(radius, (turns.dims != 0 ? turns.dims : model.head_dim) / 2), turns};
}

}  // namespace KVPOLICY_NAMESPACE

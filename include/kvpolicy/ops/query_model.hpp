// SPDX-License-Identifier: Apache-2.0
// Signal: what is known of a model's queries before any of them is seen.
#pragma once

#include <kvpolicy/core/query_view.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the mean query of each query head before RoPE, and how long its pairs are on average, as a profile of the
/// model found them. Both are views of one row for each layer and query head; rows have no position, and the memory is
/// the engine's, which the executor can read.
struct query_model {
  static constexpr auto name = "query_model";
  static constexpr auto tensor = "query_model.mean";
  query_view mean{};      ///< rows of D channels: E q
  query_view radius{};    ///< rows of a number for each pair that turns: E |q_f|, the length of pair f
  kvpolicy::rope rope{};  ///< how the model rotates

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
    check_rows_of(call, "query_model.radius", radius, turned() / 2, model);
    expects(rope.frequency || (rope.theta > 0 && rope.theta - rope.theta == 0), call, "query_model.rope.theta",
            rope.theta, "it is a finite number above 0");
  }
  void check_strides(char const* call, lanes const& batch) const {
    for (query_view const* const one : {&mean, &radius}) {
      detail::check_stride(call, "query_model.layer", one->layer, "layers", batch.layers());
      detail::check_stride(call, "query_model.head", one->head, "query heads", one->heads);
    }
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

// SPDX-License-Identifier: Apache-2.0
// Verb: adds the output of a small trained head to the scores of tokens.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/feature_sums.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// IntentKV's residual head (arXiv:2606.09916, section 3.3). These are views of float32 weights in the executor's
/// memory. Each matrix is [out][in], row-major, as in PyTorch's Linear.
///
///     phi_j = [ k_j | m | k_j * m | rule_j ]        k_j, m: means of an entry's keys and of the memory over all heads
///     c_j   = softmax(W_q phi_j . W_k k_i / sqrt(width / 4)) W_v k_i      i: the span's entries; 4 heads, no W_o
///     r_j   = fc2 gelu(fc1 [ phi_j | c_j ])
struct residual_head {
  static constexpr int heads = 4;

  int dims = 0;                ///< D
  int width = 0;               ///< d_c, summed over the four heads
  int hidden = 0;              ///< h
  float const* w_q = nullptr;  ///< [width][3 D + 1]
  float const* w_q_bias = nullptr;
  float const* w_k = nullptr;  ///< [width][D]
  float const* w_k_bias = nullptr;
  float const* w_v = nullptr;  ///< [width][D]
  float const* w_v_bias = nullptr;
  float const* fc1 = nullptr;  ///< [hidden][3 D + 1 + width]
  float const* fc1_bias = nullptr;
  float const* fc2 = nullptr;  ///< [hidden]
  float const* fc2_bias = nullptr;
  float alpha = 0;  ///< factor of the head's output; clipped to -5 .. 5

  /// The number of parameters of a head, including alpha: 214,274 for D = 128, width 128, hidden 256.
  [[nodiscard]] static constexpr std::int64_t parameters(int dims, int width, int hidden) {
    std::int64_t const phi = 3 * std::int64_t{dims} + 1;
    return (phi + 1) * width + 2 * (std::int64_t{dims} + 1) * width + (phi + width + 1) * hidden + hidden + 2;
  }
  [[nodiscard]] bool there() const { return w_q != nullptr; }

  /// Makes a head from tensors. `of(name)` returns a pointer to the tensor that files call "w_q.weight", "w_q.bias",
  /// ..., "alpha".
  template <class Find>
  [[nodiscard]] static residual_head named(int dims, int width, int hidden, Find const& of) {
    return {.dims = dims,
            .width = width,
            .hidden = hidden,
            .w_q = of("w_q.weight"),
            .w_q_bias = of("w_q.bias"),
            .w_k = of("w_k.weight"),
            .w_k_bias = of("w_k.bias"),
            .w_v = of("w_v.weight"),
            .w_v_bias = of("w_v.bias"),
            .fc1 = of("fc1.weight"),
            .fc1_bias = of("fc1.bias"),
            .fc2 = of("fc2.weight"),
            .fc2_bias = of("fc2.bias"),
            .alpha = *of("alpha")};
  }

  void check(char const* call, shape const& model) const {
    expects(w_q != nullptr && w_q_bias != nullptr && w_k != nullptr && w_k_bias != nullptr && w_v != nullptr &&
                w_v_bias != nullptr && fc1 != nullptr && fc1_bias != nullptr && fc2 != nullptr && fc2_bias != nullptr,
            call, "residual", "null", "a head has ten tensors and alpha");
    expects(dims == model.head_dim, call, "residual.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
    expects(width >= heads && width % heads == 0, call, "residual.width", width, "four heads share it evenly");
    expects(hidden >= 1, call, "residual.hidden", hidden, "there is at least one hidden unit");
    expects(std::isfinite(alpha), call, "residual.alpha", alpha, "it is finite");
  }

  friend bool operator==(residual_head const&, residual_head const&) = default;
};

/// Options of `residual`.
struct residual_options {
  int tail = 32;                ///< how many of the last query rows stand for an unknown span
  bool cross_attention = true;  ///< false: c_j = 0
};

/// The layout of the scratch of `residual`, in floats. Rows of weights are padded to blocks of 32.
struct residual_sizes {
  static constexpr int block = 32;
  static constexpr int entries_of_a_task = 480;  ///< entries that one task computes together
  static constexpr int span_of_a_step = 128;     ///< entries of a long span that are attended to in one step
  static constexpr int rows_of_a_tile = 24;
  static constexpr int most_tasks = 16;

  std::int64_t dims = 0;
  std::int64_t width = 0;
  std::int64_t hidden = 0;
  std::int64_t bound = 0;

  constexpr residual_sizes(residual_head const& head, int entries)
      : dims(head.dims), width(head.width), hidden(head.hidden), bound(entries) {}

  [[nodiscard]] static constexpr std::int64_t padded(std::int64_t n) { return (n + block - 1) / block * block; }
  [[nodiscard]] constexpr std::int64_t head_width() const { return width / residual_head::heads; }
  [[nodiscard]] constexpr std::int64_t projection() const { return padded(width) * (dims + 2); }
  [[nodiscard]] constexpr std::int64_t perceptron() const { return padded(hidden) * (dims + width + 3); }
  /// Weights of attention to a span of at most a block, for all heads.
  [[nodiscard]] static constexpr std::int64_t weights_of_span() { return residual_head::heads * std::int64_t{block}; }
  [[nodiscard]] constexpr std::int64_t short_span() const {
    std::int64_t const logits = weights_of_span() * (dims + 2), units = padded(hidden) * (dims + weights_of_span() + 2);
    return logits + units + dims * (padded(width) + block) + 3 * width * block;
  }
  /// The columns of a key's hidden units: a mean of keys, and a context or weights of attention.
  [[nodiscard]] constexpr std::int64_t joined() const {
    return dims + (width > weights_of_span() ? width : weights_of_span());
  }
  [[nodiscard]] constexpr std::int64_t task() const {
    std::int64_t const sum = padded(head_width()) * residual_head::heads;
    std::int64_t const entry = padded(width) + sum + 2 * residual_head::heads;
    std::int64_t const tile = 2 * block + 2 + joined() + padded(width);
    return entries_of_a_task * entry + span_of_a_step * (width + sum) + rows_of_a_tile * tile;
  }
  [[nodiscard]] constexpr std::int64_t tasks() const {
    std::int64_t const wanted = (bound + entries_of_a_task - 1) / entries_of_a_task;
    return wanted < most_tasks ? wanted : most_tasks;
  }
  [[nodiscard]] constexpr std::int64_t all() const {
    return 3 * projection() + perceptron() + short_span() + tasks() * task();
  }
};

namespace ops {

/// `residual(exec, features, turn, head, how, out, temp_storage)`: out[e] += alpha r_e for every candidate, which is an
/// entry whose score is not -inf.
///
/// - in: `features`, sums over all ranks, which this verb may overwrite with means; `turn`, which defines the span. The
///   live entries of the span are attended to; if there are none, c = 0.
/// - in, out: `out` [sequences, entries], the scores of the rule over all ranks.
/// - ranks: scores and sums must be reduced over ranks before. The head is not linear, so the sum of the outputs of
///   ranks would be another score.
/// - cost: (width + hidden) D + hidden width + 2 width span multiplications per entry, and 2 width D span per 480
///   entries. On the host a span of at most 32 entries is folded into the weights: (128 + hidden) D + 128 hidden per
///   entry.
/// - scratch: `temp_storage` points to `scratch_floats(head, bound)` floats in the executor's memory, which are
///   overwritten.
/// - throws: `invalid_argument` if the head is incomplete or of another shape.
struct residual_t : verb<residual_t> {
  static constexpr auto name = "residual";
  /// The number of floats of `temp_storage`: the packed weights of a head, and the working memory of tasks. A plan
  /// allocates them beside the features.
  [[nodiscard]] static constexpr std::int64_t scratch_floats(residual_head const& head, int bound) {
    return residual_sizes(head, bound).all();
  }

  static void check(token_features const& features, turn_queries const&, residual_head const& head,
                    residual_options const&, score_view const& out, float const*) {
    head.check("residual", {0, 0, 0, features.dims});
    expects(out.decides == granularity::sequence, "residual", "decides", to_string(out.decides),
            "it is a score of tokens, over all layers and heads");
  }
};
inline constexpr residual_t residual{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

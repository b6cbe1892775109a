// SPDX-License-Identifier: Apache-2.0
// Verb: computes how long each entry's value is after the model's output projection, and the signals for that.
#pragma once

#include <array>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Which norm of a row it is: the sum of its absolute values, or the Euclidean one.
enum class norm_of_row { l1, l2 };
[[nodiscard]] constexpr std::array<char const*, 2> names(norm_of_row) { return {"l1", "l2"}; }

/// Signal: W_o, the matrix by which a layer turns the outputs of its attention heads into its own output, [layer,
/// channel of the output, query head, channel of a value], as a linear layer stores it. The columns of a query head are
/// contiguous, and so are those of all heads unless `head` says otherwise. The memory is the engine's, which the
/// executor can read. Sequences share it.
struct output_projection {
  static constexpr auto name = "output_projection";
  std::byte const* base = nullptr;
  codec element = codec::f32;  ///< f32, f16 or bf16
  int dims = 0;                ///< Dv, the channels of a value
  int width = 0;               ///< channels of the layer's output
  int heads = 0;               ///< number of query heads
  std::int64_t layer = 0;      ///< strides in bytes
  std::int64_t channel = 0;    ///< between channels of the output
  std::int64_t head = 0;       ///< between query heads; 0: the bytes of Dv channels

  /// The columns of each query head as rows that values are multiplied by, one for each channel of the output.
  [[nodiscard]] query_view rows() const {
    query_view made;
    made.base = base;
    made.element = element;
    made.dims = dims;
    made.layer = layer;
    made.head = head != 0 ? head : std::int64_t{dims} * bytes_of(element);
    made.row = channel;
    made.heads = heads;
    made.rows = width;
    return made;
  }

  void check(char const* call, shape const& model) const {
    expects(base != nullptr, call, name, "null", "a signal is the engine's memory");
    detail::check_readable(call, name, element);
    detail::check_not_fp8(call, name, element);
    int const channels = model.value_dim != 0 ? model.value_dim : model.head_dim;
    expects(dims == channels, call, "output_projection.dims", dims,
            [&] { return "values have " + std::to_string(channels) + " channels"; });
    expects(heads == model.query_heads, call, "output_projection.heads", heads,
            [&] { return "the model has " + std::to_string(model.query_heads) + " query heads"; });
    expects(width >= 1, call, "output_projection.width", width, "a layer's output has channels");
  }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_stride(call, "output_projection.layer", layer, "layers", batch.layers());
    detail::check_stride(call, "output_projection.channel", channel, "channels", width);
  }
};

/// W_o of each layer in contiguous memory, [layer, width, query head, Dv], in the executor's memory.
[[nodiscard]] inline output_projection output_projection_of(void const* data, codec element, int width,
                                                            shape const& model) {
  output_projection made{static_cast<std::byte const*>(data), element};
  made.dims = model.value_dim != 0 ? model.value_dim : model.head_dim;
  made.width = width;
  made.heads = model.query_heads;
  made.channel = std::int64_t{made.dims} * made.heads * bytes_of(element);
  made.layer = made.channel * width;
  return made;
}

/// The projection of one query head of each KV head's group.
[[nodiscard]] inline output_projection one_of_group(output_projection from, int which, int group) {
  std::int64_t const head = from.rows().head;
  from.base += which * head;
  from.head = head * group;
  from.heads /= group;
  return from;
}

/// Signal: the norm of each entry's value after the output projection, which the engine or a kernel beside it has
/// computed: the mean over the query heads of the lane's group, one float for each entry of a lane. Where it is given,
/// `output_projection` is not read.
struct value_norms {
  static constexpr auto name = "value_norms";
  by_lane<float const> norm{};
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, norm); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, norm, batch);
  }
};

/// Which norms `projected_norm` computes.
struct projected_norm_options {
  norm_of_row norm = norm_of_row::l1;
};

namespace ops {

/// `projected_norm(exec, values, output_projection, options, combine, out)`: out[e] = combine(out[e], x), where
///
///     x = mean over the query heads h of the lane's group of || W_o,h v_e ||
///
/// and W_o,h is the columns of head h.
///
/// - in: `values` of `out.lanes`, of any codec; `output_projection` of their layers; `combine`, a struct with a
///   KVPOLICY_HD `float operator()(float old, float norm) const`, such as `replaced` or `multiplied`.
/// - out: float32 [lanes, entries]. Products and sums are floats: Euclidean norms of 1e19 and more are infinite.
/// - NaN: a NaN in a value or in a row of the projection stays.
/// - cost: O(group * width * entries * Dv) per lane, reading every value once for each 128 rows of the projection.
///   Scratch per worker: two floats per entry, 193 rows of Dv floats, where Dv is rounded up to a multiple of 32, and
///   16 KiB.
/// - throws: `invalid_argument` if sizes of values and projection differ, if query heads are no multiple of the lanes'
///   heads, if the projection has no rows or rows of a type that it cannot read, or if a segment of the scores is not
///   one lane. On the host, an exception of `combine` is passed on; then `out` is as `map` leaves scores.
/// - source: CriticalKV (Feng et al. 2025, arXiv:2502.03805), the second step of its selection, with norm l1.
struct projected_norm_t : verb<projected_norm_t> {
  static constexpr auto name = "projected_norm";
  template <executor Executor, class Combine>
  void operator()(Executor& exec, values const& from, output_projection const& by, projected_norm_options const& how,
                  Combine const& combine, score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<projected_norm_t>::operator()(exec, from, by, how, combine, out);
  }

  template <class Combine>
  static void check(values const& from, output_projection const& by, projected_norm_options const&, Combine const&,
                    score_view const& out) {
    detail::check_readable(name, "values", from.rows.element);
    detail::check_scales(name, "values", from.rows);
    detail::check_readable(name, "output_projection", by.element);
    detail::check_not_fp8(name, "output_projection", by.element);
    expects(by.base != nullptr, name, "output_projection", "null", "a signal is the engine's memory");
    expects(by.dims == from.rows.channels, name, "output_projection.dims", by.dims,
            [&] { return "values have " + std::to_string(from.rows.channels) + " channels"; });
    expects(by.width >= 1, name, "output_projection.width", by.width, "a layer's output has channels");
    expects(by.heads > 0 && by.heads % out.lanes.heads == 0, name, "output_projection.heads", by.heads,
            "query heads are shared out evenly among KV heads");
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "values belong to lanes");
  }
};
inline constexpr projected_norm_t projected_norm{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

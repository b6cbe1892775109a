// SPDX-License-Identifier: Apache-2.0
// Verb: records the sum of each token's keys over all layers and heads, which never changes after they were written.
#pragma once

#include <cstdint>
#include <kvpolicy/core/columns.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the sum of the keys of every token over the lanes of its sequence, float32. The channels of a sum are
/// divided among these lanes, because a column has a row for each lane: lane i of a sequence has `each` channels, from
/// channel i * `each` on. A channel that was not recorded is +0, and a recorded zero is -0.
struct key_sums {
  static constexpr auto name = "key_sums";
  by_lane<float> channels{};  ///< [lanes][entries][each]
  int each = 0;               ///< 0: nothing is recorded
  int layers = 0;             ///< layers of a sequence that have rows

  /// The number of channels of a token in each lane.
  [[nodiscard]] static constexpr int channels_of_a_lane(shape const& model) {
    int const lanes_of_a_token = model.layers * model.kv_heads;
    return (model.head_dim + lanes_of_a_token - 1) / lanes_of_a_token;
  }
  /// True if a batch has all lanes among which the channels are divided, and these suffice.
  [[nodiscard]] KVPOLICY_HD constexpr bool fits(lanes const& batch, int dims) const {
    return each > 0 && batch.layers() == layers && each * layers * batch.heads >= dims;
  }
  /// The address of a channel of a token.
  [[nodiscard]] KVPOLICY_HD float* at(lanes const& batch, int sequence, int entry, int channel) const {
    int const i = channel / each;
    lane const holder{batch.sequence_begin + sequence, batch.layer_begin + i / batch.heads, i % batch.heads};
    return channels.row(holder) + std::int64_t{entry} * each + channel % each;
  }
  /// True if this number was recorded.
  [[nodiscard]] KVPOLICY_HD static bool is_recorded(float number) { return detail::any_recorded(&number, 1); }
  /// A sum as it is recorded.
  [[nodiscard]] KVPOLICY_HD static constexpr float recorded(float sum) { return sum == 0 ? -0.0f : sum; }
};

namespace ops {

/// `record_key_sums(exec, keys, batch, sums)`: records the sum of the keys, over the lanes of a sequence, of the tokens
/// at its end that have no sum yet.
///
/// - in: `keys` of `batch`. in, out: `sums`.
/// - Nothing is recorded for a batch of some of a sequence's layers, nor for a token that is not in all of its lanes.
/// - cost: on the host, reads the keys of these tokens once; on a device, one launch. Sums are in single precision, in
///   the order of the lanes. Scratch per worker: 64 D floats.
struct record_key_sums_t : verb<record_key_sums_t> {
  static constexpr auto name = "record_key_sums";
  static void check(keys const& from, lanes const&, key_sums const&) {
    detail::check_readable("record_key_sums", "keys", from.rows.element);
    detail::check_scales("record_key_sums", "keys", from.rows);
  }
};
inline constexpr record_key_sums_t record_key_sums{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// Verb: the input features of IntentKV's residual head, which are sums of keys over all lanes of a token.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/key_sums.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Input features of a residual head, for every sequence: row 0 is the feature of the memory, and row 1 + e that of
/// entry e. They are sums over heads, of which `residual` takes the means.
struct token_features {
  float* data = nullptr;
  int dims = 0;
  int bound = 0;
  [[nodiscard]] static constexpr std::int64_t scratch_floats(lanes const& batch, int dims) {
    return (std::int64_t{batch.capacity} + 1) * dims * batch.sequences;
  }
  [[nodiscard]] KVPOLICY_HD constexpr float* row(int sequence, int i) const {
    return data + ((std::int64_t{bound} + 1) * sequence + i) * dims;
  }
};

namespace ops {

/// `feature_sums(exec, keys, memory, recorded, scores, out)`: computes the sum of each entry's keys over the lanes, and
/// the sum of the memory's rows over layers and query heads.
///
/// - in: `keys` of `scores.lanes`; `memory`, with one row per query head; `recorded`, the sums that `record_key_sums`
///   has written, or {}.
/// - out: `out`, float32. Rows of entries that are not committed are zero.
/// - cost: reads the recorded sums, and once the keys of all other entries. Sums are in single precision, in the order
///   of the lanes. Scratch per worker: D floats.
struct feature_sums_t : verb<feature_sums_t> {
  static constexpr auto name = "feature_sums";
  static void check(keys const& from, query_view const& memory, key_sums const&, score_view const& scores,
                    token_features const& out) {
    expects(from.rows.channels == memory.dims && out.dims == memory.dims, "feature_sums", "memory.dims", memory.dims,
            "keys, memory and features have one head size");
    expects(scores.decides == granularity::sequence, "feature_sums", "decides", to_string(scores.decides),
            "features are of tokens, over all layers and heads");
  }
};
inline constexpr feature_sums_t feature_sums{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE

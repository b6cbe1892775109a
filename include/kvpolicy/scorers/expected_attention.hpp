// SPDX-License-Identifier: Apache-2.0
// Expected Attention scores entries by the attention that queries of later positions will pay on average.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/quadratic_form.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/known_queries.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// A function for `combine`: adds a share of the new value.
struct added_share {
  float share;
  KVPOLICY_HD float operator()(float old, float now) const { return old + share * now; }
};

/// out = x, the logarithm of the mean of e^(s q k) over queries q of a normal distribution: s m k + s^2 k^T S k / 2, of
/// one query head for each lane; s is the scale of attention. Without `square` the second term is left out.
void expected_logits(auto& exec, keys const& k, query_model const& of, bool square, score_view const& out) {
  ops::logits(exec, k, of.mean, {}, replaced{}, out);
  if (!square) return;
  float const scale = scale_of(k.logits, k.rows.channels);
  ops::quadratic_form(exec, k, of.square, added_share{scale * scale / 2}, out);
}

}  // namespace detail

/// Expected Attention (Devoto et al. 2025, arXiv:2510.00636), as kvpress has it: queries of a head are taken for normal
/// ones, whose mean m and covariance S are those of the prompt's rows before RoPE or of a profile of the model.
///
///     x_hj = s m'_h k_j + s^2 k_j^T S'_h k_j / 2
///     a_hj = softmax over the entries behind the sinks of x_hj
///     s_j  = (mean over the group's heads h of a_hj + epsilon) |v_j|
///
/// m' and S' are turned by the mean of RoPE's matrices at the next `future` positions. s is 1 / sqrt(D), or the scale
/// of `keys.logits`, whose soft cap applies to x, and whose sink logits are in the softmax.
///
/// It reads `query_model` where that is given, and else `pre_rope_queries`, whose rows at positions below `sinks` do
/// not count. Entries at these positions are forced, and their attention counts as 0. The plan has N + D + D^2 + 2
/// floats more for each lane, without `covariance` N + D + 2.
struct expected_attention {
  int future = 512;  ///< positions behind the newest entry; 0: queries are taken as they are
  int sinks = 4;
  float epsilon = 0;
  bool covariance = true;  ///< false: x = s m' k
  bool values = true;      ///< false: the mean alone is the score

  static constexpr auto name = "expected_attention";
  static constexpr auto fields() {
    return make_fields(field{"future", &expected_attention::future}, field{"sinks", &expected_attention::sinks},
                       field{"epsilon", &expected_attention::epsilon},
                       field{"covariance", &expected_attention::covariance},
                       field{"values", &expected_attention::values});
  }
  using needs = kvpolicy::needs<keys, kvpolicy::values, any_signal_of<pre_rope_queries, query_model>>;
  using verbs = kvpolicy::verbs<ops::query_moments_t, ops::future_moments_t, ops::logits_t, ops::quadratic_form_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool any_order = true;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(future >= 0, call, "expected_attention.future", future, "a count cannot be negative");
    expects(sinks >= 0, call, "expected_attention.sinks", sinks, "a count cannot be negative");
    expects(epsilon >= 0 && epsilon - epsilon == 0, call, "expected_attention.epsilon", epsilon,
            "it is added to every score, a number of 0 or more");
  }
  void refuse(auto&, auto const& in) const {
    auto const check_profile = [&](query_model const& of) {
      if (covariance) query_model::expect_part("decide", name, "square", of.square);
    };
    detail::with_known_queries(in, check_profile, [](pre_rope_queries const&) {});
  }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    std::int64_t const dims = model.head_dim;
    return batch.size() + rows_of_scores(batch, batch.size() * (2 + dims + (covariance ? dims * dims : 0)));
  }

  /// The logits of entries that the softmax is over, capped if the model caps logits.
  struct behind_sinks {
    int sinks;
    float cap;
    KVPOLICY_HD float operator()(float x, entry at) const {
      if (at.position < sinks) return detail::same_bits<float>(0xFF800000u);  // -inf
      return cap > 0 ? cap * std::tanh(x / cap) : x;
    }
  };
  /// What the sink logit of a query head leaves to the entries, by their highest logit and their highest share.
  struct left_by_sink {
    sink_logits sinks;
    by_lane<float> highest;  ///< [lane][2]: a logit and its share
    int group, head;
    KVPOLICY_HD float operator()(lane one) const {
      if (sinks.data == nullptr) return 1;
      float const* const of = highest.row(one);
      float const sum = 1 / of[1];  // of e^(x - highest)
      return sum / (sum + std::exp(sinks.at(one.layer, one.head * group + head) - of[0]));
    }
  };
  /// Adds the attention of one head more of the group.
  struct of_group {
    by_lane<float> head;
    int sinks;
    bool first;
    float share;
    left_by_sink left;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const now = at.position < sinks ? 0 : head.row(at.lane)[at.ordinal] * share * left(at.lane);
      return first ? now : old + now;
    }
  };
  /// The score by the mean attention and the norm of the value.
  struct by_value {
    float epsilon;
    KVPOLICY_HD float operator()(float mean, float norm) const { return (mean + epsilon) * norm; }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    int const dims = k.rows.channels, group = detail::known_query_heads(in) / out.lanes.heads;
    memory const at(out, dims, covariance);
    for (int h = 0; h < group; ++h) {
      query_model const later =
          detail::future_queries_of(exec, in, out.lanes, {h, group, sinks, future}, dims, at.moments);
      detail::expected_logits(exec, k, later, covariance, at.head);
      ops::map(exec, at.head, behind_sinks{sinks, k.logits.soft_cap});
      left_by_sink const left{k.logits.sinks, at.highest(0), group, h};
      if (left.sinks.data != nullptr) ops::row_stats(exec, at.head, everything{}, statistic::highest, at.highest(0));
      ops::normalise(exec, normalising::softmax, at.head);
      if (left.sinks.data != nullptr) ops::row_stats(exec, at.head, everything{}, statistic::highest, at.highest(1));
      ops::map(exec, out, of_group{at.head.rows, sinks, h == 0, 1.0f / static_cast<float>(group), left});
    }
    if (values) ops::row_norm(exec, in.template get<kvpolicy::values>(), by_value{epsilon}, out);
  }

  friend bool operator==(expected_attention const&, expected_attention const&) = default;

 private:
  /// What a lane has in the memory of the plan: scores and moments of one query head.
  struct memory {
    score_view head;
    moments_of_queries moments;
    by_lane<float> numbers;

    /// The place of the i-th of two numbers of each lane.
    [[nodiscard]] by_lane<float> highest(int i) const {
      by_lane<float> made = numbers;
      made.data += i;
      return made;
    }
    memory(score_view const& out, int dims, bool square) {
      lanes const& batch = out.lanes;
      std::int64_t const size = batch.size();
      head = contiguous_scores(batch, granularity::lane, out.spare, batch.capacity);
      moments.mean = contiguous_scores(batch, granularity::lane, out.spare + size * batch.capacity, dims).rows;
      float* const rest = out.spare + size * (batch.capacity + dims + 2);
      numbers = contiguous_scores(batch, granularity::lane, rest - 2 * size, 2).rows;
      if (!square) return;
      moments.square = contiguous_scores(batch, granularity::lane, rest, std::int64_t{dims} * dims).rows;
    }
  };
};

}  // namespace KVPOLICY_NAMESPACE

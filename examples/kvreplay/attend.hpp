// SPDX-License-Identifier: Apache-2.0
// The attention of the last query row over the entries that a layout leaves.
#pragma once

#include <cmath>
#include <limits>

#include "memory.hpp"

namespace kvreplay {

/// Computes softmax(q k / sqrt(D)) v of the last query row in double, with the scale, the cap and the sinks of the
/// trace. `Held` provides the entries of each lane that are
/// left: their count, rows and element types.
template <class Held>
class attention {
 public:
  attention(options const& with, trace const& of, Held const& held)
      : rerotated_(with.lay == layout::compact_rerotated),
        trace_(of),
        held_(held),
        from_(of.queries ? of.queries : of.recent_queries) {
    kv::expects(static_cast<bool>(from_), "kvreplay", "--attend", "without queries", "the last query row attends");
    kv::expects(of.keys && of.values, "kvreplay", "--attend", "without keys or values", "it reads both");
  }

  /// Writes the output [Hq][Dv] of one layer.
  void layer(int layer, float* out) const {
    kv::shape const& model = trace_.shape();
    for (int head = 0; head < model.query_heads; ++head) {
      kv::lane const this_lane{0, layer, head / model.group()};
      std::byte const* const row =
          from_.data +
          ((std::int64_t{layer} * model.query_heads + head) * from_.shape[2] + from_.shape[2] - 1) * from_.stride(2);
      std::vector<double> query(size(model.head_dim));
      read_row(from_.element, row, query);
      one(this_lane, head, turned(query, held_.count(this_lane) - 1), out + size(head) * size(trace_.value_dim()));
    }
  }

 private:
  static void read_row(kv::codec element, std::byte const* from, std::vector<double>& to) {
    for (std::size_t d = 0; d < to.size(); ++d) {
      to[d] = static_cast<double>(kv::load(element, from + static_cast<std::int64_t>(d) * kv::bytes_of(element)));
    }
  }

  /// With re-rotated keys, rotates the query to the last position, too.
  [[nodiscard]] std::vector<double> turned(std::vector<double> query, int position) const {
    if (!rerotated_) return query;
    kv::rope const& how = trace_.rope();
    int const step = position - trace_.positions.back();
    std::size_t const pairs = query.size() / 2;
    for (std::size_t p = 0; p < pairs; ++p) {
      bool const halves = how.style == kv::rope_style::neox;
      std::size_t const a = halves ? p : 2 * p;
      std::size_t const b = halves ? p + pairs : 2 * p + 1;
      double const plain = std::pow(how.theta, -2.0 * static_cast<double>(p) / static_cast<double>(query.size()));
      double const angle = step * (how.frequency ? how.frequency[static_cast<int>(p)] : plain);
      double const x = query[a], y = query[b];
      query[a] = x * std::cos(angle) - y * std::sin(angle);
      query[b] = y * std::cos(angle) + x * std::sin(angle);
    }
    return query;
  }

  [[nodiscard]] double logit_of(double product, std::size_t dims) const {
    kv::logit_options const& how = trace_.logits();
    double const plain = 1 / std::sqrt(static_cast<double>(dims));
    double const x = product * (how.scale.has_value() ? static_cast<double>(*how.scale) : plain);
    auto const cap = static_cast<double>(how.soft_cap);
    return cap > 0 ? cap * std::tanh(x / cap) : x;
  }

  void one(kv::lane this_lane, int head, std::vector<double> const& query, float* out) const {
    int const count = held_.count(this_lane);
    std::vector<double> weight, key(query.size()), value(size(trace_.value_dim()));
    kv::sink_logits const& sinks = trace_.logits().sinks;
    double const none = -std::numeric_limits<double>::infinity();
    double const sink = sinks.data != nullptr ? static_cast<double>(sinks.at(this_lane.layer, head)) : none;
    double highest = sink;
    for (int e = 0; e < count; ++e) {
      read_row(held_.element(true), held_.row(true, this_lane, e), key);
      double logit = 0;
      for (std::size_t d = 0; d < query.size(); ++d) logit += query[d] * key[d];
      weight.push_back(logit_of(logit, query.size()));
      highest = std::max(highest, weight.back());
    }
    double sum = sink > none ? std::exp(sink - highest) : 0;
    for (double& each : weight) sum += each = std::exp(each - highest);
    std::vector<double> made(value.size(), 0.0);
    for (int e = 0; e < count; ++e) {
      read_row(held_.element(false), held_.row(false, this_lane, e), value);
      for (std::size_t d = 0; d < value.size(); ++d) made[d] += weight[size(e)] / sum * value[d];
    }
    for (std::size_t d = 0; d < made.size(); ++d) out[d] = static_cast<float>(made[d]);
  }

  bool rerotated_;
  trace const& trace_;
  Held const& held_;
  array const& from_;
};

}  // namespace kvreplay

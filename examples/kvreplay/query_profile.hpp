// SPDX-License-Identifier: Apache-2.0
// What a trace tells of the model's queries: a profile, or a prompt's rows before RoPE.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "options.hpp"
#include "trace.hpp"

namespace kvreplay {

/// The profile of queries that a policy reads. A trace that has both gives the profile, if that has all that is read.
class profile_of_queries {
 public:
  /// Finds out what a policy reads by the names of its signals, and refuses a trace that does not have it.
  template <class Policy>
  void look_at(trace const& of, Policy const& policy, std::vector<std::string> const& reads) {
    std::string const profile = kv::query_model::name;
    bool const only = has(reads, profile);
    bool const either = !only && has(reads, std::string(kv::pre_rope_queries::name) + " or " + profile);
    if (!only && !either) return;
    std::string const scorer(policy.score.name_inside());
    bool const square = policy.score.field_text("covariance").value_or("false") == "true";
    computed_ = either && of.pre_rope_queries && (!of.query_mean || (square && !of.query_square));
    given_ = !computed_;
    if (given_ && either && !of.query_mean) {
      refuse(kv::pre_rope_queries::name, "missing", "the policy reads it, or a query_model");
    }
    if (given_ && !of.query_mean) refuse("query_model.mean", "missing", "the policy reads it");
    if (given_ && square && !of.query_square) refuse("query_model.square", "missing", "the policy reads it");
    bool const radius = scorer == kv::tri_attention::name;
    if (radius && !of.query_radius) refuse("query_model.radius", "missing", "the policy reads it");
    bool const turns = radius || policy.score.field_text("future").value_or("0") != "0";
    kv::expects(!turns || of.names_rope(), "kvreplay", "metadata rope_theta", "missing",
                "the policy turns the mean queries as the model does");
    if (!given_) return;
    model_ = {rows_of_each_head(of.query_mean), rows_of_each_head(of.query_radius), of.rope(),
              rows_of_each_head(of.query_square)};
  }

  [[nodiscard]] bool is_given() const { return given_; }        ///< the trace has the profile
  [[nodiscard]] bool is_computed() const { return computed_; }  ///< it is computed of rows before RoPE
  [[nodiscard]] kv::query_model const& model() const { return model_; }

 private:
  static bool has(std::vector<std::string> const& among, std::string const& name) {
    return std::find(among.begin(), among.end(), name) != among.end();
  }
  /// One row of each query head, or several.
  [[nodiscard]] static kv::query_view rows_of_each_head(array const& from) {
    if (!from) return {};
    bool const several = from.shape.size() == 4;
    return {.base = from.data,
            .element = from.element,
            .dims = static_cast<int>(from.shape.back()),
            .layer = from.stride(0),
            .head = from.stride(1),
            .row = several ? from.stride(2) : 0,
            .heads = static_cast<int>(from.shape[1]),
            .rows = several ? static_cast<int>(from.shape[2]) : 1};
  }

  bool given_ = false, computed_ = false;
  kv::query_model model_{};
};

}  // namespace kvreplay

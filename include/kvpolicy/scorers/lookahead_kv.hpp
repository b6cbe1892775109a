// SPDX-License-Identifier: Apache-2.0
// LookaheadKV and DapQ score entries by the attention of query rows that stand for the answer.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/external_queries.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Scores entries by the attention of query rows that the engine makes of tokens which stand for the answer.
///
///     p   = softmax(q k / sqrt(D)) over all keys                   q: the external rows; each sees every entry
///     S_j = mean over rows, then mean over the group's query heads
///     S'  = pool(S) over the entries before the last `recent` ones, which are forced
///
/// `Method` has the name and the default pooling.
template <class Method>
struct answer_attention {
  int recent = 32;
  pooling pool = Method::pool();
  reduction rows = reduction::mean;
  reduction group = reduction::mean;

  static constexpr auto name = Method::name;
  static constexpr auto fields() {
    return make_fields(field{"recent", &answer_attention::recent}, field{"pool", &answer_attention::pool},
                       field{"rows", &answer_attention::rows}, field{"group", &answer_attention::group});
  }
  using needs = kvpolicy::needs<keys, external_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    auto const of = [](char const* member) { return [member] { return std::string(name) + member; }; };
    expects(recent >= 0, call, of(".recent"), recent, "a count cannot be negative");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, of(".pool"), pool.width, "a pool has an odd width");
    expects(group != reduction::last, call, of(".group"), "last", "query heads have no order");
  }
  [[nodiscard]] constexpr kvpolicy::recent forces() const { return {recent}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    external_queries from = in.template get<external_queries>();
    from.position = {};  // every row sees every entry
    ops::compute_attention_mass(exec, in.template get<keys>(), from, {.rows = rows, .group = group}, out);
    ops::pool(exec, pool, out, recent);
  }

  friend bool operator==(answer_attention const&, answer_attention const&) = default;
};

namespace detail {
struct lookahead_kv_method {
  static constexpr auto name = "lookahead_kv";
  static constexpr pooling pool() { return no_pool{}; }
};
struct dapq_method {
  static constexpr auto name = "dapq";
  static constexpr pooling pool() { return max_pool{7}; }
};
}  // namespace detail

/// LookaheadKV (2026): the rows are those of trained lookahead tokens.
using lookahead_kv = answer_attention<detail::lookahead_kv_method>;

/// DapQ (2026): the rows are those of dummy tokens at the positions behind the prompt.
using dapq = answer_attention<detail::dapq_method>;

}  // namespace KVPOLICY_NAMESPACE

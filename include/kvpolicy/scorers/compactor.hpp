// SPDX-License-Identifier: Apache-2.0
// Compactor keeps keys of unusual directions, and the entries that the rows around them attend to.
#pragma once

#include <array>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/span_attention.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/scorers/leverage.hpp>

namespace KVPOLICY_NAMESPACE {

/// Whether a last chunk that is shorter is filled up with zeros, as kvpress does, or not.
enum class chunk_padding { none, kvpress };

[[nodiscard]] constexpr std::array<char const*, 2> names(chunk_padding) { return {"none", "kvpress"}; }

/// Scores the entries between the first and the last ones (Chari and Van Durme 2025, arXiv:2507.08143, as kvpress has
/// it) by two numbers:
///
///     a_j = |v_j| (mean over the group of the sum over rows i of the chunk of j of softmax_j q_i k_j)
///     s_j = blend z(l_j) + z(mean of a over j and its two neighbours)
///
/// Rows of a chunk see all of its entries, and their logits are not scaled; a soft cap and sinks are those of
/// `keys.logits`. l is the leverage of the key before RoPE among these entries, as in `leverage`, and z is over all
/// such entries of the layer. `queries` are those of the whole prompt: an entry whose rows are not there gets no
/// attention. The first `sinks` and the last `recent` entries are forced. The plan has N floats more
/// for each lane.
struct compactor {
  int sinks = 8;   ///< the first entries, which are kept
  int recent = 4;  ///< the last entries, which are kept
  int chunk = 256;
  double blend = -1;  ///< of leverages; -1: the part of the entries that is dropped, 1 - budget / N
  int sketch = 48;    ///< these three as in `leverage`
  std::uint64_t seed = 42;
  double jitter = 0.01;
  chunk_padding padding = chunk_padding::none;
  rows_of_heads given{};  ///< as in `leverage`

  static constexpr auto name = "compactor";
  static constexpr auto fields() {
    return make_fields(field{"sinks", &compactor::sinks}, field{"recent", &compactor::recent},
                       field{"chunk", &compactor::chunk}, field{"blend", &compactor::blend},
                       field{"sketch", &compactor::sketch}, field{"seed", &compactor::seed},
                       field{"jitter", &compactor::jitter}, field{"padding", &compactor::padding});
  }
  using needs = kvpolicy::needs<keys, values, queries, pre_rope_keys>;
  using verbs = kvpolicy::verbs<ops::leverage_t, ops::span_attention_t, ops::pool_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  /// Takes the table "sketch", when a spec is read.
  void use_sketch(rows_of_heads const& named) { given = named; }

  void check(char const* call) const {
    expects(sinks >= 0, call, "compactor.sinks", sinks, "a count cannot be negative");
    expects(recent >= 0, call, "compactor.recent", recent, "a count cannot be negative");
    expects(chunk >= 1, call, "compactor.chunk", chunk, "a chunk has at least one entry");
    expects(blend - blend == 0, call, "compactor.blend", blend, "a finite number");
    keys_as().check(call, name);
  }
  void check(char const* call, shape const& model) const {
    check(call);
    keys_as().check(call, name, model);
  }
  [[nodiscard]] constexpr first_and_last forces() const { return {sinks, recent}; }
  [[nodiscard]] constexpr bool reads_budget() const { return blend == -1; }
  /// Ranks have other heads of a layer.
  [[nodiscard]] static constexpr bool safe_across_ranks() { return false; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) { return batch.size(); }

  /// True of the entries that are scored.
  struct middle {
    first_and_last ends;
    KVPOLICY_HD bool operator()(entry at) const { return !ends(at); }
  };
  /// A part of the score so far, times a norm.
  struct times_norm {
    float part;
    KVPOLICY_HD float operator()(float old, float norm) const { return part * old * norm; }
  };
  /// The score of an entry that is scored, and another one for the others.
  struct only_middle {
    middle of;
    float otherwise;
    KVPOLICY_HD float operator()(float old, entry at) const { return of(at) ? old : otherwise; }
  };
  /// Adds the leverage of an entry, whose weight may be the part of the lane that is dropped.
  struct with_leverage {
    middle of;
    by_lane<float> leverage;
    double blend;
    by_lane<int const> allowed;
    /// The part of the lane's entries that the budget drops.
    [[nodiscard]] KVPOLICY_HD double dropped(entry at) const {
      if (allowed.data == nullptr || *allowed.row(at.lane) >= at.count) return 0;
      return 1 - static_cast<double>(*allowed.row(at.lane)) / at.count;
    }
    KVPOLICY_HD float operator()(float old, entry at) const {
      if (!of(at)) return 0;
      double part = blend;
      if (blend == -1) part = dropped(at);
      return old + static_cast<float>(part) * leverage.row(at.lane)[at.ordinal];
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    middle const of{forces()};
    keys post_rope = in.template get<keys>();
    post_rope.logits.scale = 1.0f;
    auto const& rows = in.template get<queries>();
    entry_chunks const chunks{chunk, sinks, recent, padding == chunk_padding::kvpress};
    ops::span_attention(exec, post_rope, rows, {}, {.chunks = chunks}, out);
    float const share = static_cast<float>(out.lanes.heads) / static_cast<float>(rows.heads);
    ops::row_norm(exec, in.template get<values>(), times_norm{share}, out);
    ops::map(exec, out, only_middle{of, 0});
    ops::pool(exec, avg_pool{3}, out, 0);
    ops::map(exec, out, only_middle{of, detail::same_bits<float>(0xFF800000u)});  // -inf
    ops::normalise(exec, normalising::z, out, detail::whole_layer);
    score_view const leverages = contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity);
    pre_rope_keys const& before = in.template get<pre_rope_keys>();
    ops::leverage(exec, before, keys_as().options(before.rows.channels), of, leverages);
    ops::normalise(exec, normalising::z, leverages, detail::whole_layer);
    ops::map(exec, out, with_leverage{of, leverages.rows, blend, in.allowed});
  }

  friend bool operator==(compactor const&, compactor const&) = default;

 private:
  [[nodiscard]] detail::sketched_keys keys_as() const { return {sketch, seed, jitter, given}; }
};

}  // namespace KVPOLICY_NAMESPACE

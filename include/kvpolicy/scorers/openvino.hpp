// SPDX-License-Identifier: Apache-2.0
// The eviction of OpenVINO GenAI: whole blocks by accumulated attention, by diversity, and representatives of the rest.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/block_scores.hpp>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/similarity.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/recorders/record_attention_mass.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/openvino_blocks.hpp>

namespace KVPOLICY_NAMESPACE {

/// What an entry is scored by: the attention that it received in sum, or for each row that sees it.
enum class received_score { sum, norm_sum };

[[nodiscard]] constexpr std::array<char const*, 2> names(received_score) { return {"sum", "norm_sum"}; }

/// Keeps whole blocks of a prompt, the same in all heads of a layer, as OpenVINO GenAI does.
///
///     m_j     = sum over all rows and query heads of p_ij        or that over N - j, `norm_sum`
///     score   = sum of m over the members of a block
///
/// The first `start` and the last `recent` entries are kept, and the rest of their blocks; blocks of the highest scores
/// fill the places beside them. With `adaptive`, only those blocks are put first that have the part `cover` of what all
/// blocks received; the others rank by how little their keys are like those of all blocks (`ops::similarity`).
///
/// With `crush` n, n of the blocks that would go stay besides (KVCrush). A block's word has a bit for each member, 1 if
/// the member is of the better half by m. The blocks that go are ordered by the Hamming distance of their words to an
/// anchor, and every so many of them stays, where there are at least n.
struct openvino {
  int start = 32;
  int recent = 128;
  int block = 32;
  received_score by = received_score::sum;
  bool adaptive = false;
  double cover = 0.9;
  int crush = 0;
  word_anchor anchor = word_anchor::mean;
  std::uint64_t seed = 0;  ///< of the anchor `random`

  static constexpr auto name = "openvino";
  static constexpr auto fields() {
    return make_fields(
        field{"start", &openvino::start}, field{"recent", &openvino::recent}, field{"block", &openvino::block},
        field{"score", &openvino::by}, field{"adaptive", &openvino::adaptive}, field{"cover", &openvino::cover},
        field{"crush", &openvino::crush}, field{"anchor", &openvino::anchor}, field{"seed", &openvino::seed});
  }
  using needs = kvpolicy::needs<keys, attention_mass>;
  using verbs = kvpolicy::verbs<ops::similarity_t>;
  static constexpr granularity decides = granularity::layer;
  static constexpr bool prompts_only = true;
  static constexpr phase when = phase::prefill;
  static constexpr bool fills_beside_forced = true;

  void check(char const* call) const {
    expects(start >= 0, call, "openvino.start", start, "a count cannot be negative");
    expects(recent >= 0, call, "openvino.recent", recent, "a count cannot be negative");
    expects(block >= 1, call, "openvino.block", block, "a block has at least one entry");
    expects(cover > 0 && cover <= 1, call, "openvino.cover", cover, "a part of what all blocks received, above 0 to 1");
    expects(crush >= 0, call, "openvino.crush", crush, "a count cannot be negative");
  }
  [[nodiscard]] constexpr int entries_of_block() const { return block; }
  [[nodiscard]] constexpr bool ranks_again() const { return adaptive || crush > 0; }
  [[nodiscard]] constexpr first_and_last forces() const { return {start, recent}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_attention_mass{reduction::sum}}; }
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const&) const {
    return ranks_again() ? 4 * batch.sequences * batch.layers() + (adaptive ? batch.size() : 0) : 0;
  }

  /// m of an entry of a layer.
  struct received {
    by_lane<float const> mass;
    int heads;
    bool by_rows;
    KVPOLICY_HD float operator()(float, entry at) const {
      float sum = 0;
      for (int h = 0; h < heads; ++h) sum += mass.row({at.lane.sequence, at.lane.layer, h})[at.ordinal];
      return by_rows ? sum / static_cast<float>(at.count - at.ordinal) : sum;
    }
  };
  [[nodiscard]] received entry_masses(auto const& in) const {
    return {in.template get<attention_mass>().mass, in.lanes.heads, by == received_score::norm_sum};
  }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, entry_masses(in));
    ops::block_scores(exec, score_blocks{block, reduction::sum}, out);
  }

  void rank_again(auto& exec, auto const& in, score_view const& competing, score_view const& scores,
                  score_view const& ranks, by_lane<int> const& kept) const {
    std::int64_t const rows = std::int64_t{scores.segments()} * scores.lanes.capacity;
    auto const spare = [&](std::int64_t from, granularity of) {
      return contiguous_scores(scores.lanes, of, ranks.spare + from, scores.lanes.capacity);
    };
    score_view const work = spare(0, granularity::layer), masses = spare(rows, granularity::layer);
    layer_of_blocks const all{block, scores.lanes.heads, competing.rows, scores.rows, kept};
    if (adaptive) {
      score_view const alike = spare(2 * rows, granularity::lane);
      ops::map(exec, alike, kvpolicy::competing{competing.rows});
      ops::similarity(exec, in.template get<keys>(), alike);
      ops::fold(exec, alike, ops::fold_step{reduction::mean, true, alike.lanes.heads}, work);
      ops::block_scores(exec, score_blocks{block, reduction::sum}, work);
      ops::map_lanes(exec, scores.lanes, put_cover_first{all, cover, work.rows}, kept);
    }
    ops::map(exec, ranks, copied{scores.rows});
    if (crush == 0) return;
    ops::map(exec, masses, entry_masses(in));
    words_of_blocks const words{all, masses.rows, work.rows, anchor, seed};
    ops::map_lanes(exec, scores.lanes, keep_representatives{words, crush, ranks.rows}, kept);
  }

  friend bool operator==(openvino const&, openvino const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE

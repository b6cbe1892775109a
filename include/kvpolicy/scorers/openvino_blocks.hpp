// SPDX-License-Identifier: Apache-2.0
// What OpenVINO GenAI does with the blocks of a layer after it has summed them up.
#pragma once

#include <array>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <kvpolicy/scorers/random.hpp>

namespace KVPOLICY_NAMESPACE {

/// The word to which the words of blocks are compared: the bits that more than half of the blocks have, zeros, ones, a
/// 1 in every second place, or random bits.
enum class word_anchor { mean, zeros, ones, alternating, random };

[[nodiscard]] constexpr std::array<char const*, 5> names(word_anchor) {
  return {"mean", "zeros", "ones", "alternating", "random"};
}

/// A function for `map`: the number of another table.
struct copied {
  by_lane<float> from;
  KVPOLICY_HD float operator()(float, entry at) const { return from.row(at.lane)[at.ordinal]; }
};

/// The blocks of each layer: their scores, which of them compete, and how many entries of the layer stay. What is done
/// with them is done once for each layer, for its first head.
struct layer_of_blocks {
  int size;  ///< entries of a block
  int heads;
  by_lane<float> competing;  ///< -inf for entries that are forced
  by_lane<float> scores;     ///< equal for the members of a block
  by_lane<int> kept;

  [[nodiscard]] static KVPOLICY_HD float infinity() { return detail::same_bits<float>(0x7F800000u); }
  [[nodiscard]] KVPOLICY_HD bool competes(lane of, int e) const { return competing.row(of)[e] != -infinity(); }
  /// True for a lane that speaks for its layer, if any of its entries go.
  [[nodiscard]] KVPOLICY_HD bool speaks(lane_entries const& of) const {
    return of.lane.head == 0 && *kept.row(of.lane) < of.count;
  }
  /// How many blocks compete, and how many of them stay.
  struct numbers {
    int blocks = 0;
    int stay = 0;
  };
  [[nodiscard]] KVPOLICY_HD numbers count(lane_entries const& of) const {
    numbers made;
    for (int b = size; b <= of.count; b += size) made.blocks += competes(of.lane, b - size) ? 1 : 0;
    int const left = *kept.row(of.lane) - (of.count - made.blocks * size);
    made.stay = left > 0 ? left / size : 0;
    return made;
  }
  /// Calls visit(first entry) for each block that competes.
  template <class Visit>
  KVPOLICY_HD void each(lane_entries const& of, Visit const& visit) const {
    for (int e = 0; e + size <= of.count; e += size) {
      if (competes(of.lane, e)) visit(e);
    }
  }
  KVPOLICY_HD void fill(float* row, int block, float number) const {
    for (int e = block; e < block + size; ++e) row[e] = number;
  }
  /// The first entry of the block with the highest number in a row for which `is_left(block)`; ties: the first.
  template <class IsLeft>
  [[nodiscard]] KVPOLICY_HD int best(lane_entries const& of, float const* row, IsLeft const& is_left) const {
    int found = -1;
    each(of, [&](int b) {
      if (!is_left(b)) return;
      if (found < 0 || detail::radix_key(row[b]) > detail::radix_key(row[found])) found = b;
    });
    return found;
  }
};

/// Puts the blocks first that have the part `cover` of all, the best one always, and ranks the others by how little
/// they are alike.
struct put_cover_first {
  layer_of_blocks layer;
  double cover;
  by_lane<float> alike;  ///< sums over the members of a block

  KVPOLICY_HD int operator()(lane_entries const& of) const {
    if (!layer.speaks(of)) return *layer.kept.row(of.lane);
    float* const score = layer.scores.row(of.lane);
    float const* const like = alike.row(of.lane);
    double all = 0, reached = 0;
    layer.each(of, [&](int b) { all += static_cast<double>(score[b]); });
    for (int i = layer.count(of).stay; i > 0; --i) {
      int const block = layer.best(of, score, [&](int b) { return score[b] != layer.infinity(); });
      if (block < 0) break;  // the engine gave infinite masses
      reached += static_cast<double>(score[block]);
      layer.fill(score, block, layer.infinity());
      if (reached >= cover * all) break;
    }
    layer.each(of, [&](int b) {
      if (score[b] != layer.infinity()) layer.fill(score, b, -like[b]);
    });
    return *layer.kept.row(of.lane);
  }
};

/// The words of blocks: a bit for each member, 1 if it is of the better half of the members of all these blocks.
struct words_of_blocks {
  layer_of_blocks layer;
  by_lane<float> masses;  ///< of entries; becomes the bits
  by_lane<float> apart;   ///< of the first entry of each block: how far its word is from the anchor
  word_anchor anchor;
  std::uint64_t seed;

  /// Replaces masses by bits. Of equal masses the first ones are better.
  KVPOLICY_HD void find_bits(lane_entries const& of) const {
    float* const row = masses.row(of.lane);
    int const better = layer.count(of).blocks * layer.size / 2;
    std::uint32_t low = 0;  // the key of the worst of the better half: bit by bit, the highest that so many reach
    for (int bit = 31; bit >= 0 && better > 0; --bit) {
      std::uint32_t const wanted = low | (1u << bit);
      if (how_many(of, [&](float mass) { return detail::radix_key(mass) >= wanted; }) >= better) low = wanted;
    }
    int ties = better - how_many(of, [&](float mass) { return detail::radix_key(mass) > low; });
    layer.each(of, [&](int b) {
      for (int e = b; e < b + layer.size; ++e) {
        std::uint32_t const key = detail::radix_key(row[e]);
        bool const is_better = better > 0 && (key > low || (key == low && ties-- > 0));
        row[e] = is_better ? 1.0f : 0.0f;
      }
    });
  }
  /// Writes how far each block's word is from the anchor.
  KVPOLICY_HD void find_distances(lane_entries const& of) const {
    float const* const bits = masses.row(of.lane);
    float* const far = apart.row(of.lane);
    int const blocks = layer.count(of).blocks;
    layer.each(of, [&](int b) { far[b] = 0; });
    for (int place = 0; place < layer.size; ++place) {
      int ones = 0;
      layer.each(of, [&](int b) { ones += bits[b + place] == 1.0f ? 1 : 0; });
      float const wanted = bit_of_anchor(of.lane, place, 2 * ones > blocks) ? 1.0f : 0.0f;
      layer.each(of, [&](int b) { far[b] += bits[b + place] == wanted ? 0.0f : 1.0f; });
    }
  }

 private:
  template <class Counts>
  [[nodiscard]] KVPOLICY_HD int how_many(lane_entries const& of, Counts const& counts) const {
    int found = 0;
    layer.each(of, [&](int b) {
      for (int e = b; e < b + layer.size; ++e) found += counts(masses.row(of.lane)[e]) ? 1 : 0;
    });
    return found;
  }
  [[nodiscard]] KVPOLICY_HD bool bit_of_anchor(lane of, int place, bool common) const {
    if (anchor == word_anchor::mean) return common;
    if (anchor == word_anchor::alternating) return place % 2 == 1;
    if (anchor != word_anchor::random) return anchor == word_anchor::ones;
    random_scores::uniform const uniform{seed};
    return uniform(0, entry{{of.sequence, of.layer, 0}, 0, 0, place, 0}) >= 0.5f;
  }
};

/// Keeps some of the blocks that go besides, which represent them: they are ranked first.
struct keep_representatives {
  words_of_blocks words;
  int count;
  by_lane<float> ranks;

  KVPOLICY_HD int operator()(lane_entries const& of) const {
    layer_of_blocks const& layer = words.layer;
    int const kept = *layer.kept.row(of.lane);
    if (!layer.speaks(of)) return kept;
    layer_of_blocks::numbers const all = layer.count(of);
    int const dropped = all.blocks - all.stay;
    if (dropped < count) return kept;
    words.find_bits(of);
    words.find_distances(of);
    float *const far = words.apart.row(of.lane), *const rank = ranks.row(of.lane);
    for (int i = 0; i < all.stay; ++i) {  // those that stay anyway are no representatives
      far[layer.best(of, rank, [&](int b) { return far[b] >= 0; })] = -1;
    }
    for (int i = 0; i < count; ++i) layer.fill(rank, place(of, far, i * (dropped / count)), layer.infinity());
    return of.count - (dropped - count) * layer.size;
  }

 private:
  /// The block that has the place `at` in the order of distances; ties: the first.
  [[nodiscard]] KVPOLICY_HD int place(lane_entries const& of, float const* far, int at) const {
    int found = -1;
    for (int distance = 0; distance <= words.layer.size && found < 0; ++distance) {
      words.layer.each(of, [&](int b) {
        if (far[b] == static_cast<float>(distance) && found < 0 && at-- == 0) found = b;
      });
    }
    return found;
  }
};

}  // namespace KVPOLICY_NAMESPACE

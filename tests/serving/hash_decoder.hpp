// SPDX-License-Identifier: Apache-2.0
// A model for tests of the engine. A row of a key or a value follows from the whole text up to its token, and a logit
// from every row that its token sees. So each answer shows whether the engine has kept every row in its place.
#pragma once

#include <serving/decoder.hpp>
#include <tinylm/attention.hpp>

#include "support/test.hpp"

namespace serving_test {

namespace kv = kvpolicy;

class hash_decoder final : public serving::decoder {
 public:
  static constexpr kv::shape model{.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
  static constexpr int bytes = 4;  ///< answers are made of the bytes 0 ... 3
  static constexpr int most_rows = 512;

  int forwards = 0;
  int mixed_forwards = 0;  ///< with a prefill and a decode step
  int wrong_rows = 0;      ///< rows that were not those of their positions

  [[nodiscard]] kv::shape shape() const override { return model; }

  void forward(std::span<serving::forward_part const> parts, kv::cache const& into) override {
    rows_.clear();
    logits_.clear();
    asked_.clear();
    log_betas_.assign(std::size_t{4} * most_rows, 0);
    bool prefill = false, decode = false;
    for (serving::forward_part const& part : parts) {
      (part.tokens > 1 ? prefill : decode) = true;
      run(part, into);
      asked_.emplace_back(rows_.rows() - part.queries, part.queries);
    }
    ++forwards;
    mixed_forwards += prefill && decode ? 1 : 0;
  }

  [[nodiscard]] std::span<float const> logits(int row) const override {
    return std::span(logits_).subspan(static_cast<std::size_t>(row) * 256, 256);
  }
  [[nodiscard]] kv::queries queries(int part) const override {
    auto const [first, rows] = asked_[static_cast<std::size_t>(part)];
    return rows_.signal(first, rows);
  }
  [[nodiscard]] kv::log_beta log_betas(int first, int rows) const override {
    kv::log_beta made;
    made.base = reinterpret_cast<std::byte const*>(log_betas_.data() + first);
    made.entry = 4;
    made.head = std::int64_t{most_rows} * 4;
    made.layer = made.head * model.kv_heads;
    made.entries = rows;
    return made;
  }
  void count(serving::held_memory&) const override {}  // rows of all tokens, which no policy asked for

 private:
  static std::uint64_t mix(std::uint64_t hash, std::uint64_t with) {
    hash = (hash ^ with) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
  }
  static float number(std::uint64_t hash) { return static_cast<float>(mix(hash, 7) >> 44) * 0x1p-20f - 0.5f; }

  /// The hash of each prefix of a text: that of its first p + 1 tokens is the p-th.
  static std::vector<std::uint64_t> hashes_of(std::span<std::uint8_t const> text) {
    std::vector<std::uint64_t> hashes;
    for (std::uint8_t const one : text) hashes.push_back(mix(hashes.empty() ? 1 : hashes.back(), one + 1u));
    return hashes;
  }
  static float wanted(std::uint64_t prefix, int lane, int part, int channel) {
    return number(mix(prefix, static_cast<std::uint64_t>(lane * 64 + part * 16 + channel)));
  }

  void run(serving::forward_part const& part, kv::cache const& into) {
    auto const hashes = hashes_of(part.text);
    int const begin = static_cast<int>(part.text.size()) - part.tokens;
    int const first = rows_.add(begin, part.tokens);
    std::vector<std::uint64_t> digests(static_cast<std::size_t>(part.tokens), 1);
    for (int lane = 0; lane < model.layers * model.kv_heads; ++lane) {
      kv::lane const this_lane{part.slot, lane / model.kv_heads, lane % model.kv_heads};
      write_rows(this_lane, lane, part.tokens, into, hashes);
      read_rows(this_lane, lane, begin, into, hashes, digests);
      for (int t = 0; t < part.tokens; ++t) {
        auto const prefix = hashes[static_cast<std::size_t>(begin + t)];
        log_betas_[static_cast<std::size_t>(lane * most_rows + first + t)] = wanted(prefix, lane, 2, 0) - 0.51f;
        for (int d = 0; d < model.head_dim; ++d) {
          rows_.row(this_lane.layer, this_lane.head, first + t)[d] = wanted(prefix, lane, 3, d);
        }
      }
    }
    for (std::uint64_t const digest : digests) {
      for (int b = 0; b < 256; ++b) {
        logits_.push_back(b < bytes ? number(mix(digest, static_cast<std::uint64_t>(b))) : -100.0f);
      }
    }
  }

  static void write_rows(kv::lane lane, int index, int tokens, kv::cache const& into,
                         std::vector<std::uint64_t> const& hashes) {
    int const count = *into.lanes.count.row(lane);
    for (int t = 0; t < tokens; ++t) {
      kv::place const at = into.where.at(lane, count - tokens + t);
      auto const prefix = hashes[hashes.size() - static_cast<std::size_t>(tokens - t)];
      for (int d = 0; d < model.head_dim; ++d) {
        reinterpret_cast<float*>(into.k.row(lane.layer, at, lane.head))[d] = wanted(prefix, index, 0, d);
        reinterpret_cast<float*>(into.v.row(lane.layer, at, lane.head))[d] = wanted(prefix, index, 1, d);
      }
    }
  }

  /// Reads every row of the lane, compares it with that of its position, and adds it to what later tokens see.
  void read_rows(kv::lane lane, int index, int begin, kv::cache const& into, std::vector<std::uint64_t> const& hashes,
                 std::vector<std::uint64_t>& digests) {
    int const count = *into.lanes.count.row(lane);
    int const* const positions = into.lanes.position.row(lane);
    for (int e = 0; e < count; ++e) {
      kv::place const at = into.where.at(lane, e);
      std::uint64_t seen = static_cast<std::uint64_t>(positions[e]);
      bool right = positions[e] < static_cast<int>(hashes.size());
      for (int d = 0; d < model.head_dim; ++d) {
        float const k = reinterpret_cast<float const*>(into.k.row(lane.layer, at, lane.head))[d];
        float const v = reinterpret_cast<float const*>(into.v.row(lane.layer, at, lane.head))[d];
        seen = mix(mix(seen, std::bit_cast<std::uint32_t>(k)), std::bit_cast<std::uint32_t>(v));
        auto const prefix = right ? hashes[static_cast<std::size_t>(positions[e])] : 0;
        right = right && k == wanted(prefix, index, 0, d) && v == wanted(prefix, index, 1, d);
      }
      wrong_rows += right ? 0 : 1;
      for (std::size_t t = 0; t < digests.size(); ++t) {
        if (positions[e] <= begin + static_cast<int>(t)) digests[t] = mix(digests[t], seen);
      }
    }
  }

  tinylm::query_rows rows_{model, most_rows};
  std::vector<float> logits_;
  std::vector<float> log_betas_;            ///< [lane][row]
  std::vector<std::pair<int, int>> asked_;  ///< for each part the rows whose queries it has asked for
};

}  // namespace serving_test

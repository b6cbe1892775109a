// SPDX-License-Identifier: Apache-2.0
// Attention that accumulates in a lane of a dual cache, written out: a window that every token enters, and pages for
// those that are admitted.
#pragma once

#include "basics.hpp"
#include "selection.hpp"

namespace kvpolicy_reference {

/// What one query row of one query head pays: its log-sum-exp, and the probability of every position of the sequence.
struct paid_attention {
  double lse = -infinity;
  row of_position;
};

/// One lane, with what it needs to know of each token of its sequence.
class gated_lane {
 public:
  struct token {
    row key;
    bool admitted;
  };
  struct entry {
    int position;
    double mass;
  };

  gated_lane(int window, double scale) : window_{window}, scale_{scale} {}

  /// A forward of new tokens, of which each brings a query row for each query head: rows[head][token]. Row i sees the
  /// pages, and the token at j <= i if i - j < window or if it is admitted, in one softmax. An entry's mass grows by
  /// what it is paid, summed over the rows of a head and then reduced over the heads. After that tokens older than the
  /// window leave it: admitted ones enter the pages with their mass. Returns what was paid, [head][row].
  template <class Reduce>
  std::vector<std::vector<paid_attention>> forward(std::vector<token> const& fresh, std::vector<matrix> const& rows,
                                                   Reduce const& reduce) {
    int const first = static_cast<int>(tokens_.size());
    for (token const& each : fresh) {
      newest_.push_back({static_cast<int>(tokens_.size()), 0.0});
      tokens_.push_back(each);
    }
    std::vector<std::vector<paid_attention>> paid;
    for (matrix const& of_head : rows) {
      paid.emplace_back();
      for (std::size_t r = 0; r < of_head.size(); ++r)
        paid.back().push_back(pay(of_head[r], first + static_cast<int>(r)));
    }
    for (std::vector<entry>* const part : {&pages_, &newest_}) {
      for (entry& each : *part) {
        row sums;
        for (auto const& of_head : paid) {
          sums.push_back(0.0);
          for (paid_attention const& one : of_head)
            sums.back() += one.of_position[static_cast<std::size_t>(each.position)];
        }
        each.mass += reduce(sums);
      }
    }
    while (static_cast<int>(newest_.size()) > window_) {
      if (tokens_[static_cast<std::size_t>(newest_.front().position)].admitted) pages_.push_back(newest_.front());
      newest_.erase(newest_.begin());
    }
    return paid;
  }

  /// Keeps the last `recent` entries of the pages and the `heavy` others of the largest mass; all if they are no more.
  void keep_heavy(int heavy, int recent) {
    row scores;
    for (entry const& each : pages_) scores.push_back(each.mass);
    keep(select(scores, ends(static_cast<int>(scores.size()), 0, recent), heavy + recent).kept);
  }
  /// Keeps the entries of the pages at these ordinals.
  void keep(std::vector<int> const& ordinals) {
    std::vector<entry> kept;
    for (int const one : ordinals) kept.push_back(pages_[static_cast<std::size_t>(one)]);
    pages_ = kept;
  }

  /// What the rows pay to each entry of the pages, in a softmax over the pages alone: rows[head][row] at `positions`.
  [[nodiscard]] row paid_to_pages(std::vector<matrix> const& rows, std::vector<int> const& positions) const {
    row total(pages_.size(), 0.0);
    for (matrix const& of_head : rows) {
      for (std::size_t r = 0; r < of_head.size(); ++r) {
        row logits;
        for (entry const& each : pages_) {
          logits.push_back(each.position <= positions[r] ? logit(of_head[r], each.position) : -infinity);
        }
        double sum = 0.0;
        for (double const one : logits) sum += std::exp(one);
        for (std::size_t e = 0; e < logits.size() && sum > 0; ++e) {
          total[e] += std::exp(logits[e]) / sum / static_cast<double>(rows.size());
        }
      }
    }
    return total;
  }

  [[nodiscard]] std::vector<entry> const& pages() const { return pages_; }
  [[nodiscard]] std::vector<entry> const& window() const { return newest_; }

 private:
  [[nodiscard]] double logit(row const& query, int position) const {
    return scale_ * dot(query, tokens_[static_cast<std::size_t>(position)].key);
  }

  [[nodiscard]] paid_attention pay(row const& query, int at) const {
    paid_attention made{-infinity, row(tokens_.size(), 0.0)};
    double sum = 0.0;
    auto const add = [&](int position) {
      double const one = std::exp(logit(query, position));
      made.of_position[static_cast<std::size_t>(position)] = one;
      sum += one;
    };
    for (entry const& each : pages_) add(each.position);
    for (entry const& each : newest_) {
      bool const near = at - each.position < window_;
      if (each.position <= at && (near || tokens_[static_cast<std::size_t>(each.position)].admitted))
        add(each.position);
    }
    for (double& each : made.of_position) each /= sum;
    made.lse = std::log(sum);
    return made;
  }

  int window_;
  double scale_;
  std::vector<token> tokens_;
  std::vector<entry> pages_;
  std::vector<entry> newest_;  ///< the window
};

}  // namespace kvpolicy_reference

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/kvpolicy.hpp>

#include "support/scores.hpp"

namespace kvpolicy_test {

/// A keep set with memory of its own, for verbs that are called without a plan.
class owned_keep {
 public:
  explicit owned_keep(kv::score_view const& scores)
      : offset_(as_size(scores.segments()) + 1),
        ordinal_(as_size(scores.segments() * scores.lanes.capacity)),
        seen_(as_size(scores.segments())) {
    keep_ = {scores.lanes,   scores.decides,  kv::item::token, kv::side::kept,
             offset_.data(), ordinal_.data(), seen_.data(),    static_cast<std::int64_t>(ordinal_.size()),
             report_.data()};
  }
  owned_keep(owned_keep const&) = delete;
  owned_keep& operator=(owned_keep const&) = delete;
  kv::keep_set& view() { return keep_; }
  [[nodiscard]] kv::report const& report() const { return report_.front(); }
  [[nodiscard]] std::vector<int> kept(int segment) const { return listed(keep_, segment); }

 private:
  std::vector<std::int64_t> offset_;
  std::vector<int> ordinal_, seen_;
  std::vector<kv::report> report_ = std::vector<kv::report>(1);  // on the heap, where a device may write it
  kv::keep_set keep_;
};

/// Keep sets by hand: one list of ordinals a segment.
class listed_keep {
 public:
  listed_keep(kv::lanes const& batch, kv::granularity decides, std::vector<std::vector<int>> const& lists) {
    offset_.push_back(0);
    for (auto const& some : lists) {
      ordinal_.insert(ordinal_.end(), some.begin(), some.end());
      offset_.push_back(static_cast<std::int64_t>(ordinal_.size()));
    }
    for (int segment = 0; segment < kv::segments(batch, decides); ++segment) {
      seen_.push_back(batch.committed(batch.at(kv::first_lane(batch, decides, segment))));
    }
    keep_.lanes = batch;
    keep_.decides = decides;
    keep_.indptr = offset_.data();
    keep_.indices = ordinal_.data();
    keep_.entry_count = seen_.data();
  }
  listed_keep(listed_keep const&) = delete;
  listed_keep& operator=(listed_keep const&) = delete;
  [[nodiscard]] kv::keep_set const& view() const { return keep_; }

 private:
  std::vector<std::int64_t> offset_;
  std::vector<int> ordinal_, seen_;
  kv::keep_set keep_;
};

}  // namespace kvpolicy_test

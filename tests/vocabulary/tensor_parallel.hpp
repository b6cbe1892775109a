// SPDX-License-Identifier: Apache-2.0
// Consumer 7: tensor parallelism. A score is summed over ranks inside the scorer; the policy does not know how many.
#pragma once

#include <mutex>

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// A host executor that belongs to a group of ranks: here the other rank's scores are in memory.
class ranked_executor : public kv::host_executor {
 public:
  explicit ranked_executor(std::vector<float> const& others) : others_(&others) {}

  [[nodiscard]] static int ranks() { return 2; }
  void all_reduce(float* values, std::size_t count) {
    for (std::size_t i = 0; i < count && i < others_->size(); ++i) values[i] += (*others_)[i];
  }

 private:
  std::vector<float> const* others_;
};
static_assert(kv::executor<ranked_executor>);

/// Any scorer, its scores summed over ranks.
template <kv::scorer Score>
struct over_ranks {
  Score one{};
  using needs = typename Score::needs;
  static constexpr kv::granularity decides = Score::decides;
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    one.score(exec, in, out);
    kv::ops::all_reduce(exec, out);
  }
  friend bool operator==(over_ranks const&, over_ranks const&) = default;
};
static_assert(kv::scorer<over_ranks<kv::knorm>>);

}  // namespace vocabulary

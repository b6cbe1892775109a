// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// A scorer that says of each entry what a functor says.
template <class Map, kv::granularity Decides = kv::granularity::lane>
struct scored_by {
  Map says{};
  using needs = kv::needs<>;
  static constexpr kv::granularity decides = Decides;
  void score(auto& exec, auto const&, kv::score_view const& out) const { kv::ops::map(exec, out, says); }
  friend bool operator==(scored_by const& a, scored_by const& b) {
    if constexpr (!std::is_empty_v<Map>) return a.says == b.says;
    return true;
  }
};

}  // namespace kvpolicy_test

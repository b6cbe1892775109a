// SPDX-License-Identifier: Apache-2.0
// The policies of the demo's table that read trained gates.
#include "portions.hpp"

namespace demo {

std::vector<contender> gated() {
  return {
      composed("trim_kv", true, [](portions const& of) { return kv::cache_policy{.evict = of.keep()}; })
          .titled("TRIM-KV", "after every token, by a gate"),
      composed("wg_kv", true, [](portions const& of) { return kv::cache_policy{.admit = of.admit()}; })
          .titled("WG-KV", "as a token is written, by a gate"),
  };
}

}  // namespace demo

// SPDX-License-Identifier: Apache-2.0
// The demo's selection, and its compositions of admission, selection and eviction.
#include "portions.hpp"

namespace demo {

std::vector<contender> compositions() {
  return {
      composed("local_attention", false,
               [](portions const& of) {
                 return kv::cache_policy{.admit = kv::policies::local_attention({.window = of.budget - 4, .sinks = 4})};
               }),
      composed("quest", false, [](portions const& of) { return kv::cache_policy{.select = of.read(of.budget)}; }),
      composed(
          "wg_kv+quest", true,
          [](portions const& of) { return kv::cache_policy{.admit = of.admit(), .select = of.read_beside_window()}; }),
      composed("trim_kv+quest", true,
               [](portions const& of) {
                 return kv::cache_policy{.select = of.read(portions::some(of.budget)), .evict = of.keep()};
               }),
      composed(
          "wg_kv+trim_kv", true,
          [](portions const& of) { return kv::cache_policy{.admit = of.admit(), .evict = of.keep_beside_window()}; }),
      composed("wg_kv+trim_kv+quest", true,
               [](portions const& of) {
                 return kv::cache_policy{
                     .admit = of.admit(), .select = of.read_beside_window(), .evict = of.keep_beside_window()};
               }),
  };
}

}  // namespace demo

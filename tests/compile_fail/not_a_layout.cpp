// expect: this applier has no member .edit., but apply calls .edit
// SPDX-License-Identifier: Apache-2.0
// A type that is no applier is carried out by no engine, whatever it is called.
#include <kvpolicy/engines/bind.hpp>
#include <kvpolicy/engines/llama_cpp.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct nearly {
  static constexpr auto name = "compact";
  static constexpr kv::applier_effects effects{.moves_rows = true};
  void refuse(auto&, kv::keep_set const&, kv::cache const&) const {}
#ifndef KVPOLICY_MUST_FAIL
  void edit(auto&, kv::keep_set const&, kv::cache const&, auto&, kv::apply_stats*) const {}
#endif
};

auto bind_once() {
  kv::eviction const policy{.score = kv::reduce_lanes<kv::knorm>{}};
  return kv::engines::bind<kv::engines::llama_cpp>(policy, nearly{});
}

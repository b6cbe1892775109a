// SPDX-License-Identifier: Apache-2.0
// A user's program, however it came by kvpolicy: is refused, decides and compacts, and says which version it has.
#include <algorithm>
#include <cstdio>
#include <span>
#include <string_view>

#include "tiny_cache.hpp"

namespace kv = kvpolicy;

namespace {

bool compacts() {
  tiny::memory memory;
  kv::cache cache = memory.view();
  kv::host_executor exec;
  auto state = kv::make_state(exec, tiny::four_entries, cache);
  auto plan = kv::make_plan(exec, tiny::four_entries, cache);
  kv::signals const in{cache.lanes, kv::keys_of(cache)};
  kv::decide(exec, tiny::four_entries, in, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);
  std::printf("kvpolicy %s: %s keeps", kv::version, kv::to_string(tiny::four_entries).c_str());
  for (int const position : std::span(memory.positions).first(static_cast<std::size_t>(memory.count))) {
    std::printf(" %d", position);
  }
  std::puts("");
  return memory.count == 4 && std::equal(tiny::kept.begin(), tiny::kept.end(), memory.positions.begin()) &&
         memory.k[4] == tiny::memory::norms[2];
}

bool is_refused() {
  tiny::memory memory;
  kv::cache cache = memory.view();
  cache.lanes.heads = 2;
  kv::host_executor exec;
  try {
    (void)kv::make_plan(exec, tiny::four_entries, cache);
  } catch (kv::invalid_argument const& refusal) {
    std::puts(refusal.what());
    return std::string_view(refusal.what()).starts_with("make_plan: lanes.heads = 2, but ");
  }
  return false;
}

}  // namespace

int main() { return is_refused() && compacts() ? 0 : 1; }

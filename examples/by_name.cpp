// SPDX-License-Identifier: Apache-2.0
// Parses a policy from a line of text, explains what it keeps, and prints what it costs.
#include "engine.hpp"
#include "squared.hpp"
#include "value_aware.hpp"

int main() {
  my_pool pool;
  my_forward const forward(pool, 200);

  // example-begin by_name
  kv::registry known = kv::shipped();
  known.add(value_aware{});              // registers a scorer of your own under its name
  known.add_stage(squared<kv::full>{});  // and a stage of your own
  kv::any_policy const policy = kv::parse("value_aware | safe(sinks=4, recent=16) | budget(64, scope=layer)", known);

  kv::cache cache = pool.view();
  kv::host_executor exec;
  kv::required const needed = kv::required_bytes(policy, cache);  // before anything runs
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = 200, .position = 0});
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache), forward.queries()};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  std::string const first = kv::explain(policy, plan, 0, 0);  // lane 0, entry 0
  std::string const other = kv::explain(policy, plan, 0, 100);
  kv::apply_stats stats;
  kv::apply(exec, kv::compact{}, plan, cache, state, &stats);
  // example-end by_name

  std::printf("%s\n", kv::to_string(policy).c_str());
  std::printf("plan %zu bytes, state %zu, scratch of a thread %zu\n", needed.plan, needed.state, needed.scratch);
  std::printf("%s\n%s\n", first.c_str(), other.c_str());
  std::printf("entries of all 4 lanes together: kept %lld, freed %lld, attended %lld\n",
              static_cast<long long>(stats.logical_kept), static_cast<long long>(stats.physical_freed),
              static_cast<long long>(stats.attended_length));
  for (char const* spec : {"snapkv(windw=32)", "snapkv | sink(4)"}) {
    try {
      (void)kv::parse(spec);
    } catch (kv::invalid_argument const& wrong) {
      std::printf("%s\n", wrong.what());
    }
  }
}

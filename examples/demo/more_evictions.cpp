// The evictions that only the whole table has, and those that a user writes.
#include "../value_aware.hpp"
#include "engine.hpp"

namespace demo {
namespace {

/// The shipped scorers and the scorer of this program, by name.
kv::registry known_scorers() { return kv::shipped().add(value_aware{}); }

}  // namespace

std::vector<contender> more_evictions() {
  using tinylm::when;
  return {
      contestant("knorm", when::after_prefill, [](int n) { return kv::policies::knorm({.budget = n, .sinks = 4}); }),
      contestant("random", when::after_prefill, [](int n) { return kv::policies::random({.budget = n, .sinks = 4}); }),
      contestant("value_aware", when::after_prefill,
                 [](int n) {
                   return kv::eviction{.score = value_aware{}, .protect = kv::recent{16}, .budget = kv::per_lane{n}};
                 }),
  };
}

contender written(std::string const& spec, std::string name) {
  kv::any_policy const policy = kv::parse(spec, known_scorers());
  std::string const scorer = kv::to_string(policy).substr(0, kv::to_string(policy).find_first_of("( "));
  bool const streams = scorer == "streaming_llm" || scorer == "h2o" || scorer == "tova";
  contender made = contestant(
      std::move(name), streams ? tinylm::when::every_forward : tinylm::when::after_prefill,
      [policy](int) { return policy; }, scorer != "intent_kv");
  made.budgeted = false;
  made.own_budget = true;
  return made;
}

}  // namespace demo

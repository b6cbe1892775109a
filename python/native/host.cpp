// SPDX-License-Identifier: Apache-2.0
// What is compiled for the host: its evictor, and what is asked about policies.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "evictor_on.hpp"
#include "facts.hpp"

namespace kvpolicy_python {

std::unique_ptr<evictor> make_host_evictor(evictor_options const& from, int threads) {
  auto const enter = [] { return 0; };
  return std::make_unique<evictor_on<kv::host_executor, std::remove_const_t<decltype(enter)>>>(from, "cpu", enter,
                                                                                               threads);
}

policy_facts facts_of(std::string const& spec) {
  kv::any_policy const policy = kv::parse(spec);
  policy_facts made{
      .text = to_string(policy), .scorer = {}, .decides = policy.decides(), .scope = policy.scope(), .needs = {}};
  made.scorer = made.text.substr(0, made.text.find_first_of(" (|"));
  for (kv::scorer_info const& one : kv::shipped().list()) {
    if (one.name == made.scorer) made.needs = one.needs;
  }
  for (std::string const& each : policy.needs()) {  // what stages read
    bool const known = std::find(made.needs.begin(), made.needs.end(), each) != made.needs.end();
    if (!known && (each == "values" || each.starts_with("value_norms or "))) made.needs.push_back(each);
  }
  // The smallest cache that a policy can be asked about.
  kv::host_executor exec;
  std::vector<float> memory(4);
  std::vector<int> numbers(2);
  kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2};
  kv::cache const in = kv::contiguous_cache(memory.data(), memory.data() + 2, model, 1, numbers.data(), &numbers[1]);
  auto const state = kv::make_state(exec, policy, in);
  for (kv::recorded_column const& each : state.columns()) {
    if (each.about.extent == kv::column_extent::window_row)
      made.window_rows = std::max(made.window_rows, each.about.units);
    if (each.about.extent == kv::column_extent::session) made.session = true;
    for (char const* const of_all_rows : {"attention_mass", "stamps.last"})
      if (each.about.name == std::string(of_all_rows)) made.every_row = true;
  }
  if (std::size_t const tail = made.text.find("tail="); made.session && tail != std::string::npos) {
    made.turn_rows = std::atoi(made.text.c_str() + tail + std::string_view("tail=").size());
  }
  return made;
}

std::string cache_policy_text(std::string const& spec) { return to_string(kv::parse_cache_policy(spec)); }

std::vector<std::string> scorer_names() {
  std::vector<std::string> names;
  for (kv::scorer_info const& one : kv::shipped().list()) names.push_back(one.name);
  return names;
}

}  // namespace kvpolicy_python

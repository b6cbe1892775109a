// SPDX-License-Identifier: Apache-2.0
// The policies that a user writes as a spec.
#include <algorithm>
#include <array>

#include "../plugins.hpp"
#include "../value_aware.hpp"
#include "by_spec.hpp"
#include "options.hpp"

namespace demo {
namespace {

/// The shipped scorers, the scorer of this program and the parts of plugins, by name.
kv::registry known_scorers(options const& with) {
  kv::registry known = kv::shipped();
  examples::load_plugins("demo", with.plugins, known);
  auto const all = known.list();
  bool const there = std::any_of(all.begin(), all.end(), [](auto const& one) { return one.name == value_aware::name; });
  return there ? known : known.add(value_aware{});
}

/// An eviction alone. It decides after every forward or once after the prompt, as its phase says; once, if it asks for
/// what is known of prompts only.
contender written_eviction(kv::any_policy const& policy, std::string name) {
  kv::expects(asks_for_more(policy) || !asks_for(policy, kv::external_queries::name), "demo", "--policy",
              kv::to_string(policy), "the external rows of this program are those of a repetition of the prompt");
  bool const steps = policy.when == kv::phase::step && !asks_for_more(policy);
  return spec_contestant(
      std::move(name), steps ? tinylm::when::every_forward : tinylm::when::after_prefill,
      [policy](int) { return policy; }, policy.score.name_inside() != kv::intent_kv::name);
}

/// Refuses parts that need what tinylm's cache of windows and pages does not have.
void check_signals(kv::any_cache_policy const& policy) {
  auto const born = policy.admit ? policy.admit->score.signals() : std::vector<std::string>();
  kv::expects(std::find(born.begin(), born.end(), kv::birth_score::name) == born.end(), "demo", "--policy",
              kv::to_string(policy), "entries of this model are born with no numbers");
  if (!policy.evict) return;
  constexpr std::array given{kv::keys::name, kv::values::name, kv::log_beta::name};
  for (std::string const& each : policy.evict->needs()) {  // such as "keys or attention_probabilities"
    auto const has = [&](std::string_view name) {
      return (" or " + each + " or ").find(" or " + std::string(name) + " or ") != std::string::npos;
    };
    kv::expects(std::any_of(given.begin(), given.end(), has), "demo", "--policy", kv::to_string(policy),
                [&] { return "beside other parts, and with gates, an eviction gets no " + each; });
  }
}

/// A cache policy runs in a session of its own type: one for each combination of sections that have an eviction, which
/// takes long to compile.
template <class Policy>
std::unique_ptr<reader> start_session(engine& on, reading& from, Policy const& policy) {
  constexpr bool evicts = std::same_as<decltype(Policy::evict), kv::any_policy>;
  if constexpr (evicts) return std::make_unique<cache_reader<Policy>>(on, from, policy);
  kv::expects(false, "demo", "--policy", kv::to_string(policy), "it was refused before");
  return nullptr;
}

/// A policy of several sections, or one that reads gates.
contender written_sections(kv::any_cache_policy const& policy, std::string name) {
  check_signals(policy);
  bool const by_gate = policy.admit && policy.admit->score.name_inside() == kv::write_gate::name;
  bool const by_retention = policy.evict && asks_for(*policy.evict, kv::log_beta::name);
  contender made{.name = std::move(name), .needs = {.gates = by_gate || by_retention}};
  made.spell = [policy](int, int) { return kv::to_string(policy); };
  kv::any_cache_policy whole = policy;
  if (!whole.evict) whole.evict.emplace();  // the full cache, which drops nothing
  made.start = [whole](engine& on, reading& from, int) {
    return whole.visit([&](auto const& typed) { return start_session(on, from, typed); });
  };
  return made;
}

}  // namespace

kv::any_applier written_layout(options const& with) {
  kv::any_applier const own = known_scorers(with).applier_of(with.layout);
  if (!own.there()) return own;
  kv::applier_effects const does = own.effects();
  bool const has_memory = !does.redirects && !does.masks && !does.drops_blocks && !does.rotates_keys;
  kv::expects(has_memory && (!does.edits_list || own.takes_list()), "demo", "--layout", with.layout,
              "an applier of a plugin gets pages of rows, or lists of slots as its member `list`");
  return own;
}

contender written(options const& with, std::string const& spec, std::string name) {
  kv::any_cache_policy const policy = kv::parse_cache_policy(spec, known_scorers(with));
  bool const alone = !policy.admit && !policy.select && !asks_for(*policy.evict, kv::log_beta::name);
  contender made = alone ? written_eviction(*policy.evict, std::move(name)) : written_sections(policy, std::move(name));
  made.budgeted = false;
  made.own_budget = true;
  return made;
}

}  // namespace demo

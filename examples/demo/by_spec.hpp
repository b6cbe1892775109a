// SPDX-License-Identifier: Apache-2.0
// Contenders whose policies are specs, and what the model can tell those that ask for more than entries and queries.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../tinylm/prompt_signals.hpp"
#include "engine.hpp"

namespace demo {

/// True if a policy needs a signal, or names it among those of which it needs one, as in "values or keys".
inline bool asks_for(kv::any_policy const& policy, std::string_view signal) {
  auto const names = policy.needs();
  return std::any_of(names.begin(), names.end(), [&](std::string const& each) {
    return (" or " + each + " or ").find(" or " + std::string(signal) + " or ") != std::string::npos;
  });
}

/// True if a policy asks for what only `tinylm::prompt_signals` has. The external rows there are those of a repetition,
/// which some methods would take for something else.
inline bool asks_for_more(kv::any_policy const& policy) {
  constexpr std::array repeats{kv::kvzip::name, kv::kvcompose::name};
  if (asks_for(policy, kv::external_queries::name)) {
    return std::find(repeats.begin(), repeats.end(), policy.score.name_inside()) != repeats.end();
  }
  return asks_for(policy, kv::output_projection::name) || asks_for(policy, kv::pre_rope_queries::name);
}

/// What the prompt's signals are, made when the first policy asks for them.
inline tinylm::prompt_signals const& told(engine& on, reading& from) {
  auto& more = from.more();
  if (more == nullptr) more = std::make_shared<tinylm::prompt_signals>(on.model(), on.exec(), from.whole(), on.lay());
  return *more;
}

/// Makes a contender whose policy is the `kvpolicy::any_policy` that `compose(budget)` returns.
template <class Compose>
contender spec_contestant(std::string name, tinylm::when decide, Compose compose, bool observe_steps = true) {
  contender made{.name = std::move(name)};
  made.spell = [compose](int budget, int) { return kv::to_string(compose(budget)); };
  made.start = [compose, decide, observe_steps](engine& on, reading& from, int budget) -> std::unique_ptr<reader> {
    kv::any_policy const policy = compose(budget);
    tinylm::session_options const options{
        .bound = on.bound(), .decide = decide, .lay = on.lay(), .own = on.own(), .observe_steps = observe_steps};
    using reads = session_reader<kv::any_policy>;
    if (!asks_for_more(policy)) {
      return std::make_unique<reads>(tinylm::session(on.model(), on.exec(), from.whole(), policy, options));
    }
    auto const& more = told(on, from);
    return std::make_unique<reads>(tinylm::session(on.model(), on.exec(), from.whole(), policy, options, more.output(),
                                                   more.before_rope(), more.repeated()));
  };
  return made;
}

/// Makes a contender that decides once, after the prompt: the method `spec` with a budget.
inline contender by_spec(std::string name, std::string spec) {
  return spec_contestant(std::move(name), tinylm::when::after_prefill, [spec = std::move(spec)](int n) {
    return kv::parse(spec + " | budget(" + std::to_string(n) + ")");
  });
}

}  // namespace demo

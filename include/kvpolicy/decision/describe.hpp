// SPDX-License-Identifier: Apache-2.0
// `describe` lists the parts and hooks that the library finds in a policy.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/decision/record.hpp>
#include <kvpolicy/decision/rule.hpp>
#include <string>
#include <tuple>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A policy as the library runs it. A signal, recorder, protection, budget, pick or trigger that is not listed here is
/// not used. Checks and scratch are not listed.
struct description {
  std::string policy;                 ///< the policy as it prints
  std::string decides;                ///< which lanes decide together: "lane", "layer" or "token"
  std::vector<std::string> reads;     ///< signals that the scorer reads
  std::vector<std::string> records;   ///< signals that recorders keep, and their input: "recent_queries from queries"
  std::vector<std::string> forces;    ///< entries that are kept whatever their score
  std::string budget;                 ///< how many entries are kept, and which lanes share them
  std::string pick;                   ///< which of the scored entries are kept
  std::vector<std::string> triggers;  ///< when entries are dropped; all of the triggers must fire
  friend bool operator==(description const&, description const&) = default;
};

namespace detail {

template <class... Signals>
std::vector<std::string> signal_names(needs<Signals...>) {
  return {signal_name(static_cast<Signals const*>(nullptr))...};
}

inline std::string listed_names(std::vector<std::string> const& names, char const* between = ", ") {
  std::string text;
  for (std::string const& each : names) text += (text.empty() ? "" : between) + each;
  return text.empty() ? "nothing" : text;
}

template <class Recorder>
std::string recorded_signal(Recorder const&) {
  return std::string(Recorder::provides::name) + " from " + listed_names(signal_names(typename Recorder::needs{}));
}

using names_of_parts = std::vector<std::string>;

template <class Signal, class... Recorders>
constexpr bool is_recorded(std::tuple<Recorders...> const*) {
  return (std::same_as<Signal, typename Recorders::provides> || ...);
}

/// The names of the signals that a scorer reads, those of the scorer inside a stage first.
template <class Score>
names_of_parts signals_read(Score const& score) {
  if constexpr (erased<Score>) {
    return score.text().reads;
  } else if constexpr (stage<Score>) {
    using recorders_type = decltype(recorders_of(score));
    names_of_parts all = signals_read(inner_of(score));
    each_need<typename Score::needs>::visit([&]<class Signal>(Signal const* signal) {
      if (is_recorded<Signal>(static_cast<recorders_type const*>(nullptr))) return;  // `frozen` keeps what it reads
      if (std::find(all.begin(), all.end(), signal_name(signal)) == all.end()) all.push_back(signal_name(signal));
    });
    return all;
  } else {
    return signal_names(typename Score::needs{});
  }
}
/// What the recorders of a scorer keep.
template <class Score>
concept says_its_recorders = requires(Score const& score) { score.recorders(); };
template <class Score>
names_of_parts signals_recorded(Score const& score) {
  return ask(score, []<class S>(S const& one) -> std::enable_if_t<!stage<S> || says_its_recorders<S>, names_of_parts> {
    if constexpr (erased<S>) {
      return one.text().records;
    } else {
      return std::apply([](auto const&... each) { return names_of_parts{recorded_signal(each)...}; },
                        recorders_of(one));
    }
  });
}

/// The part as it prints, or `otherwise` if it has no text.
template <class Part>
std::string part_or(Part const& part, char const* otherwise) {
  std::string text = to_string(part);
  return text.empty() || text == "unnamed" ? otherwise : text;
}

template <class Score>
names_of_parts forced_by_scorer(Score const& score) {
  return ask(score, []<class S>(S const& one) -> std::enable_if_t<!stage<S> || says_what_it_forces<S>, names_of_parts> {
    if constexpr (erased<S>) {
      return one.text().forced;
    } else if constexpr (says_what_it_forces<S>) {
      return {"the scorer's " + part_or(one.forces(), "own entries")};
    } else if constexpr (ranks_candidates<S>) {
      return {"what the scorer's signals say"};
    } else {
      return {};
    }
  });
}

template <class Policy>
std::vector<std::string> forced_of(Policy const& policy) {
  std::vector<std::string> all;
  all = forced_by_scorer(policy.score);
  if constexpr (requires { policy.protect; }) {
    std::string const kept = part_or(policy.protect, "the policy's protection");
    if (!std::same_as<std::remove_cvref_t<decltype(policy.protect)>, nothing>) all.push_back(kept);
  }
  if constexpr (requires { policy.dense_layers; }) {
    all.push_back("each lane's last page, all pages of the first " + std::to_string(policy.dense_layers) + " layers");
  }
  return all;
}

template <class Policy>
std::vector<std::string> triggers_of(Policy const& policy) {
  std::vector<std::string> all;
  if constexpr (requires { policy.trigger; }) all.push_back(part_or(policy.trigger, "the policy's trigger"));
  std::string const own = with_own_trigger(
      policy.score,
      []<class Own>(Own const& one) {
        if constexpr (erased<Own>) {
          if (one == Own{}) return std::string();  // it has none
        }
        return "the scorer's " + part_or(one, "own trigger");
      },
      std::string());
  if (!own.empty()) all.push_back(own);
  if constexpr (requires { policy.window; }) all.assign({"leaving a window of " + std::to_string(policy.window)});
  return all;
}

template <class Budget>
std::string shared_budget(Budget const& limit) {
  std::string const text = part_or(limit, "the policy's budget");
  budget_scope const scope = scope_of(limit);
  if (scope == budget_scope::lane) return text + ", for each lane";
  return text +
         (scope == budget_scope::layer ? ", pooled by the lanes of a layer" : ", pooled by all lanes of a sequence");
}

}  // namespace detail

/// Describes an eviction, an admission or a selection as the library runs it. No part of the policy is called but its
/// hooks that return parts, and its text.
///
///     std::puts(kv::print(kv::describe(policy)).c_str());
template <class Policy>
  requires entry_decision<Policy> || page_decision<Policy>
[[nodiscard]] description describe(Policy const& policy) {
  description made;
  made.policy = to_string(policy);
  made.decides = to_string(granularity{policy.score.decides});
  made.reads = detail::signals_read(policy.score);
  made.records = detail::signals_recorded(policy.score);
  made.forces = detail::forced_of(policy);
  made.budget = detail::shared_budget(policy.budget);
  made.pick = detail::part_or(detail::pick_of(policy), "the policy's pick");
  if constexpr (requires { policy.inherit; }) {
    if (policy.inherit > 1) made.pick += ", by the first of every " + std::to_string(policy.inherit) + " layers";
  }
  made.triggers = detail::triggers_of(policy);
  return made;
}

/// Prints the policy and then one line for each property, such as "reads: keys, recent_queries".
[[nodiscard]] inline std::string print(description const& of) {
  std::string text = of.policy;
  auto const line = [&](char const* what, std::string const& says) {
    text += std::string("\n  ") + what + ": " + says;
  };
  line("decides by", of.decides);
  line("reads", detail::listed_names(of.reads));
  line("records", detail::listed_names(of.records));
  line("always keeps", detail::listed_names(of.forces));
  line("budget", of.budget);
  line("picks", of.pick);
  line("acts when", detail::listed_names(of.triggers, " and "));
  return text;
}

}  // namespace KVPOLICY_NAMESPACE

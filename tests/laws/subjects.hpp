// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// The scorers that have a name of their own. By name recorded_knorm would be knorm, which decides the same.
using named_scorers =
    std::tuple<kv::full, kv::streaming_llm, kv::snapkv, kv::h2o, kv::tova, kv::knorm, kv::random_scores>;
/// Every scorer that the library ships; a test compares this list with the headers.
using every_scorer = std::tuple<kv::full, kv::streaming_llm, kv::snapkv, kv::h2o, kv::tova, kv::knorm,
                                kv::recorded_knorm, kv::random_scores>;

/// The methods that have a header in tests/methods, and so tests of their own.
inline std::set<std::string> described_methods() {
  std::set<std::string> names;
  for (auto const& file : std::filesystem::directory_iterator(KVPOLICY_SOURCE_DIR "/tests/methods")) {
    if (file.path().extension() == ".hpp") names.insert(file.path().stem().string());
  }
  return names;
}

/// The same shape for a scorer that decides for a whole layer: with one KV head its segments are the lanes, as the laws
/// count them. That heads are reduced is tested with the scorer.
template <class Scorer>
mock_options suited(mock_options how) {
  if (Scorer::decides == kv::granularity::lane) return how;
  how.model.query_heads = how.model.group();
  how.model.kv_heads = 1;
  return how;
}

/// Inside a property: a scorer with any sensible parameters.
template <class Scorer>
Scorer any_scorer() {
  Scorer made{};
  [[maybe_unused]] auto const any_group = [] {
    return *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
  };
  if constexpr (std::same_as<Scorer, kv::streaming_llm>) made.sinks = *rc::gen::element(0, 1, 4, 100);
  if constexpr (std::same_as<Scorer, kv::snapkv>) {
    made.window = *rc::gen::element(3, 1, 2, 8, 32);
    made.pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{7}, kv::avg_pool{5}, kv::max_pool{3});
    made.rows = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max, kv::reduction::last);
    made.group = any_group();
  }
  if constexpr (std::same_as<Scorer, kv::h2o>) {
    made.heavy = *rc::gen::element(-1, 0, 2, 8, 100);
    made.recent = *rc::gen::element(-1, 0, 1, 4, 100);
    made.group = any_group();
  }
  if constexpr (std::same_as<Scorer, kv::tova>) made.force_last = any_bool();
  if constexpr (std::same_as<Scorer, kv::random_scores>) made.seed = *rc::gen::arbitrary<std::uint64_t>();
  return made;
}

/// What the method's description forces at an entry, written again from the description.
template <class Scorer>
bool forced_by(Scorer const& score, int ordinal, int count, int position, int budget) {
  if constexpr (std::same_as<Scorer, kv::full>) return true;
  if constexpr (std::same_as<Scorer, kv::streaming_llm>) return position < score.sinks;
  if constexpr (std::same_as<Scorer, kv::snapkv>) return count - ordinal <= score.window;
  if constexpr (std::same_as<Scorer, kv::h2o>) {
    int const heavy = score.heavy == -1 ? budget / 2 : score.heavy;
    return count - ordinal <= (score.recent == -1 ? budget - heavy : score.recent);
  }
  if constexpr (std::same_as<Scorer, kv::tova>) return score.force_last && ordinal + 1 == count;
  return false;
}

template <class Scorer>
using law_policy = kv::eviction<Scorer, kv::either<kv::sinks, kv::position_span>>;

/// Inside a property: any scorer of its kind with any protection, absolute budget and slack.
template <class Scorer>
law_policy<Scorer> any_policy(int bound) {
  int const begin = *rc::gen::element(0, 2, 5);
  int const slack = *rc::gen::element(0, 0, 0, 3);
  return {.score = any_scorer<Scorer>(),
          .protect = {{*rc::gen::element(0, 0, 1, 4)}, {begin, begin + *rc::gen::element(0, 0, 3)}},
          .budget = {*rc::gen::element(bound / 2, 0, 1, bound / 4, bound - 1, bound)},
          .trigger = {slack}};
}

/// The forced entries of a lane with these positions.
template <class Scorer>
reference::flags forced_entries(law_policy<Scorer> const& policy, std::vector<int> const& positions) {
  reference::flags forced;
  int const count = static_cast<int>(positions.size());
  for (int e = 0; e < count; ++e) {
    int const position = positions[as_size(e)];
    bool const span = policy.protect.second.begin <= position && position < policy.protect.second.end;
    forced.push_back(position < policy.protect.first.tokens || span ||
                     forced_by(policy.score, e, count, position, policy.budget.tokens));
  }
  return forced;
}

}  // namespace kvpolicy_test

// The demo's admissions and selections, and their compositions with an eviction.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "contenders.hpp"

namespace demo {

template <class Policy>
class cache_reader final : public reader {
 public:
  cache_reader(stage const& on, reading& from, Policy const& policy)
      : on_(on.model, on.exec, from.under(on, policy), policy, {.bound = on.bound, .chunk = 1, .gates = on.gates}) {}
  std::span<float const> step(std::uint8_t byte) override { return on_.step(byte); }
  [[nodiscard]] std::span<float const> logits() const override { return on_.logits(); }
  [[nodiscard]] tinylm::session_counters const& counters() const override { return on_.counters(); }
  [[nodiscard]] std::int64_t live_entries() const override { return on_.live_entries(); }
  [[nodiscard]] std::int64_t live_bytes() const override { return on_.live_bytes(); }
  [[nodiscard]] std::vector<kv::lanes> lanes() override { return on_.lanes(); }

 private:
  tinylm::cache_session<Policy> on_;
};

/// `compose(budget, context)` makes a `kvpolicy::cache_policy`.
template <class Compose>
contender cache_contestant(std::string name, bool gated, Compose compose) {
  contender made{.name = std::move(name), .gated = gated, .spell = {}, .start = {}};
  made.spell = [compose](int budget, int context) { return kv::to_string(compose(budget, context)); };
  made.start = [compose](stage const& on, reading& from, int budget) -> std::unique_ptr<reader> {
    auto const policy = compose(budget, on.context);
    return std::make_unique<cache_reader<std::remove_const_t<decltype(policy)>>>(on, from, policy);
  };
  return made;
}

/// Divides a budget of entries for each lane among the parts of a composition. The context is in bytes.
struct portions {
  static constexpr int window = 16;  ///< the window in bytes with which the write gate was trained

  int budget;
  int context;

  /// The threshold with which a lane holds about the budget on average, its window included. It was measured for a few
  /// fractions of 1,024 bytes that contain facts. Between them it is interpolated linearly in logarithms.
  [[nodiscard]] float threshold() const {
    constexpr std::pair<float, float> measured[] = {{1.0f / 16, 0.0123f}, {1.0f / 8, 0.0033f}, {1.0f / 4, 0.0003f}};
    float const share = static_cast<float>(budget) / static_cast<float>(context);
    int const right = share > measured[1].first ? 2 : 1;
    auto const [low, above] = measured[right - 1];
    auto const [high, below] = measured[right];
    float const at = std::log(share / low) / std::log(high / low);
    return std::min(1.0f, above * std::pow(below / above, at));
  }

  [[nodiscard]] auto admit() const { return kv::policies::wg_kv({.window = window, .threshold = threshold()}); }
  [[nodiscard]] static auto read(int tokens) { return kv::policies::quest({.budget = tokens, .dense_layers = 0}); }
  [[nodiscard]] auto keep() const { return kv::policies::trim_kv({.budget = budget}); }

  /// In a composition a part gets three quarters of its budget. After a write gate lanes hold different numbers of
  /// entries, so they share the budget of the eviction, and a lane with many entries may read twice the budget, because
  /// most lanes hold less.
  [[nodiscard]] static int some(int tokens) { return std::max(1, tokens * 3 / 4); }
  [[nodiscard]] auto read_beside_window() const { return read(2 * budget); }
  [[nodiscard]] auto keep_beside_window() const {
    return kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_sequence{some(budget - window)}};
  }
};

/// The policies of the table. A part alone gets the whole budget, and less in a composition.
inline std::vector<contender> cache_policies() {
  auto const add = [](char const* name, bool gated, auto const& compose) {
    return cache_contestant(name, gated, [=](int n, int context) { return compose(portions{n, context}); });
  };
  return {
      add("local_attention", false,
          [](portions const& of) {
            return kv::cache_policy{.admit = kv::policies::local_attention({.window = of.budget - 4, .sinks = 4})};
          }),
      add("wg_kv", true, [](portions const& of) { return kv::cache_policy{.admit = of.admit()}; }),
      add("trim_kv", true, [](portions const& of) { return kv::cache_policy{.evict = of.keep()}; }),
      add("quest", false, [](portions const& of) { return kv::cache_policy{.select = of.read(of.budget)}; }),
      add("wg_kv+quest", true,
          [](portions const& of) { return kv::cache_policy{.admit = of.admit(), .select = of.read_beside_window()}; }),
      add("trim_kv+quest", true,
          [](portions const& of) {
            return kv::cache_policy{.select = of.read(portions::some(of.budget)), .evict = of.keep()};
          }),
      add("wg_kv+trim_kv", true,
          [](portions const& of) { return kv::cache_policy{.admit = of.admit(), .evict = of.keep_beside_window()}; }),
      add("wg_kv+trim_kv+quest", true,
          [](portions const& of) {
            return kv::cache_policy{
                .admit = of.admit(), .select = of.read_beside_window(), .evict = of.keep_beside_window()};
          }),
  };
}

}  // namespace demo

// The evictions of the demo's table. Each is a composition that a user could write. The interface only lets a loop run
// all of them.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../tinylm/session.hpp"
#include "../value_aware.hpp"
#include "reading.hpp"

namespace demo {

namespace kv = kvpolicy;

/// A sequence that continues a prompt under a policy.
class reader {
 public:
  virtual ~reader() = default;
  virtual std::span<float const> step(std::uint8_t byte) = 0;
  [[nodiscard]] virtual std::span<float const> logits() const = 0;
  [[nodiscard]] virtual tinylm::session_counters const& counters() const = 0;
  /// The entries that all lanes hold now, and the bytes of their keys and values.
  [[nodiscard]] virtual std::int64_t live_entries() const = 0;
  [[nodiscard]] virtual std::int64_t live_bytes() const = 0;
  [[nodiscard]] virtual std::vector<kv::lanes> lanes() = 0;  ///< the parts of the cache; valid until the next step
};

template <class Policy>
class session_reader final : public reader {
 public:
  explicit session_reader(tinylm::session<Policy> on) : on_(std::move(on)) {}
  std::span<float const> step(std::uint8_t byte) override { return on_.step(byte); }
  [[nodiscard]] std::span<float const> logits() const override { return on_.logits(); }
  [[nodiscard]] tinylm::session_counters const& counters() const override { return on_.counters(); }
  [[nodiscard]] std::int64_t live_entries() const override { return on_.entries().live_entries(); }
  [[nodiscard]] std::int64_t live_bytes() const override { return on_.entries().live_bytes(); }
  [[nodiscard]] std::vector<kv::lanes> lanes() override { return {on_.view().lanes}; }

 private:
  tinylm::session<Policy> on_;
};

/// A policy of the table: its name, its text for a budget, and how a sequence starts under it.
struct contender {
  std::string name;
  bool budgeted = true;     ///< it has one row for each budget; otherwise it takes no budget and has one row
  bool own_budget = false;  ///< its spec contains the budget
  bool gated = false;       ///< it needs trained gates
  std::function<std::string(int budget, int context)> spell;
  std::function<std::unique_ptr<reader>(stage const&, reading&, int budget)> start;
};

/// Makes a contender whose policy is `compose(budget)`. `decide` says when it decides: SnapKV and the scorers of keys
/// decide once, at the end of the prefill; StreamingLLM and H2O are defined as deciding after every forward.
template <class Compose>
contender contestant(std::string name, tinylm::when decide, Compose compose) {
  contender made{.name = std::move(name), .spell = {}, .start = {}};
  made.spell = [compose](int budget, int) { return kv::to_string(compose(budget)); };
  made.start = [compose, decide](stage const& on, reading& from, int budget) -> std::unique_ptr<reader> {
    auto const policy = compose(budget);
    tinylm::session_options const options{.bound = on.bound, .decide = decide, .lay = on.lay};
    return std::make_unique<session_reader<std::remove_const_t<decltype(policy)>>>(
        tinylm::session(on.model, on.exec, from.whole(), policy, options));
  };
  return made;
}

/// The evictions. A fact of the recall task has 17 bytes, so pools have a width of 15; a question has 10 bytes, so
/// windows have 16.
inline std::vector<contender> evictions() {
  using tinylm::when;
  kv::snapkv const window{.window = 16, .pool = kv::max_pool{15}};
  contender full = contestant("full", when::after_prefill, [](int) { return kv::policies::full(); });
  full.budgeted = false;
  return {
      full,
      contestant("streaming_llm", when::every_forward,
                 [](int n) { return kv::policies::streaming_llm({.budget = n}); }),
      contestant("snapkv", when::after_prefill,
                 [=](int n) { return kv::policies::snapkv({.budget = n, .score = window}); }),
      contestant("h2o", when::every_forward, [](int n) { return kv::policies::h2o({.budget = n}); }),
      contestant("knorm", when::after_prefill, [](int n) { return kv::policies::knorm({.budget = n, .sinks = 4}); }),
      contestant("random", when::after_prefill, [](int n) { return kv::policies::random({.budget = n, .sinks = 4}); }),
      contestant("value_aware", when::after_prefill,
                 [](int n) {
                   return kv::eviction{.score = value_aware{}, .protect = kv::recent{16}, .budget = kv::per_lane{n}};
                 }),
  };
}

/// The shipped scorers and the scorer of this program, by name.
inline kv::registry known_scorers() { return kv::shipped().add(value_aware{}); }

/// The policy of a user's spec. Methods that are defined as deciding after every forward do so.
inline contender written(std::string const& spec, std::string name) {
  kv::any_policy const policy = kv::parse(spec, known_scorers());
  std::string const scorer = kv::to_string(policy).substr(0, kv::to_string(policy).find_first_of("( "));
  bool const streams = scorer == "streaming_llm" || scorer == "h2o" || scorer == "tova";
  contender made = contestant(std::move(name), streams ? tinylm::when::every_forward : tinylm::when::after_prefill,
                              [policy](int) { return policy; });
  made.budgeted = false;
  made.own_budget = true;
  return made;
}

}  // namespace demo

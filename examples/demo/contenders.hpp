// The policies of the demo's table. Each is a composition that a user could write; the interface only lets a loop run
// them.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../tinylm/session.hpp"
#include "../value_aware.hpp"

namespace demo {

namespace kv = kvpolicy;

/// A sequence that goes on from a prompt under some policy.
class reader {
 public:
  virtual ~reader() = default;
  virtual std::span<float const> step(std::uint8_t byte) = 0;
  [[nodiscard]] virtual std::span<float const> logits() const = 0;
  [[nodiscard]] virtual tinylm::session_counters const& counters() const = 0;
  [[nodiscard]] virtual tinylm::kv_sequence const& entries() const = 0;
  [[nodiscard]] virtual kv::lanes lanes() = 0;  ///< what is held now; valid until the next step
};

template <class Policy>
class session_reader final : public reader {
 public:
  explicit session_reader(tinylm::session<Policy> on) : on_(std::move(on)) {}
  std::span<float const> step(std::uint8_t byte) override { return on_.step(byte); }
  [[nodiscard]] std::span<float const> logits() const override { return on_.logits(); }
  [[nodiscard]] tinylm::session_counters const& counters() const override { return on_.counters(); }
  [[nodiscard]] tinylm::kv_sequence const& entries() const override { return on_.entries(); }
  [[nodiscard]] kv::lanes lanes() override { return on_.view().who; }

 private:
  tinylm::session<Policy> on_;
};

/// The engine that all contenders share.
struct stage {
  tinylm::model& model;
  kv::host_executor& exec;
  tinylm::kv_pool& pool;
  int bound;
  tinylm::layout lay;
};

/// A name, how it spells for a budget, and how a sequence starts under it.
struct contender {
  std::string name;
  bool budgeted = true;     ///< it gets a row for each budget; otherwise it takes none and gets one row
  bool own_budget = false;  ///< it says its budget itself
  std::function<std::string(int budget)> spell;
  std::function<std::unique_ptr<reader>(stage const&, tinylm::prompt const&, int budget)> start;
};

/// `compose(budget)` makes the policy. `decide` says when: SnapKV and the scorers of keys decide once, at the end of
/// the prefill; StreamingLLM and H2O are defined after every forward.
template <class Compose>
contender contestant(std::string name, tinylm::when decide, Compose compose) {
  return {std::move(name), true, false, [compose](int budget) { return kv::to_string(compose(budget)); },
          [compose, decide](stage const& on, tinylm::prompt const& from, int budget) -> std::unique_ptr<reader> {
            auto const policy = compose(budget);
            tinylm::session_options const options{.bound = on.bound, .decide = decide, .lay = on.lay};
            return std::make_unique<session_reader<std::remove_const_t<decltype(policy)>>>(
                tinylm::session(on.model, on.exec, from, policy, options));
          }};
}

/// A fact of the recall task is seventeen bytes long, so a pool is fifteen wide; a question is ten, so a window is
/// sixteen.
inline std::vector<contender> all_contenders() {
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

/// The shipped policies by name, and the scorer of this program: one line.
inline kv::registry known_scorers() { return kv::shipped().add(value_aware{}); }

/// What a user wrote. Methods that are defined after every forward decide so.
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

/// Those of the names, or all if there are neither names nor specs; then those that a user wrote, beside the full
/// cache.
inline std::vector<contender> chosen_contenders(std::vector<std::string> const& names,
                                                std::vector<std::string> const& specs) {
  std::vector<contender> chosen;
  for (contender& one : all_contenders()) {
    bool const named = std::count(names.begin(), names.end(), one.name) > 0;
    bool const reference = !specs.empty() && one.name == "full";
    if (named || reference || (names.empty() && specs.empty())) chosen.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    chosen.push_back(written(specs[i], i == 0 ? "yours" : "yours " + std::to_string(i + 1)));
  }
  return chosen;
}

}  // namespace demo

// The policies of the demo's table. Each is a composition that a user could write; the interface only lets a loop run
// them.
#pragma once

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
};

template <class Policy>
class session_reader final : public reader {
 public:
  explicit session_reader(tinylm::session<Policy> on) : on_(std::move(on)) {}
  std::span<float const> step(std::uint8_t byte) override { return on_.step(byte); }
  [[nodiscard]] std::span<float const> logits() const override { return on_.logits(); }
  [[nodiscard]] tinylm::session_counters const& counters() const override { return on_.counters(); }
  [[nodiscard]] tinylm::kv_sequence const& entries() const override { return on_.entries(); }

 private:
  tinylm::session<Policy> on_;
};

/// The engine that all contenders share.
struct stage {
  tinylm::model& model;
  kv::host_executor& exec;
  tinylm::kv_pool& pool;
  int bound;
};

/// A name, how it spells for a budget, and how a sequence starts under it.
struct contender {
  std::string name;
  std::function<std::string(int budget)> spell;
  std::function<std::unique_ptr<reader>(stage const&, tinylm::prompt const&, int budget)> start;
};

/// `compose(budget)` makes the policy. `decide` says when: SnapKV and the scorers of keys decide once, at the end of
/// the prefill; StreamingLLM and H2O are defined after every forward.
template <class Compose>
contender contestant(std::string name, tinylm::when decide, Compose compose) {
  return {std::move(name), [compose](int budget) { return kv::to_string(compose(budget)); },
          [compose, decide](stage const& on, tinylm::prompt const& from, int budget) -> std::unique_ptr<reader> {
            auto const policy = compose(budget);
            tinylm::session_options const options{.bound = on.bound, .decide = decide};
            return std::make_unique<session_reader<std::remove_const_t<decltype(policy)>>>(
                tinylm::session(on.model, on.exec, from, policy, options));
          }};
}

/// A fact of the recall task is seventeen bytes long, so a pool is fifteen wide; a question is ten, so a window is
/// sixteen.
inline std::vector<contender> all_contenders() {
  using tinylm::when;
  kv::snapkv const window{.window = 16, .pool = kv::max_pool{15}};
  return {
      contestant("full", when::after_prefill, [](int) { return kv::policies::full(); }),
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

}  // namespace demo

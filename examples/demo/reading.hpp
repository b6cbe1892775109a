// The engine that all contenders share, and a prompt that was read in the ways that they need.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../tinylm/cache_session.hpp"
#include "../tinylm/session.hpp"
#include "tasks.hpp"

namespace demo {

namespace kv = kvpolicy;

/// The engine that all contenders share.
struct stage {
  tinylm::model& model;
  kv::host_executor& exec;
  tinylm::kv_pool& pool;
  int bound;
  int context;  ///< bytes of a prompt
  tinylm::layout lay;
  tinylm::gate_weights gates{};
};

/// A prompt that was read with the full cache, and under the mask of each admission. It is read once in each way, for
/// all contenders.
class reading {
 public:
  reading(stage const& on, bytes text)
      : text_(std::move(text)), whole_(tinylm::read_prompt(on.model, on.exec, on.pool, text_, on.bound)) {}

  [[nodiscard]] tinylm::prompt const& whole() const { return whole_; }

  /// The prompt as read under the mask of the policy's admission. Without an admission all entries are seen.
  template <class Policy>
  [[nodiscard]] tinylm::read_text& under(stage const& on, Policy const& policy) {
    std::string const key = kv::to_string(kv::cache_policy{.admit = policy.admit});
    auto found = seen_.find(key);
    if (found == seen_.end()) {
      using session = tinylm::cache_session<Policy>;
      found = seen_.emplace(key, session::read_once(on.model, on.exec, text_, policy, on.gates)).first;
    }
    return found->second;
  }

 private:
  bytes text_;
  tinylm::prompt whole_;
  std::map<std::string, tinylm::read_text> seen_;
};

}  // namespace demo

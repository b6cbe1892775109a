// SPDX-License-Identifier: Apache-2.0
// The interface between the demo's table and the policies in it. It includes neither the policies nor the model, so
// that the table compiles quickly, and the policies compile beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <kvpolicy/by_name/any_applier.hpp>
#include <kvpolicy/core/cache.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tasks.hpp"

namespace demo {

struct options;

namespace kv = kvpolicy;

/// What a sequence has cost so far.
struct costs {
  std::int64_t steps = 0;         ///< tokens that were decoded one at a time
  std::int64_t entries_read = 0;  ///< entries of all lanes that these steps attended to
  double model_seconds = 0;
  double policy_seconds = 0;
};

/// A sequence that continues a prompt under a policy.
class reader {
 public:
  virtual ~reader() = default;
  virtual std::span<float const> step(std::uint8_t byte) = 0;
  [[nodiscard]] virtual std::span<float const> logits() const = 0;
  [[nodiscard]] virtual costs spent() const = 0;
  /// The entries that all lanes hold now, and the bytes of their keys and values.
  [[nodiscard]] virtual std::int64_t live_entries() const = 0;
  [[nodiscard]] virtual std::int64_t live_bytes() const = 0;
  [[nodiscard]] virtual std::vector<kv::lanes> lanes() = 0;  ///< the parts of the cache; valid until the next step
};

class model_files;  ///< the weights of the model and of the gates (engine.hpp)
class engine;       ///< a model with the memory of its caches, for one prompt at a time
class reading;      ///< a prompt that the model has read, in each way that a policy needs

/// How an engine is set up.
struct engine_options {
  int context = 1024;  ///< bytes of a prompt
  int bound = 1152;    ///< the largest number of entries of a lane
  std::string layout = "compact";
  kv::any_applier own{};  ///< the layout, if it is one of a plugin
  int threads = 1;
};

/// The trained parts that policies need beside the model.
struct trained_parts {
  bool gates = false;     ///< the write gate and the retention gate, from the folder of the weights
  bool residual = false;  ///< IntentKV's residual head, from examples/agent_replay/weights
  bool profile = false;   ///< what is known of the model's queries, from the folder of the weights
};

/// Reads a folder of weights, and the trained parts that are needed.
/// - throws: `invalid_argument` if a file is missing or wrong.
[[nodiscard]] std::shared_ptr<model_files const> read_model(std::string const& folder, trained_parts needed = {});
[[nodiscard]] kv::shape shape_of(model_files const& files);
[[nodiscard]] std::shared_ptr<engine> make_engine(std::shared_ptr<model_files const> files, engine_options const& with);
[[nodiscard]] bool is_layout(std::string const& name);

/// Reads a prompt with the full cache.
[[nodiscard]] std::shared_ptr<reading> read_whole(engine& on, bytes const& text);
/// The greedy continuation of a prompt with the full cache.
[[nodiscard]] bytes greedy_text(engine& on, reading const& from, int length);

/// A policy of the table: its name, its text for a budget, and how a sequence starts under it.
struct contender {
  std::string name;         ///< as `--policies` and the report write it
  std::string title{};      ///< as the method's authors write it
  std::string decides{};    ///< when it decides, in a few words
  bool budgeted = true;     ///< it has one row for each budget; otherwise it takes no budget and has one row
  bool own_budget = false;  ///< its spec contains the budget
  trained_parts needs{};
  std::function<std::string(int budget, int context)> spell{};
  std::function<std::unique_ptr<reader>(engine&, reading&, int budget)> start{};

  /// The same policy with a title and with words for when it decides.
  [[nodiscard]] contender titled(std::string as, std::string when) && {
    title = std::move(as);
    decides = std::move(when);
    return std::move(*this);
  }
};

// The lists of contenders. Each function is compiled in a source file of its own.
[[nodiscard]] contender full_cache();
[[nodiscard]] std::vector<contender> published_evictions();  ///< StreamingLLM, SnapKV, H2O, IntentKV
[[nodiscard]] std::vector<contender> gated();                ///< TRIM-KV, WG-KV
[[nodiscard]] std::vector<contender> more_evictions();
[[nodiscard]] std::vector<contender> compositions();  ///< of admission, selection and eviction
/// The policy of a user's spec: an eviction, or an admission, a selection and an eviction together.
/// - throws: `invalid_argument` if the spec is not one of a policy.
[[nodiscard]] contender written(options const& with, std::string const& spec, std::string name);
/// The applier that a plugin adds under the name of `--layout`, or none.
[[nodiscard]] kv::any_applier written_layout(options const& with);

}  // namespace demo

// The policies that requests may name, and how the engine calls one for a sequence.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "sequence.hpp"

namespace serving {

/// When a policy decides: never, once when the prompt is in the cache, or from then on whenever a block was filled.
enum class deciding { never, after_prompt, every_block };

/// A policy by its text, and what the scheduler must know of it before it runs.
struct served_policy {
  std::string name;
  std::string spec;  ///< as `kv::parse` reads it
  deciding when = deciding::after_prompt;
  int kept = 0;    ///< the largest number of entries of a lane after a decision
  int window = 1;  ///< the last tokens of a prompt that are computed even if they are cached,
                   ///< because the policy reads their queries
  bool reads_log_betas = false;
};

/// A policy with its state for all slots and its plan for one sequence. They are made once. A slot's part of the state
/// is used by the sequences that have the policy and the slot.
class policy_calls {
 public:
  policy_calls(executor& exec, served_policy about, kv::cache const& all)
      : exec_(&exec),
        about_(std::move(about)),
        policy_(about_.when == deciding::never ? kv::any_policy() : kv::parse(about_.spec)),
        state_(kv::make_state(exec, policy_, all)),
        plan_(kv::make_plan(exec, policy_, all, kv::at_once{.sequences = 1}, kv::compact{})) {}

  [[nodiscard]] served_policy const& about() const { return about_; }
  [[nodiscard]] kv::any_policy const& policy() const { return policy_; }
  [[nodiscard]] int kept_blocks() const { return about_.when == deciding::never ? 0 : blocks_for(about_.kept); }

  /// Makes a slot ready for a sequence without entries.
  void begin(kv::cache all, int slot) { kv::reset(*exec_, all, state_, slot); }

  /// Continues the sequence of a slot in another one. Its blocks are shared by then.
  void fork(kv::cache all, int from, int to) {
    begin(all, to);
    kv::fork(*exec_, all, state_, from, to, kv::rows::leave);
  }

  /// Copies all that there is of a sequence to bytes, and back into a slot with as many blocks.
  [[nodiscard]] std::vector<std::byte> save(kv::cache const& all, int slot) const {
    std::vector<std::byte> saved(kv::saved_bytes(*exec_, all, state_, slot));
    kv::save(*exec_, all, state_, slot, saved);
    return saved;
  }
  void load(kv::cache all, int slot, std::span<std::byte const> saved) {
    begin(all, slot);
    kv::load(*exec_, all, state_, slot, saved);
  }

  /// Adds entries for the next tokens: those of the text, then the drafts.
  void append(sequence const& of, kv::cache in, int tokens, int drafts) {
    kv::append(*exec_, in, state_, {.tokens = tokens, .position = of.computed});
    if (drafts == 0) return;
    kv::append(*exec_, in, state_, {.tokens = drafts, .position = of.computed + tokens, .in_flight = true});
  }

  /// Keeps the first `accepted` of the drafts, and removes the others.
  void settle_drafts(kv::cache in, int length, int accepted) {
    kv::truncate(*exec_, in, state_, 0, length);
    kv::commit(*exec_, in, 0, accepted);
  }

  /// True if the policy will decide about a sequence that has `entries` entries in each lane after the next forward.
  [[nodiscard]] bool will_decide(sequence const& of, int entries, bool prompt_ends) const {
    if (about_.when == deciding::never || entries <= about_.kept) return false;
    if (!of.decided) return prompt_ends;
    return about_.when == deciding::every_block && entries >= about_.kept + block_pool::block_tokens;
  }

  /// Tells the policy of a forward. Queries and numbers are those of the newest entries.
  void observe(sequence const& of, kv::cache const& in, kv::queries const& rows, kv::log_beta const& log_betas) {
    if (about_.when == deciding::never || (of.decided && about_.when == deciding::after_prompt)) return;
    kv::observe(*exec_, policy_, kv::signals{in.lanes, kv::keys_of(in), kv::values_of(in), rows, log_betas}, state_);
  }

  /// Tells the policy of `tokens` tokens whose blocks were found in the prefix cache. Their queries are gone, but the
  /// numbers of their gate were kept with the blocks.
  void observe_cached(sequence const& of, kv::cache const& in, block_pool& pool, int tokens) {
    if (!about_.reads_log_betas || tokens == 0) return;
    int const lanes = in.lanes.size();
    std::vector<float> numbers;  // [lane][token]
    for (int lane = 0; lane < lanes; ++lane) {
      for (int t = 0; t < tokens; t += block_pool::block_tokens) {
        float const* const from = pool.log_betas(of.blocks[static_cast<std::size_t>(t / block_pool::block_tokens)]);
        numbers.insert(numbers.end(), from + lane * block_pool::block_tokens,
                       from + (lane + 1) * block_pool::block_tokens);
      }
    }
    kv::log_beta cached;
    cached.base = reinterpret_cast<std::byte const*>(numbers.data());
    cached.entry = sizeof(float);
    cached.head = tokens * cached.entry;
    cached.layer = cached.head * in.lanes.heads;
    cached.entries = tokens;
    kv::observe(*exec_, policy_, kv::signals{in.lanes, cached}, state_);
  }

  /// Decides, and returns the largest number of entries that a lane keeps.
  [[nodiscard]] int decide(kv::cache const& in, kv::queries const& rows, kv::log_beta const& log_betas) {
    kv::decide(*exec_, policy_, kv::signals{in.lanes, kv::keys_of(in), kv::values_of(in), rows, log_betas}, state_,
               plan_);
    int kept = 0;
    for (int i = 0; i < in.lanes.size(); ++i) kept = std::max(kept, static_cast<int>(plan_.keep().listed(i).size()));
    kv::expects(kept <= about_.kept, "serving", about_.name, kept,
                [&] { return "it said that a lane keeps at most " + std::to_string(about_.kept) + " entries"; });
    return kept;
  }
  /// Moves the kept entries together, in blocks that must be the sequence's own.
  void apply(sequence& of, kv::cache in) {
    kv::apply(*exec_, kv::compact{}, plan_, in, state_);
    of.decided = true;
  }

 private:
  executor* exec_;
  served_policy about_;
  kv::any_policy policy_;
  kv::state<executor> state_;
  kv::plan<executor> plan_;
};

}  // namespace serving

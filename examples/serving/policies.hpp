// SPDX-License-Identifier: Apache-2.0
// The policies that requests may name, and how the engine calls one for a sequence.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "memory.hpp"

namespace serving {

/// When a policy decides: never, once when the prompt is in the cache, or from then on whenever a block was filled.
enum class deciding { never, after_prompt, every_block };

/// A policy by its text, and what the scheduler must know of it before it runs.
struct served_policy {
  std::string name;
  std::string spec;  ///< as `kv::parse` reads it
  deciding when = deciding::after_prompt;
  int kept = 0;    ///< the largest number of entries of a lane after a decision
  int window = 0;  ///< the last tokens of a prompt whose queries the policy reads: they are computed even if they are
                   ///< cached
  bool reads_log_betas = false;
};

/// A policy with its states and its plans for one sequence. They are made once.
///
/// There is a state for the slots of each kind. A policy that decides once reads what it records while a prompt is
/// read, and never again. So its narrow slots have a state without columns, and the few wide ones, in which prompts are
/// read, share what the recorders need.
class policy_calls {
 public:
  policy_calls(executor& exec, served_policy about, memory& in)
      : exec_(&exec),
        memory_(&in),
        about_(std::move(about)),
        wide_(make_part(width::wide, about_.when == deciding::never)),
        without_columns_(kv::make_state(exec, kv::any_policy(), in.view(width::wide))) {
    if (in.tables().sizes().narrow > 0) {
      narrow_.emplace(make_part(width::narrow, about_.when != deciding::every_block));
    }
  }

  [[nodiscard]] served_policy const& about() const { return about_; }
  [[nodiscard]] int kept_blocks() const { return about_.when == deciding::never ? 0 : blocks_for(about_.kept); }

  void count(held_memory& into) const {
    for (part const* each : {&wide_, narrow_ ? &*narrow_ : nullptr}) {
      if (each == nullptr) continue;
      into.state += static_cast<std::int64_t>(each->needed.state);
      if (each->plan) into.plans += static_cast<std::int64_t>(each->needed.plan);
    }
  }

  /// Makes the slot of a sequence ready for it.
  void begin(sequence const& of) {
    kv::cache all = memory_->view(of.kind);
    kv::reset(*exec_, all, state_of(of), of.slot);
  }

  /// Continues a sequence in the slot of another one. Its blocks are shared by then.
  void fork(sequence const& from, sequence const& to) {
    begin(to);
    kv::cache all = memory_->view(from.kind);
    kv::fork(*exec_, all, state_of(from), from.slot, to.slot, kv::rows::leave);
  }

  /// Copies all that there is of a sequence to bytes, and back into a slot of the same kind with as many blocks.
  [[nodiscard]] std::vector<std::byte> save(sequence const& of) {
    return saved(memory_->view(of.kind), state_of(of), of.slot, kv::rows::copy);
  }
  void load(sequence const& of, std::span<std::byte const> saved) {
    begin(of);
    kv::cache all = memory_->view(of.kind);
    kv::load(*exec_, all, state_of(of), of.slot, saved);
  }

  /// Moves a sequence whose prompt has been read from a wide slot to a narrow one. What the recorders of a policy kept
  /// that has decided for the last time stays behind.
  void narrow(sequence& of) {
    bool const ends = about_.when != deciding::every_block;
    auto const entries =
        saved(memory_->view(width::wide), ends ? without_columns_ : wide_.state, of.slot, kv::rows::leave);
    memory_->narrow(of);
    begin(of);
    kv::cache all = memory_->view(width::narrow);
    kv::load(*exec_, all, narrow_->state, of.slot, entries, kv::rows::leave);
  }
  /// The most entries of a lane of a sequence from now on, if its prompt has been read.
  [[nodiscard]] int most_entries(sequence const& of, int drafts) const {
    int const all = memory_->entries(of) + of.remaining();
    return about_.when == deciding::every_block ? std::min(all, about_.kept + block_pool::block_tokens + drafts) : all;
  }

  /// Adds entries for the next tokens: those of the text, then the drafts.
  void append(sequence const& of, int tokens, int drafts) {
    kv::cache in = memory_->view(of);
    kv::append(*exec_, in, state_of(of), {.tokens = tokens, .position = of.computed});
    if (drafts == 0) return;
    kv::append(*exec_, in, state_of(of), {.tokens = drafts, .position = of.computed + tokens, .in_flight = true});
  }

  /// Keeps the first `accepted` of the drafts, and removes the others.
  void settle_drafts(sequence const& of, int length, int accepted) {
    kv::cache in = memory_->view(of);
    kv::truncate(*exec_, in, state_of(of), 0, length);
    kv::commit(*exec_, in, 0, accepted);
  }

  /// The number of tokens, of the last ones of a forward, whose queries the policy reads.
  [[nodiscard]] int queries_of(sequence const& of, int tokens) const {
    return of.published ? 0 : std::min(tokens, about_.window);
  }

  /// True if the policy will decide about a sequence that has `entries` entries in each lane after a forward that ends
  /// its text.
  [[nodiscard]] bool will_decide(sequence const& of, int entries) const {
    if (about_.when == deciding::never || entries <= about_.kept) return false;
    if (about_.when == deciding::after_prompt) return !of.published;
    return !of.decided || entries >= about_.kept + block_pool::block_tokens;
  }

  /// Tells the policy of a forward. Queries and numbers are those of the newest entries.
  void observe(sequence const& of, kv::queries const& rows, kv::log_beta const& log_betas) {
    bool const reads = about_.when == deciding::every_block || (about_.when == deciding::after_prompt && !of.published);
    if (!reads) return;
    kv::cache const in = memory_->view(of);
    given const all(in);
    kv::observe(*exec_, wide_.policy, signals_of(all, rows, log_betas), state_of(of));
  }

  /// Tells the policy of `tokens` tokens whose blocks were found in the prefix cache. Their queries are gone, but the
  /// numbers of their gate were kept with the blocks.
  void observe_cached(sequence const& of, int tokens) {
    if (!about_.reads_log_betas || tokens == 0) return;
    kv::cache const in = memory_->view(of);
    int const lanes = in.lanes.size();
    std::vector<float> numbers;  // [lane][token]
    for (int lane = 0; lane < lanes; ++lane) {
      for (int t = 0; t < tokens; t += block_pool::block_tokens) {
        int const block = of.blocks[static_cast<std::size_t>(t / block_pool::block_tokens)];
        float const* const from = memory_->pool().log_betas(block);
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
    kv::observe(*exec_, wide_.policy, kv::signals{in.lanes, cached}, state_of(of));
  }

  /// Decides, and returns the largest number of entries that a lane keeps.
  [[nodiscard]] int decide(sequence const& of, kv::queries const& rows, kv::log_beta const& log_betas) {
    kv::cache const in = memory_->view(of);
    given const all(in);
    kv::plan<executor>& plan = plan_of(of);
    kv::decide(*exec_, wide_.policy, signals_of(all, rows, log_betas), state_of(of), plan);
    int kept = 0;
    for (int i = 0; i < in.lanes.size(); ++i) kept = std::max(kept, static_cast<int>(plan.keep().listed(i).size()));
    kv::expects(kept <= about_.kept, "serving", about_.name, kept,
                [&] { return "it said that a lane keeps at most " + std::to_string(about_.kept) + " entries"; });
    return kept;
  }
  /// Moves the kept entries together, in blocks that must be the sequence's own.
  void apply(sequence& of) {
    kv::cache in = memory_->view(of);
    kv::apply(*exec_, kv::compact{}, plan_of(of), in, state_of(of));
    of.decided = true;
  }

 private:
  /// What belongs to the slots of a kind.
  struct part {
    kv::any_policy policy;
    kv::required needed;
    kv::state<executor> state;
    std::optional<kv::plan<executor>> plan;
  };
  [[nodiscard]] part make_part(width kind, bool has_decided) {
    kv::any_policy const policy = has_decided ? kv::any_policy() : kv::parse(about_.spec);
    kv::cache const all = memory_->view(kind);
    kv::at_once const one{.sequences = 1};
    part made{policy, kv::required_bytes(policy, all, one, kv::compact{}), kv::make_state(*exec_, policy, all), {}};
    if (!has_decided) made.plan.emplace(kv::make_plan(*exec_, policy, all, one, kv::compact{}));
    return made;
  }
  [[nodiscard]] kv::state<executor>& state_of(sequence const& of) {
    return of.kind == width::wide ? wide_.state : narrow_->state;
  }
  [[nodiscard]] kv::plan<executor>& plan_of(sequence const& of) {
    return of.kind == width::wide ? *wide_.plan : *narrow_->plan;
  }

  /// The rows of a sequence, which signals refer to.
  struct given {
    explicit given(kv::cache const& in) : lanes(in.lanes), keys(kv::keys_of(in)), values(kv::values_of(in)) {}
    kv::lanes lanes;
    kv::keys keys;
    kv::values values;
  };
  [[nodiscard]] kv::any_signals signals_of(given const& rows, kv::queries const& queries,
                                           kv::log_beta const& log_betas) const {
    kv::any_signals all(rows.lanes);
    all.add(rows.keys);
    all.add(rows.values);
    if (about_.window > 0) all.add(queries);
    if (about_.reads_log_betas) all.add(log_betas);
    return all;
  }

  [[nodiscard]] std::vector<std::byte> saved(kv::cache const& all, kv::state<executor> const& state, int slot,
                                             kv::rows what) const {
    std::vector<std::byte> made(kv::saved_bytes(*exec_, all, state, slot, what));
    kv::save(*exec_, all, state, slot, made, what);
    return made;
  }

  executor* exec_;
  memory* memory_;
  served_policy about_;
  part wide_;
  std::optional<part> narrow_;
  kv::state<executor> without_columns_;  ///< of the wide slots, for what leaves them
};

}  // namespace serving

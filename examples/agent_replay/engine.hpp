// SPDX-License-Identifier: Apache-2.0
// A small engine: the sessions of one contender take turns on one pool.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <tinylm/model.hpp>
#include <vector>

#include "contenders.hpp"
#include "conversation.hpp"
#include "metrics.hpp"
#include "owner_map.hpp"

namespace agent_replay {

/// The parts that all engines share.
struct stage {
  tinylm::model& model;
  executor& exec;
  int slots = 0;                ///< the slots of the pool, the dead one included
  bool span_is_message = true;  ///< the actionable span is the turn's whole message, not only its question
};

/// One conversation under one contender.
class talk {
 public:
  talk(stage const& on, token_memory& in, contender const& by, conversation const& from, int session)
      : on_(&on),
        by_(&by),
        from_(&from),
        cache_(in, session, by.cache),
        rows_(in.model(), by.cache.bound),
        state_(by.make_state(on.exec, cache_.view())),
        plan_(by.make_plan(on.exec, cache_.view())),
        text_(from.system) {}

  [[nodiscard]] session_cache& cache() { return cache_; }

  /// Begins a turn with its message: computes the tokens that are not in the prefix cache, and lets the policy decide.
  /// Returns false if the pool has too few slots for the message and the answers of `running` requests. The turn is
  /// over then.
  bool begin(std::size_t turn, std::size_t running, metrics& to) {
    auto const arrived = std::chrono::steady_clock::now();
    message const& said = from_->messages[turn];
    text_.insert(text_.end(), said.text.begin(), said.text.end());
    answer_.clear();
    int const found = cache_.open(on_->exec, state_, text_);
    int const num_new_tokens = static_cast<int>(text_.size()) - found;
    int const promised = (static_cast<int>(running) + 1) * (conversation_maker::answer_bytes - 1);
    if (!cache_.reserve(num_new_tokens, promised)) {
      ++to.refused;
      cache_.close(on_->exec, text_);
      return false;
    }
    to.sent += std::ssize(text_);
    to.found += found;
    forward(num_new_tokens);
    by_->observe(on_->exec, see(said), state_);
    held_ = cache_.live();
    to.peak_request = std::max(to.peak_request, held_);
    if (by_->prunes) prune(said);
    choose();
    to.first_token.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - arrived).count());
    to.note_live(turn, cache_.live());
    return true;
  }

  /// Reads the byte that was chosen last, and chooses the next. Returns false when the answer is complete.
  bool step(metrics& to) {
    if (std::ssize(answer_) == conversation_maker::answer_bytes) return false;
    text_.push_back(answer_.back());
    forward(1);
    ++held_;
    if (by_->each_forward) by_->observe(on_->exec, {cache_.view(), rows_, 0, 0}, state_);
    kv::expects(cache_.live() <= held_, "talk::step", "effective reads", cache_.live(),
                [&] { return std::to_string(held_).append(" tokens were there before the decision"); });
    to.raw_reads += held_;
    to.peak_request = std::max(to.peak_request, held_);
    to.effective_reads += cache_.live();
    to.peak_live = std::max(to.peak_live, cache_.live());
    choose();
    return true;
  }

  /// Ends the turn: counts whether the answer was right. The answer stays in the conversation in any case.
  void end(std::size_t turn, metrics& to) {
    message const& said = from_->messages[turn];
    to.answers.count(answer_ == said.answer);
    if (said.again) to.again.count(answer_ == said.answer);
    cache_.close(on_->exec, text_);
    text_.push_back(answer_.back());
  }

 private:
  /// Appends the last `tokens` bytes of the text, and runs their forward.
  void forward(int tokens) {
    cache_.append(on_->exec, state_, tokens);
    rows_.clear();
    auto const logits = on_->model.forward(on_->exec, text_, tokens, cache_.view(), rows_);
    auto const last = logits.last(static_cast<std::size_t>(on_->model.about().vocab));
    next_ = static_cast<token>(std::max_element(last.begin(), last.end()) - last.begin());
  }

  [[nodiscard]] shown see(message const& said) {
    seen_ = cache_.view();
    int const rows = rows_.rows();
    int const span = on_->span_is_message ? static_cast<int>(said.text.size()) : said.question;
    return {seen_, rows_, std::max(0, rows - span), rows};
  }

  void prune(message const& said) {
    by_->decide(on_->exec, see(said), state_, plan_);
    cache_.prune(on_->exec, plan_, state_);
  }

  void choose() { answer_.push_back(next_); }

  stage const* on_;
  contender const* by_;
  conversation const* from_;
  session_cache cache_;
  kv::cache seen_{};
  tinylm::query_rows rows_;
  held_state state_;
  held_plan plan_;
  bytes text_;
  bytes answer_;
  token next_ = 0;
  int held_ = 0;  ///< the tokens that the request would hold if its turn had dropped none
};

/// Runs conversations side by side under one contender. In each round every session has a turn: all messages arrive,
/// then the sessions decode one byte after another in rotation until all have answered, then all turns end. The owner
/// map is checked after each of these steps.
inline void run_side_by_side(stage const& on, contender const& by, std::vector<conversation> const& all, metrics& to) {
  token_memory memory(on.model.about().shape(), on.slots);
  std::vector<std::unique_ptr<talk>> talks;
  std::vector<session_cache*> caches;
  for (std::size_t s = 0; s < all.size(); ++s) {
    talks.push_back(std::make_unique<talk>(on, memory, by, all[s], static_cast<int>(s)));
    caches.push_back(&talks.back()->cache());
  }
  auto const check = [&] { owner_map(memory, caches); };
  for (std::size_t turn = 0; turn < all[0].messages.size(); ++turn) {
    std::vector<talk*> running;
    for (auto const& one : talks) {
      if (one->begin(turn, running.size(), to)) running.push_back(one.get());
      check();
    }
    for (bool more = true; more;) {
      more = false;
      for (talk* const one : running) more = one->step(to) || more;
      check();
    }
    for (talk* const one : running) {
      one->end(turn, to);
      check();
    }
  }
  to.peak_slots = std::max(to.peak_slots, memory.slots.peak());
  memory.tree.evict(memory.slots.slots());
  to.leaked += memory.slots.allocated();
  to.double_frees += memory.slots.double_frees();
}

}  // namespace agent_replay

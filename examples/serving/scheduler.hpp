// SPDX-License-Identifier: Apache-2.0
// Chooses what each step computes: continuous batching with chunked prefills, admission by what a request will need,
// and preemption.
#pragma once

#include <deque>
#include <functional>

#include "drafts.hpp"
#include "policies.hpp"

namespace serving {

struct scheduler_options {
  int tokens_per_step = 512;      ///< of all sequences together
  int prefills_at_once = 1;       ///< sequences whose prompts are read beside each other
  float reserved_answer = 0.25f;  ///< the share of each answer for which blocks are free when a sequence is admitted
  int swap_blocks = 64;           ///< blocks that fit into the memory for sequences that are swapped out
  int drafts = 4;                 ///< the largest number of draft tokens of a sequence in a step
  int draft_match = 3;            ///< a draft follows an earlier occurrence of so many last tokens
};

/// One sequence of a step and the number of its tokens that are computed, its drafts included.
struct scheduled {
  sequence* of = nullptr;
  int tokens = 0;
};

/// Sequences that wait, run, or are swapped out. The first that came is served first.
class scheduler {
 public:
  using find_policy = std::function<policy_calls&(sequence const&)>;
  using sequence_ptr = std::unique_ptr<sequence>;

  scheduler(scheduler_options const& with, memory& in, find_policy policy_of)
      : with_(with), memory_(&in), policy_of_(std::move(policy_of)) {}

  void add(sequence_ptr of) { waiting_.push_back(std::move(of)); }
  void add_running(sequence_ptr of) { running_.push_back(std::move(of)); }

  [[nodiscard]] std::vector<sequence_ptr> const& running() const { return running_; }
  [[nodiscard]] bool is_idle() const { return running_.empty() && waiting_.empty() && swapped_.empty(); }
  [[nodiscard]] bool has_waiting() const { return !waiting_.empty() || !swapped_.empty(); }
  [[nodiscard]] int swaps() const { return swaps_; }
  [[nodiscard]] int recomputations() const { return recomputations_; }
  /// The sequences that were preempted while their prompts were read.
  [[nodiscard]] int interrupted() const { return interrupted_; }

  /// The blocks that a sequence needs at most. A pool with fewer blocks can never serve it.
  [[nodiscard]] static int most_blocks(request const& of, policy_calls const& by) {
    return blocks_for(static_cast<int>(of.prompt.size()) + of.max_tokens) + by.kept_blocks() + 2;
  }

  /// Chooses the sequences of a step, with the blocks for their tokens. Drafts are added to the texts.
  [[nodiscard]] std::vector<scheduled> schedule() {
    step_ = {};
    budget_ = with_.tokens_per_step;
    int const before = swaps_ + recomputations_;
    for (std::size_t i = 0; i < running_.size(); ++i) schedule_running(*running_[i]);
    bool const preempted = swaps_ + recomputations_ > before;
    while (!preempted && budget_ > 0 && admit_next()) {
    }
    return std::move(step_);
  }

  /// Ends a sequence, wherever it is. Returns it, or null if it is not there.
  [[nodiscard]] sequence_ptr remove(std::function<bool(sequence const&)> const& is) {
    auto const here = [&](sequence_ptr const& each) { return is(*each); };
    if (auto at = std::find_if(running_.begin(), running_.end(), here); at != running_.end()) {
      memory_->close(**at);
      return taken(running_, at);
    }
    if (auto at = std::find_if(waiting_.begin(), waiting_.end(), here); at != waiting_.end())
      return taken(waiting_, at);
    if (auto at = std::find_if(swapped_.begin(), swapped_.end(), here); at != swapped_.end())
      return taken(swapped_, at);
    return nullptr;
  }

 private:
  template <class Queue>
  static sequence_ptr taken(Queue& from, typename Queue::iterator at) {
    sequence_ptr of = std::move(*at);
    from.erase(at);
    return of;
  }

  /// Gives a running sequence its tokens of this step. If the pool is full, the youngest sequences give back theirs,
  /// this one at last.
  void schedule_running(sequence& of) {
    int tokens = std::min(of.to_compute(), budget_);
    if (tokens == 0) return;
    int const drafts = of.is_prefilling() ? 0 : add_drafts(of, budget_ - tokens);
    if (drafts > 0 && !memory_->reserve(of, tokens + drafts, spares(of, tokens + drafts))) drop_drafts(of);
    tokens += of.num_drafts;
    while (!memory_->reserve(of, tokens, spares(of, tokens))) {
      if (preempt_youngest() == &of) return;
    }
    step_.push_back({&of, tokens});
    budget_ -= tokens;
  }

  int add_drafts(sequence& of, int budget) {
    if (!of.is_greedy() || of.answered() == 0) return 0;  // forks continue from the end of the prompt
    int const most = std::min({with_.drafts, of.remaining() - 1, budget});
    bytes const drafts = look_up_drafts(of.text, with_.draft_match, most);
    of.text.insert(of.text.end(), drafts.begin(), drafts.end());
    of.num_drafts = static_cast<int>(drafts.size());
    return of.num_drafts;
  }
  static void drop_drafts(sequence& of) {
    of.text.resize(of.text.size() - static_cast<std::size_t>(of.num_drafts));
    of.num_drafts = 0;
  }

  /// The copies that a decision after this forward may need.
  [[nodiscard]] int spares(sequence const& of, int tokens) const {
    policy_calls const& by = policy_of_(of);
    if (of.computed + tokens < of.length()) return 0;
    if (!by.will_decide(of, memory_->entries(of) + tokens)) return 0;
    return of.decided ? memory_->shared(of, 0, by.kept_blocks()) : by.kept_blocks();
  }

  sequence const* preempt_youngest() {
    sequence_ptr of = std::move(running_.back());
    running_.pop_back();
    sequence const* const which = of.get();
    drop_drafts(*of);
    ++of->result.preemptions;
    if (of->answered() > 0 && of->published &&
        swapped_blocks() + static_cast<int>(of->blocks.size()) <= with_.swap_blocks) {
      of->swapped = {policy_of_(*of).save(*of), static_cast<int>(of->blocks.size())};
      memory_->close(*of);
      swapped_.push_front(std::move(of));
      ++swaps_;
    } else {
      interrupted_ += of->published ? 0 : 1;
      memory_->close(*of);
      of->computed = 0;
      of->decided = of->published = false;
      if (of->answered() > 0) of->result.recomputed = of->answered();
      waiting_.push_front(std::move(of));
      ++recomputations_;
    }
    return which;
  }
  [[nodiscard]] int swapped_blocks() const {
    int blocks = 0;
    for (sequence_ptr const& each : swapped_) blocks += each->swapped->blocks;
    return blocks;
  }

  /// Admits the next sequence if it fits beside those that run. Returns false if none was admitted.
  [[nodiscard]] bool admit_next() {
    std::deque<sequence_ptr>& from = swapped_.empty() ? waiting_ : swapped_;
    if (from.empty()) return false;
    sequence& next = *from.front();
    width const kind = next.swapped ? next.kind : width::wide;  // prompts are read in wide slots
    if (memory_->tables().free_slots(kind) == 0) return false;
    if (!next.swapped && prefills() >= with_.prefills_at_once) return false;
    if (needs(next) > memory_->obtainable() - promised()) return false;
    running_.push_back(taken(from, from.begin()));
    memory_->open(next, kind);
    if (next.swapped) {
      come_back(next);
    } else {
      start(next);
    }
    schedule_running(next);
    return running_.size() > 0 && running_.back().get() == &next;
  }

  [[nodiscard]] int prefills() const {
    return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                          [](sequence_ptr const& each) { return each->is_prefilling(); }));
  }

  void come_back(sequence& of) {
    memory_->take(of, of.swapped->blocks);
    policy_of_(of).load(of, of.swapped->saved);
    of.swapped.reset();
  }

  /// Finds the part of the text that is in the prefix cache. At least the last token is computed, for its logits, and
  /// as many as the policy reads the queries of.
  void start(sequence& of) {
    policy_calls& by = policy_of_(of);
    int const cacheable = std::max(0, of.length() - std::max(1, by.about().window));
    int const hit = memory_->find_prefix(of, cacheable);
    by.begin(of);
    if (hit > 0) by.append(of, hit, 0);
    by.observe_cached(of, hit);
    of.computed = hit;
    of.result.hit_tokens += hit;
    of.result.asked_tokens += of.length();
  }

  /// The blocks that a sequence needs before it is done with what is promised to it. Cached blocks that other requests
  /// use cost nothing.
  [[nodiscard]] int needs(sequence& of) {
    if (of.swapped) return of.swapped->blocks + 1 + growth(of);
    policy_calls const& by = policy_of_(of);
    int const cacheable = std::max(0, of.length() - std::max(1, by.about().window));
    return blocks_for(of.length()) - memory_->prefixes().count_used(of.text, cacheable) + by.kept_blocks() + growth(of);
  }
  [[nodiscard]] int promised() const {
    int blocks = 0;
    for (sequence_ptr const& each : running_) {
      int const reading = blocks_for(each->length()) - static_cast<int>(each->blocks.size());
      blocks += growth(*each);
      if (each->is_prefilling()) blocks += std::max(0, reading) + policy_of_(*each).kept_blocks();
    }
    return blocks;
  }
  /// The blocks for the promised share of the rest of the answer. A policy that decides again and again needs none.
  [[nodiscard]] int growth(sequence const& of) const {
    if (policy_of_(of).about().when == deciding::every_block) return 1;
    return blocks_for(static_cast<int>(with_.reserved_answer * static_cast<float>(of.remaining())));
  }

  scheduler_options with_;
  memory* memory_;
  find_policy policy_of_;
  std::deque<sequence_ptr> waiting_, swapped_;
  std::vector<sequence_ptr> running_;  ///< in the order of admission
  std::vector<scheduled> step_;
  int budget_ = 0;
  int swaps_ = 0;
  int recomputations_ = 0;
  int interrupted_ = 0;
};

}  // namespace serving

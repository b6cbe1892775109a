// SPDX-License-Identifier: Apache-2.0
// A serving engine in small: requests come and go at every step, on one pool of blocks.
#pragma once

#include <tinylm/sampling.hpp>

#include "scheduler.hpp"

namespace serving {

struct engine_options {
  int blocks = 256;          ///< the pool
  slot_sizes slots{};        ///< the most requests that run at once, and the most entries of their lanes
  float temperature = 0.8f;  ///< of the samples that are not greedy
  scheduler_options schedule{};
};

/// What an engine has counted so far.
struct engine_counters {
  int steps = 0;
  int peak_running = 0;
  // The steps in which a request waited because the engine was full, and the running sequences summed over them.
  int full_steps = 0;
  std::int64_t running_when_full = 0;
  std::int64_t computed = 0;  ///< tokens of all forwards
  int narrowed = 0;           ///< sequences that went on in a narrow slot
  std::int64_t answered = 0;  ///< tokens of all answers, of those that were cancelled too
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;  ///< drafts that were what the model itself answers
  int forks = 0;

  /// The mean number of running sequences while others waited.
  [[nodiscard]] double mean_running() const {
    return full_steps > 0 ? static_cast<double>(running_when_full) / full_steps : peak_running;
  }
};

/// The engine. `submit` requests, then call `step` until it is `done`.
class engine {
 public:
  engine(decoder& model, executor& exec, engine_options const& with, std::vector<served_policy> const& policies)
      : model_(&model),
        with_(with),
        exec_(&exec),
        memory_(exec, model.shape(), with.blocks, with.slots,
                std::any_of(policies.begin(), policies.end(), [](auto const& each) { return each.reads_log_betas; })),
        full_(exec, {.name = "full", .spec = "", .when = deciding::never}, memory_),
        scheduler_(with.schedule, memory_,
                   [this](sequence const& of) -> policy_calls& { return policy_of(*of.from); }) {
    for (served_policy const& one : policies) policies_.emplace_back(exec, one, memory_);
  }
  engine(engine const&) = delete;  // its parts point to each other
  engine& operator=(engine const&) = delete;

  /// Takes a request, which the engine sees at its step of arrival.
  /// - throws: `invalid_argument` if it could never be served.
  void submit(request const& asked) {
    kv::expects(!asked.prompt.empty() && asked.max_tokens >= 1 && asked.samples >= 1, "submit", "request", asked.number,
                "a prompt, an answer and the number of samples are not empty");
    kv::expects(asked.policy >= -1 && asked.policy < std::ssize(policies_), "submit", "policy", asked.policy,
                [&] { return "the engine has " + std::to_string(policies_.size()); });
    int const longest = static_cast<int>(asked.prompt.size()) + asked.max_tokens;
    int const bound = with_.slots.wide_bound;
    kv::expects(longest <= bound, "submit", "tokens", longest,
                [&] { return "a request has at most " + std::to_string(bound); });
    int const needed = scheduler::most_blocks(asked, policy_of(asked));
    kv::expects(needed <= with_.blocks, "submit", "blocks", needed,
                [&] { return "the pool has " + std::to_string(with_.blocks); });
    arriving_.push_back(std::make_shared<request const>(asked));
  }

  /// Runs one step: arrivals and cancellations, then one forward of everything that was scheduled.
  void step() {
    receive();
    std::vector<scheduled> const work = scheduler_.schedule();
    ++counters_.steps;
    int const running = static_cast<int>(scheduler_.running().size());
    counters_.full_steps += scheduler_.has_waiting() ? 1 : 0;
    counters_.running_when_full += scheduler_.has_waiting() ? running : 0;
    counters_.peak_running = std::max(counters_.peak_running, running);
    if (work.empty()) return;
    forward(work);
    int first = 0, part = 0;
    for (scheduled const& each : work) {
      take_results(each, part++, first);
      first += each.tokens;
    }
    end_answered();
  }

  [[nodiscard]] bool done() const { return arriving_.empty() && scheduler_.is_idle(); }
  [[nodiscard]] std::vector<answer> const& answers() const { return answers_; }
  [[nodiscard]] engine_counters const& counters() const { return counters_; }
  [[nodiscard]] scheduler const& schedule() const { return scheduler_; }
  [[nodiscard]] memory& held() { return memory_; }

  /// All memory that is held for requests and policies.
  [[nodiscard]] held_memory count() const {
    held_memory all;
    memory_.count(all);
    full_.count(all);
    for (policy_calls const& each : policies_) each.count(all);
    all.scratch = static_cast<std::int64_t>(exec_->reserved()) * exec_->threads();
    all.swapped = with_.schedule.swap_blocks * memory_.block_bytes();
    model_->count(all);
    return all;
  }

 private:
  [[nodiscard]] policy_calls& policy_of(request const& of) {
    return of.policy < 0 ? full_ : policies_[static_cast<std::size_t>(of.policy)];
  }

  void receive() {
    for (auto at = arriving_.begin(); at != arriving_.end();) {
      if ((*at)->arrives > counters_.steps) {
        ++at;
        continue;
      }
      if ((*at)->cancelled_at >= 0) cancelling_.push_back(*at);
      scheduler_.add(make_sequence(*at, 0));
      at = arriving_.erase(at);
    }
    for (auto at = cancelling_.begin(); at != cancelling_.end();) {
      bool const now = (*at)->cancelled_at <= counters_.steps;
      if (now) cancel(**at);
      at = now ? cancelling_.erase(at) : at + 1;
    }
  }

  void cancel(request const& asked) {
    auto const is = [&](sequence const& each) { return each.from->number == asked.number; };
    while (auto of = scheduler_.remove(is)) record(*of, outcome::cancelled);
  }

  static std::unique_ptr<sequence> make_sequence(std::shared_ptr<request const> const& from, int sample) {
    auto made = std::make_unique<sequence>();
    made->from = from;
    made->text = from->prompt;
    made->result.number = from->number;
    made->result.sample = sample;
    made->forked = sample > 0;
    made->random.seed(static_cast<std::uint64_t>(made->seed()));
    return made;
  }

  void forward(std::vector<scheduled> const& work) {
    std::vector<forward_part> parts;
    for (scheduled const& each : work) {
      sequence& of = *each.of;
      int const end = of.computed + each.tokens;
      policy_calls& by = policy_of(*of.from);
      by.append(of, each.tokens - of.num_drafts, of.num_drafts);
      parts.push_back({std::span(of.text).first(static_cast<std::size_t>(end)), each.tokens,
                       memory_.tables().unit(of.kind, of.slot), by.queries_of(of, each.tokens)});
      counters_.computed += each.tokens;
    }
    model_->forward(parts, memory_.tables().view());
  }

  /// Takes what a forward has computed of a sequence, which was its part `part`, and whose rows begin at `first`.
  void take_results(scheduled const& each, int part, int first) {
    sequence& of = *each.of;
    policy_calls& by = policy_of(*of.from);
    int const tokens = each.tokens - of.num_drafts;  // those that are certain
    int const accepted = settle_drafts(of, first + tokens - 1);
    int const rows = tokens + accepted;
    bool const gated = memory_.pool().has_log_betas();
    kv::log_beta const log_betas = gated ? model_->log_betas(first, rows) : kv::log_beta{};
    if (gated && !of.decided) keep_log_betas(of, log_betas);
    of.computed += rows;
    by.observe(of, model_->queries(part), log_betas);
    if (of.to_compute() > 0) return;  // the rest of the prompt comes in later steps
    bool const decides = by.will_decide(of, memory_.entries(of));
    if (!of.published) memory_.publish(of);
    of.published = true;
    if (decides) evict(of, by, model_->queries(part), log_betas);
    memory_.shrink(of);
    bool const fits = by.most_entries(of, with_.schedule.drafts) <= memory_.tables().bound(width::narrow);
    if (of.kind == width::wide && fits && memory_.tables().free_slots(width::narrow) > 0) {
      by.narrow(of);
      ++counters_.narrowed;
    }
    if (!of.forked) fork(of, by, model_->logits(first + rows - 1));
    add_token(of, model_->logits(first + rows - 1));
  }

  /// Compares drafts with what the model answers, keeps those that agree, and returns their number. `row` is the row of
  /// the last token before them.
  int settle_drafts(sequence& of, int row) {
    int const drafts = std::exchange(of.num_drafts, 0);
    if (drafts == 0) return 0;
    int const certain = of.length() - drafts;
    int accepted = 0;
    while (accepted < drafts && greedy(model_->logits(row + accepted)) == of.text[at(certain + accepted)]) ++accepted;
    of.text.resize(at(certain + accepted));
    policy_of(*of.from).settle_drafts(of, certain + accepted, accepted);
    counters_.drafted += drafts;
    counters_.accepted += accepted;
    counters_.answered += accepted;
    return accepted;
  }

  /// Keeps the numbers of a gate beside the rows, for requests that find the block in the prefix cache.
  void keep_log_betas(sequence const& of, kv::log_beta const& from) {
    kv::shape const model = model_->shape();
    for (int i = 0; i < model.layers * model.kv_heads; ++i) {
      kv::lane const lane{0, i / model.kv_heads, i % model.kv_heads};
      for (int r = 0; r < from.entries; ++r) {
        int const position = of.computed + r, in_block = position % block_pool::block_tokens;
        float* const to = memory_.pool().log_betas(of.blocks[at(position / block_pool::block_tokens)]);
        std::memcpy(to + i * block_pool::block_tokens + in_block, from.at(lane, r), sizeof(float));
      }
    }
  }

  void evict(sequence& of, policy_calls& by, kv::queries const& rows, kv::log_beta const& log_betas) {
    int const kept = by.decide(of, rows, log_betas);
    memory_.own(of, 0, blocks_for(kept));
    by.apply(of);
    memory_.leave_prefix(of);
  }

  /// Starts the other samples of a request when its prompt is in. They share its blocks; without a free slot they wait,
  /// and find the prompt in the prefix cache.
  void fork(sequence& of, policy_calls& by, std::span<float const> logits) {
    of.forked = true;
    for (int sample = 1; sample < of.from->samples; ++sample) {
      auto made = make_sequence(of.from, sample);
      if (memory_.tables().free_slots(of.kind) == 0) {
        scheduler_.add(std::move(made));
        continue;
      }
      memory_.share(of, *made);
      by.fork(of, *made);
      made->computed = of.computed;
      made->decided = of.decided;
      made->published = true;
      add_token(*made, logits);
      ++counters_.forks;
      scheduler_.add_running(std::move(made));
    }
  }

  void add_token(sequence& of, std::span<float const> logits) {
    tinylm::sampling const how{.temperature = of.is_greedy() ? 0 : with_.temperature};
    of.text.push_back(tinylm::choose(logits, how, of.random));
    ++counters_.answered;
  }
  static std::uint8_t greedy(std::span<float const> logits) {
    return static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  /// Ends the sequences whose answers are complete.
  void end_answered() {
    while (auto of = scheduler_.remove([](sequence const& each) { return each.remaining() <= 0; })) {
      record(*of, outcome::finished);
    }
  }
  void record(sequence& of, outcome how) {
    of.result.how = how;
    of.result.text.assign(of.text.begin() + of.prompt_tokens(), of.text.end());
    answers_.push_back(of.result);
  }

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  decoder* model_;
  engine_options with_;
  executor* exec_;
  memory memory_;
  policy_calls full_;
  std::vector<policy_calls> policies_;
  scheduler scheduler_;
  std::vector<std::shared_ptr<request const>> arriving_, cancelling_;
  std::vector<answer> answers_;
  engine_counters counters_;
};

}  // namespace serving

// Runs every case under every policy and budget.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "chosen.hpp"
#include "keep_map.hpp"
#include "options.hpp"
#include "table.hpp"
#include "tasks.hpp"

namespace demo {

inline std::uint8_t best(std::span<float const> logits) {
  return static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Adds the costs of a sequence to its row.
inline void count_costs(row& to, reader const& from) {
  to.live_entries += static_cast<double>(from.live_entries());
  to.live_bytes += static_cast<double>(from.live_bytes());
  ++to.measured;
  to.entries_read += static_cast<double>(from.counters().entries_read);
  to.decode_seconds += from.counters().model_seconds;
  to.steps += from.counters().steps;
  to.policy_seconds += from.counters().policy_seconds;
  ++to.prompts;
}

/// True if every byte of the greedy answer is right.
inline bool answers(reader& from, bytes const& answer) {
  auto logits = from.logits();
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (best(logits) != answer[i]) return false;
    if (i + 1 < answer.size()) logits = from.step(answer[i]);
  }
  return true;
}

/// Measures every row of the table, case by case.
class run {
 public:
  static constexpr int mapped = 6;  ///< the number of recall prompts with keep maps: one about each fact

  run(options const& with, stage const& on, bytes const& text)
      : with_(with), on_(on), tasks_(text, with.context, with.seed) {
    for (contender const& one : chosen_contenders(with.policies, with.specs)) {
      for (int const share : one.budgeted ? with.shares : std::vector{1}) {
        entrants_.push_back(one);
        rows_.push_back({.policy = one.name, .share = share, .budget = with.context / share, .own = one.own_budget});
      }
    }
  }

  [[nodiscard]] std::vector<row> const& rows() const { return rows_; }
  [[nodiscard]] std::vector<mapped_prompt> const& maps() const { return maps_; }
  /// The text of a row's policy.
  [[nodiscard]] std::string spell(std::size_t e) const { return entrants_[e].spell(rows_[e].budget, with_.context); }
  [[nodiscard]] double prefill_seconds() const { return prefills_ > 0 ? prefill_seconds_ / prefills_ : 0; }

  void recall(progress_bar& bar) {
    for (int i = 0; i < with_.cases; ++i) {
      recall_case const one = tasks_.recall(with_.far ? i % 2 : i % 6);
      bytes asked = one.prompt;
      asked.insert(asked.end(), one.question.begin(), one.question.end());
      reading inside = read(asked);
      reading before = read(one.prompt);
      mapped_prompt map{.about = one, .text = asked, .kept = {}, .right = {}};
      for (std::size_t e = 0; e < rows_.size(); ++e) {
        auto const in_prompt = entrants_[e].start(on_, inside, rows_[e].budget);
        if (i < mapped) map.kept.push_back(keep_map(in_prompt->lanes(), with_.context));
        map.right.push_back(answers(*in_prompt, one.answer));
        rows_[e].right_inside += map.right.back() ? 1 : 0;
        auto const later = entrants_[e].start(on_, before, rows_[e].budget);
        for (std::uint8_t const byte : one.question) later->step(byte);
        rows_[e].right_later += answers(*later, one.answer) ? 1 : 0;
        ++rows_[e].asked;
        if (with_.windows == 0) count_costs(rows_[e], *later);
        bar.advance(rows_[e].policy);
      }
      if (i < mapped) maps_.push_back(std::move(map));
    }
  }

  void continuations(progress_bar& bar) {
    for (int i = 0; i < with_.windows; ++i) {
      text_case const one = tasks_.continuation(with_.length);
      reading from = read(one.prompt);
      bytes const greedy = greedy_text(from.whole());
      for (std::size_t e = 0; e < rows_.size(); ++e) {
        auto const follows = entrants_[e].start(on_, from, rows_[e].budget);
        for (std::uint8_t const byte : one.continuation) {
          rows_[e].bits += tinylm::bits_of(follows->logits(), byte);
          follows->step(byte);
        }
        rows_[e].continued += with_.length;
        count_costs(rows_[e], *follows);
        agree(rows_[e], *entrants_[e].start(on_, from, rows_[e].budget), greedy);
        bar.advance(rows_[e].policy);
      }
    }
  }

 private:
  reading read(bytes const& text) {
    auto const begin = std::chrono::steady_clock::now();
    reading made(on_, text);
    prefill_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++prefills_;
    return made;
  }

  /// The greedy continuation with the full cache.
  bytes greedy_text(tinylm::prompt const& from) {
    tinylm::session full(on_.model, on_.exec, from, kv::policies::full(), {.bound = on_.bound, .lay = on_.lay});
    std::string const text = full.generate(with_.length);
    return {text.begin(), text.end()};
  }

  /// Reads the text of the full cache, and counts the bytes at which the policy would have chosen the same one.
  static void agree(row& to, reader& from, bytes const& greedy) {
    for (std::uint8_t const byte : greedy) {
      to.agreed += best(from.logits()) == byte ? 1 : 0;
      ++to.compared;
      from.step(byte);
    }
  }

  options const& with_;
  stage const& on_;
  task_maker tasks_;
  std::vector<contender> entrants_;
  std::vector<row> rows_;
  std::vector<mapped_prompt> maps_;
  double prefill_seconds_ = 0;
  int prefills_ = 0;
};

}  // namespace demo

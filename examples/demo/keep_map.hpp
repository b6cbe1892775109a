// SPDX-License-Identifier: Apache-2.0
// The texts of the page: what each row of the table held of them, step by step.
#pragma once

#include <kvpolicy/core/lanes.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../keep_map/history.hpp"
#include "contender.hpp"
#include "tasks.hpp"

namespace demo {

namespace kv = kvpolicy;

/// The positions that each lane holds, for all parts of a cache. Lanes are in the order of `kv::lanes::at`.
inline keep_map::bitmap held_positions(std::vector<kv::lanes> const& parts, int positions) {
  keep_map::bitmap made(parts.front().size(), positions);
  for (kv::lanes const& batch : parts) {
    for (int i = 0; i < batch.size(); ++i) {
      kv::lane const one = batch.at(i);
      for (int e = 0; e < batch.committed(one); ++e) made.set(i, batch.position.row(one)[e]);
    }
  }
  return made;
}

/// What one row of the table held of a text, and what it answered.
struct mapped_row {
  keep_map::watched_history held;
  bytes said{};  ///< the answer, if the text asks for one
  std::optional<bool> right{};
};

/// A place of a text that the page marks.
struct text_span {
  int begin;
  int end;
  std::string kind;
  std::string name;
};

/// A text of the page.
struct mapped_text {
  std::string name;
  bytes text;      ///< the prompt, and what is known to follow it
  int prompt = 0;  ///< the entries that are there at step 0; each step adds one
  int steps = 0;   ///< of decoding
  std::vector<text_span> spans{};
  int value = -1;  ///< where the answer stands in the fact that is asked for, or -1
  std::vector<mapped_row> rows{};

  [[nodiscard]] int entries() const { return prompt + steps; }
  void add_row(int lanes) { rows.push_back({.held = keep_map::watched_history(lanes, entries())}); }
};

/// The facts and the question of a recall text, without the newlines around them.
inline void mark(mapped_text& to, recall_case const& one) {
  for (std::size_t i = 0; i < one.facts.size(); ++i) {
    bool const asked = static_cast<int>(i) == one.asked;
    to.spans.push_back({one.facts[i] + 1, one.facts[i] + task_maker::fact_bytes - 1, asked ? "asked" : "fact",
                        asked ? "the fact that is asked for" : "another fact"});
  }
  int const asks = static_cast<int>(one.prompt.size());
  to.spans.push_back({asks + 1, asks + static_cast<int>(one.question.size()), "question", "the question"});
  to.value =
      one.facts[static_cast<std::size_t>(one.asked)] + task_maker::fact_bytes - 1 - static_cast<int>(one.answer.size());
}

/// Looks at what a sequence holds, at step 0 and after each step. Without a row to write to it does nothing.
class watcher {
 public:
  watcher(reader& from, mapped_text* text) : from_(from), text_(text) {
    if (text_ == nullptr) return;
    text_->add_row(from_.lanes().front().size());
    look();
  }
  void step(std::uint8_t byte) {
    from_.step(byte);
    ++steps_;
    look();
  }
  [[nodiscard]] std::span<float const> logits() const { return from_.logits(); }

 private:
  void look() {
    if (text_ == nullptr) return;
    text_->rows.back().held.look(held_positions(from_.lanes(), text_->entries()), text_->prompt + steps_);
  }

  reader& from_;
  mapped_text* text_;
  int steps_ = 0;
};

}  // namespace demo

// SPDX-License-Identifier: Apache-2.0
// The tasks of the demo: continuing passages of real text, and recalling facts.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace demo {

using bytes = std::vector<std::uint8_t>;

/// A prompt, the question that follows it, and the places of its facts.
struct recall_case {
  bytes prompt;              ///< text that contains six facts, without the question
  bytes question;            ///< "\nget k3f9="
  bytes answer;              ///< six characters
  std::vector<int> facts{};  ///< the offset of each "\nset k3f9=q0zt7a\n"
  int asked = 0;             ///< the index of the fact that the question is about
};

/// A passage of text: a prompt, and the text that really follows it.
struct text_case {
  bytes prompt;
  bytes continuation;
};

/// Makes the cases. The same text and seed give the same cases on every machine.
class task_maker {
 public:
  static constexpr int fact_bytes = 17;  ///< the length of "\nset k3f9=q0zt7a\n"

  task_maker(std::span<std::uint8_t const> text, int context, std::uint64_t seed)
      : text_(text), context_(context), random_(seed) {}

  /// Six facts between passages of text, in `context` bytes with the question, which is about fact `asked`. The first
  /// fact is in the first tenth of the context.
  recall_case recall(int asked) {
    constexpr int facts = 6, question_bytes = 10;
    recall_case made;
    made.asked = asked;
    int const capacity = context_ - facts * fact_bytes - question_bytes;
    for (int i = 0; i < facts; ++i) {
      add(made.prompt, stretch(i == 0 ? capacity / 20 : capacity * 3 / 20));
      std::string const key = word(4), value = word(6);
      if (i == asked) {
        made.question = as_bytes("\nget " + key + "=");
        made.answer = as_bytes(value);
      }
      made.facts.push_back(static_cast<int>(made.prompt.size()));
      add(made.prompt, as_bytes("\nset " + key + "=" + value + "\n"));
    }
    add(made.prompt, stretch(context_ - question_bytes - static_cast<int>(made.prompt.size())));
    return made;
  }

  text_case continuation(int length) {
    bytes const all = stretch(context_ + length);
    return {{all.begin(), all.begin() + context_}, {all.begin() + context_, all.end()}};
  }

 private:
  static bytes as_bytes(std::string const& text) { return {text.begin(), text.end()}; }
  static void add(bytes& to, bytes const& more) { to.insert(to.end(), more.begin(), more.end()); }

  bytes stretch(int length) {
    auto const last = text_.size() - static_cast<std::size_t>(length);
    auto const begin = text_.begin() + static_cast<std::ptrdiff_t>(random_() % (last + 1));
    return {begin, begin + length};
  }

  std::string word(int length) {
    constexpr char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    std::string made;
    for (int i = 0; i < length; ++i) made += alphabet[random_() % 36];
    return made;
  }

  std::span<std::uint8_t const> text_;
  int context_;
  std::mt19937_64 random_;
};

}  // namespace demo

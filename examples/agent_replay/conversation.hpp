// SPDX-License-Identifier: Apache-2.0
// The conversations of the agents: tool results that contain facts, and questions about facts of earlier turns.
#pragma once

#include <demo/tasks.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace agent_replay {

using demo::bytes;

/// The message that a turn adds to its conversation before the model answers: a tool's result and a question.
struct message {
  bytes text;
  int question = 0;    ///< the length of the question at its end, "\nget k3f9="
  bytes answer;        ///< six bytes
  bool again = false;  ///< an earlier turn has asked for the same fact
};

/// One session: a system prompt, which all sessions share, and its messages. The model writes the answers.
struct conversation {
  bytes system;
  std::vector<message> messages;
};

/// Makes conversations. The same text and seed give the same conversations on every machine.
///
/// Every message contains a fact `set k3f9=q0zt7a` between two passages of text, and asks for a fact. The first turn
/// asks for its own fact. Each later turn chooses at random between a fact that was asked for before, and a fact of an
/// earlier turn that was not. No fact of the session can be guessed.
class conversation_maker {
 public:
  static constexpr std::string_view system = "# You are an agent. Tools print facts; get asks for one again.\n";
  static constexpr int turn_bytes = 100;  ///< the length of a message and its answer
  static constexpr int answer_bytes = 6;

  conversation_maker(std::span<std::uint8_t const> text, std::uint64_t seed) : text_(text), random_(seed) {}

  [[nodiscard]] static int length(int turns) { return static_cast<int>(system.size()) + turns * turn_bytes; }

  conversation make(int turns) {
    conversation made{.system = {system.begin(), system.end()}, .messages = {}};
    std::vector<fact> known;
    for (int t = 0; t < turns; ++t) {
      known.push_back({word(4), word(answer_bytes)});
      fact& wanted = choose(known);
      made.messages.push_back(say(known.back(), wanted));
      wanted.asked = true;
    }
    return made;
  }

 private:
  struct fact {
    std::string key;
    std::string value;
    bool asked = false;
  };

  fact& choose(std::vector<fact>& known) {
    if (known.size() == 1) return known[0];
    std::vector<fact*> asked, fresh;
    for (fact& one : known) (one.asked ? asked : fresh).push_back(&one);
    fresh.pop_back();  // this turn's own fact
    std::vector<fact*> const& among = fresh.empty() || below(2) == 0 ? asked : fresh;
    return *among[below(among.size())];
  }

  message say(fact const& told, fact const& wanted) {
    std::string const set = "\nset " + told.key + "=" + told.value + "\n", get = "\nget " + wanted.key + "=";
    std::size_t const capacity = turn_bytes - 1 - set.size() - get.size() - answer_bytes;
    std::size_t const before = below(capacity + 1);
    message made{.text = {}, .question = static_cast<int>(get.size()), .answer = {}, .again = wanted.asked};
    add(made.text, "\n");
    add(made.text, stretch(before));
    add(made.text, set);
    add(made.text, stretch(capacity - before));
    add(made.text, get);
    made.answer.assign(wanted.value.begin(), wanted.value.end());
    return made;
  }

  static void add(bytes& to, std::string_view more) { to.insert(to.end(), more.begin(), more.end()); }

  std::string stretch(std::size_t length) {
    std::size_t const begin = below(text_.size() - length + 1);
    return {text_.begin() + static_cast<std::ptrdiff_t>(begin),
            text_.begin() + static_cast<std::ptrdiff_t>(begin + length)};
  }

  std::string word(int length) {
    constexpr char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    std::string made;
    for (int i = 0; i < length; ++i) made += alphabet[below(36)];
    return made;
  }

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  std::span<std::uint8_t const> text_;
  std::mt19937_64 random_;
};

}  // namespace agent_replay

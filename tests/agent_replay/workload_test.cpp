// SPDX-License-Identifier: Apache-2.0
// The replay's conversations and its intervals.

#include <agent_replay/conversation.hpp>
#include <agent_replay/metrics.hpp>

#include "support/test.hpp"

namespace {

using namespace agent_replay;

bytes some_text() {
  bytes text(4000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>('A' + i * i % 57 % 20);
  return text;
}

std::string as_text(bytes const& from) { return {from.begin(), from.end()}; }

}  // namespace

TEST_SUITE("agent_replay") {
  TEST_CASE("every question is about a fact that was told before it, and 12 turns fit into 1280 bytes") {
    bytes const text = some_text();
    conversation_maker maker(text, 3);
    int again = 0;
    for (int i = 0; i < 50; ++i) {
      conversation const one = maker.make(12);
      std::string said = as_text(one.system);
      for (message const& each : one.messages) {
        said += as_text(each.text);
        std::string const question = said.substr(said.size() - static_cast<std::size_t>(each.question));
        std::string const key = question.substr(5, 4), answer = as_text(each.answer);
        CHECK(question == std::string("\nget ").append(key).append("="));
        CHECK(said.find(std::string("\nset ").append(key).append("=").append(answer).append("\n")) < said.size());
        std::string const asked = std::string("\nget ").append(key).append("=").append(answer);
        CHECK((said.find(asked) < said.size()) == each.again);
        again += each.again ? 1 : 0;
        said += answer;
      }
      CHECK(std::ssize(said) == conversation_maker::length(12));
    }
    CHECK(again > 200);
    CHECK(again < 400);
    CHECK(conversation_maker::length(12) <= 1280);
  }

  TEST_CASE("the same seed makes the same conversations, another others") {
    bytes const text = some_text();
    auto const last = [&](std::uint64_t seed) { return conversation_maker(text, seed).make(4).messages[3].text; };
    CHECK(last(1) == last(1));
    CHECK(last(1) != last(2));
  }

  TEST_CASE("Wilson's interval of 8 in 10 is 0.490 to 0.943, of 0 in 10 it is 0 to 0.278") {
    share of{8, 10};
    CHECK(of.low() == doctest::Approx(0.4902).epsilon(0.0005));
    CHECK(of.high() == doctest::Approx(0.9433).epsilon(0.0005));
    share const none{0, 10};
    CHECK(none.low() == 0);
    CHECK(none.high() == doctest::Approx(0.2775).epsilon(0.0005));
  }
}

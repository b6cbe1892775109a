// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, by the tokenizer of a model.
#pragma once

#include <llama.h>

#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace llama_cpp {

namespace kv = kvpolicy;

/// The tokens of a prompt, with those that the model wants at its beginning and end. A byte may become several tokens.
///
/// - throws: `kvpolicy::invalid_argument` if the model has no vocabulary, or the text makes no token, or more than
///   llama.cpp counts.
[[nodiscard]] inline std::vector<llama_token> tokens_of(char const* program, llama_vocab const* with,
                                                        std::string_view text) {
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  kv::expects(llama_vocab_type(with) != LLAMA_VOCAB_TYPE_NONE, program, "--model", "without a vocabulary",
              "a prompt needs one");
  kv::expects(
      text.size() <= most, program, "--prompt", [&] { return std::to_string(text.size()) + " bytes"; },
      [&] { return "llama.cpp reads at most " + std::to_string(most) + " bytes of text"; });
  auto const bytes = static_cast<std::int32_t>(text.size());
  auto const read = [&](std::vector<llama_token>& to) {
    return llama_tokenize(with, text.data(), bytes, to.data(), static_cast<std::int32_t>(to.size()), true, true);
  };
  std::vector<llama_token> made(text.size());  // most texts have fewer tokens than bytes
  std::int32_t found = read(made);
  kv::expects(
      found != std::numeric_limits<std::int32_t>::min(), program, "--prompt",
      [&] { return std::to_string(bytes) + " bytes"; },
      [&] { return "they make more than the " + std::to_string(most) + " tokens that llama.cpp counts"; });
  if (found < 0) {
    made.resize(static_cast<std::size_t>(-found));
    found = read(made);
  }
  kv::expects(found > 0, program, "--prompt", text.empty() ? "empty" : "no tokens", "at least one token is read");
  made.resize(static_cast<std::size_t>(found));
  return made;
}

/// The text of a token, which may be a part of a character.
[[nodiscard]] inline std::string text_of(llama_vocab const* with, llama_token token) {
  std::string made(64, '\0');
  auto const read = [&] {
    return llama_token_to_piece(with, token, made.data(), static_cast<std::int32_t>(made.size()), 0, true);
  };
  std::int32_t length = read();
  if (length < 0) {
    made.resize(static_cast<std::size_t>(-length));
    length = read();
  }
  made.resize(static_cast<std::size_t>(length));
  return made;
}

}  // namespace llama_cpp

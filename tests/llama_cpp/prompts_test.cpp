// SPDX-License-Identifier: Apache-2.0
#include "llama_cpp/prompt_tokens.hpp"
#include "models.hpp"
#include "support/error_of.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

/// A model whose tokens are bytes, as SentencePiece spells them. It has no token for the character that stands for a
/// blank, so that each blank becomes three tokens.
model_pointer bytes_of_sentencepiece() {
  random_model made("llama", sentencepiece_bytes());
  for (int layer = 0; layer < 2; ++layer) {
    for (char const* norm : {"attn_norm", "ffn_norm"}) made.add(layer, std::string(norm) + ".weight", 32, 1);
    add_projections(made, layer);
  }
  return made.load();
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("prompts: a text may have more tokens than bytes") {
    model_pointer const owner = bytes_of_sentencepiece();
    llama_vocab const* const vocabulary = llama_model_get_vocab(owner.get());
    for (int const blanks : {1, 2, 8, 50, 3000}) {
      std::string const text = std::string(static_cast<std::size_t>(blanks), ' ') + "ab";
      std::vector<llama_token> const tokens = llama_cpp::tokens_of("kvllama", vocabulary, text);
      CHECK(static_cast<int>(tokens.size()) >= 3 * blanks + 2);
      std::string back;
      for (llama_token const token : tokens) back += llama_cpp::text_of(vocabulary, token);
      std::string spelled = "ab";
      for (int i = 0; i < blanks; ++i) spelled.insert(0, "\u2581");
      CHECK(back.ends_with(spelled));
    }
  }

  TEST_CASE("prompts: a model without a vocabulary, and a text that llama.cpp cannot read, are refused") {
    model_pointer const owner = bytes_of_sentencepiece();
    llama_vocab const* const vocabulary = llama_model_get_vocab(owner.get());
    model_pointer const without = gemma3(0);
    CHECK(error_of([&] {
            static_cast<void>(llama_cpp::tokens_of("kvllama", llama_model_get_vocab(without.get()), "a"));
          }) == "kvllama: --model = without a vocabulary, but a prompt needs one");
    std::string_view const long_text("a", std::size_t{1} << 31);  // is not read
    CHECK(error_of([&] { static_cast<void>(llama_cpp::tokens_of("kvllama", vocabulary, long_text)); }) ==
          "kvllama: --prompt = 2147483648 bytes, but llama.cpp reads at most 2147483647 bytes of text");
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "models.hpp"

TEST_SUITE("llama_cpp") {
  TEST_CASE("usage: the program of the page runs") {
    llama_cpp_test::model_pointer const owner = llama_cpp_test::gemma3(0);
    llama_model* const model = owner.get();
    namespace kv = kvpolicy;
    std::vector<llama_token> const prompt(100, 3), next_turn(30, 5);
    llama_token const token = 7;

    // example-begin
    llama_cpp::engine engine(model, kv::parse("snapkv(window=8) | budget(24)"),
                             {.context = {.cells = 1024, .sequences = 2}});
    engine.prefill(0, {.tokens = prompt});  // in chunks; then the policy decides
    engine.prefill(1, {.tokens = prompt});  // another sequence
    std::span<float const> logits = engine.step(0, {.tokens = std::span(&token, 1)});  // one token of a sequence
    std::vector<llama_cpp::sequence_rows> const batch{{0, {.tokens = std::span(&token, 1)}},
                                                      {1, {.tokens = std::span(&token, 1)}}};
    logits = engine.step(batch);                        // a token of each: logits [sequence of the batch][vocabulary]
    logits = engine.prefill(0, {.tokens = next_turn});  // a later turn, in whole batches
    std::vector<std::byte> const saved = engine.save(0);
    engine.reset(0);        // the slot may serve another request
    engine.load(0, saved);  // or the same one again
    // example-end

    CHECK(logits.size() == 256);
    CHECK(engine.length(0) == 132);
    CHECK(engine.count(0) == 24);
    CHECK(engine.count(1) == 25);
  }
}

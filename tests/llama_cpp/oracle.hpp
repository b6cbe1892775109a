// SPDX-License-Identifier: Apache-2.0
// tinylm's own decoder, beside which llama.cpp is tested.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>

#include "fixture.hpp"

namespace llama_cpp_test {

/// A stretch of the text that tinylm never saw.
inline bytes stretch(int begin, int length) {
  static bytes const all = [] {
    std::ifstream file(std::string(TINYLM_WEIGHTS_DIR) + "/held_out.txt", std::ios::binary);
    return bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }();
  return {all.begin() + begin, all.begin() + begin + length};
}

/// tinylm's own decoder under the policy. Its lanes have pages of their own, so that no cell is shared.
template <class Policy>
struct oracle {
  explicit oracle(Policy const& policy, tinylm::when decide = tinylm::when::after_prefill)
      : oracle(policy, tinylm::session_options{.bound = 1536, .decide = decide}) {}
  oracle(Policy const& policy, tinylm::session_options const& options)
      : session(tinylm_test::fixture::get().lm, tinylm_test::fixture::get().exec, tinylm_test::fixture::get().pool,
                policy, options) {}
  std::vector<float> prefill(std::span<std::uint8_t const> more) {
    session.prefill(more);
    return {session.logits().begin(), session.logits().end()};
  }
  std::vector<float> step(std::uint8_t byte) {
    auto const logits = session.step(byte);
    return {logits.begin(), logits.end()};
  }
  tinylm::session<Policy> session;
};

/// True if each lane holds the tokens that tinylm's lane holds.
template <class Engine, class Oracle>
bool same_tokens(Engine const& engine, int sequence, Oracle& of) {
  auto const kept = tinylm_test::positions_of(of.session.view());
  for (int i = 0; i < static_cast<int>(kept.size()); ++i) {
    int const heads = engine.shape().kv_heads;
    auto const mine = engine.positions({sequence, i / heads, i % heads});
    if (!std::ranges::equal(mine, kept[static_cast<std::size_t>(i)])) return false;
  }
  return true;
}

}  // namespace llama_cpp_test

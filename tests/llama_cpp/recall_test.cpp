// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "demo/tasks.hpp"
#include "fixture.hpp"

namespace {

using namespace llama_cpp_test;

constexpr int context = 1024, budget = 64;

/// How many questions are asked. All 60 take a minute: tools/engines.sh llama_cpp asks them.
int const questions = [] {
  char const* const wished = std::getenv("KVPOLICY_RECALL_QUESTIONS");
  return wished != nullptr ? std::atoi(wished) : 18;
}();

auto const snapkv = kv::policies::snapkv({.budget = budget, .score = {.window = 16, .pool = kv::max_pool{15}}});

std::vector<demo::recall_case> cases() {
  std::ifstream file(std::string(TINYLM_WEIGHTS_DIR) + "/held_out.txt", std::ios::binary);
  bytes const text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  demo::task_maker tasks(text, context, 7);
  std::vector<demo::recall_case> made;
  for (int i = 0; i < questions; ++i) made.push_back(tasks.recall(i % 6));
  return made;
}

bytes asked(demo::recall_case const& one) {
  bytes all = one.prompt;
  all.insert(all.end(), one.question.begin(), one.question.end());
  return all;
}

struct results {
  int right = 0;
  int same_lanes = 0;  ///< lanes that keep what tinylm's keep
  int lanes = 0;
};

bool is_answer(std::string const& said, bytes const& answer) { return bytes(said.begin(), said.end()) == answer; }

/// The answers of tinylm's own decoder under the policy, and what its lanes keep.
struct expected {
  int right = 0;
  std::vector<std::vector<std::vector<int>>> kept{};  ///< [question][lane]
};
expected const& of_tinylm() {
  static expected const made = [] {
    tinylm_test::fixture& with = tinylm_test::fixture::get();
    expected all;
    for (demo::recall_case const& one : cases()) {
      tinylm::session session(with.lm, with.exec, with.pool, snapkv, {.bound = 1536});
      session.prefill(asked(one));
      all.kept.push_back(tinylm_test::positions_of(session.view()));
      all.right += is_answer(session.generate(static_cast<int>(one.answer.size())), one.answer);
    }
    return all;
  }();
  return made;
}

template <class Policy>
results of_llama(llama_cpp::engine_options const& options, Policy const& policy) {
  llama_cpp::engine engine(model(), policy, options);
  results all;
  std::size_t question = 0;
  for (demo::recall_case const& one : cases()) {
    engine.reset(0);
    reader<decltype(engine)> text{engine};
    std::vector<float> const logits = text.prefill(asked(one));
    REQUIRE(engine.count(0) == budget);
    std::vector<std::vector<int>> const& kept = of_tinylm().kept[question++];
    for (std::size_t i = 0; i < kept.size(); ++i) {
      int const heads = engine.shape().kv_heads, lane = static_cast<int>(i);
      auto const mine = engine.positions({0, lane / heads, lane % heads});
      all.same_lanes += std::equal(mine.begin(), mine.end(), kept[i].begin(), kept[i].end());
      ++all.lanes;
    }
    all.right += is_answer(text.generate(static_cast<int>(one.answer.size()), logits), one.answer);
  }
  return all;
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE(
      "recall: with a sixteenth of the cache llama.cpp answers what tinylm answers, and all lanes keep the same") {
    results const found = of_llama(exact(), snapkv);
    MESSAGE("llama.cpp ", found.right, ", tinylm ", of_tinylm().right, " of ", questions);
    CHECK(of_tinylm().right >= questions - 5);
    CHECK(found.right >= of_tinylm().right - 1);
    CHECK(found.same_lanes == found.lanes);
  }

  TEST_CASE("recall: with flash attention and float16 the answers are as good") {
    llama_cpp::engine_options options = exact();
    options.context.type_k = options.context.type_v = GGML_TYPE_F16;
    options.context.flash_attention = true;
    results const found = of_llama(options, snapkv);
    MESSAGE("llama.cpp ", found.right, " of ", questions, ", equal lanes ", found.same_lanes, " of ", found.lanes);
    CHECK(found.right >= of_tinylm().right - 1);
    CHECK(found.same_lanes >= found.lanes * 9 / 10);
  }

  TEST_CASE("recall: with a cache of q8_0 and a copy of its keys nearly all answers are as good") {
    llama_cpp::engine_options options = exact();
    options.context.type_k = options.context.type_v = GGML_TYPE_Q8_0;
    options.context.flash_attention = true;
    options.context.keep_keys = true;
    results const found = of_llama(options, kv::any_policy(snapkv));
    MESSAGE("llama.cpp ", found.right, " of ", questions, ", equal lanes ", found.same_lanes, " of ", found.lanes);
    CHECK(found.right >= of_tinylm().right - questions / 10);
    CHECK(found.same_lanes >= found.lanes * 7 / 10);
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "fixture.hpp"

namespace {

using namespace llama_cpp_test;

std::vector<float> logits_of(llama_cpp::engine_options const& options, bytes const& text) {
  llama_cpp::engine engine(model(), kv::policies::full(), options);
  reader<decltype(engine)> one{engine};
  std::vector<float> all;
  one.prefill(text, [&](int, std::span<float const> rows) { all.insert(all.end(), rows.begin(), rows.end()); });
  return all;
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("logits: in float32 they are PyTorch's") {
    for (std::string const name : {"text", "recall"}) {
      tinylm_test::golden const expected(name);
      double const error = tinylm_test::furthest(logits_of(exact(), expected.text), expected.logits);
      MESSAGE(name, ": largest difference ", error);
      CHECK(error < 1e-3);
    }
  }

  TEST_CASE("logits: a text read in chunks gives the same logits as one that is read at once") {
    tinylm_test::golden const expected("recall");
    auto const whole = logits_of(exact(), expected.text);
    for (int const chunk : {1, 37, 100}) {
      CAPTURE(chunk);
      CHECK(tinylm_test::furthest(logits_of(exact(1536, chunk), expected.text), whole) < 1e-3);
    }
  }
}

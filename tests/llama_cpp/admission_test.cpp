// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "oracle.hpp"
#include "support/error_of.hpp"
#include "tinylm/cache_session.hpp"

namespace {

using namespace llama_cpp_test;
using kvpolicy_test::error_of;

/// An engine that reads token by token and drops what leaves the window at once.
llama_cpp::engine_options token_by_token() {
  llama_cpp::engine_options made = exact(512, 1);
  made.decide = llama_cpp::when::every_decode;
  return made;
}

/// A gate of one's own: the shorter its key, the higher an entry's score.
struct short_keys {
  using needs = kv::needs<kv::keys>;
  static constexpr auto name = "short_keys";
  static constexpr auto decides = kv::granularity::lane;
  struct negative {
    KVPOLICY_HD float operator()(float, float norm) const { return -norm; }
  };
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::row_norm(exec, in.template get<kv::keys>(), negative{}, out);
  }
  [[maybe_unused]] friend bool operator==(short_keys const&, short_keys const&) = default;
};

/// The mean length of the newest entry's keys in all lanes.
template <class Engine>
double newest_length(Engine& engine) {
  kv::cache const cache = engine.view(0);
  double made = 0;
  for (int i = 0; i < cache.lanes.size(); ++i) {
    kv::lane const lane = cache.lanes.at(i);
    kv::place const place = cache.where.at(lane, *cache.lanes.count.row(lane) - 1);
    auto const* const row = reinterpret_cast<float const*>(cache.k.row(lane.layer, place, lane.head));
    double sum = 0;
    for (int d = 0; d < cache.k.channels; ++d) sum += static_cast<double>(row[d]) * static_cast<double>(row[d]);
    made += std::sqrt(sum);
  }
  return made / cache.lanes.size();
}

/// A length that about half of the keys of a text exceed.
double usual_length(bytes const& text) {
  llama_cpp::engine engine(model(), kv::policies::full(), exact(512, 1));
  reader<decltype(engine)> one{engine};
  std::vector<double> all;
  for (std::uint8_t const byte : text) {
    one.step(byte);
    all.push_back(newest_length(engine));
  }
  std::ranges::sort(all);
  return (all[all.size() / 2] + all[all.size() / 2 - 1]) / 2;
}

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("admission: local attention gives the logits of tinylm's windows") {
    auto const admission = kv::policies::local_attention({.window = 32, .sinks = 4});
    llama_cpp::engine engine(model(), llama_cpp::by_token(admission, kv::reduction::mean), token_by_token());
    reader<decltype(engine)> one{engine};
    kv::cache_policy const both{.admit = admission};
    auto& with = tinylm_test::fixture::get();
    tinylm::cache_session expected(with.lm, with.exec, both, {.bound = 512, .chunk = 64});
    bytes const text = stretch(1000, 100);
    one.prefill(text);
    expected.prefill(text);
    int read = 100;
    for (std::uint8_t const byte : stretch(1100, 60)) {
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
      ++read;
      std::vector<int> held{0, 1, 2, 3};  // the next token is the window's last one
      for (int position = read - 31; position < read; ++position) held.push_back(position);
      for (int lane = 0; lane < 8; ++lane) CHECK(std::ranges::equal(engine.positions({0, lane / 2, lane % 2}), held));
    }
    CHECK(engine.free_count() == 512 - 35);
  }

  TEST_CASE("admission: a token stays if its lanes together admit it when it leaves the window") {
    constexpr int window = 24, tokens = 200;
    bytes const text = stretch(3000, tokens);
    double const limit = usual_length(text);
    kv::admission const admission{.score = short_keys{},
                                  .protect = kv::sinks{1},
                                  .window = window,
                                  .pick = kv::at_least{.least = static_cast<float>(-limit), .unbounded = true}};
    auto const policy = llama_cpp::by_token(admission, kv::reduction::mean);
    llama_cpp::engine_options keeping = token_by_token();
    keeping.decide = llama_cpp::when::by_hand;  // so that the newest token is seen before the decision
    llama_cpp::engine engine(model(), policy, keeping);
    reader<decltype(engine)> one{engine};
    oracle expected(policy, tinylm::when::every_forward);
    std::vector<bool> admitted;
    int stayed = 0;
    for (int read = 1; read <= tokens; ++read) {
      std::uint8_t const byte = text[static_cast<std::size_t>(read - 1)];
      CHECK(tinylm_test::furthest(one.step(byte), expected.step(byte)) < 1e-3);
      admitted.push_back(newest_length(engine) <= limit || read == 1);
      engine.evict(0);
      std::vector<int> held;
      for (int j = 0; j < read; ++j) {
        if (read - j < window || admitted[static_cast<std::size_t>(j)]) held.push_back(j);
      }
      stayed = static_cast<int>(held.size());
      for (int lane = 0; lane < 8; ++lane) REQUIRE(std::ranges::equal(engine.positions({0, lane / 2, lane % 2}), held));
      REQUIRE(same_tokens(engine, 0, expected));
    }
    CHECK(stayed > window + 20);  // some are admitted, and some are not
    CHECK(stayed < tokens - 20);
  }

  TEST_CASE("admission: lanes that admit for themselves are refused by name") {
    auto const admission = kv::policies::local_attention({.window = 32, .sinks = 4});
    CHECK(error_of([&] { llama_cpp::engine const engine(model(), admission, exact(256, 64)); }) ==
          "llama_cpp::engine: policy = head_table | sinks(4) | at_least(least=0.5, strict=false, unbounded=false) | "
          "window(32), but lanes that each keep what reaches a threshold keep different numbers of entries, and lanes "
          "of llama.cpp share their cells: an admission goes through by_token");
    kv::eviction const ragged{.score = short_keys{}, .budget = kv::unlimited{}, .pick = kv::at_least{0.5f}};
    CHECK(error_of([&] {
            llama_cpp::engine const engine(model(), ragged, exact(256, 64));
          }).ends_with("share their cells: an admission goes through by_token"));
    kv::admission capped = admission;
    capped.cap = 7;
    CHECK(error_of([&] { static_cast<void>(llama_cpp::by_token(capped, kv::reduction::mean)); }) ==
          "by_token: admission.cap = 7, but lanes that admit together have no cap");
    capped = admission;
    capped.window = 0;
    CHECK(error_of([&] { static_cast<void>(llama_cpp::by_token(capped, kv::reduction::mean)); }) ==
          "by_token: admission.window = 0, but the newest token is always seen");
  }

  TEST_CASE("admission: the program of the page runs") {
    llama_model* const model = llama_cpp_test::model();
    auto const admission = kv::policies::local_attention({.window = 32, .sinks = 4});
    // example-begin
    llama_cpp::engine engine(model, llama_cpp::by_token(admission, kv::reduction::mean),
                             {.context = {.chunk = 1}, .decide = llama_cpp::when::every_decode});
    // example-end
    std::vector<llama_token> const prompt(50, 'a');
    engine.prefill(0, {.tokens = prompt});
    CHECK(engine.count(0) == 35);
  }
}

#include <cstdlib>
#include <random>

#include "oracle.hpp"

namespace {

using namespace llama_cpp_test;

auto const snapkv = kv::policies::snapkv({.budget = 48, .score = {.window = 8, .pool = kv::max_pool{7}}});
using policy_type = std::remove_const_t<decltype(snapkv)>;
using engine_type = llama_cpp::engine<policy_type>;

/// One request, in llama.cpp and in tinylm's own decoder.
struct request {
  explicit request(engine_type& engine, int sequence, int begin)
      : there{engine, sequence}, here(std::make_unique<oracle<policy_type>>(snapkv)), next(begin) {}
  bytes take(int length) {
    bytes const made = stretch(next, length);
    next += length;
    return made;
  }
  reader<engine_type> there;
  std::unique_ptr<oracle<policy_type>> here;
  int next;            ///< where its text goes on
  int evicted_at = 0;  ///< its length at its last eviction
};

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE("soak: turns, steps, rolled back tokens, swapped and cancelled requests leave every sequence as if alone") {
    constexpr int sequences = 3;
    char const* const wanted = std::getenv("KVPOLICY_SOAK_STEPS");
    int const steps = wanted != nullptr ? std::atoi(wanted) : 400;
    engine_type engine(model(), snapkv, exact(1024, 128, sequences));
    std::mt19937 random(11);
    auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<std::unique_ptr<request>> all;
    for (int s = 0; s < sequences; ++s) all.push_back(std::make_unique<request>(engine, s, 1000 * s));
    double furthest = 0;
    auto const compare = [&](std::span<float const> a, std::span<float const> b) {
      furthest = std::max(furthest, tinylm_test::furthest(a, b));
    };
    auto const replace = [&](int s) {
      engine.reset(s);
      all[static_cast<std::size_t>(s)] = std::make_unique<request>(engine, s, below(200000));
    };
    auto const read = [&](int s) {
      request& of = *all[static_cast<std::size_t>(s)];
      bytes const turn = of.take(1 + below(150));
      compare(of.there.prefill(turn), of.here->prefill(turn));
      of.evicted_at = engine.length(s);
      CHECK(same_tokens(engine, s, *of.here));
    };
    auto const roll_back = [&](int s) {
      request& of = *all[static_cast<std::size_t>(s)];
      int const length = engine.length(s), position = length - below(length - of.evicted_at + 1);
      engine.truncate(s, position);
      of.here->session.truncate(position);
      of.there.text.resize(static_cast<std::size_t>(position));
    };
    auto const swap_out = [&](int s) {
      std::vector<std::byte> const saved = engine.save(s);
      engine.reset(s);
      engine.load(s, saved);
    };
    auto const decode = [&] {
      std::vector<llama_cpp::sequence_rows> batch;
      std::vector<bytes> fed;
      for (auto const& each : all) {
        request& of = *each;
        if (engine.length(of.there.sequence) == 0 || below(4) == 0) continue;
        fed.push_back(of.take(1));
        batch.push_back({of.there.sequence, {.tokens = {}, .embeddings = of.there.add(fed.back())}});
      }
      if (batch.empty()) return;
      std::span<float const> const logits = engine.step(batch);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        request& of = *all[static_cast<std::size_t>(batch[i].sequence)];
        compare(logits.subspan(i * 256, 256), of.here->step(fed[i].front()));
      }
    };
    for (int step = 0; step < steps; ++step) {
      int const s = below(sequences), what = below(40);
      // The two compute the angles of RoPE in other ways, which differ the more the later a token is.
      if (engine.length(s) > 700) {
        replace(s);
      } else if (what == 0) {
        replace(s);
      } else if (what == 1) {
        swap_out(s);
      } else if (what < 4) {
        roll_back(s);
      } else if (what < 8) {
        read(s);
      } else {
        decode();
      }
      int used = 0;
      for (int each = 0; each < sequences; ++each) used += engine.count(each);
      REQUIRE(engine.free_count() == 1024 - used);
    }
    MESSAGE(steps, " steps, largest difference of a logit ", furthest);
    CHECK(furthest < 1e-3);
    for (int s = 0; s < sequences; ++s) engine.reset(s);
    CHECK(engine.highest_cell() == -1);
    for (int s = 0; s < sequences; ++s) CHECK(llama_memory_seq_pos_max(llama_get_memory(engine.get()), s) == -1);
    CHECK(llama_memory_seq_pos_max(llama_get_memory(engine.get()), sequences) == -1);  // the spare one
  }
}

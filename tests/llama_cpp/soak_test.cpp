// SPDX-License-Identifier: Apache-2.0
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
  /// A copy of another request, in a slot of its own. The other decoder has no copies: it reads all that was read
  /// again, in the same way.
  request(request const& from, int sequence)
      : there{from.there.engine, sequence, from.there.text}, next(from.next), evicted_at(from.evicted_at) {
    replay(from.done);
  }
  /// What was read and rolled back so far, as the other decoder needs it to come to the same state.
  struct action {
    enum class kind { turn, step, cut } what;
    bytes text;
    int position = 0;
  };
  void replay(std::vector<action> const& all) {
    here = std::make_unique<oracle<policy_type>>(snapkv);
    for (action const& each : all) {
      if (each.what == action::kind::turn) here->prefill(each.text);
      if (each.what == action::kind::step) here->step(each.text.front());
      if (each.what == action::kind::cut) here->session.truncate(each.position);
    }
    done = all;
  }
  bytes take(int length) {
    bytes const made = stretch(next, length);
    next += length;
    return made;
  }
  reader<engine_type> there;
  std::unique_ptr<oracle<policy_type>> here;
  int next;            ///< where its text goes on
  int evicted_at = 0;  ///< its length at its last eviction
  std::vector<action> done{};
};

}  // namespace

TEST_SUITE("llama_cpp") {
  TEST_CASE(
      "soak: turns, steps, rolled back tokens, forks, swapped and cancelled requests leave every sequence as if "
      "alone") {
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
    // Where two scores differ by less than the rounding of the decoders, either may be the last one that is kept. A
    // pooled score is that of up to seven neighbours, which all change places then.
    int lanes = 0, other_lanes = 0, most_others = 0;
    auto const compare_lanes = [&](int s, request& of) {
      auto const kept = tinylm_test::positions_of(of.here->session.view());
      for (int i = 0; i < static_cast<int>(kept.size()); ++i, ++lanes) {
        auto const& there = kept[static_cast<std::size_t>(i)];
        auto const mine = engine.positions({s, i / engine.shape().kv_heads, i % engine.shape().kv_heads});
        std::vector<int> differ;
        std::ranges::set_difference(mine, there, std::back_inserter(differ));
        REQUIRE(mine.size() == there.size());
        other_lanes += differ.empty() ? 0 : 1;
        most_others = std::max(most_others, static_cast<int>(differ.size()));
      }
    };
    auto const replace = [&](int s) {
      engine.reset(s);
      all[static_cast<std::size_t>(s)] = std::make_unique<request>(engine, s, below(200000));
    };
    auto const read = [&](int s) {
      request& of = *all[static_cast<std::size_t>(s)];
      bytes const turn = of.take(1 + below(150));
      compare(of.there.prefill(turn), of.here->prefill(turn));
      of.done.push_back({request::action::kind::turn, turn});
      of.evicted_at = engine.length(s);
      compare_lanes(s, of);
    };
    auto const roll_back = [&](int s) {
      request& of = *all[static_cast<std::size_t>(s)];
      int const length = engine.length(s), position = length - below(length - of.evicted_at + 1);
      engine.truncate(s, position);
      of.here->session.truncate(position);
      of.done.push_back({request::action::kind::cut, {}, position});
      of.there.text.resize(static_cast<std::size_t>(position));
    };
    int forks = 0;
    auto const fork = [&](int from) {
      int const to = (from + 1 + below(sequences - 1)) % sequences;
      engine.reset(to);
      engine.fork(from, to);
      all[static_cast<std::size_t>(to)] = std::make_unique<request>(*all[static_cast<std::size_t>(from)], to);
      all[static_cast<std::size_t>(to)]->next = below(200000);
      ++forks;
    };
    auto const swap_out = [&](int s) {
      std::vector<std::byte> const saved = engine.save(s);
      engine.reset(s);
      engine.load(s, saved);
    };
    int cancelled = 0;
    auto const cancel = [&](int s) {  // in its first chunk or its second
      request& of = *all[static_cast<std::size_t>(s)];
      bytes const text = of.there.text;
      int left = 1 + below(2);
      auto const stop = [&](int, std::span<float const>) {
        if (--left == 0) throw std::runtime_error("cancelled");
      };
      CHECK_THROWS_WITH_AS(of.there.prefill(stretch(of.next, 130), stop), "cancelled", std::runtime_error);
      of.there.text = text;
      ++cancelled;
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
        of.done.push_back({request::action::kind::step, fed[i]});
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
      } else if (what == 2 && engine.length(s) > 0) {
        fork(s);
      } else if (what < 5) {
        roll_back(s);
      } else if (what < 9) {
        read(s);
      } else if (what < 11) {
        cancel(s);
      } else {
        decode();
      }
      int used = 0;
      for (int each = 0; each < sequences; ++each) used += engine.count(each);
      REQUIRE(engine.free_count() == 1024 - used);
    }
    MESSAGE(steps, " steps, ", forks, " forks, ", cancelled, " cancelled prefills, largest difference of a logit ",
            furthest, ", lanes that differ ", other_lanes, " of ", lanes, ", by ", most_others, " entries at most");
    CHECK(furthest < 1e-3);
    CHECK(other_lanes <= lanes / 1000);
    CHECK(most_others <= 7);
    CHECK(forks > 0);
    for (int s = 0; s < sequences; ++s) engine.reset(s);
    CHECK(engine.highest_cell() == -1);
    for (int s = 0; s < sequences; ++s) CHECK(llama_memory_seq_pos_max(llama_get_memory(engine.get()), s) == -1);
    CHECK(llama_memory_seq_pos_max(llama_get_memory(engine.get()), sequences) == -1);  // the spare one
  }
}

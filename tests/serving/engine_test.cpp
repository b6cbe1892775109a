// SPDX-License-Identifier: Apache-2.0
// The engine over random schedules, with a model whose answers show every row that is not in its place.

#include <serving/engine.hpp>

#include "serving/hash_decoder.hpp"

#if defined(__GLIBC__) && defined(KVPOLICY_TEST_ASAN)
#include <sanitizer/allocator_interface.h>
#elif defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

#if defined(__GLIBC__)
/// The bytes that are allocated now.
std::size_t heap_bytes() {
#if defined(KVPOLICY_TEST_ASAN)
  return __sanitizer_get_current_allocated_bytes();
#else
  struct mallinfo2 const now = mallinfo2();
  return now.uordblks + now.hblkhd;
#endif
}
#endif

using namespace kvpolicy_test;
using namespace serving;
using serving_test::hash_decoder;

/// The policies that requests name. The window of the first is 4, so the last 4 tokens of a prompt are computed.
std::vector<served_policy> const& policies() {
  static std::vector<served_policy> const all = {
      {"snapkv", "snapkv(window=4, pool=max:3) | budget(20)", deciding::after_prompt, 20, 4, false},
      {"trim_kv", "trim_kv | budget(24)", deciding::every_block, 24, 0, true},
      {"knorm", "knorm | sinks(2) | budget(18)", deciding::every_block, 18, 0, false}};
  return all;
}

using key = std::pair<int, int>;  // a request's number and a sample

/// An engine whose memory is checked at every step.
struct checked_engine {
  hash_decoder model;
  kv::host_executor exec;
  engine runs;

  explicit checked_engine(engine_options const& with) : runs(model, exec, with, policies()) {}

  /// Every reference that the pool counts is one that a sequence or the prefix cache has.
  void check_references() {
    block_pool& pool = runs.held().pool();
    std::map<int, int> users;
    for (auto const& each : runs.schedule().running()) {
      for (int const block : each->blocks) ++users[block];
      for (int const block : each->spares) ++users[block];
    }
    std::set<int> cached;
    int wrong = 0;
    runs.held().prefixes().for_each_block([&](int block) { wrong += cached.insert(block).second ? 0 : 1; });
    for (int block = 1; block <= pool.blocks(); ++block) {
      bool const right = pool.users(block) == users[block] && pool.is_cached(block) == (cached.count(block) > 0);
      wrong += right ? 0 : 1;
    }
    REQUIRE(wrong == 0);
  }
  std::map<key, answer> run() {
    for (int limit = 0; !runs.done(); ++limit) {
      REQUIRE(limit < 5000);
      runs.step();
      check_references();
    }
    std::map<key, answer> all;
    for (answer const& each : runs.answers()) {
      REQUIRE(all.emplace(key{each.number, each.sample}, each).second);  // a request ends once
    }
    return all;
  }
};

engine_options plenty(int drafts) {
  engine_options with{.blocks = 400, .slots = {.wide = 8, .wide_bound = 512}};
  with.schedule.drafts = drafts;
  return with;
}

/// The answers of a request that has an engine for itself, and whose prompt is read in one chunk.
std::map<key, answer> alone(request of, int drafts) {
  of.arrives = 0;
  of.cancelled_at = -1;
  checked_engine fresh(plenty(drafts));
  fresh.runs.submit(of);
  return fresh.run();
}

bytes random_text(dice& random, int length) {
  bytes text;
  for (int i = 0; i < length; ++i) text.push_back(static_cast<std::uint8_t>(random.below(hash_decoder::bytes)));
  return text;
}

/// Requests of which some share a prefix, come later, go away, fork, and name policies. With `longer` prompts, which
/// are read in many steps, some are preempted meanwhile.
std::vector<request> random_requests(dice& random, int count, bool longer) {
  std::vector<bytes> prefixes;
  for (int i = 0; i < 3; ++i) prefixes.push_back(random_text(random, random.between(10, 40)));
  std::vector<request> all;
  for (int i = 0; i < count; ++i) {
    request made{.number = i, .prompt = random.chance(60) ? random.one_of(prefixes) : bytes{}};
    bytes const more = random_text(random, longer ? random.between(60, 110) : random.between(1, 30));
    made.prompt.insert(made.prompt.end(), more.begin(), more.end());
    made.max_tokens = random.between(1, 100);
    made.samples = random.chance(20) ? random.between(2, 3) : 1;
    made.policy = random.between(-1, static_cast<int>(policies().size()) - 1);
    made.arrives = random.below(20);
    if (random.chance(10)) made.cancelled_at = made.arrives + random.below(40);
    all.push_back(made);
  }
  return all;
}

engine_options random_options(dice& random, bool longer) {
  slot_sizes const slots{.wide = random.between(1, 6),
                         .wide_bound = 256,
                         .narrow = random.below(13),
                         .narrow_bound = 16 * random.between(2, 8)};
  engine_options with{.blocks = longer ? random.between(20, 24) : random.between(15, 20), .slots = slots};
  with.schedule = {.tokens_per_step = random.between(8, 120),
                   .prefills_at_once = random.between(1, 3),
                   .reserved_answer = random.chance(75) ? 0.0f : 0.5f,
                   .swap_blocks = random.chance(50) ? 0 : 12,
                   .drafts = random.chance(50) ? 0 : 4,
                   .draft_match = 2};
  if (longer) with.schedule.tokens_per_step = random.between(10, 20);
  if (longer) with.schedule.reserved_answer = 0;
  return with;
}

/// What happened in all schedules, so that the test can say that everything did.
struct tally {
  int swaps = 0, recomputations = 0, interrupted = 0, narrowed = 0, forks = 0, copies = 0, cancelled = 0, mixed = 0;
  std::int64_t hits = 0, accepted = 0, rejected = 0, compared = 0, recomputed = 0;
};

/// True if the answer cannot depend on how many drafts there was memory for: a policy that decides again after so many
/// tokens decides earlier or later by the drafts that were accepted.
bool is_comparable(request const& of, int drafts) {
  if (of.policy < 0 || drafts == 0) return true;
  return policies()[as_size(of.policy)].when == deciding::after_prompt;
}

/// Compares an answer with that of the same request alone. If a policy's request was computed again, the tokens after
/// that are those of a fresh request whose prompt has the earlier answer at its end.
void compare(request of, answer const& got, int drafts, tally& seen) {
  if (got.how == outcome::cancelled || !is_comparable(of, drafts)) return;
  bytes wanted;
  if (of.policy >= 0 && got.recomputed > 0) {
    if (got.sample > 0) return;
    wanted.assign(got.text.begin(), got.text.begin() + got.recomputed);
    of.prompt.insert(of.prompt.end(), wanted.begin(), wanted.end());
    of.max_tokens -= got.recomputed;
    ++seen.recomputed;
  }
  bytes const rest = alone(of, drafts).at({of.number, got.sample}).text;
  wanted.insert(wanted.end(), rest.begin(), rest.end());
  ++seen.compared;
  INFO("number ", of.number, ", policy ", of.policy, ", sample ", got.sample, ", recomputed ", got.recomputed);
  CHECK(got.text == wanted);
}

void run_schedule(std::uint64_t seed, bool longer, tally& seen) {
  CAPTURE(seed);
  dice random(seed);
  engine_options const with = random_options(random, longer);
  auto const requests = random_requests(random, 14, longer);
  checked_engine shared(with);
  for (request const& each : requests) shared.runs.submit(each);
  auto const answers = shared.run();
  CHECK(shared.model.wrong_rows == 0);
  for (request const& each : requests) {
    for (int sample = 0; sample < each.samples; ++sample) {
      bool const there = answers.count({each.number, sample}) > 0;
      CHECK((there || each.cancelled_at >= 0));
      if (there) compare(each, answers.at({each.number, sample}), with.schedule.drafts, seen);
    }
  }
  block_pool& pool = shared.runs.held().pool();
  CHECK(pool.in_use() == 0);
  shared.runs.held().prefixes().make_available(pool.blocks());
  CHECK(pool.available() == pool.blocks());
  engine_counters const& counted = shared.runs.counters();
  seen.swaps += shared.runs.schedule().swaps();
  seen.recomputations += shared.runs.schedule().recomputations();
  seen.interrupted += shared.runs.schedule().interrupted();
  seen.narrowed += counted.narrowed;
  seen.forks += counted.forks;
  seen.copies += shared.runs.held().copies();
  seen.mixed += shared.model.mixed_forwards;
  seen.accepted += counted.accepted;
  seen.rejected += counted.drafted - counted.accepted;
  for (auto const& [which, each] : answers) {
    seen.hits += each.hit_tokens;
    seen.cancelled += each.how == outcome::cancelled ? 1 : 0;
  }
}

request simple(int number, bytes const& prompt, int max_tokens, int policy = -1) {
  return {.number = number, .prompt = prompt, .max_tokens = max_tokens, .policy = policy};
}

}  // namespace

TEST_SUITE("serving") {
  TEST_CASE("over random schedules no block is lost, every request ends once, and answers as if it were alone") {
    tally seen;
    int const schedules = under_address_sanitizer ? 12 : rounds(60);
    for (int seed = 1; seed <= schedules; ++seed) {
      run_schedule(static_cast<std::uint64_t>(seed), false, seen);
      if (seed % 3 == 0) run_schedule(static_cast<std::uint64_t>(seed), true, seen);
    }
    MESSAGE(seen.compared, " answers compared, ", seen.recomputed, " of them with a policy and computed again; ",
            seen.swaps, " swaps, ", seen.recomputations, " recomputations, ", seen.interrupted,
            " of them while the prompt was read; ", seen.narrowed, " went on in narrow slots; ", seen.forks, " forks, ",
            seen.copies, " copied blocks, ", seen.hits, " tokens found, ", seen.accepted, " drafts accepted, ",
            seen.rejected, " rejected, ", seen.cancelled, " cancelled, ", seen.mixed,
            " forwards with prefill and decode");
    CHECK(seen.compared > 5 * schedules);
    if (schedules >= 60) {  // they are rare, and need all schedules
      CHECK(seen.recomputed > schedules / 12);
      CHECK(seen.interrupted > schedules / 12);
    }
    CHECK(seen.swaps > schedules / 3);
    CHECK(seen.recomputations > schedules / 3);
    CHECK(seen.narrowed > schedules);
    CHECK(seen.forks > schedules / 3);
    CHECK(seen.copies > schedules * 5 / 6);
    CHECK(seen.hits > 16 * schedules);
    CHECK(seen.accepted > schedules * 5 / 6);
    CHECK(seen.rejected > schedules * 5 / 6);
    CHECK(seen.cancelled > schedules / 6);
    CHECK(seen.mixed > schedules * 5 / 3);
  }

  TEST_CASE("a policy that keeps a sixth of the prompt lets several times as many requests run at once") {
    dice random(5);
    std::vector<int> peaks;
    for (int const policy : {-1, 0}) {
      checked_engine one({.blocks = 32, .slots = {16, 256}, .schedule = {.tokens_per_step = 256}});
      for (int i = 0; i < 24; ++i) one.runs.submit(simple(i, random_text(random, 160), 40, policy));
      CHECK(one.run().size() == 24);
      CHECK(one.runs.held().pool().peak_in_use() <= 32);
      peaks.push_back(one.runs.counters().peak_running);
    }
    CHECK(peaks[1] >= 2 * peaks[0]);
  }

  TEST_CASE("what the recorders of a policy keep that decides once is held for the prompts that are read at once") {
    auto const held = [](int policy, slot_sizes const& slots) {
      hash_decoder model;
      kv::host_executor exec;
      return engine(model, exec, {.blocks = 40, .slots = slots}, {policies()[as_size(policy)]}).count();
    };
    auto const recorded = [&](int policy, slot_sizes const& slots) {  // without the epochs: two states have each slot
      return held(policy, slots).state - (slots.wide + slots.narrow) * 2 * hash_decoder::model.layers * 8;
    };
    CHECK(recorded(0, {1, 256}) > 0);
    CHECK(recorded(0, {1, 256, 30, 64}) == recorded(0, {1, 256}));
    CHECK(recorded(0, {2, 256, 30, 64}) == 2 * recorded(0, {1, 256}));
    // A policy that decides again has numbers for the entries that it keeps, which are fewer.
    CHECK(recorded(1, {1, 256, 4, 64}) == 2 * recorded(1, {1, 256}));
    CHECK(held(1, {1, 256, 4, 64}).tables < held(1, {5, 256}).tables / 2);
  }

#if defined(__GLIBC__)
  TEST_CASE("the bytes that an engine says it holds are those that it has allocated") {
    (void)
        kv::shipped();  // its small pieces are freed into a cache of the allocator, which mallinfo2 counts as allocated
    for (int const policy : {-1, 0, 1, 2}) {
      for (slot_sizes const& slots : {slot_sizes{3, 640}, slot_sizes{2, 640, 20, 48}}) {
        INFO("policy ", policy, ", narrow ", slots.narrow);
        std::vector<served_policy> by;
        if (policy >= 0) by.push_back(policies()[as_size(policy)]);
        hash_decoder model;
        kv::host_executor exec;
        std::size_t const before = heap_bytes();
        auto const made = std::make_unique<engine>(model, exec, engine_options{.blocks = 1000, .slots = slots}, by);
        auto const allocated = static_cast<double>(heap_bytes() - before);
        held_memory said = made->count();
        CHECK(said.total() > static_cast<std::int64_t>(sizeof(float)) * 1001 * 16 * 4 * 2 * 4);
        said.swapped = 0;                                       // it comes when it is needed
        said.counters -= made->held().prefixes().most_bytes();  // as the tree does
        CHECK(static_cast<double>(said.total()) == doctest::Approx(allocated).epsilon(0.015));
      }
    }
  }
#endif

  TEST_CASE("a second request of the same prompt computes its last tokens only") {
    dice random(6);
    bytes const prompt = random_text(random, 100);
    for (int const policy : {-1, 0, 1}) {
      CAPTURE(policy);
      checked_engine one({.blocks = 64, .slots = {4, 256}});
      one.runs.submit(simple(0, prompt, 5, policy));
      auto first = one.run();
      one.runs.submit(simple(1, prompt, 5, policy));
      auto second = one.run();
      CHECK(second.at({1, 0}).hit_tokens == 96);
      CHECK(second.at({1, 0}).text == second.at({0, 0}).text);
      CHECK(one.model.wrong_rows == 0);
    }
  }

  TEST_CASE("a request that the pool could never serve is refused, and one line says why") {
    checked_engine one({.blocks = 8, .slots = {4, 200}});
    CHECK_THROWS_WITH_AS(one.runs.submit(simple(0, bytes(120), 30)), "submit: blocks = 12, but the pool has 8",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(one.runs.submit(simple(0, bytes(190), 30)),
                         "submit: tokens = 220, but a request has at most 200", kv::invalid_argument);
    CHECK_THROWS_WITH_AS(one.runs.submit(simple(0, bytes(10), 30, 3)), "submit: policy = 3, but the engine has 3",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(one.runs.submit(simple(4, {}, 30)),
                         "submit: request = 4, but a prompt, an answer and the number of samples are not empty",
                         kv::invalid_argument);
    CHECK(one.runs.done());
  }

  TEST_CASE("a draft is what followed the last earlier occurrence of the same tokens") {
    bytes const text{1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 1, 2, 3};
    CHECK(look_up_drafts(text, 3, 2) == bytes{5, 6});
    CHECK(look_up_drafts(text, 3, 9) == bytes{5, 6, 1, 2, 3});
    CHECK(look_up_drafts(text, 4, 2).empty());
    CHECK(look_up_drafts(text, 3, 0).empty());
    CHECK(look_up_drafts(bytes{1, 1, 1}, 3, 2).empty());
    CHECK(look_up_drafts(bytes{1, 1, 1, 1}, 3, 2) == bytes{1});
  }
}

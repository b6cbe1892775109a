// SPDX-License-Identifier: Apache-2.0
#include "fixture.hpp"
#include "support/test.hpp"

namespace tinylm_test {

/// A budget that differs from lane to lane, so that counts do.
struct uneven {
  int operator()(kv::lane this_lane, int) const { return 40 + 11 * this_lane.layer + 23 * this_lane.head; }
  friend bool operator==(uneven const&, uneven const&) = default;
};

/// A scorer that no header of the library knows: entries whose values are short go first.
struct value_size {
  using needs = kv::needs<kv::values>;
  static constexpr auto decides = kv::granularity::lane;
  struct size_of {
    kv::values of;
    float operator()(float, kv::entry at) const {
      auto const* const row = reinterpret_cast<float const*>(of.row(at.lane, at.ordinal));
      float sum = 0;
      for (int d = 0; d < of.rows.channels; ++d) sum += row[d] * row[d];
      return sum;
    }
  };
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::map(exec, out, size_of{in.template get<kv::values>()});
  }
  friend bool operator==(value_size const&, value_size const&) = default;
};

}  // namespace tinylm_test

namespace {

using namespace tinylm_test;

/// A second session with the full cache whose attention does not see what the first has dropped.
class masked_twin {
 public:
  explicit masked_twin(tinylm::session_options options)
      : hidden_(8 * static_cast<std::size_t>(options.bound)),
        bound_(options.bound),
        twin_(fixture::get().lm, fixture::get().exec, fixture::get().pool, kv::policies::full(), with_mask(options)) {}

  void hide_what_is_gone(kv::cache const& from, int length) {
    std::fill(hidden_.begin(), hidden_.end(), std::uint8_t{0});
    dropped_ = 0;
    auto const kept = positions_of(from);
    for (std::size_t lane = 0; lane < kept.size(); ++lane) {
      std::uint8_t* const row = hidden_.data() + lane * static_cast<std::size_t>(bound_);
      std::fill_n(row, length, std::uint8_t{1});
      for (int const position : kept[lane]) row[position] = 0;
      dropped_ += static_cast<int>(std::count(row, row + length, 1));
    }
  }

  auto& operator*() { return twin_; }
  auto* operator->() { return &twin_; }
  [[nodiscard]] int dropped() const { return dropped_; }

 private:
  tinylm::session_options with_mask(tinylm::session_options options) {
    options.decide = tinylm::when::by_hand;
    options.hidden = {hidden_.data(), 0, 2 * std::int64_t{options.bound}, options.bound};
    return options;
  }

  std::vector<std::uint8_t> hidden_;
  int bound_;
  int dropped_ = 0;
  tinylm::session<decltype(kv::policies::full())> twin_;
};

/// Prefill in chunks, a generation with an eviction after every forward, and three truncations: both sessions see the
/// same entries all along, so they must say the same. Afterwards every unit is back in its pool.
template <class Policy>
void check_compact_is_masked(std::string const& name, Policy const& policy,
                             tinylm::layout lay = tinylm::layout::compact, bool whole_tokens = false) {
  CAPTURE(name);
  CAPTURE(kv::to_string(lay));
  golden const prompt("recall");
  fixture& with = fixture::get();
  tinylm::session_options options{.bound = 512, .chunk = 48, .decide = tinylm::when::every_forward};
  masked_twin full(options);
  options.lay = lay;
  int const units = whole_tokens ? 700 : lay == tinylm::layout::compact ? 512 : 8 * 700;
  tinylm::kv_pool pool(with.lm.about().shape(), units, tinylm::pool_for(lay, whole_tokens));
  int const free_units = pool.free_pages();
  std::optional<tinylm::session<Policy>> owner(std::in_place, with.lm, with.exec, pool, policy, options);
  tinylm::session<Policy>& compact = *owner;
  double worst = 0;
  auto const both = [&](auto const& read) {
    read(compact);
    read(*full);
    worst = std::max(worst, furthest(compact.logits(), full->logits()));
    full.hide_what_is_gone(compact.view(), compact.length());
  };
  std::span<std::uint8_t const> const text(prompt.text);
  for (std::size_t at = 0; at < 192; at += 48) both([&](auto& one) { one.prefill(text.subspan(at, 48)); });
  for (int step = 0; step < 120; ++step) {
    if (step == 30 || step == 31 || step == 90) {
      int const back = compact.length() - (step == 31 ? 1 : 11);
      compact.truncate(back);
      full->truncate(back);
      full.hide_what_is_gone(compact.view(), back);
    }
    auto const logits = full->logits();
    std::uint8_t const byte =
        logits.empty() ? std::uint8_t{'='}
                       : static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    both([&](auto& one) { one.step(byte); });
  }
  CHECK(compact.length() == full->length());
  CHECK(full.dropped() > 8 * 50);
  MESSAGE(name, ": largest difference ", worst, ", ", full.dropped(), " entries hidden");
  CHECK(worst < 1e-4);
  CHECK(compact.told().logical_kept == compact.entries().live_entries());
  bool const masks = lay == tinylm::layout::mask;
  CHECK(compact.told().attended_length == (masks ? 8 * compact.length() : compact.entries().live_entries()));
  CHECK((compact.told().physical_freed == 0 || !masks));
  owner.reset();
  CHECK(pool.free_pages() == free_units);
}

/// The same policy by every layout that a list of slots for each lane can carry.
template <class Policy>
void check_every_layout(std::string const& name, Policy const& policy) {
  using tinylm::layout;
  for (layout const lay : {layout::list_rewrite, layout::dead_slot, layout::mask, layout::overwrite}) {
    check_compact_is_masked(name, policy, lay);
  }
}

/// What decides for whole tokens, by every layout that one list of slots for all lanes can carry.
template <class Score>
void check_whole_tokens(std::string const& name, Score const& score, kv::reduction how) {
  using tinylm::layout;
  kv::eviction const policy{.score = kv::reduce_lanes<Score>{score, kv::granularity::sequence, how},
                            .protect = kv::sinks{2},
                            .budget = kv::per_lane{64}};
  for (layout const lay : {layout::compact, layout::list_rewrite, layout::dead_slot, layout::mask, layout::overwrite}) {
    check_compact_is_masked(name, policy, lay, true);
  }
}

}  // namespace

TEST_SUITE("tinylm") {
  TEST_CASE("session: a compacted cache says what the full cache says whose attention skips the dropped positions") {
    check_compact_is_masked("streaming_llm", kv::policies::streaming_llm({.budget = 64}));
    check_compact_is_masked("random, uneven",
                            kv::eviction{.score = kv::random_scores{}, .protect = kv::safe{2, 4}, .budget = uneven{}});
    check_compact_is_masked("knorm", kv::policies::knorm({.budget = 64, .sinks = 4}));
    check_compact_is_masked("snapkv",
                            kv::policies::snapkv({.budget = 64, .score = {.window = 16, .pool = kv::max_pool{15}}}));
    check_compact_is_masked("h2o", kv::policies::h2o({.budget = 64}));
    check_compact_is_masked("a user's scorer",
                            kv::eviction{.score = value_size{}, .protect = kv::recent{8}, .budget = uneven{}});
  }

  TEST_CASE("session: dead slots, lists, masks and overwritten slots say what a compacted cache says, lane by lane") {
    check_every_layout("random, uneven",
                       kv::eviction{.score = kv::random_scores{}, .protect = kv::safe{2, 4}, .budget = uneven{}});
    check_every_layout("snapkv",
                       kv::policies::snapkv({.budget = 64, .score = {.window = 16, .pool = kv::max_pool{15}}}));
    check_every_layout("h2o", kv::policies::h2o({.budget = 64}));
  }

  TEST_CASE("session: so they do where one list of slots serves all layers and heads") {
    check_whole_tokens("snapkv", kv::snapkv{.window = 16, .pool = kv::max_pool{15}}, kv::reduction::sum);
    check_whole_tokens("h2o", kv::h2o{}, kv::reduction::mean);
    check_whole_tokens("tova", kv::tova{}, kv::reduction::max);
  }

  TEST_CASE("session: a policy by name reads and evicts as the typed one does") {
    golden const prompt("text");
    fixture& with = fixture::get();
    auto const kept = [&](auto const& policy) {
      tinylm::session one(with.lm, with.exec, with.pool, policy,
                          {.bound = 512, .chunk = 64, .decide = tinylm::when::every_forward});
      one.prefill(prompt.text);
      one.generate(10);
      return positions_of(one.view());
    };
    CHECK(kept(kv::parse("h2o | budget(80)")) == kept(kv::policies::h2o({.budget = 80})));
    CHECK(kept(kv::parse("snapkv(window=16) | sinks(4) | budget(80)")) ==
          kept(kv::policies::snapkv({.budget = 80, .score = {.window = 16}, .sinks = 4})));
  }

  TEST_CASE("session: evicted entries give their pages back, lane by lane") {
    fixture& with = fixture::get();
    int const before = with.pool.free_pages();
    {
      golden const prompt("text");
      tinylm::session one(with.lm, with.exec, with.pool, kv::eviction{.score = kv::knorm{}, .budget = uneven{}},
                          {.bound = 512});
      one.prefill(prompt.text);
      std::int64_t expected = 0;
      int pages = 0;
      for (int layer = 0; layer < 4; ++layer) {
        for (int head = 0; head < 2; ++head) {
          expected += uneven{}({0, layer, head}, 0);
          pages += (uneven{}({0, layer, head}, 0) + 15) / 16;
        }
      }
      CHECK(one.entries().live_entries() == expected);
      CHECK(with.pool.free_pages() == before - pages);
      one.step('x');
      CHECK(one.counters().entries_read == expected + 8);
      CHECK(one.counters().evictions == 1);
      CHECK(one.length() == 257);
    }
    CHECK(with.pool.free_pages() == before);
  }

  TEST_CASE("session: layer by layer or all at once, a policy observes the same") {
    golden const prompt("text");
    fixture& with = fixture::get();
    auto const kept = [&](auto const& policy, bool by_layer) {
      tinylm::session one(
          with.lm, with.exec, with.pool, policy,
          {.bound = 512, .chunk = 64, .decide = tinylm::when::every_forward, .observe_by_layer = by_layer});
      one.prefill(prompt.text);
      one.generate(10);
      return positions_of(one.view());
    };
    auto const h2o = kv::policies::h2o({.budget = 80});
    auto const snapkv = kv::policies::snapkv({.budget = 80});
    CHECK(kept(h2o, true) == kept(h2o, false));
    CHECK(kept(snapkv, true) == kept(snapkv, false));
  }

  TEST_CASE("session: going on from a prompt is as reading it") {
    golden const prompt("recall");
    fixture& with = fixture::get();
    auto const shared = tinylm::read_prompt(with.lm, with.exec, with.pool, prompt.text, 512, 64);
    auto const check = [&](auto const& policy) {
      tinylm::session reader(with.lm, with.exec, with.pool, policy, {.bound = 512, .chunk = 64});
      reader.prefill(prompt.text);
      tinylm::session heir(with.lm, with.exec, shared, policy, {.bound = 512, .chunk = 64});
      CHECK(furthest(reader.logits(), heir.logits()) < 1e-4);
      CHECK(positions_of(reader.view()) == positions_of(heir.view()));
      CHECK(furthest(reader.step('x'), heir.step('x')) < 1e-4);
      CHECK(reader.length() == heir.length());
    };
    check(kv::policies::snapkv({.budget = 64}));
    check(kv::policies::h2o({.budget = 64}));
    check(kv::policies::knorm({.budget = 64}));
    check(kv::policies::full());
  }

  TEST_CASE("session: a rolled-back text goes on as if the rest had never been") {
    golden const prompt("text");
    fixture& with = fixture::get();
    tinylm::session one(with.lm, with.exec, with.pool, kv::policies::knorm({.budget = 100}), {.bound = 512});
    one.prefill(prompt.text);
    std::vector<float> const first(one.step('a').begin(), one.logits().end());
    one.generate(20, {.temperature = 1, .seed = 3});
    one.truncate(256);
    CHECK(one.logits().empty());
    CHECK_THROWS_WITH_AS(one.generate(1),
                         "generate: text = empty or just cut, but there are no logits: prefill or step first",
                         kv::invalid_argument);
    CHECK(furthest(one.step('a'), first) < 1e-4);
    CHECK_THROWS_WITH_AS(one.truncate(258), "session::truncate: position = 258, but the text has 257 bytes",
                         kv::invalid_argument);
  }

  TEST_CASE("session: the same seed writes the same text, and a stop byte ends it") {
    golden const prompt("text");
    fixture& with = fixture::get();
    auto const shared = tinylm::read_prompt(with.lm, with.exec, with.pool, prompt.text);
    auto const write = [&](tinylm::sampling const& how) {
      return tinylm::session(with.lm, with.exec, shared, kv::policies::full()).generate(60, how);
    };
    CHECK(write({.temperature = 0.8f, .seed = 5}) == write({.temperature = 0.8f, .seed = 5}));
    CHECK(write({.temperature = 0.8f, .seed = 5}) != write({.temperature = 0.8f, .seed = 6}));
    std::string const line = write({.temperature = 0.8f, .seed = 5, .stop = 'e'});
    CHECK((line.size() == 60 || line.back() == 'e'));
  }

  TEST_CASE("session: a forward for which there is no room changes nothing") {
    fixture& with = fixture::get();
    tinylm::session one(with.lm, with.exec, with.pool, kv::policies::full(), {.bound = 20});
    one.prefill(std::vector<std::uint8_t>(20, 'a'));
    CHECK_THROWS_WITH_AS(one.step('b'), "kv_sequence::reserve: tokens = 1, but a lane holds 20 of at most 20",
                         kv::invalid_argument);
    CHECK(one.length() == 20);
    CHECK(one.entries().live_entries() == 160);
  }
}

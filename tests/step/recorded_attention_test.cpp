// SPDX-License-Identifier: Apache-2.0
// Evictions that record attention beside an admission: masses, and what is kept, are those of a lane written out, token
// by token and in chunks.

#include "reference/gated_mass.hpp"
#include "support/dual_engine.hpp"

namespace {

using namespace kvpolicy_test;

/// How the engine tells attention.
enum class telling { probabilities, queries };

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
constexpr int window = 6, rows = 8, bound = 64, most_rows = 24;

/// Random keys, queries and gates, the same whenever they are asked for.
struct numbers {
  std::uint64_t seed = 0;
  [[nodiscard]] float at(int what, int sequence, int layer, int head, int position, int d) const {
    auto key = seed;
    for (int const each : {what, sequence, layer, head, position, d})
      key = key * 1000003u + static_cast<std::uint64_t>(each);
    return number_of(key);
  }
  [[nodiscard]] float key(kv::lane of, int position, int d) const {
    return at(1, of.sequence, of.layer, of.head, position, d);
  }
  [[nodiscard]] float query(int sequence, int layer, int head, int position, int d) const {
    return 3 * at(2, sequence, layer, head, position, d);
  }
  [[nodiscard]] float gate(kv::lane of, int position) const {
    return 0.5f + 0.5f * at(3, of.sequence, of.layer, of.head, position, 0);
  }
};

/// A batch under a cache policy with an admission, beside its lanes written out.
template <class Policy>
class recording {
 public:
  recording(Policy const& what, int sequences, telling how, std::uint64_t seed, kv::reduction group)
      : policy(what),
        random{seed},
        how_(how),
        group_(group),
        sequences_(sequences),
        engine(dual_options{.model = model,
                            .sequences = sequences,
                            .rows = rows,
                            .pages = 400,
                            .bound = bound,
                            .most_fresh = most_rows}),
        both(engine.view()),
        held(kv::make_state(exec, policy, both)),
        plans(kv::make_plan(exec, policy, both)),
        of_fresh(kv::make_state(exec, kv::window_part(policy), engine.chunk(0, 0))),
        decided(kv::make_plan(exec, kv::window_part(policy), engine.chunk(0, 0))) {
    for (int i = 0; i < engine.lanes(); ++i) lanes.emplace_back(window, 1 / std::sqrt(model.head_dim));
  }

  /// One token of every sequence, and `drafts` more that are taken back.
  void step(int drafts = 0) {
    look_ahead(1);
    std::vector<kv::append_request> fresh;
    for (int s = 0; s < sequences_; ++s) fresh.push_back({.sequence = s, .tokens = 1, .position = length});
    kv::step(exec, policy, kv::signals{both.window.lanes}, both, held, plans,
             std::span<kv::append_request const>(fresh), [&] {
               write(both.window, [&](int count) { return std::pair{count - 1, count}; });
               for (int s = 0; s < sequences_ && drafts > 0; ++s) {
                 kv::append(exec, both.window, held.window,
                            {.sequence = s, .tokens = drafts, .position = length + 1, .in_flight = true});
               }
               for (int layer = 0; layer < model.layers; ++layer) observe(1, drafts, layer, layer + 1);
               for (int s = 0; s < sequences_ && drafts > 0; ++s) kv::truncate(exec, both, held, s, length + 1);
             });
    length += 1;
  }

  /// So many tokens of every sequence, whose rows are outside of the cache until they are taken in.
  void chunk(int tokens) {
    look_ahead(tokens);
    kv::cache const fresh = engine.chunk(tokens, length);
    write(fresh, [&](int count) { return std::pair{0, count}; });
    kv::observe(exec, kv::window_part(policy), kv::signals{fresh.lanes, gates(fresh.lanes, tokens)}, of_fresh);
    kv::decide(exec, kv::window_part(policy), kv::signals{fresh.lanes}, of_fresh, decided);
    kv::ingest(exec, kv::window_part(policy), kv::signals{both.window.lanes}, fresh, of_fresh, decided, both, held,
               *plans.admission);
    observe(tokens, 0, 0, model.layers, false);
    kv::maintain(exec, policy, kv::signals{both.window.lanes}, both, held, plans);
    length += tokens;
  }

  /// Passes the attention of the latest forward, of `tokens` rows and of rows of drafts behind them, to the recorders.
  void observe(int tokens, int drafts, int begin, int end, bool born = true) {
    int const all = tokens + drafts;
    position_.resize(as_size(all));
    std::iota(position_.begin(), position_.end(), length);
    kv::lanes const in_window = both.window.lanes.layers_only(begin, end);
    kv::lanes const in_pages = both.pages.entries.lanes.layers_only(begin, end);
    kv::gate const fresh = born ? gates(both.window.lanes, 1) : kv::gate{};
    if (how_ == telling::probabilities) {
      auto const of_window = probabilities(both.window.lanes, all, window_numbers_);
      auto const of_pages = probabilities(both.pages.entries.lanes, all, page_numbers_);
      allocations += allocations_in([&] {
        kv::observe(exec, policy, kv::signals{in_window, fresh, kv::keys_of(both.window), of_window, no_rows()},
                    kv::signals{in_pages, kv::keys_of(both.pages.entries), of_pages, no_rows()}, held);
      });
      return;
    }
    kv::queries const asked = queries(all);
    allocations += allocations_in([&] {
      // example-begin observe
      kv::observe(exec, policy, kv::signals{in_window, fresh, kv::keys_of(both.window), asked},
                  kv::signals{in_pages, kv::keys_of(both.pages.entries), asked}, held);
      // example-end observe
    });
  }
  /// What is said to the query rows of a token after the latest one, changed by `change`, for some layers of each part.
  template <class Change>
  std::string said_to(Change const& change, int window_end = model.layers, int pages_end = model.layers) {
    position_.assign(1, length);
    paid_.assign(as_size(engine.lanes()), std::vector<std::vector<reference::paid_attention>>(as_size(model.group())));
    kv::queries asked = queries(1);
    change(asked);
    return error_of([&] {
      kv::observe(
          exec, policy,
          kv::signals{both.window.lanes.layers_only(0, window_end), kv::gate{}, kv::keys_of(both.window), asked},
          kv::signals{both.pages.entries.lanes.layers_only(0, pages_end), kv::keys_of(both.pages.entries), asked},
          held);
    });
  }

  [[nodiscard]] std::vector<int> positions(kv::cache const& of, int i) const {
    int const* const position = of.lanes.position.row(of.lanes.at(i));
    return {position, position + *of.lanes.count.row(of.lanes.at(i))};
  }
  /// The recorded masses of a lane, in the window or in the pages.
  [[nodiscard]] std::vector<float> masses(bool in_pages, int i) const {
    kv::state<kv::host_executor> const& state = in_pages ? held.pages : held.window;
    for (kv::recorded_column const& each : state.columns()) {
      if (std::string(each.about.name) != "attention_mass") continue;
      kv::cache const& of = in_pages ? both.pages.entries : both.window;
      auto const* const row = reinterpret_cast<float const*>(each.rows.row(of.lanes.at(i)));
      return {row, row + *of.lanes.count.row(of.lanes.at(i))};
    }
    return {};
  }

  Policy policy;
  numbers random;

 private:
  telling how_;
  kv::reduction group_;
  int sequences_;

 public:
  kv::host_executor exec;
  dual_engine engine;
  kv::dual_cache both;
  kv::dual_state<kv::host_executor> held;
  kv::step_plan<kv::host_executor> plans;
  kv::state<kv::host_executor> of_fresh;
  kv::plan<kv::host_executor> decided;
  std::vector<reference::gated_lane> lanes;
  int length = 0;
  std::int64_t allocations = 0;  ///< of `observe`

 private:
  /// Lets the lanes written out see the forward of the next tokens first, because the engine tells what they say.
  void look_ahead(int tokens) {
    paid_.clear();
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const one = both.window.lanes.at(i);
      std::vector<reference::gated_lane::token> fresh;
      for (int t = 0; t < tokens; ++t) {
        fresh.push_back({{}, random.gate(one, length + t) >= 0.4f});
        for (int d = 0; d < model.head_dim; ++d) fresh.back().key.push_back(random.key(one, length + t, d));
      }
      std::vector<reference::matrix> asked;
      for (int h = 0; h < model.group(); ++h) asked.push_back(query_rows(one, h, tokens));
      paid_.push_back(lanes[as_size(i)].forward(fresh, asked, [&](reference::row const& heads) {
        double const sum = std::accumulate(heads.begin(), heads.end(), 0.0);
        if (group_ == kv::reduction::max) return *std::max_element(heads.begin(), heads.end());
        return group_ == kv::reduction::sum ? sum : sum / static_cast<double>(heads.size());
      }));
    }
  }
  [[nodiscard]] reference::matrix query_rows(kv::lane one, int head, int tokens) const {
    reference::matrix made(as_size(tokens));
    for (int t = 0; t < tokens; ++t) {
      for (int d = 0; d < model.head_dim; ++d) {
        made[as_size(t)].push_back(
            random.query(one.sequence, one.layer, one.head * model.group() + head, length + t, d));
      }
    }
    return made;
  }

  /// Writes the keys of each lane's entries in range(count).
  template <class Range>
  void write(kv::cache const& in, Range const& range) {
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const one = in.lanes.at(i);
      auto const [begin, end] = range(*in.lanes.count.row(one));
      for (int e = begin; e < end; ++e) {
        auto* const row = reinterpret_cast<float*>(in.k.row(one.layer, in.where.at(one, e), one.head));
        for (int d = 0; d < model.head_dim; ++d) row[d] = random.key(one, in.lanes.position.row(one)[e], d);
      }
    }
  }

  kv::gate gates(kv::lanes const& of, int tokens) {
    gates_.resize(as_size(of.size() * tokens));
    for (int i = 0; i < of.size(); ++i) {
      for (int t = 0; t < tokens; ++t) gates_[as_size(i * tokens + t)] = random.gate(of.at(i), length + t);
    }
    kv::gate made;
    made.base = reinterpret_cast<std::byte const*>(gates_.data());
    made.entry = 4;
    made.head = 4 * tokens;
    made.layer = made.head * model.kv_heads;
    made.sequence = made.layer * model.layers;
    made.entries = tokens;
    return made;
  }

  /// What each row pays to each entry, as the lanes written out say. A draft pays more than anything.
  kv::attention_probabilities probabilities(kv::lanes const& of, int all, std::vector<float>& memory) {
    memory.assign(as_size(sequences_ * model.layers * model.query_heads * all * of.capacity), 100.0f);
    kv::attention_probabilities made;
    made.base = reinterpret_cast<std::byte const*>(memory.data());
    made.row = 4 * of.capacity;
    made.head = made.row * all;
    made.layer = made.head * model.query_heads;
    made.sequence = made.layer * model.layers;
    made.heads = model.query_heads;
    made.rows = all;
    made.entries = of.capacity;
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const one = of.at(i);
      for (int h = 0; h < model.group(); ++h) {
        auto const& of_head = paid_[as_size(i)][as_size(h)];
        for (std::size_t r = 0; r < of_head.size(); ++r) {
          auto* const to = const_cast<float*>(
              reinterpret_cast<float const*>(made.at(one, one.head * model.group() + h, static_cast<int>(r))));
          for (int e = 0; e < *of.count.row(one); ++e) {
            auto const position = as_size(of.position.row(one)[e]);
            bool const is_seen = position < of_head[r].of_position.size();
            to[e] = is_seen ? static_cast<float>(of_head[r].of_position[position]) : 100.0f;
          }
        }
      }
    }
    rows_of_sequences(made.position, all);
    return made;
  }

  kv::queries queries(int all) {
    query_.assign(as_size(sequences_ * model.layers * model.query_heads * all * model.head_dim), 0.0f);
    lse_.assign(as_size(sequences_ * model.layers * model.query_heads * all),
                -50.0f);  // a draft pays more than anything
    kv::queries made;
    made.base = reinterpret_cast<std::byte const*>(query_.data());
    made.dims = model.head_dim;
    made.row = 4 * model.head_dim;
    made.head = made.row * all;
    made.layer = made.head * model.query_heads;
    made.sequence = made.layer * model.layers;
    made.heads = model.query_heads;
    made.rows = all;
    made.lse = {lse_.data(), std::int64_t{model.layers} * model.query_heads * all,
                std::int64_t{model.query_heads} * all, all};
    rows_of_sequences(made.position, all);
    std::size_t to = 0;
    for (int s = 0; s < sequences_; ++s) {
      for (int i = 0; i < model.layers * model.query_heads; ++i) {
        int const layer = i / model.query_heads;
        int const head = i % model.query_heads;
        int const lane = (s * model.layers + layer) * model.kv_heads + head / model.group();
        auto const& of_head = paid_[as_size(lane)][as_size(head % model.group())];
        for (int r = 0; r < all; ++r) {
          if (as_size(r) < of_head.size()) {
            lse_[to / as_size(model.head_dim)] = static_cast<float>(of_head[as_size(r)].lse);
          }
          for (int d = 0; d < model.head_dim; ++d) query_[to++] = random.query(s, layer, head, length + r, d);
        }
      }
    }
    return made;
  }

  void rows_of_sequences(kv::by_lane<int const>& to, int all) {
    positions_.resize(as_size(sequences_ * all));
    for (int s = 0; s < sequences_; ++s) std::copy(position_.begin(), position_.end(), positions_.begin() + s * all);
    to = {positions_.data(), all, 0, 0};
  }

  /// No query rows, for an engine that gives probabilities.
  static kv::queries no_rows() {
    kv::queries made;
    made.dims = model.head_dim;
    made.heads = model.query_heads;
    return made;
  }

  std::vector<std::vector<std::vector<reference::paid_attention>>> paid_;
  std::vector<float> gates_, query_, lse_, window_numbers_, page_numbers_;
  std::vector<int> position_, positions_;
};

/// Compares recorded masses with those written out.
void compare(std::vector<float> const& found, std::vector<reference::gated_lane::entry> const& expected) {
  RC_ASSERT(found.size() == expected.size());
  for (std::size_t e = 0; e < found.size(); ++e) {
    double const mass = expected[e].mass;
    RC_LOG() << "entry " << e << " at " << expected[e].position << ": " << found[e] << " and not " << mass << '\n';
    RC_ASSERT(std::abs(static_cast<double>(found[e]) - mass) <= 1e-4 * (1 + mass));
  }
}

std::vector<int> positions_of(std::vector<reference::gated_lane::entry> const& of) {
  std::vector<int> made;
  for (auto const& each : of) made.push_back(each.position);
  return made;
}

/// Checks what every lane holds, and what it has recorded.
template <class Policy>
void compare(recording<Policy> const& now) {
  for (int i = 0; i < static_cast<int>(now.lanes.size()); ++i) {
    RC_LOG() << "lane " << i << " after " << now.length << " tokens\n";
    RC_ASSERT(now.positions(now.both.pages.entries, i) == positions_of(now.lanes[as_size(i)].pages()));
    RC_ASSERT(now.positions(now.both.window, i) == positions_of(now.lanes[as_size(i)].window()));
    compare(now.masses(true, i), now.lanes[as_size(i)].pages());
    compare(now.masses(false, i), now.lanes[as_size(i)].window());
  }
}

auto const admit = kv::policies::wg_kv({.window = window, .threshold = 0.4f});
auto const choose = kv::selection{.score = kv::quest{.page = 4}, .budget = kv::per_lane{12}, .dense_layers = 1};

#if defined(KVPOLICY_TEST_ON_DEVICE)
constexpr bool on_device = true;  // there policies are typed
#else
constexpr bool on_device = false;
#endif

/// Runs visit(policy) with a cache policy of the library's types, or with the one that its text names.
template <class Policy, class Visit>
void typed_or_named(bool named, Policy const& typed, Visit const& visit) {
#if defined(KVPOLICY_TEST_ON_DEVICE)
  static_cast<void>(named);
  visit(typed);
#else
  if (!named) return visit(typed);
  bool found = false;
  kv::parse_cache_policy(kv::to_string(typed))
      .visit([&]<class Admit, class... Others>(kv::cache_policy<Admit, Others...> const& policy) {
        if constexpr (std::is_same_v<Admit, kv::any_admission> &&
                      (std::is_same_v<kv::any_policy, std::remove_cvref_t<decltype(policy.evict)>>)) {
          found = true;
          visit(policy);
        }
      });
  if (!found) throw std::logic_error("the text names other sections");
#endif
}

TEST_SUITE("step/recorded_attention") {
  TEST_CASE("h2o keeps by the attention over window and pages, from each token's own forward on") {
    holds("accumulated attention beside an admission", [] {
      int const budget = *rc::gen::element(9, 1, 4, 14, 40);
      kv::reduction const group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
      telling const how = *rc::gen::element(telling::probabilities, telling::queries);
      int const sequences = *rc::gen::element(1, 2);
      auto const seed = any_seed();
      bool const named = *rc::gen::element(false, true);
      bool const selects = *rc::gen::element(false, true);
      auto const evict = kv::eviction{.score = kv::h2o{.group = group}, .budget = kv::per_lane{budget}};
      auto const run = [&](auto const& policy) {
        recording now(policy, sequences, how, seed, group);
        dice random(seed);
        while (now.length < bound) {
          int const tokens = random.chance(25) ? random.between(1, std::min(most_rows, bound - now.length)) : 0;
          tokens > 0 ? now.chunk(tokens) : now.step(random.chance(20) ? random.between(1, 2) : 0);
          for (reference::gated_lane& each : now.lanes) each.keep_heavy(budget / 2, budget - budget / 2);
          compare(now);
        }
        RC_ASSERT(on_device || now.allocations == 0);
      };
      if (selects)
        return typed_or_named(named, kv::cache_policy{.admit = admit, .select = choose, .evict = evict}, run);
      typed_or_named(named, kv::cache_policy{.admit = admit, .select = kv::omitted{}, .evict = evict}, run);
    });
  }

  TEST_CASE("snapkv scores pages by the last query rows, in a softmax over the pages") {
    holds("query rows beside an admission", [] {
      int const last = *rc::gen::element(3, 1, 9);  // some of nine rows are older than entries of the pages
      int const budget = *rc::gen::element(12, 10, 20);
      auto const seed = any_seed();
      bool const named = *rc::gen::element(false, true);
      kv::cache_policy const typed{.admit = admit,
                                   .select = kv::omitted{},
                                   .evict = kv::eviction{.score = kv::snapkv{.window = last, .pool = kv::no_pool{}},
                                                         .budget = kv::per_lane{budget}}};
      typed_or_named(named, typed, [&](auto const& policy) {
        recording now(policy, 1, telling::queries, seed, kv::reduction::sum);
        dice random(seed);
        while (now.length < bound) {
          int const tokens = random.chance(25) ? random.between(1, std::min(most_rows, bound - now.length)) : 0;
          tokens > 0 ? now.chunk(tokens) : now.step(random.chance(20) ? random.between(1, 2) : 0);
          for (int i = 0; i < now.engine.lanes(); ++i) {
            kv::lane const one = now.both.window.lanes.at(i);
            std::vector<int> positions;
            for (int p = std::max(0, now.length - last); p < now.length; ++p) positions.push_back(p);
            std::vector<reference::matrix> asked(as_size(model.group()));
            for (int h = 0; h < model.group(); ++h) {
              for (int const p : positions) {
                asked[as_size(h)].emplace_back();
                for (int d = 0; d < model.head_dim; ++d) {
                  asked[as_size(h)].back().push_back(
                      now.random.query(one.sequence, one.layer, one.head * model.group() + h, p, d));
                }
              }
            }
            reference::gated_lane& lane = now.lanes[as_size(i)];
            reference::row const scores = lane.paid_to_pages(asked, positions);
            auto const forced = reference::ends(static_cast<int>(scores.size()), 0, last);
            lane.keep(reference::select(scores, forced, budget).kept);
            RC_LOG() << "lane " << i << " after " << now.length << " tokens\n";
            RC_ASSERT(now.positions(now.both.pages.entries, i) == positions_of(lane.pages()));
          }
        }
      });
    });
  }

  TEST_CASE("norms that were recorded in the window move into the pages") {
    kv::cache_policy const typed{.admit = admit,
                                 .select = kv::omitted{},
                                 .evict = kv::eviction{.score = kv::recorded_knorm{}, .budget = kv::per_lane{10}}};
    recording now(typed, 2, telling::queries, 5, kv::reduction::sum);
    for (int t = 0; t < 40; ++t) {
      t % 7 == 3 ? now.chunk(3) : now.step();
      for (int i = 0; i < now.engine.lanes(); ++i) {
        reference::gated_lane& lane = now.lanes[as_size(i)];
        reference::row scores;
        for (auto const& each : lane.pages()) {
          double sum = 0;
          for (int d = 0; d < model.head_dim; ++d) {
            sum += std::pow(static_cast<double>(now.random.key(now.both.window.lanes.at(i), each.position, d)), 2);
          }
          scores.push_back(-std::sqrt(sum));
        }
        lane.keep(reference::select(scores, reference::flags(scores.size(), false), 10).kept);
        REQUIRE(now.positions(now.both.pages.entries, i) == positions_of(lane.pages()));
      }
    }
    CHECK(now.lanes.front().pages().size() == 10);
    CHECK((on_device || now.allocations == 0));
  }

  TEST_CASE("what cannot be recorded is refused, and nothing has changed") {
    kv::cache_policy const typed{
        .admit = admit, .select = kv::omitted{}, .evict = kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{12}}};
    auto const check = [](auto const& policy) {
      CHECK(kv::observes_pages(policy));
      recording now(policy, 1, telling::queries, 3, kv::reduction::sum);
      for (int t = 0; t < 30; ++t) now.step();
      auto const before = std::pair{now.masses(true, 1), now.masses(false, 1)};
      CHECK(now.said_to([](kv::queries& rows) { rows.lse = {}; }) ==
            "observe: queries.lse = null, but a row attends to the window and to the pages: give its log-sum-exp, or "
            "attention_probabilities");
      CHECK(now.said_to([](kv::queries&) {}, 2, 1) ==
            "observe: of_pages.lanes = other layers or sequences than those of the window, but both parts observe one "
            "forward");
      if (!on_device) {  // a device does not read the rows' positions
        int const seen = 29;
        CHECK(
            now.said_to([&](kv::queries& rows) { rows.position = {&seen, 0, 0, 0}; })
                .starts_with("observe: queries.position = 29 in the first row of layer 0 of sequence 0, but rows up to "
                             "29 were observed"));
      }
      CHECK(std::pair{now.masses(true, 1), now.masses(false, 1)} == before);
      CHECK(before.first.size() == 12);
    };
    check(typed);
    typed_or_named(true, typed, check);
  }

  TEST_CASE("pages without their window are refused where the eviction keeps query rows") {
    kv::cache_policy const typed{.admit = admit,
                                 .select = kv::omitted{},
                                 .evict = kv::eviction{.score = kv::snapkv{.window = 2}, .budget = kv::per_lane{12}}};
    auto const check = [](auto const& policy) {
      recording now(policy, 1, telling::queries, 3, kv::reduction::sum);
      for (int t = 0; t < 30; ++t) now.step();
      auto const alone = [&] {
        kv::maintain(now.exec, policy, kv::signals{now.both.window.lanes}, now.both.pages, now.held.pages, now.plans);
      };
      CHECK(
          error_of(alone) ==
          "maintain: pages = without their window, but the eviction keeps query rows, which are newer than every entry "
          "of the pages: give the dual cache");
      now.both.pages.entries.lanes = kv::lanes_of_pages(now.both);
      CHECK(error_of(alone).empty());
    };
    check(typed);
    typed_or_named(true, typed, check);
    CHECK_FALSE(kv::observes_pages(kv::cache_policy{.admit = admit, .evict = kv::policies::trim_kv({.budget = 2})}));
  }
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Requests that come and go for a long time, under every applier, and in lanes whose newest entry takes the place of
// the dropped one. The night sets the number of steps to 100,000, under the sanitizers.

#include "engines/histories.hpp"
#include "layout/slot_cache.hpp"

namespace {

using namespace kvpolicy_test;

int asked_steps(int otherwise) {
  char const* const asked = std::getenv("KVPOLICY_SOAK_STEPS");
  return asked != nullptr ? std::atoi(asked) : otherwise;
}

/// One pool of an engine: requests grow, are cut, and end; the next one takes the slot.
template <class Mock, applier By>
void serve(std::uint64_t seed, int steps) {
  dice random(seed);
  pool_options how;
  how.layers = random.between(1, 2);
  how.heads = random.between(1, 3);
  how.sequences = 3;
  how.page = 1 << random.below(3);
  how.variant = random.below(Mock::variants);
  how.element = random.chance(50) ? kv::codec::bf16 : kv::codec::f32;
  how.seed = seed;
  history<Mock, By> run(how, random.between(3, 9));
  int resets = 0;
  int evictions = 0;
  for (int step = 0; step < steps; ++step) {
    int const s = random.below(how.sequences);
    if (run.room(s) == 0 || random.chance(4)) {
      kv::reset(run.exec, run.view, run.state, s);
      run.next[as_size(s)] = 0;
      for (std::size_t i = 0; i < run.pool.lane_count(); ++i) {
        if (run.pool.lane_at(i).sequence == s) run.tokens[i].clear();
      }
      ++resets;
    }
    run.append(s, std::min(random.below(4), run.room(s)));
    if (random.chance(60)) run.evict(), ++evictions;
    run.check();
  }
  RC_ASSERT(resets >= steps / 60);
  RC_ASSERT(evictions >= steps / 3);
}

/// A cache of slots, with `lanes.order` or without, under one policy.
template <class Policy>
struct ordered_or_not {
  ordered_or_not(slot_options const& how, Policy const& policy, bool with_order, bool by_list)
      : cache(how),
        order(as_size(with_order ? cache.rows : 0)),
        view(with_its_order()),
        list(by_list ? cache.list_table() : kv::by_lane<int>{}),
        state(kv::make_state(exec, policy, view)),
        plan(kv::make_plan(exec, policy, view, kv::overwrite{})) {}

  kv::cache with_its_order() {
    kv::cache made = cache.view();
    std::int64_t const layer = cache.options.model.kv_heads;
    if (!order.empty()) made.lanes.order = {order.data(), layer * cache.options.model.layers, layer, 1};
    return made;
  }
  void sort() {
    if (!order.empty()) kv::restore_order(exec, view, state, list);
  }

  slot_cache cache;
  std::vector<kv::lane_order> order;
  kv::cache view;
  kv::by_lane<int> list;
  kv::host_executor exec;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
};

/// Three caches serve the same requests: in one, every later entry moves up when one is dropped; in the others the
/// newest entry takes its place, in a list or by its rows. They hold the same tokens after every step.
template <class Policy>
class decode_soak {
 public:
  decode_soak(Policy const& policy, std::uint64_t seed)
      : policy_(policy),
        how_(shape_of(seed)),
        random_(seed),
        moved_up_(how_, policy, false, true),
        list_(how_, policy, true, true),
        rows_(how_, policy, true, false),
        requests_(as_size(how_.sequences)) {}

  void step() {
    int const s = random_.below(how_.sequences);
    request& one = requests_[as_size(s)];
    int const kind = random_.below(100);
    if (kind < 2 || std::ssize(one) + 4 > moved_up_.cache.map_row) {
      end(s);
    } else if (kind < 4) {
      fork(s, (s + 1) % how_.sequences);
    } else if (kind < 6) {
      swap(s);
    } else if (kind < 8) {
      roll_back(s);
    } else if (kind < 11) {
      for_each([](auto& of) { of.sort(); });
    }
    append(s);
    decide();
    check();
  }

  /// How often lanes were a ring, and in no order.
  int rings = 0, disordered = 0;

 private:
  struct token {
    int sequence = 0;  ///< it was written in
    int number = 0;    ///< from which its rows follow
  };
  using request = std::vector<token>;  ///< [position]

  static slot_options shape_of(std::uint64_t seed) {
    slot_options how{.model = {2, 2, 2, 4}, .sequences = 3, .bound = 24, .by_lane = true, .seed = seed};
    how.element = seed % 2 == 0 ? kv::codec::f32 : kv::codec::bf16;
    return how;
  }

  template <class Visit>
  void for_each(Visit const& visit) {
    visit(moved_up_), visit(list_), visit(rows_);
  }

  void end(int s) {
    for_each([&](auto& of) { kv::reset(of.exec, of.view, of.state, s); });
    requests_[as_size(s)].clear();
  }
  void fork(int from, int to) {
    end(to);
    for_each([&](auto& of) { kv::fork(of.exec, of.view, of.state, from, to); });
    requests_[as_size(to)] = requests_[as_size(from)];
  }
  void swap(int s) {
    for_each([&](auto& of) {
      of.sort();
      std::vector<std::byte> bytes(kv::saved_bytes(of.exec, of.view, of.state, s));
      kv::save(of.exec, of.view, of.state, s, bytes);
      kv::reset(of.exec, of.view, of.state, s);
      kv::load(of.exec, of.view, of.state, s, bytes);
    });
  }
  void roll_back(int s) {
    request& one = requests_[as_size(s)];
    int const position = random_.below(static_cast<int>(one.size()) + 1);
    for_each([&](auto& of) {
      of.sort();
      kv::truncate(of.exec, of.view, of.state, s, position);
    });
    one.resize(as_size(position));
  }

  /// Up to two tokens, or drafts of which some are accepted; then the gate tells its numbers. One place stays free.
  void append(int s) {
    request& one = requests_[as_size(s)];
    int longest = 0;
    for (kv::lane const lane : lanes_of(moved_up_.cache)) {
      if (lane.sequence == s) longest = std::max(longest, moved_up_.cache.held(lane));
    }
    int const some = std::min(how_.bound - 1 - longest, random_.between(0, 2));
    bool const drafts = some > 0 && random_.chance(20);
    int const rejected = drafts ? random_.below(some + 1) : 0;
    int const begin = static_cast<int>(one.size());
    for (int t = 0; t < some; ++t) one.push_back({s, ++born_});
    int const end = begin + some - rejected;
    for_each([&](auto& of) {
      for (int p = begin; p < begin + some; ++p) {
        of.cache.write_token(s, p, one[as_size(p)].number);
        kv::append(of.exec, of.view, of.state, {s, 1, p, drafts});
      }
      if (rejected > 0) kv::truncate(of.exec, of.view, of.state, s, end);
      if (drafts) kv::commit(of.exec, of.view, s, some - rejected);
    });
    one.resize(as_size(end));
    tell(s, begin, end);
  }

  void tell(int s, int begin, int end) {
    std::vector<float> numbers(as_size(moved_up_.cache.lane_count()) * 2, 0);
    std::vector<int> counts(as_size(moved_up_.cache.lane_count()), 0);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (moved_up_.cache.lane_at(static_cast<int>(i)).sequence != s) continue;
      counts[i] = end - begin;
      for (int p = begin; p < end; ++p) {
        numbers[i * 2 + as_size(p - begin)] = -0.25f * static_cast<float>(random_.below(6));
      }
    }
    kv::log_beta gate;
    gate.base = reinterpret_cast<std::byte const*>(numbers.data());
    gate.element = kv::codec::f32;
    gate.entry = 4;
    gate.head = 8;
    gate.layer = gate.head * 2;
    gate.sequence = gate.layer * 2;
    gate.entries = 2;
    gate.counts = {counts.data(), 4, 2, 1};
    for_each([&](auto& of) {
      kv::observe(of.exec, policy_, kv::signals{of.view.lanes, kv::keys_of(of.view), gate}, of.state);
    });
  }

  void decide() {
    for_each([&](auto& of) {
      kv::decide(of.exec, policy_, kv::signals{of.view.lanes, kv::keys_of(of.view)}, of.state, of.plan);
      kv::apply(of.exec, kv::overwrite{of.list}, of.plan, of.view, of.state);
    });
  }

  void check() {
    for (kv::lane const lane : lanes_of(moved_up_.cache)) {
      std::vector<int> const expected = moved_up_.cache.positions(lane);
      RC_ASSERT(std::is_sorted(expected.begin(), expected.end()));
      for_each([&](auto& of) {
        std::vector<int> held = of.cache.positions(lane);
        check_rows(of, lane, held);
        if (!of.order.empty()) check_order(of.view.lanes.order_of(lane), held, expected);
        std::sort(held.begin(), held.end());
        RC_ASSERT(held == expected);
      });
    }
  }
  void check_rows(auto& of, kv::lane lane, std::vector<int> const& held) {
    auto const places = of.cache.entry_places(lane);
    RC_ASSERT(places.size() == held.size());
    for (std::size_t e = 0; e < held.size(); ++e) {
      token const& one = requests_[as_size(lane.sequence)].at(as_size(held[e]));
      for (bool const key : {true, false}) {
        RC_ASSERT(of.cache.read(key, lane, static_cast<int>(places[e].unit), places[e].token) ==
                  of.cache.token_row(key, {one.sequence, lane.layer, lane.head}, one.number));
      }
    }
  }
  void check_order(kv::lane_order const& now, std::vector<int> const& held, std::vector<int> const& expected) {
    int const count = static_cast<int>(held.size());
    RC_ASSERT(now.newest_of(held.data(), count) == (count > 0 ? expected.back() : -1));
    if (now.ascends()) RC_ASSERT(held == expected);
    for (int r = 0; now.is_ring() && r < count; ++r) {
      RC_ASSERT(held[as_size(now.ordinal_of(r))] == expected[as_size(r)]);
    }
    rings += now.is_ring() && !now.ascends();
    disordered += !now.is_ring();
  }

  Policy policy_;
  slot_options how_;
  dice random_;
  ordered_or_not<Policy> moved_up_, list_, rows_;
  std::vector<request> requests_;
  int born_ = 0;
};

/// Several caches after each other, so that a failure names a short schedule. The first steps of each fill its lanes.
template <class Schedule>
void soaked(char const* what, Schedule const& schedule) {
  int const parts = under_address_sanitizer ? 1 : 4;
  int const steps = asked_steps(200 * parts);
  for (int part = 0; part < parts; ++part) {
    INFO("part ", part);
    holds(what, 1, [&] { schedule(9000 + static_cast<std::uint64_t>(part), steps / parts); });
  }
}

/// Only rings say in what order their entries are. Rings are what StreamingLLM makes of lanes.
template <class Policy>
void decode(char const* what, Policy const& policy, bool makes_rings) {
  soaked(what, [&](std::uint64_t seed, int steps) {
    decode_soak<Policy> now(policy, seed);
    for (int i = 0; i < steps; ++i) now.step();
    RC_ASSERT((makes_rings ? now.rings : now.disordered) > steps);
  });
}

}  // namespace

TEST_SUITE("lifecycle/soak") {
  TEST_CASE("requests come and go under every applier") {
    soaked("compact", serve<llama_mock<engines::llama_cpp>, applier::compact>);
    soaked("mask", serve<llama_mock<engines::llama_cpp>, applier::mask>);
    soaked("dead_slot", serve<sglang_mock, applier::dead_slot>);
    soaked("overwrite", serve<sglang_mock, applier::overwrite>);
    soaked("list_rewrite", serve<flashinfer_mock<engines::flashinfer>, applier::list_rewrite>);
    soaked("drop_blocks", serve<vllm_mock, applier::drop_blocks>);
    soaked("list_rewrite, heads", serve<flashinfer_mock<engines::flashinfer_heads>, applier::list_rewrite>);
    soaked("compact_rerotated", serve<llama_mock<engines::llama_cpp>, applier::compact_rerotated>);
  }

  TEST_CASE("requests come and go in lanes whose newest entry takes the place of the dropped one") {
    decode("streaming_llm", kv::policies::streaming_llm_decode({.budget = 14, .sinks = 3}), true);
    decode("recorded_knorm", kv::policies::knorm_decode({.budget = 14}), false);
    decode("trim_kv", kv::policies::trim_kv_decode({.budget = 14}), false);
  }
}

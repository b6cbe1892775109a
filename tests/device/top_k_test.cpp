// SPDX-License-Identifier: Apache-2.0
// The device's top_k against the host's: any lanes, budgets of their own or shared, any number of threads.

#include "device/forced.hpp"

namespace {

using namespace kvpolicy_test;

/// Forces some entries as if at random, and gives lanes different budgets.
struct scattered {
  int tokens = 0;
  int spread = 1;  ///< of budgets
  int slack = 0;
  int percent = 0;  ///< of entries that are forced
  int floor_percent = 0;
  int unseen = 0;  ///< of seven lanes
  kv::budget_scope pool = kv::budget_scope::lane;
  KVPOLICY_HD int budget(kv::lane this_lane, int count) const {
    int const share = tokens + (this_lane.layer * 7 + this_lane.head * 3 + this_lane.sequence) % spread;
    return share < count ? share : count;
  }
  KVPOLICY_HD bool triggers(int count, int allowed) const { return count > allowed + slack; }
  KVPOLICY_HD bool unobserved(kv::lane this_lane) const {
    return unseen > 0 && (this_lane.sequence * 5 + this_lane.layer * 3 + this_lane.head) % 7 < unseen;
  }
  KVPOLICY_HD bool triggers(int count, int allowed, int lanes) const { return count > allowed + slack * lanes; }
  KVPOLICY_HD bool forces(kv::entry at) const { return forces_percent(at, percent); }
  [[nodiscard]] kv::budget_scope scope() const { return pool; }
  KVPOLICY_HD int floor(int share) const { return share * floor_percent / 100; }
};

/// A device that may have smaller clusters, and remembers that of its last launch.
class watched_device : public device_executor {
 public:
  using device_executor::device_executor;
  template <class Threads, class Kernel>
  void launch(kv::launch_shape<Threads> const& shape, Kernel const& kernel) {
    cluster = shape.cluster;
    device_executor::launch(shape, kernel);
  }
  [[nodiscard]] int clusters() const { return std::min(most, device_executor::clusters()); }
  int most = 8;
  int cluster = 0;
};

/// Two devices that launch otherwise: one block for each segment, or a cluster where segments are long.
struct device_pair {
  watched_device alone, in_clusters;
  device_pair(launch_numbers numbers, std::uint64_t seed) : alone(with(1, numbers), seed), in_clusters(numbers, seed) {}

  static launch_numbers with(int processors, launch_numbers numbers) {
    numbers.processors = processors;
    return numbers;
  }
};

/// Devices that launch otherwise; each is used again and again, so that what is left in its scratch does not matter.
struct devices {
  static constexpr int many = 5;
  static launch_numbers config(int threads, int lane_threads, int collected) {
    return {.segment_threads = threads,
            .entry_threads = 32,
            .lane_threads = lane_threads,
            .resident_keys = collected,
            .entries_of_a_selection = collected == 33   ? 1
                                      : collected == 64 ? 700
                                                        : 0x7FFFFFFF};
  }
  device_pair of[many] = {device_pair(config(64, 64, 32), 1), device_pair(config(32, 32, 33), 2),
                          device_pair(config(96, 32, 64), 3), device_pair(config(128, 64, 1024), 4),
                          device_pair(config(64, 32, 0), 5)};
};

template <class Rule>
bool agree(kv::score_view const& scores, Rule const& rule, watched_device& device) {
  owned_keep expected(scores), found(scores);
  kv::host_executor host;
  host.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, scores.lanes.capacity));
  device.reserve(kv::implementation<kv::ops::top_k_t, device_executor::backend>::scratch({}, scores.lanes));
  poison(found.view());
  kv::ops::top_k(host, scores, rule, expected.view());
  kv::ops::top_k(device, scores, rule, found.view());
  device.check();
  return same_keep(expected, found);
}

template <class Rule>
bool agree(kv::score_view const& scores, Rule const& rule, device_pair& devices) {
  bool const alone = agree(scores, rule, devices.alone);
  return agree(scores, rule, devices.in_clusters) && alone;
}

scattered any_rule(dice& random, int bound) {
  return {.tokens = random.one_of<int>({0, 1, random.below(bound + 1), bound, 7}),
          .spread = random.one_of<int>({1, 1, 9}),
          .slack = random.chance(30) ? random.below(20) : 0,
          .percent = random.one_of<int>({0, 0, 10, 60, 100}),
          .floor_percent = random.one_of<int>({0, 20, 50, 100, 130}),
          .unseen = random.one_of<int>({0, 3, 6, 7})};
}

void any_lanes(devices& some, bool pooled, bool by_run) {
  int const sequences = *rc::gen::inRange(1, 4);
  int const layers = *rc::gen::inRange(1, 4);
  int const heads = *rc::gen::inRange(1, 5);
  int const bound = *rc::gen::element(33, 1, 31, 32, 40, 130, 300);
  dice random(any_seed());
  auto const decides = pooled ? kv::granularity::lane
                              : random.one_of<kv::granularity>({{}, {}, {}, kv::granularity{1}, kv::granularity{2}});
  bool const ragged = decides == kv::granularity::lane;
  std::vector<int> counts(as_size(sequences * layers * heads), random.below(bound + 1));
  for (int& each : counts) each = !ragged ? each : random.chance(40) ? bound : random.below(bound + 1);
  owned_lanes lanes(sequences, layers, heads, bound, counts);
  if (random.chance(20)) lanes.set_drafts(0, *std::min_element(counts.begin(), counts.end()) > 0 ? 1 : 0);
  owned_scores scores(lanes.view(), decides);
  trouble const what = any_trouble();
  for (float& each : scores.all()) each = troubled_score(random, what);
  scattered rule = any_rule(random, bound);
  if (pooled) rule.pool = random.chance(50) ? kv::budget_scope::layer : kv::budget_scope::sequence;
  device_pair& device = some.of[random.below(devices::many)];
  if (by_run) {
    RC_ASSERT(agree(scores.view(), between<scattered>{rule, random.below(9), random.below(9)}, device));
  } else {
    RC_ASSERT(agree(scores.view(), rule, device));
  }
}

/// One layer of few heads, whose scores are of one trouble, and any rule that some cut follows from.
void any_slices(bool by_run) {
  int const heads = *rc::gen::inRange(1, 4);
  int const bound = *rc::gen::element(300, 256, 1023, 1024, 2048, 2049, 4097);
  dice random(any_seed());
  std::vector<int> counts(as_size(heads));
  for (int& each : counts) each = random.chance(60) ? bound - random.below(9) : random.below(bound + 1);
  owned_lanes const lanes(1, 1, heads, bound, counts);
  owned_scores scores(lanes.view(), kv::granularity::lane, random.below(4));  // rows begin anywhere
  trouble const what = any_trouble();
  for (float& each : scores.all()) each = troubled_score(random, what);
  launch_numbers numbers = devices::config(32, 32, random.one_of<int>({32, 200, 0}));
  numbers.processors = heads * random.one_of<int>({2, 4, 8});
  watched_device device(numbers, static_cast<std::uint64_t>(random.below(1000)));
  scattered const rule = any_rule(random, bound);
  if (by_run) {
    RC_ASSERT(agree(scores.view(), between<scattered>{rule, random.below(bound), random.below(99)}, device));
  } else {
    RC_ASSERT(agree(scores.view(), rule, device));
  }
}

/// Scores of a kind, of which a sample of a few hundred tells little or nothing.
float score_like(dice& random, int kind, int i, int n) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  auto const any = static_cast<float>(random.real(1));
  switch (kind) {
    case 0:
      return std::exp(8 * any);
    case 1:
      return any < 0 ? 0 : std::round(any * 64) / 64;
    case 2:
      return 0.5f;
    case 3:
      return static_cast<float>(i);
    case 4:
      return static_cast<float>(n - i);
    case 5:
      return random.chance(2) ? std::numeric_limits<float>::quiet_NaN() : any;
    case 6:
      return random.chance(90) ? -infinite : any;
    case 7:
      return random.chance(50) ? -0.0f : random.chance(50) ? 0.0f : any;
    case 8:
      return random.chance(50) ? std::numeric_limits<float>::quiet_NaN() : -infinite;
    case 9:
      return i == n / 2 ? 1e30f : random.chance(50) ? 1e-30f : any * 1e-36f;
    case 10:
      return random.chance(5) ? infinite : any;
    default:
      return any;
  }
}
constexpr int kinds = 12;

TEST_SUITE("device/top_k") {
  TEST_CASE("every segment keeps what the host says, and the report is the host's") {
    devices some;
    holds("any lanes, entries that are asked", rounds(100), [&] { any_lanes(some, false, false); });
    holds("any lanes, runs", rounds(100), [&] { any_lanes(some, false, true); });
  }

  TEST_CASE("few lanes are listed in one launch, and many in two") {
    devices some;
    dice random(9);
    for (int const heads : {128, 129}) {
      std::vector<int> counts(as_size(heads) * 4);
      for (int& each : counts) each = random.below(34);
      owned_lanes const lanes(2, 2, heads, 33, counts);
      owned_scores scores(lanes.view());
      for (float& each : scores.all()) each = troubled_score(random, trouble::ties);
      for (int which = 0; which < devices::many; ++which) {
        if (!at_night() && which != heads % devices::many) continue;
        if (under_address_sanitizer && which > 1) break;  // the others take a minute there; without it they run, too
        CHECK(agree(scores.view(), between<scattered>{{.tokens = 11, .spread = 9, .unseen = 3}, 2, 3}, some.of[which]));
      }
    }
  }

  TEST_CASE("segments that share a budget keep what the host says") {
    devices some;
    holds("any pools, entries that are asked", rounds(100), [&] { any_lanes(some, true, false); });
    holds("any pools, runs", rounds(30), [&] { any_lanes(some, true, true); });
  }

  TEST_CASE("long rows, of which a sample brackets the cut or does not") {
    constexpr int n = 4097;
    devices some;
    owned_lanes const lanes(1, 1, 2, n, {n, n - 1});
    owned_scores scores(lanes.view());
    dice random(3);
    int turn = 0;
    for (int const kind : {0, 1, 2}) {
      for (float& each : scores.all()) {
        each = static_cast<float>(random.real(1));
        if (kind == 1) each = each < 0 ? 0 : each;  // half of them are tied
        if (kind == 2) each = troubled_score(random, trouble::ties);
      }
      for (int const k : {1, 17, 700, 2500, n - 1}) {
        ++turn;
        for (int const which : {2, 3, 4}) {
          if (!at_night() && which != 2 + turn % 3) continue;
          INFO("kind ", kind, ", k ", k, ", which ", which);
          CHECK(agree(scores.view(), between<scattered>{{.tokens = k}, kind, 5}, some.of[which]));
        }
      }
    }
  }

  TEST_CASE("a cluster of blocks lists what the host says, wherever its slices end") {
    holds("few long lanes, entries that are asked", rounds(100), [&] { any_slices(false); });
    holds("few long lanes, runs", rounds(100), [&] { any_slices(true); });
  }

#if !defined(__CUDACC__)
  TEST_CASE("bins near the k-th highest of a sample tell the scores of any kind apart at once") {
    dice random(21);
    constexpr int n = 8192;
    launch_numbers numbers;
    numbers.processors = 1;
    device_executor device(numbers, 3);
    owned_lanes const lanes(1, 1, 1, n, {n});
    owned_scores scores(lanes.view());
    owned_keep found(scores.view());
    for (int kind = 0; kind < kinds; ++kind) {
      for (int i = 0; i < n; ++i) scores.all()[as_size(i)] = score_like(random, kind, i, n);
      for (int const k : {64, n / 4, n / 2}) {
        device.reserve(kv::implementation<kv::ops::top_k_t, device_executor::backend>::scratch({}, lanes.view()));
        kv::ops::top_k(device, scores.view(), kv::plain_top_k{k}, found.view());
        INFO("kind ", kind, ", k ", k, ", barriers ", device.barriers());
        CHECK(device.barriers() <= 9);  // six, and two more for ties of which not all stay; another level has six
      }
    }
  }
#endif

  TEST_CASE("lanes that are shorter than their cluster is wide: every load begins at sixteen bytes") {
    dice random(3);
    constexpr int bound = 8192;
    for (int const count : {0, 1, 3, 5, 17, 35, 61, 195}) {
      owned_lanes const lanes(1, 1, 2, bound, {count, 4 * count + 1});
      owned_scores scores(lanes.view(), kv::granularity::lane, random.below(4));
      for (float& each : scores.all()) each = troubled_score(random, trouble::ties);
      watched_device device(devices::config(64, 32, 0), 5);
      CAPTURE(count);
      for (int const k : {0, count / 2, count + 1}) {
        CHECK(agree(scores.view(), between<scattered>{{.tokens = k}, 1, 1}, device));
      }
      CHECK(device.cluster == 8);
    }
  }

  TEST_CASE("clusters of every size list what the host says") {
    dice random(7);
    int turn = 0;
    for (int const n : {4096, 4097, 8191, 32768}) {
      if (under_address_sanitizer && n > 4097 && !at_night()) continue;
      owned_lanes const lanes(1, 1, 2, n, {n, n - 3});
      owned_scores scores(lanes.view());
      for (int const blocks : {1, 2, 4, 8}) {
        bool const stay = n < 8191 && blocks > 2;  // else the scores are read again for each pass
        watched_device device(devices::config(64, 32, stay ? 0 : 64), 5);
        device.most = blocks;
        int const most = std::min(device.clusters(), n / (4 * kv::detail::selecting_threads(device)));
        for (trouble const what : {trouble::ties, trouble::anything}) {
          if (!at_night() && ++turn % 3 != 0) continue;
          for (float& each : scores.all()) each = troubled_score(random, what);
          INFO("n ", n, ", blocks ", blocks);
          for (int const k : {0, 1, n / 3, n}) {
            CAPTURE(k);
            if (n > 8191 && k != n / 3) continue;
            CHECK(agree(scores.view(), between<scattered>{{.tokens = k}, 4, n / 5}, device));
            CHECK((device.cluster <= most && 2 * device.cluster > most));
            CHECK(agree(scores.view(), scattered{.tokens = k, .percent = 10}, device));
          }
        }
      }
    }
  }

  TEST_CASE("a slice of a cluster has more marks than there is room to note") {
    constexpr int n = 190001;
    dice random(17);
    owned_lanes const lanes(1, 1, 1, n, {n});
    owned_scores scores(lanes.view());
    for (float& each : scores.all()) each = static_cast<float>(random.below(9));
    watched_device device(devices::config(256, 32, 1), 5);
    device.most = 2;
    CHECK(agree(scores.view(), between<scattered>{{.tokens = n / 3}, 4, 5}, device));
    CHECK(device.cluster == 2);
  }

  TEST_CASE("of ties, those of the lowest ordinals are kept, however many there are") {
    constexpr int n = 2111;
    devices some;
    owned_lanes const lanes(1, 1, 3, n, {n, n - 1, 40});
    owned_scores scores(lanes.view());
    int turn = 0;
    for (int const every : {1, 2, 97}) {  // one entry of so many has the score of the cut
      for (std::size_t i = 0; i < scores.all().size(); ++i) {
        scores.all()[i] = static_cast<float>(static_cast<int>(i) % every == 0 ? 0 : i % 2 == 0 ? 1 : -1);
      }
      for (int const k : {1, 32, 33, 1057, 1080, 2000}) {
        for (int which = 0; which < devices::many; ++which) {
          if (under_address_sanitizer && which != turn % devices::many &&
              (!at_night() || which != (turn + 2) % devices::many))
            continue;
          INFO("every ", every, ", k ", k);
          CHECK(agree(scores.view(), between<scattered>{{.tokens = k}, 0, 0}, some.of[which]));
          CHECK(agree(scores.view(), scattered{.tokens = k, .percent = 10}, some.of[which]));
        }
        ++turn;
      }
    }
  }

  TEST_CASE("scores of every kind, by blocks of every size, alone and in clusters") {
    dice random(13);
    int turn = 0;
    for (int const threads : {64, 128, 256, 512}) {
      int const tile = 32 * std::min(threads, 256);
      for (int const blocks : {1, 2, 4, 8}) {
        for (int kind = 0; kind < kinds; ++kind) {
          ++turn;
          if (!at_night() && turn % (under_address_sanitizer ? 11 : 3) != 0) continue;
          bool const again = turn % 5 == 0;  // scores are read for each pass
          int const n =
              turn % 2 == 0 ? 2 * tile * blocks - random.below(5) : 4 * threads * blocks + random.below(2 * tile);
          owned_lanes const lanes(1, 1, 2, n, {n, 1 + random.below(n)});
          owned_scores scores(lanes.view(), kv::granularity::lane, turn % 7 == 0 ? 3 : 0);
          for (std::size_t i = 0; i < scores.all().size(); ++i) {
            scores.all()[i] = score_like(random, kind, static_cast<int>(i) % n, n);
          }
          launch_numbers numbers = devices::config(threads, 32, again ? 1 : 0);
          numbers.shared_bytes = 227 * 1024;
          numbers.processors = 2 * blocks;
          watched_device device(numbers, static_cast<std::uint64_t>(turn));
          device.most = blocks;
          INFO("threads ", threads, ", blocks ", blocks, ", kind ", kind, ", n ", n);
          for (int const k : {std::max(1, n / 4), 1 + random.below(n), n - random.below(3)}) {
            CAPTURE(k);
            CHECK(agree(scores.view(), kv::plain_top_k{k}, device));
          }
        }
      }
    }
  }

  TEST_CASE("rows of which a small sample misleads, to either side") {
    constexpr int n = 1500;
    devices some;
    owned_lanes const lanes(1, 1, 4, n, {n, n, n, n});
    owned_scores scores(lanes.view());
    dice random(11);
    for (int round = 0; round < 8; ++round) {
      double run = 0;
      for (std::size_t i = 0; i < scores.all().size(); ++i) {
        if (i % 20 == 0) run = random.real(1);
        scores.all()[i] = static_cast<float>(run) + static_cast<float>(random.below(4)) * 0x1p-10f;
      }
      for (int const k : {250, 700, 1200}) {
        CHECK(agree(scores.view(), between<scattered>{{.tokens = k}, 1, 1}, some.of[2]));
      }
    }
  }

  TEST_CASE("lanes that decide together and hold different counts are told of, and drop nothing") {
    owned_lanes const lanes(2, 1, 3, 9, {4, 4, 4, 9, 8, 9});
    owned_scores scores(lanes.view(), kv::granularity::layer);
    owned_keep keep(scores.view());
    device_executor device(5);
    device.reserve(kv::implementation<kv::ops::top_k_t, device_executor::backend>::scratch({}, lanes.view()));
    kv::ops::top_k(device, scores.view(), kv::plain_top_k{2}, keep.view());
    CHECK(error_of([&] { device.check(); }) ==
          "decide: count (4) = 8, but lanes that decide together hold equally many entries");
    CHECK(keep.kept(0) == std::vector<int>{0, 1});
    CHECK(keep.kept(1).size() == 9);
  }
}

}  // namespace

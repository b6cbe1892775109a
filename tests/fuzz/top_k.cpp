// SPDX-License-Identifier: Apache-2.0
// top_k: segments for themselves and pools with floors, against one sort of all candidates.
#include <kvpolicy/kvpolicy.hpp>

#include "fuzz/bytes.hpp"
#include "support/owned_keep.hpp"
#include "support/owned_lanes.hpp"

namespace {

using namespace kvpolicy_fuzz;
using namespace kvpolicy_test;

/// Forced entries by flags, a row a segment.
struct flagged {
  std::vector<reference::flags> const* rows = nullptr;
  kv::lanes lanes{};
  kv::granularity decides = kv::granularity::lane;
  bool operator()(kv::entry at) const {
    int const segment = kv::segment_of(lanes, decides, lanes.index(at.lane));
    return (*rows)[static_cast<std::size_t>(segment)][static_cast<std::size_t>(at.ordinal)];
  }
  [[maybe_unused]] friend bool operator==(flagged const& a, flagged const& b) { return a.rows == b.rows; }
};

float any_score(bytes& from, int kind) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  constexpr float nothing = std::numeric_limits<float>::quiet_NaN();
  if (kind == 0) return from.number();
  if (kind == 1) return 1.0f + static_cast<float>(from.below(8)) * 0x1p-23f;
  return from.one_of({1.0f, nothing, -infinite, infinite, -0.0f, 0.0f, -1.0f, 1e-42f});
}

reference::row as_row(std::span<float const> floats) { return {floats.begin(), floats.end()}; }

struct subject {
  bytes& from;
  bool pooled;
  kv::budget_scope scope;
  kv::granularity decides;
  int sequences, layers, heads, bound;
  owned_lanes lanes;
  owned_scores scores;
  std::vector<reference::flags> forced;
  int tokens, slack;
  double floor;

  explicit subject(bytes& input)
      : from(input),
        pooled(input.coin()),
        scope(input.coin() ? kv::budget_scope::sequence : kv::budget_scope::layer),
        decides(pooled ? kv::granularity::lane : static_cast<kv::granularity>(input.below(3))),
        sequences(input.between(1, 2)),
        layers(input.between(1, 2)),
        heads(input.between(1, 3)),
        bound(input.one_of({6, 1, 31, 32, 33, 130, 300, 4097})),
        lanes(sequences, layers, heads, bound, counts()),
        scores(lanes.view(), decides),
        tokens(input.below(bound + 2)),
        slack(input.one_of({0, 0, 1, 5})),
        floor(input.one_of({0.0, 0.2, 0.29, 0.5, 1.0})) {
    int const kind = from.below(3);
    bool const some = from.coin();
    if (from.below(4) == 3 && lanes.count(0) > 0 && lanes_hold_one()) lanes.set_drafts(0, 1);
    float last = 0;
    for (float& each : scores.all()) each = last = from.empty() ? -last : any_score(from, kind);
    for (int s = 0; s < scores.view().segments(); ++s) {
      forced.push_back(some ? from.flags(bound) : reference::flags(static_cast<std::size_t>(bound), false));
    }
  }

  std::vector<int> counts() {
    std::vector<int> made;
    for (int i = 0; i < sequences * layers * heads; ++i) {
      int const together = decides == kv::granularity::lane    ? 1
                           : decides == kv::granularity::layer ? heads
                                                               : heads * layers;
      made.push_back(i % together != 0 ? made.back() : from.coin() ? bound : from.below(bound + 1));
    }
    return made;
  }
  bool lanes_hold_one() const {
    for (int i = 0; i < layers * heads; ++i) {
      if (lanes.count(i) == 0) return false;
    }
    return true;
  }
  [[nodiscard]] int count(int segment) const { return lanes.view().committed(scores.view().lane_of(segment)); }
  reference::flags forced_of(int segment) const {
    reference::flags some = forced[static_cast<std::size_t>(segment)];
    some.resize(static_cast<std::size_t>(count(segment)));
    return some;
  }
};

template <class Budget>
void decide(subject& now, kv::host_executor& exec, kv::keep_set& keep, Budget const& limit) {
  flagged const flags{&now.forced, now.lanes.view(), now.decides};
  kv::detail::decision_rule const rule{kv::nothing{}, flags, limit, kv::over_budget{now.slack}};
  kv::ops::top_k(exec, now.scores.view(), rule, keep);
}

void check_segments(subject& now, owned_keep const& keep) {
  kv::report expected;
  for (int s = 0; s < now.scores.view().segments(); ++s) {
    auto const best =
        reference::select(as_row(now.scores.row(s, now.count(s))), now.forced_of(s), now.tokens, now.slack);
    require(keep.kept(s) == best.kept, "a segment keeps what one sort says");
    bool const triggered = now.count(s) > now.tokens + now.slack;
    expected.triggered += triggered ? 1 : 0;
    expected.nan_scores += best.nan_candidates;
    expected.forced_over_budget += triggered && best.forced_over_budget > 0 ? 1 : 0;
    expected.over_budget += std::ssize(best.kept) > now.tokens ? 1 : 0;
  }
  require(keep.report() == expected, "the report counts what the reference counts");
}

void check_pools(subject& now, owned_keep const& keep) {
  int const together = now.scope == kv::budget_scope::sequence ? now.layers * now.heads : now.heads;
  std::int64_t nan_scores = 0;
  for (int first = 0; first < now.scores.view().segments(); first += together) {
    std::vector<reference::row> rows;
    std::vector<reference::flags> flags;
    for (int s = first; s < first + together; ++s) {
      rows.push_back(as_row(now.scores.row(s, now.count(s))));
      flags.push_back(now.forced_of(s));
    }
    auto const best = reference::select_pooled(rows, flags, together * now.tokens,
                                               reference::lane_floor(now.floor, now.tokens), now.slack);
    for (int s = 0; s < together; ++s) {
      require(keep.kept(first + s) == best.kept[static_cast<std::size_t>(s)], "a pool keeps what one sort says");
    }
    nan_scores += best.nan_candidates;
  }
  require(keep.report().nan_scores == nan_scores, "the report counts NaN");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bytes from(data, size);
  kv::host_executor exec(1, any_isa(from));
  subject now(from);
  if (now.pooled && now.bound > 300) return 0;  // the reference is quadratic there
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, now.bound));
  owned_keep keep(now.scores.view());
  std::vector<float> const before = now.scores.all();
  if (!now.pooled) {
    decide(now, exec, keep.view(), kv::per_lane{now.tokens});
  } else if (now.scope == kv::budget_scope::sequence) {
    decide(now, exec, keep.view(), kv::per_sequence{now.tokens, now.floor});
  } else {
    decide(now, exec, keep.view(), kv::per_layer{now.tokens, now.floor});
  }
  require(std::memcmp(before.data(), now.scores.all().data(), before.size() * sizeof(float)) == 0,
          "scores are not written");
  now.pooled ? check_pools(now, keep) : check_segments(now, keep);
  return 0;
}

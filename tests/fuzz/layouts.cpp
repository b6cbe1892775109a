// SPDX-License-Identifier: Apache-2.0
// Every applier through a series of appends, roll-backs and decisions of any kind: each lane against a plain list of
// its tokens, tables and hand-backs against the layouts written out naively.
#include "reference/layouts.hpp"

#include <kvpolicy/kvpolicy.hpp>

#include "fuzz/bytes.hpp"
#include "layout/slot_cache.hpp"
#include "reference/rope.hpp"
#include "reference/slot_pool.hpp"
#include "support/beside.hpp"

namespace {

using namespace kvpolicy_fuzz;
using namespace kvpolicy_test;
using ordinals = std::vector<int>;

enum class applier { compact, list_rewrite, dead_slot, mask, overwrite, drop_blocks, compact_rerotated };

/// Keeps the entries whose flag is set: their score is 1.
struct chosen {
  std::vector<std::vector<bool>> const* flags = nullptr;  ///< of each segment
  kv::granularity decides = kv::granularity::lane;
  kv::lanes lanes{};
  using needs = kv::needs<>;
  void score(auto& exec, auto const&, kv::score_view const& out) const {
    auto const read = [this](float, kv::entry at) {
      auto const segment = static_cast<std::size_t>(kv::segment_of(lanes, decides, lanes.index(at.lane)));
      return (*flags)[segment][static_cast<std::size_t>(at.ordinal)] ? 1.0f : 0.0f;
    };
    kv::ops::map(exec, out, read);
  }
  [[maybe_unused]] friend bool operator==(chosen const& a, chosen const& b) { return a.flags == b.flags; }
};

struct token {
  int number = 0;
  int position = 0;
  int turns = 0;  ///< how often its key was rounded by a turn
};

double roundoff(kv::codec element) {
  return element == kv::codec::f32 ? 0x1p-24 : element == kv::codec::f16 ? 0x1p-11 : 0x1p-8;
}

slot_options any_shape(bytes& from, applier by) {
  slot_options shape;
  bool const pages = by == applier::drop_blocks || by == applier::compact || by == applier::compact_rerotated;
  shape.model.head_dim = by == applier::compact_rerotated ? from.one_of({4, 2, 64}) : from.one_of({4, 1, 33});
  shape.model.layers = from.between(1, 2);
  shape.model.kv_heads = shape.model.query_heads = from.between(1, 2);
  shape.sequences = from.between(1, 2);
  shape.bound = from.one_of({12, 1, 31, 33});
  shape.page = pages ? from.one_of({4, 1, 3}) : 1;
  shape.spare = from.between(1, 4);
  shape.by_lane = from.coin();
  shape.one_list = from.coin() || (by == applier::drop_blocks && shape.page == 1);  // else a page of one is a slot
  shape.element = from.one_of({kv::codec::f32, kv::codec::f16, kv::codec::bf16});
  shape.seed = from.seed();
  return shape;
}

class history {
 public:
  history(bytes& input, applier by_what, kv::isa most)
      : from_(input),
        by_(by_what),
        cache_(any_shape(input, by_what)),
        exec_(1, most),
        view_(cache_.view()),
        flags_(static_cast<std::size_t>(cache_.lane_count())),
        policy_{.score = {&flags_, cache_.options.by_lane ? kv::granularity::lane : kv::granularity::sequence,
                          view_.lanes}},
        plan_(kv::make_plan(exec_, policy_, view_)),
        columns_(kv::make_state(exec_, policy_, view_)),
        lanes_(static_cast<std::size_t>(cache_.lane_count())),
        hidden_(static_cast<std::size_t>(cache_.rows * cache_.units), std::byte{1}),
        hides_{cache_.list_table(), {mask_table(), kv::mask_form::boolean, cache_.units}} {
    keep_beside(columns_, kv::record_attention_mass{});
    if (by_ == applier::compact_rerotated) {
      for (kv::column const& each : kv::compact_rerotated{}.columns(view_)) columns_.add(each);
    }
    for (int& each : cache_.prefix) each = by_ == applier::dead_slot ? from_.below(3) : 0;
    for (int& each : cache_.locked) each = by_ == applier::dead_slot ? from_.below(3) : 0;
  }

  void append() {
    int const s = from_.below(cache_.options.sequences);
    int capacity = cache_.options.bound;
    int next = next_of(s);
    each_lane(s, [&](int i) { capacity = std::min(capacity, cache_.options.bound - cache_.held(cache_.lane_at(i))); });
    int const tokens = std::min(capacity, from_.below(8));
    bool const drafts = cache_.in_flight[static_cast<std::size_t>(s)] > 0 || from_.below(4) == 3;
    if (next + tokens > cache_.map_row) return;
    for (int t = 0; t < tokens; ++t, ++number_) {
      write(s, next + t);
      if (next + t == 0) columns_.history().reset(s);  // as an engine does before the first token of a request
      kv::append(exec_, view_, columns_, {s, 1, next + t, drafts});
      each_lane(s, [&](int i) {
        of_lane(i).push_back({number_, next + t, 0});
        mass(i)[of_lane(i).size() - 1] = static_cast<float>(number_ % 4096);
      });
    }
  }

  void settle_drafts() {
    int const s = from_.below(cache_.options.sequences);
    int const drafts = cache_.in_flight[static_cast<std::size_t>(s)];
    if (drafts == 0 || by_ == applier::mask) return;  // a mask shows again what is written again
    int const kept = from_.below(drafts + 1);
    int const cut = next_of(s) - (drafts - kept);
    kv::truncate(exec_, view_, columns_, s, cut);
    longest_[s] = cut;
    kv::commit(exec_, view_, s, kept);
    each_lane(s, [&](int i) { of_lane(i).resize(of_lane(i).size() - static_cast<std::size_t>(drafts - kept)); });
  }

  void evict() {
    decide();
    auto const before = cache_.save();
    std::vector<kept_lane> const expected = expected_lanes(before);
    kv::apply_stats stats{7, 7, 7};
    apply(&stats);
    check_lanes();
    for (int i = 0; i < cache_.lane_count(); ++i) check_tables(i, expected[static_cast<std::size_t>(i)], before);
    check_told(stats, expected);
    bool const moves = by_ == applier::compact || by_ == applier::overwrite || by_ == applier::compact_rerotated;
    require(moves || cache_.memory == before.memory, "this applier moves no row");
    require(cache_.in_flight == before.tables[5], "drafts are in flight still");
  }

  /// A prefix tree gives the live entries of a sequence other slots.
  void rewrite_map() {
    if (by_ != applier::dead_slot || cache_.options.by_lane) return;
    int const s = from_.below(cache_.options.sequences);
    reference::mapped_sequence now = sequence(s);
    ordinals slots(cache_.row(cache_.list, {s, 0, 0}, cache_.places));
    if (now.live.size() > 1) std::rotate(slots.begin(), slots.begin() + 1, slots.begin() + std::ssize(now.live));
    int ordinal = 0;
    for (int const position : now.live) {  // rows are wherever the tree put them: only tables are looked at
      now.map[static_cast<std::size_t>(position)] = slots[static_cast<std::size_t>(ordinal++)];
    }
    for (int p = 0; p < std::ssize(now.map); ++p) {
      if (now.live.count(p) == 0) now.map[static_cast<std::size_t>(p)] = from_.below(cache_.units);
      cache_.map[static_cast<std::size_t>(s * cache_.map_row + p)] = now.map[static_cast<std::size_t>(p)];
    }
    auto const wanted = reference::relisted(now, cache_.dead());
    move_rows(s, slots);
    kv::relist(exec_, cache_.redirecting(), view_, s, static_cast<int>(now.map.size()));
    require(sequence(s).map == wanted.map, "relist makes dead positions dead again");
    require(cache_.listed({s, 0, 0}) == wanted.list, "relist takes live slots from the map");
  }

 private:
  struct kept_lane {
    ordinals kept;  ///< and drafts
    reference::layout_result left;
    std::optional<reference::redirection> redirected;
  };

  [[nodiscard]] std::vector<token>& of_lane(int i) { return lanes_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] float* mass(int i) {
    return reinterpret_cast<float*>(columns_.columns()[0].rows.row(cache_.lane_at(i)));
  }
  template <class Visit>
  void each_lane(int sequence, Visit const& visit) {
    for (int i = 0; i < cache_.lane_count(); ++i) {
      if (cache_.lane_at(i).sequence == sequence) visit(i);
    }
  }
  int next_of(int sequence) {
    int next = 0;
    each_lane(sequence, [&](int i) {
      if (!of_lane(i).empty()) next = std::max(next, of_lane(i).back().position + 1);
    });
    if (by_ != applier::compact_rerotated) next = std::max(next, longest_[sequence]);
    return longest_[sequence] = next;
  }
  kv::by_lane<std::byte> mask_table() {
    auto const like = cache_.table(cache_.count, 1);
    return {hidden_.data(), like.sequence * cache_.units, like.layer * cache_.units, like.head * cache_.units};
  }

  void write(int s, int position) {
    cache_.write_token(s, position, number_);
    each_lane(s, [&](int i) {
      kv::lane const this_lane = cache_.lane_at(i);
      kv::place const at = view_.where.at(this_lane, cache_.held(this_lane));
      hidden_[static_cast<std::size_t>(cache_.row_of(this_lane) * cache_.units + at.unit)] = std::byte{1};
      if (by_ == applier::compact_rerotated) {
        cache_.write(true, this_lane, static_cast<int>(at.unit), at.token,
                     reference::rotated(cache_.token_row(true, this_lane, number_), position, {}));
      }
    });
  }

  /// Any keep set that no applier refuses: protected positions stay, and all lanes keep equally many.
  void decide() {
    int const segments = kv::segments(view_.lanes, policy_.score.decides);
    int budget = cache_.options.bound;
    int most = 0;
    for (int segment = 0; segment < segments; ++segment) {
      kv::lane const this_lane = view_.lanes.at(kv::first_lane(view_.lanes, policy_.score.decides, segment));
      auto& flags = flags_[static_cast<std::size_t>(segment)];
      flags = from_.flags(cache_.committed(this_lane));
      ordinals const positions = cache_.positions(this_lane);
      for (int e = 0; e < cache_.committed(this_lane); ++e) {
        bool const safe =
            positions[static_cast<std::size_t>(e)] < cache_.prefix[static_cast<std::size_t>(cache_.row_of(this_lane))];
        if (safe) flags[static_cast<std::size_t>(e)] = true;
      }
      budget = std::min(budget, static_cast<int>(std::count(flags.begin(), flags.end(), true)));
      most = std::max(most, static_cast<int>(std::count(flags.begin(), flags.end(), true)));
    }
    if (by_ == applier::dead_slot) budget = most;  // whatever is protected stays
    policy_.budget.tokens = budget;
    kv::decide(exec_, policy_, kv::signals{view_.lanes}, columns_, plan_);
  }

  std::vector<kept_lane> expected_lanes(slot_cache::snapshot const& before) {
    std::vector<kept_lane> all;
    for (int i = 0; i < cache_.lane_count(); ++i) {
      kv::lane const this_lane = cache_.lane_at(i);
      auto const listed = plan_.keep().listed(kv::segment_of(view_.lanes, plan_.decides(), i));
      kept_lane one{{listed.begin(), listed.end()}, {}, {}};
      for (int e = cache_.committed(this_lane); e < cache_.held(this_lane); ++e) one.kept.push_back(e);
      auto const table = cache_.row(before.tables[0], this_lane, cache_.places);
      one.left = by_ == applier::drop_blocks
                     ? reference::without_blocks(table, cache_.options.page, cache_.held(this_lane), one.kept)
                 : by_ == applier::overwrite ? reference::overwritten(table, cache_.held(this_lane), one.kept)
                 : cache_.options.page > 1   ? reference::layout_result{one.kept, {}, {}}
                                             : reference::listed_only(table, cache_.held(this_lane), one.kept);
      if (by_ == applier::dead_slot) {
        std::set<int> dropped;
        ordinals const positions = cache_.positions(this_lane);
        for (int e = 0; e < cache_.held(this_lane); ++e) {
          if (!std::binary_search(one.kept.begin(), one.kept.end(), e))
            dropped.insert(positions[static_cast<std::size_t>(e)]);
        }
        one.redirected = reference::redirect(mapped(this_lane), dropped, cache_.dead(), [](int) { return false; });
      }
      std::vector<token> stay;
      for (int const e : one.left.ordinals) stay.push_back(of_lane(i)[static_cast<std::size_t>(e)]);
      for (std::size_t e = 0; by_ == applier::compact_rerotated && e < stay.size(); ++e) {
        bool const anew = cache_.options.element != kv::codec::f32;  // each turn begins from the key as it was written
        if (stay[e].position != static_cast<int>(e)) stay[e].turns = anew ? 1 : stay[e].turns + 1;
        stay[e].position = static_cast<int>(e);
      }
      of_lane(i) = stay;
      all.push_back(one);
    }
    return all;
  }

  [[nodiscard]] reference::mapped_sequence mapped(kv::lane this_lane) {
    reference::mapped_sequence now;
    int const length = next_of(this_lane.sequence);
    now.map = cache_.row(cache_.map, this_lane, length);
    ordinals const positions = cache_.positions(this_lane);
    now.live.insert(positions.begin(), positions.end());
    auto const row = static_cast<std::size_t>(cache_.row_of(this_lane));
    now.prefix = cache_.prefix[row];
    now.locked = std::min(cache_.locked[row], length);
    return now;
  }
  [[nodiscard]] reference::mapped_sequence sequence(int s) { return mapped({s, 0, 0}); }

  void apply(kv::apply_stats* stats) {
    auto const list = cache_.list_table();
    if (by_ == applier::compact) kv::apply(exec_, kv::compact{}, plan_, view_, columns_, stats);
    if (by_ == applier::list_rewrite) {
      kv::apply(exec_, kv::list_rewrite<>{.list = list, .freed = cache_.freed_list()}, plan_, view_, columns_, stats);
    }
    if (by_ == applier::dead_slot) kv::apply(exec_, cache_.redirecting(), plan_, view_, columns_, stats);
    if (by_ == applier::mask) kv::apply(exec_, hides_, plan_, view_, columns_, stats);
    if (by_ == applier::overwrite) kv::apply(exec_, kv::overwrite{list}, plan_, view_, columns_, stats);
    if (by_ == applier::compact_rerotated) kv::apply(exec_, kv::compact_rerotated{}, plan_, view_, columns_, stats);
    if (by_ == applier::drop_blocks) {
      kv::apply(exec_, kv::drop_blocks{list, cache_.freed_list()}, plan_, view_, columns_, stats);
    }
  }

  void check_lanes() {
    for (int i = 0; i < cache_.lane_count(); ++i) {
      kv::lane const this_lane = cache_.lane_at(i);
      require(cache_.held(this_lane) == static_cast<int>(of_lane(i).size()),
              "a lane holds what was kept, and its drafts");
      ordinals const positions = cache_.positions(this_lane);
      for (std::size_t e = 0; e < of_lane(i).size(); ++e) {
        token const& one = of_lane(i)[e];
        require(positions[e] == one.position, "an entry keeps its position");
        require(mass(i)[e] == static_cast<float>(one.number % 4096), "a column goes with its entry");
        kv::place const at = view_.where.at(this_lane, static_cast<int>(e));
        auto const key = cache_.read(true, this_lane, static_cast<int>(at.unit), at.token);
        auto wanted = cache_.token_row(true, this_lane, one.number);
        if (by_ == applier::compact_rerotated) wanted = reference::rotated(wanted, one.position, {});
        double const bound =
            by_ == applier::compact_rerotated ? 3.0 * (one.turns + 1) * roundoff(cache_.options.element) + 2e-6 : 0;
        for (std::size_t d = 0; d < key.size(); ++d) {
          require(std::abs(key[d] - wanted[d]) <= bound, "an entry keeps its key");
        }
        require(cache_.read(false, this_lane, static_cast<int>(at.unit), at.token) ==
                    cache_.token_row(false, this_lane, one.number),
                "an entry keeps its value");
      }
    }
  }

  void check_tables(int i, kept_lane const& one, slot_cache::snapshot const& before) {
    kv::lane const this_lane = cache_.lane_at(i);
    auto const row = cache_.row(cache_.list, this_lane, cache_.places);
    auto const sorted = [](ordinals values) {
      std::sort(values.begin(), values.end());
      return values;
    };
    require(sorted(row) == sorted(cache_.row(before.tables[0], this_lane, cache_.places)), "a table keeps its units");
    if (by_ == applier::compact || by_ == applier::compact_rerotated) {
      require(row == cache_.row(before.tables[0], this_lane, cache_.places), "compact writes no table");
      return;
    }
    for (std::size_t u = 0; u < one.left.units.size(); ++u) {
      require(one.left.units[u] == -1 || row[u] == one.left.units[u], "the table names what stays, in order");
    }
    if (by_ == applier::mask) {
      for (int const unit : one.left.freed) {
        require(hidden_[static_cast<std::size_t>(cache_.row_of(this_lane) * cache_.units + unit)] == std::byte{0},
                "what goes is hidden");
      }
      for (int const unit : one.left.units) {
        require(hidden_[static_cast<std::size_t>(cache_.row_of(this_lane) * cache_.units + unit)] == std::byte{1},
                "what stays is shown");
      }
      return;
    }
    if (by_ == applier::overwrite) return;
    auto const freed = cache_.row(cache_.freed, this_lane, cache_.row(cache_.freed_count, this_lane, 1)[0]);
    if (!one.redirected) {
      require(sorted(freed) == sorted(one.left.freed), "what fell free is handed back, each once");
      return;
    }
    auto const released = cache_.row(cache_.released, this_lane, cache_.row(cache_.released_count, this_lane, 1)[0]);
    require(sorted(freed) == one.redirected->freed, "slots that nobody names are handed back");
    require(sorted(released) == one.redirected->released, "locked slots are released, not freed");
    require(cache_.row(cache_.map, this_lane, static_cast<int>(one.redirected->map.size())) == one.redirected->map,
            "dropped positions are at the dead slot, and no other moved");
  }

  void check_told(kv::apply_stats const& stats, std::vector<kept_lane> const& expected) {
    std::int64_t kept = 0, attended = 0;
    for (int i = 0; i < cache_.lane_count(); ++i) {
      kept += std::ssize(plan_.keep().listed(kv::segment_of(view_.lanes, plan_.decides(), i)));
      attended += std::ssize(expected[static_cast<std::size_t>(i)].left.ordinals);
    }
    require(stats.logical_kept == kept, "the tally counts what is kept");
    if (by_ != applier::mask) require(stats.attended_length == attended, "the tally counts what attention reads");
  }

  /// Puts the rows of a sequence where its new slots are.
  void move_rows(int s, ordinals const& slots) {
    each_lane(s, [&](int i) {
      kv::lane const this_lane = cache_.lane_at(i);
      for (std::size_t e = 0; e < of_lane(i).size(); ++e) {
        for (bool const key : {true, false})
          cache_.write(key, this_lane, slots[e], 0, cache_.token_row(key, this_lane, of_lane(i)[e].number));
      }
    });
  }

  bytes& from_;
  applier by_;
  slot_cache cache_;
  kv::host_executor exec_;
  kv::cache view_;
  std::vector<std::vector<bool>> flags_;
  kv::eviction<chosen> policy_;
  kv::plan<kv::host_executor> plan_;
  kv::state<kv::host_executor> columns_;
  std::vector<std::vector<token>> lanes_;
  std::vector<std::byte> hidden_;
  kv::mask hides_;
  int longest_[2] = {};  ///< positions of each sequence so far
  int number_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bytes from(data, size);
  auto const by = static_cast<applier>(from.below(7));
  history now(from, by, any_isa(from));
  for (int step = 0; step < 30 && !from.empty(); ++step) {
    int const what = from.one_of({0, 0, 1, 2, 2, 3});
    if (what == 0) now.append();
    if (what == 1) now.settle_drafts();
    if (what == 2) now.evict();
    if (what == 3) now.rewrite_map();
  }
  return 0;
}

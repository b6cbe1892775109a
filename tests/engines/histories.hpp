// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engines/mock_pools.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

using engines::applier;

/// A number for each position and lane, so that lanes that decide apart drop different tokens.
struct by_number {
  using needs = kv::needs<>;
  kv::granularity decides = kv::granularity::lane;
  int together = 1;  ///< positions that have one number
  struct number {
    int together;
    float operator()(float, kv::entry at) const {
      int const group = at.position / together;
      return static_cast<float>((group * 7919 + at.lane.layer * 31 + at.lane.head * 17 + at.lane.sequence * 5) % 101);
    }
  };
  void score(auto& exec, auto const&, kv::score_view const& out) const { kv::ops::map(exec, out, number{together}); }
  friend bool operator==(by_number const&, by_number const&) = default;
};

struct token {
  int position = 0;
  int number = 0;  ///< from which all of its rows follow
};

/// A pool under one applier: its engine appends tokens and evicts through the library, and finds every token's rows by
/// arithmetic of its own.
template <class Mock, applier By>
class history {
 public:
  using engine = typename Mock::engine;
  static constexpr kv::granularity decides = engines::finest(engine::can, By);

  explicit history(pool_options const& options, int budget)
      : pool(with_rows(options)),
        policy{.score = {decides, By == applier::drop_blocks ? pool.page() : 1},
               .protect = kv::sinks{1},
               .budget = kv::per_lane{budget}},
        view(pool.view()),
        state(By == applier::compact_rerotated ? kv::make_state(exec, policy, view, kv::compact_rerotated{})
                                               : kv::make_state(exec, policy, view)),
        plan(kv::make_plan(exec, policy, view)),
        tokens(pool.lane_count()),
        next(as_size(pool.how.sequences), 0),
        map(pool.row_count() * width(), -1),
        freed(pool.row_count() * width(), -1),
        freed_count(pool.row_count(), 0),
        readable(pool.row_count() * as_size(pool.units()), std::byte{1}) {}

  static pool_options with_rows(pool_options options) {
    options.rows = engines::finest(engine::can, By == applier::mask ? By : applier::list_rewrite);
    options.one_owner_a_cell = By != applier::mask;
    if (options.rows != kv::granularity::sequence) options.rotated = 0;
    if (By != applier::compact && By != applier::compact_rerotated && By != applier::drop_blocks) options.page = 1;
    return options;
  }

  void append(int sequence, int count) {
    auto& position = next[as_size(sequence)];
    for (std::size_t i = 0; i < pool.lane_count(); ++i) {
      kv::lane const this_lane = pool.lane_at(i);
      if (this_lane.sequence != sequence) continue;
      for (int t = 0; t < count; ++t) {
        int const ordinal = pool.count(this_lane) + t;
        token const made{position + t, born + t};
        if (By == applier::mask) {
          pool.table_entry(this_lane, ordinal) = cell_of(this_lane, made.position);
          mask_byte(this_lane, made.position) = std::byte{1};  // the request before may have left it masked
        }
        if (By == applier::dead_slot) map_entry(this_lane, made.position) = pool.table_entry(this_lane, ordinal);
        write(of::keys, this_lane, ordinal, made.number);
        write(of::values, this_lane, ordinal, made.number);
        tokens[i].push_back(made);
      }
    }
    kv::append(exec, view, state, {.sequence = sequence, .tokens = count, .position = position});
    position += count;
    born += count;
  }

  [[nodiscard]] int room(int sequence) const {
    int most = pool.how.bound - next[as_size(sequence)];
    return most;
  }

  void evict() {
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    auto const before = tokens;
    for (std::size_t i = 0; i < pool.lane_count(); ++i) tokens[i] = survivors(i);
    if (uneven()) {
      RC_ASSERT_THROWS_AS(carry_out(), kv::invalid_argument);
      tokens = before;
      return;
    }
    carry_out();
    if (By == applier::compact_rerotated) {
      for (auto& position : next) position = 0;
      for (std::size_t i = 0; i < pool.lane_count(); ++i) {
        auto& longest = next[as_size(pool.lane_at(i).sequence)];
        longest = std::max(longest, static_cast<int>(tokens[i].size()));
      }
    }
  }

  /// Every surviving token's rows are where the engine looks for them, and its position is what it was.
  void check() {
    RC_ASSERT(pool.guards_hold());
    for (std::size_t i = 0; i < pool.lane_count(); ++i) {
      kv::lane const this_lane = pool.lane_at(i);
      RC_ASSERT(pool.count(this_lane) == static_cast<int>(tokens[i].size()));
      for (std::size_t e = 0; e < tokens[i].size(); ++e) {
        int const ordinal = static_cast<int>(e);
        token const& one = tokens[i][e];
        RC_ASSERT(pool.position(this_lane, ordinal) == (By == applier::compact_rerotated ? ordinal : one.position));
        RC_ASSERT(row(of::values, this_lane, ordinal) == fingerprint(of::values, this_lane, one.number));
        if (By == applier::compact_rerotated) {
          check_turned(this_lane, ordinal, one);
        } else {
          RC_ASSERT(row(of::keys, this_lane, ordinal) == fingerprint(of::keys, this_lane, one.number));
        }
      }
      if (By == applier::dead_slot) check_map(i);
      if (By == applier::mask) check_mask(i);
    }
  }

  /// Rows of one token: bytes that every element type holds as finite numbers, or any.
  [[nodiscard]] std::vector<std::byte> fingerprint(of side, kv::lane this_lane, int number) {
    int const elements = pool.dims(side);
    int const width = kv::bytes_of(pool.how.element);
    std::vector<std::byte> bytes(as_size(elements * width));
    dice from(static_cast<std::uint64_t>(number) * 7919u + pool.index(this_lane) * 104729u +
              (side == of::keys ? 1u : 0u));
    for (int d = 0; d < elements; ++d) {
      std::byte* const to = bytes.data() + d * width;
      int const value = from.between(-120, 120);
      if (pool.how.element == kv::codec::opaque) {
        *to = static_cast<std::byte>(value & 255);
      } else {
        encode(pool.how.element, value / 64.0, to);
      }
    }
    return bytes;
  }

  [[nodiscard]] std::vector<std::byte> row(of side, kv::lane this_lane, int ordinal) {
    auto const width = as_size(kv::bytes_of(pool.how.element));
    std::vector<std::byte> bytes(as_size(pool.dims(side)) * width);
    for (std::size_t d = 0; d * width < bytes.size(); ++d) {
      std::memcpy(bytes.data() + d * width, place(side, this_lane, ordinal, static_cast<int>(d)), width);
    }
    return bytes;
  }

  Mock pool;
  kv::host_executor exec;
  kv::eviction<by_number, kv::sinks> policy;
  kv::cache view;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
  kv::apply_stats told;
  std::vector<std::vector<token>> tokens;
  std::vector<int> next;
  int born = 0;

 private:
  [[nodiscard]] std::size_t width() const { return as_size(pool.how.bound); }
  [[nodiscard]] int cell_of(kv::lane this_lane, int position) const {
    return 1 + this_lane.sequence * pool.how.bound + position;
  }
  [[nodiscard]] std::byte& mask_byte(kv::lane this_lane, int position) {
    auto const cell = as_size(cell_of(this_lane, position));
    return readable[pool.row(this_lane) * as_size(pool.units()) + cell];
  }
  [[nodiscard]] int& map_entry(kv::lane this_lane, int position) {
    if (std::same_as<Mock, sglang_mock>)
      this_lane.sequence = (this_lane.sequence + pool.how.rotated) % pool.how.sequences;
    return map[pool.row(this_lane) * width() + as_size(position)];
  }
  std::byte* place(of side, kv::lane this_lane, int ordinal, int dim) {
    int const unit = pool.table_entry(this_lane, ordinal / pool.page());
    return pool.element(side, this_lane, unit, ordinal % pool.page(), dim);
  }
  void write(of side, kv::lane this_lane, int ordinal, int number) {
    auto const bytes = fingerprint(side, this_lane, number);
    auto const size = as_size(kv::bytes_of(pool.how.element));
    for (std::size_t d = 0; d * size < bytes.size(); ++d) {
      std::memcpy(place(side, this_lane, ordinal, static_cast<int>(d)), bytes.data() + d * size, size);
    }
  }

  /// What stays of a lane, by the keep set and what the applier may keep beyond it.
  std::vector<token> survivors(std::size_t i) const {
    auto const kept = plan.keep().listed(kv::segment_of(view.lanes, decides, static_cast<int>(i)));
    std::vector<token> stay;
    for (std::size_t e = 0; e < tokens[i].size(); ++e) {
      bool const wanted = std::any_of(kept.begin(), kept.end(), [&](int k) {
        if (By == applier::drop_blocks) return k / pool.page() == static_cast<int>(e) / pool.page();
        return k == static_cast<int>(e);
      });
      if (wanted) stay.push_back(tokens[i][e]);
    }
    return stay;
  }

  /// Lanes that have one length in the engine are to keep different numbers of entries.
  [[nodiscard]] bool uneven() const {
    if (By == applier::mask || engine::can.lengths == kv::granularity::lane) return false;
    for (std::size_t i = 0; i < pool.lane_count(); ++i) {
      kv::lane first = pool.lane_at(i);
      first.head = 0;
      if (engine::can.lengths == kv::granularity::sequence) first.layer = 0;
      if (tokens[i].size() != tokens[pool.index(first)].size()) return true;
    }
    return false;
  }

  void carry_out() {
    kv::by_lane<int const> const read = view.where.table;
    kv::by_lane<int> const list{const_cast<int*>(read.data), read.sequence, read.layer, read.head};
    kv::unit_list const to{pool.rows_of(freed, pool.how.bound), pool.rows_of(freed_count, 1)};
    auto const run = [&](auto const& layout) {
      kv::apply(exec, engines::bind<engine>(policy, layout), plan, view, state, &told);
    };
    if constexpr (By == applier::compact) run(kv::compact{});
    if constexpr (By == applier::compact_rerotated) run(kv::compact_rerotated{});
    if constexpr (By == applier::overwrite) run(kv::overwrite{.list = list});
    if constexpr (By == applier::list_rewrite) run(kv::list_rewrite<>{.list = list, .freed = to});
    if constexpr (By == applier::drop_blocks) run(kv::drop_blocks{.table = list, .freed = to});
    if constexpr (By == applier::dead_slot) {
      kv::dead_slot<> layout{.list = list, .map = pool.rows_of(map, pool.how.bound), .dead = 0, .freed = to};
      if constexpr (std::same_as<Mock, sglang_mock>) {
        layout.map.sequence = 0;
        layout.map_begin = {pool.first.data(), 1};
      }
      run(layout);
    }
    if constexpr (By == applier::mask) {
      run(kv::mask{.list = list, .rows = {pool.rows_of(readable, pool.units()), kv::mask_form::boolean, pool.units()}});
    }
  }

  /// A key turned from the position that it was written at to its ordinal, up to one rounding for each of three turns.
  void check_turned(kv::lane this_lane, int ordinal, token const& one) {
    auto const now = row(of::keys, this_lane, ordinal);
    auto const then = fingerprint(of::keys, this_lane, one.number);
    kv::codec const element = pool.how.element;
    int const width = kv::bytes_of(element);
    double const half_step = element == kv::codec::f32 ? 0x1p-24 : element == kv::codec::f16 ? 0x1p-11 : 0x1p-8;
    int const pairs = pool.how.dims / 2;
    for (int i = 0; i < pairs; ++i) {
      double const angle = (ordinal - one.position) * std::pow(10000.0, -2.0 * i / pool.how.dims);
      double const x = decoded(element, then.data() + i * width);
      double const y = decoded(element, then.data() + (i + pairs) * width);
      double const bound = 3 * (half_step + 0x1p-22) * std::hypot(x, y) * 1.5;
      double const turned_x = decoded(element, now.data() + i * width);
      double const turned_y = decoded(element, now.data() + (i + pairs) * width);
      RC_ASSERT(std::abs(turned_x - (x * std::cos(angle) - y * std::sin(angle))) <= bound);
      RC_ASSERT(std::abs(turned_y - (x * std::sin(angle) + y * std::cos(angle))) <= bound);
    }
  }

  void check_map(std::size_t i) {
    kv::lane const this_lane = pool.lane_at(i);
    std::size_t e = 0;
    for (int p = 0; p < next[as_size(this_lane.sequence)]; ++p) {
      bool const lives = e < tokens[i].size() && tokens[i][e].position == p;
      RC_ASSERT(map_entry(this_lane, p) == (lives ? pool.table_entry(this_lane, static_cast<int>(e)) : 0));
      if (lives) ++e;
    }
  }

  void check_mask(std::size_t i) {
    kv::lane const this_lane = pool.lane_at(i);
    std::size_t e = 0;
    for (int p = 0; p < next[as_size(this_lane.sequence)]; ++p) {
      bool const lives = e < tokens[i].size() && tokens[i][e].position == p;
      RC_ASSERT(mask_byte(this_lane, p) == (lives ? std::byte{1} : std::byte{0}));
      if (lives) ++e;
    }
  }

  std::vector<int> map, freed, freed_count;
  std::vector<std::byte> readable;
};

/// Any sizes, any of the engine's layouts, an element type among those that have numbers, or opaque rows.
template <class Mock>
pool_options any_pool(bool opaque = false) {
  pool_options how;
  how.layers = *rc::gen::inRange(1, 4);
  how.heads = *rc::gen::inRange(1, 4);
  how.dims = *rc::gen::element(2, 4, 8, 34);
  how.value_dims = Mock::packed || opaque ? how.dims : *rc::gen::element(how.dims, 3);
  how.sequences = *rc::gen::inRange(1, 4);
  how.page = *rc::gen::element(1, 2, 4, 8);
  how.element = opaque ? kv::codec::opaque : any_float();
  how.variant = *rc::gen::inRange(0, Mock::variants);
  how.seed = any_seed();
  return how;
}

}  // namespace kvpolicy_test

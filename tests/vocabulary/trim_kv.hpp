// Consumer 4: TRIM-KV in decode. One entry of thousands goes; the plan lists that one.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// Signal: log of the retention that each entry was born with.
struct log_beta {
  static constexpr auto name = "log_beta";
  kv::by_lane<float const> value{};
};

/// Recorder: log beta of new entries; it moves with them.
struct retain {
  using needs = kv::needs<log_beta>;
  using provides = log_beta;
  static std::array<kv::column, 1> columns(kv::shape const&, int) { return {kv::column{"log_beta"}}; }
  static log_beta view(kv::held_columns const& held) { return {held.table<float const>(0)}; }
  void observe(auto&, auto const&, kv::held_columns const&) const {}
  friend bool operator==(retain const&, retain const&) = default;
};
static_assert(kv::recorder<retain>);

/// score_j(t) = (t - p_j) log beta_j, in log space, fp32.
struct trim_kv {
  using needs = kv::needs<log_beta>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  auto recorders() const { return std::tuple{retain{}}; }

  struct decayed {
    kv::by_lane<float const> log_beta;
    kv::by_lane<int const> position;
    KVPOLICY_HD float operator()(float, kv::entry at) const {
      int const newest = position.row(at.who)[at.count - 1];
      return static_cast<float>(newest - at.position) * log_beta.row(at.who)[at.ordinal];
    }
  };
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    auto const where = in.who.position;
    kv::ops::map(exec, out,
                 decayed{in.template get<log_beta>().value, {where.data, where.sequence, where.layer, where.head}});
  }
  friend bool operator==(trim_kv const&, trim_kv const&) = default;
};
static_assert(kv::scorer<trim_kv>);

/// A keep set that lists what goes: one ordinal a lane instead of thousands.
inline int dropped(kv::keep_set const& from, int segment) {
  return from.lists == kv::side::dropped ? static_cast<int>(from.listed(segment).size()) : -1;
}

}  // namespace vocabulary

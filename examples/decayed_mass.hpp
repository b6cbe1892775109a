// SPDX-License-Identifier: Apache-2.0
// A recorder and a scorer of a user's own: attention mass in which older forwards weigh less.
#pragma once

#include <array>
#include <kvpolicy/kvpolicy.hpp>

// example-begin recorder
/// Signal: the attention that each entry has received, in which older forwards weigh less.
struct decayed_mass {
  static constexpr auto name = "decayed_mass";
  kvpolicy::by_lane<float const> mass{};  // one row of floats for each lane
};

/// Multiplies what was recorded by `keep`, then adds the attention of this forward's query rows.
struct record_decayed_mass {
  float keep = 0.9f;

  using needs = kvpolicy::needs<kvpolicy::keys, kvpolicy::queries>;        // what `observe` reads
  using provides = decayed_mass;                                           // what `view` returns
  using verbs = kvpolicy::verbs<kvpolicy::ops::compute_attention_mass_t>;  // it needs scratch memory

  struct faded {
    float keep;
    KVPOLICY_HD float operator()(float mass, kvpolicy::entry) const { return keep * mass; }
  };

  // One float for every entry, which moves with its entry. A new entry starts with 0.
  [[nodiscard]] static std::array<kvpolicy::column, 1> columns(kvpolicy::shape const&, int) {
    return {kvpolicy::column{"decayed_mass", kvpolicy::column_extent::lane_entry, kvpolicy::on_move::permute,
                             sizeof(float)}};
  }
  [[nodiscard]] static decayed_mass view(kvpolicy::recorded_columns const& recorded) {
    return {recorded.table<float const>(0)};
  }
  void observe(auto& exec, auto const& in, kvpolicy::recorded_columns const& recorded) const {
    kvpolicy::score_view const mass{in.lanes, kvpolicy::granularity::lane, recorded.table<float>(0)};
    kvpolicy::ops::map(exec, mass, faded{keep});
    kvpolicy::ops::compute_attention_mass(exec, in.template get<kvpolicy::keys>(), in.template get<kvpolicy::queries>(),
                                          {.group = kvpolicy::reduction::sum, .accumulate = true}, mass);
  }
  friend bool operator==(record_decayed_mass const&, record_decayed_mass const&) = default;
};
static_assert(kvpolicy::recorder<record_decayed_mass>);

/// Keeps the entries with the most attention, in which older forwards weigh less.
struct decayed_h2o {
  float keep = 0.9f;

  static constexpr auto name = "decayed_h2o";
  using needs = kvpolicy::needs<decayed_mass>;
  static constexpr auto decides = kvpolicy::granularity::lane;
  [[nodiscard]] auto recorders() const { return std::tuple{record_decayed_mass{keep}}; }

  struct copied {
    kvpolicy::by_lane<float const> mass;
    KVPOLICY_HD float operator()(float, kvpolicy::entry at) const { return mass.row(at.lane)[at.ordinal]; }
  };
  void score(auto& exec, auto const& in, kvpolicy::score_view const& out) const {
    kvpolicy::ops::map(exec, out, copied{in.template get<decayed_mass>().mass});
  }
  friend bool operator==(decayed_h2o const&, decayed_h2o const&) = default;
};
static_assert(kvpolicy::scorer<decayed_h2o>);
// example-end recorder

// SPDX-License-Identifier: Apache-2.0
// The signals by which an erased scorer's decisions find lanes that nothing was observed in.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/recorders/record_birth_score.hpp>
#include <kvpolicy/recorders/record_gate.hpp>
#include <kvpolicy/recorders/record_key_norms.hpp>
#include <kvpolicy/recorders/record_mass_ring.hpp>
#include <kvpolicy/recorders/record_query_memory.hpp>
#include <kvpolicy/recorders/record_retention.hpp>
#include <kvpolicy/recorders/record_stamps.hpp>
#include <kvpolicy/scorers/external_queries.hpp>
#include <memory>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// One signal that knows whether it has data about a lane. Kernels can ask the shipped signals; a signal of a program's
/// own is asked by a function of the host.
template <bool Host>
class observed_one {
 public:
  enum class kind { numbers, rows, every_row, memory, stamps, own };

  observed_one() = default;
  observed_one(attention_mass const& from) : what_(kind::numbers), numbers_(from.mass) {}
  observed_one(carried_score const& from) : what_(kind::numbers), numbers_(from.score) {}
  observed_one(admission_gate const& from) : what_(kind::numbers), numbers_(from.gate) {}
  observed_one(key_norms const& from) : what_(kind::numbers), numbers_(from.negated) {}
  observed_one(retention const& from) : what_(kind::numbers), numbers_(from.log_beta) {}
  observed_one(mass_ring const& from) : what_(kind::numbers), numbers_(from.masses), of_entry_(from.rows) {}
  observed_one(stamps const& from) : what_(kind::stamps), stamps_(from) {}
  observed_one(query_memory const& from) : what_(kind::memory), rows_(from) {}
  observed_one(external_queries const& from) : what_(kind::every_row), rows_(from) {}
  observed_one(query_view const& from) : what_(kind::rows), rows_(from) {}
  /// A signal of a program's own.
  template <class Signal>
  observed_one(std::in_place_t, Signal const& from)
      : what_(kind::own), asks_([](std::byte const* at, lanes const& batch, lane this_lane) {
          return reinterpret_cast<Signal const*>(at)->observed(batch, this_lane);
        }) {
    static_assert(std::is_trivially_copyable_v<Signal> && sizeof(Signal) <= sizeof bytes_,
                  "kvpolicy: a signal with `observed` is copied for a decision by name: it is trivially copyable and "
                  "at most 512 bytes");
    std::construct_at(reinterpret_cast<Signal*>(bytes_), from);
  }

  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& batch, lane this_lane) const {
    if (what_ == kind::numbers)
      return detail::any_recorded(numbers_.row(this_lane), batch.committed(this_lane) * of_entry_);
    if (what_ == kind::stamps) return stamps_.observed(batch, this_lane);
    if (what_ == kind::memory) return query_memory{rows_}.observed(batch, this_lane);
    if (what_ == kind::every_row) return external_queries{rows_}.observed(batch, this_lane);
    if (what_ == kind::rows) return rows_.observed(batch, this_lane);
    if constexpr (Host) return asks_(bytes_, batch, this_lane);
    return true;
  }

 private:
  kind what_ = kind::numbers;
  by_lane<float const> numbers_{};
  int of_entry_ = 1;  ///< numbers of an entry
  stamps stamps_{};
  query_view rows_{};
  alignas(std::max_align_t) std::byte bytes_[Host ? 512 : 1] = {};
  bool (*asks_)(std::byte const*, lanes const&, lane) = nullptr;
};

namespace detail {

template <class Signal>
concept observed_as_rows = std::same_as<decltype(&Signal::observed), decltype(&query_view::observed)>;

}  // namespace detail

/// True for a signal that kernels of a device can ask: it has the `observed` of a signal of the library.
template <class Signal>
concept observed_by_shipped = std::is_convertible_v<Signal, observed_one<false>> &&
                              (!std::derived_from<Signal, query_view> || detail::observed_as_rows<Signal> ||
                               std::same_as<Signal, query_memory> || std::same_as<Signal, external_queries>);

/// All such signals of a decision.
template <bool Host>
struct any_observed {
  static constexpr int most = 3;
  static constexpr bool can_tell = true;

  lanes batch{};
  int count = 0;
  observed_one<Host> all[most] = {};

  void add(observed_one<Host> const& one) {
    expects(count < most, "any_scorer", "signals", count + 1, "at most three signals know what was observed");
    all[count++] = one;
  }
  /// True if every one of these signals has data about the lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lane this_lane) const {
    for (int i = 0; i < count; ++i) {
      if (!all[i].observed(batch, this_lane)) return false;
    }
    return true;
  }

  /// The same signals by their address, for a rule on the host, which is copied more often than it is asked.
  struct reference {
    static constexpr bool can_tell = true;
    any_observed const* of = nullptr;
    [[nodiscard]] bool observed(lane this_lane) const { return of->observed(this_lane); }
  };
  [[nodiscard]] reference referred() const
    requires(Host)
  {
    return {this};
  }
};

}  // namespace KVPOLICY_NAMESPACE

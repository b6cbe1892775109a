// SPDX-License-Identifier: Apache-2.0
// Consumer 8: graph capture. A third backend, which only notes what it would launch: counts, positions and rows are
// device memory that the host must not touch, and every launch is sized by bounds.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

struct noted {};  // the backend

/// An executor whose buffers are addresses without memory behind them.
class noting_executor {
 public:
  using backend = noted;

  template <class T>
  class buffer {
   public:
    buffer(noting_executor&, std::size_t count) : count_(count) {}
    [[nodiscard]] T* data() const { return reinterpret_cast<T*>(std::uintptr_t{0x1000}); }
    [[nodiscard]] std::size_t size() const { return count_; }

   private:
    std::size_t count_;
  };

  void reserve(std::size_t) {}
  [[nodiscard]] static std::size_t reserved() { return std::size_t(1) << 40; }
  void copy(std::byte*, std::byte const*, std::size_t) { note("copy", 1); }
  void note(char const* verb, int grid) { launches.push_back({verb, grid}); }

  struct launch {
    std::string verb;
    int grid;
    friend bool operator==(launch const&, launch const&) = default;
  };
  std::vector<launch> launches;
};
static_assert(kv::executor<noting_executor>);

/// What all these implementations share.
struct noted_verb {
  static std::size_t scratch(kv::shape const&, int) { return 0; }
};

/// An engine whose counts, positions and rows are on the device.
inline kv::cache on_device(engine& model) {
  kv::cache cache = model.view();
  auto* const device = reinterpret_cast<std::byte*>(std::uintptr_t{0x100000});
  cache.k.base = device;
  cache.v.base = device + 0x10000;
  cache.lanes.count.data = reinterpret_cast<int*>(device);
  cache.lanes.position.data = reinterpret_cast<int*>(device);
  cache.lanes.in_flight = nullptr;
  return cache;
}

}  // namespace vocabulary

namespace kvpolicy::inline v0 {

template <>
struct implementation<ops::compute_attention_mass_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, auto const&, auto const&, auto const&, score_view const& out) {
    exec.note("attention_mass", out.lanes.size() * out.lanes.capacity);
  }
};
template <>
struct implementation<ops::pool_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, auto const&, score_view const& scores, int) {
    exec.note("pool", scores.segments() * scores.lanes.capacity);
  }
};
template <>
struct implementation<ops::top_k_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, score_view const& scores, auto const&, keep_set const&) {
    exec.note("top_k", scores.segments() * scores.lanes.capacity);
  }
};
template <>
struct implementation<ops::ring_append_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, lanes const& batch, auto const&, auto const&) { exec.note("ring_append", batch.size()); }
};
template <>
struct implementation<ops::count_rows_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, lanes const& batch, auto const&, auto const&) {
    exec.note("count_rows", batch.sequences);
  }
};
template <>
struct implementation<ops::ring_truncate_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, lanes const& batch, auto const&, int, int) { exec.note("ring_truncate", batch.size()); }
};
template <>
struct implementation<ops::raise_epochs_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, lanes const& batch, auto const&, int const*) { exec.note("raise_epochs", batch.size()); }
};
template <>
struct implementation<ops::refuse_stale_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, lanes const& batch, auto const&) { exec.note("refuse_stale", batch.size()); }
};
template <>
struct implementation<ops::gather_rows_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, auto const& keep, auto const&, auto const&) {
    exec.note("gather_rows", keep.lanes.size());
  }
};
template <>
struct implementation<ops::clear_stats_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, auto*) { exec.note("clear_tally", 1); }
};
template <>
struct implementation<ops::free_tails_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, keep_set const& keep, auto const&, auto*) { exec.note("free_tails", keep.lanes.size()); }
};
template <>
struct implementation<ops::check_units_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto&, auto const&, auto const&, bool) {}  // the host would check its table
};
template <>
struct implementation<ops::count_kept_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, keep_set const& keep, auto const&, bool, auto*) { exec.note("tell", keep.lanes.size()); }
};
template <>
struct implementation<ops::set_counts_t, vocabulary::noted> : vocabulary::noted_verb {
  static void run(auto& exec, lanes const& batch, auto const&) { exec.note("set_counts", batch.size()); }
};

}  // namespace kvpolicy::inline v0

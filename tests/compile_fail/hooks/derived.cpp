// SPDX-License-Identifier: Apache-2.0
// A part that inherits another one's comparison or fields. See cmake/expect_forms.py.
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/scorers/h2o.hpp>

namespace kv = kvpolicy;

// clang-format off
// form MINE: struct mine : kv::h2o { float alpha = 1; };
//   this type inherits `operator==`, so what it adds is not compared
// form MINE: struct mine : kv::h2o { float alpha = 1; friend bool operator==(mine const&, mine const&) = default; };
//   this type inherits `fields()`, so what it adds is neither printed nor read
#ifndef MINE
struct mine {
  kv::h2o score_of{};
  float alpha = 1;
  static constexpr auto name = "mine";
  static constexpr auto fields() { return std::tuple{kv::field{"alpha", &mine::alpha}}; }
  using needs = kv::h2o::needs;
  static constexpr auto decides = kv::h2o::decides;
  auto forces() const { return score_of.forces(); }
  auto recorders() const { return score_of.recorders(); }
  void score(auto& exec, auto const& in, kv::score_view const& out) const { score_of.score(exec, in, out); }
  friend bool operator==(mine const&, mine const&) = default;
};
#else
MINE
#endif

// form PROTECT: struct mine_too : kv::sinks { int more = 1; };
//   this type inherits `operator==`, so what it adds is not compared
#ifndef PROTECT
#define PROTECT using mine_too = kv::sinks;
#endif
PROTECT
auto const policy = kv::eviction{.score = mine{}, .protect = mine_too{}};

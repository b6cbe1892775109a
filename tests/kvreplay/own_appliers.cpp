// SPDX-License-Identifier: Apache-2.0
// A plugin of appliers that are right and of some that are not, which kvreplay and the demo must tell apart. What the
// environment says in KVPOLICY_OWN_APPLIERS is thrown while parts are added.
#include <cstdlib>
#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/plugin.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace kv = kvpolicy;

/// Shortens the lists of slots.
struct shortened {
  kv::by_lane<int> list{};
  static constexpr auto name = "shortened";
  static constexpr auto effects = kv::list_rewrite<>::effects;
  using verbs = kv::list_rewrite<>::verbs;
  [[nodiscard]] kv::list_rewrite<> inside() const { return {.list = list}; }
  void refuse(auto& exec, kv::keep_set const& keep, kv::cache const& in) const { inside().refuse(exec, keep, in); }
  void edit(auto& exec, kv::keep_set const& keep, kv::cache const& part, auto& state, kv::apply_stats* stats) const {
    inside().edit(exec, keep, part, state, stats);
  }
};

/// What the appliers below do before, or instead of, what `compact` does.
struct wrong {
  static constexpr auto effects = kv::compact::effects;
  using verbs = kv::compact::verbs;
  void refuse(auto&, kv::keep_set const&, kv::cache const&) const {}
  void edit(auto& exec, kv::keep_set const& keep, kv::cache const& part, auto& state, kv::apply_stats* stats) const {
    kv::compact{}.edit(exec, keep, part, state, stats);
  }
};

/// Does nothing.
struct forgets : wrong {
  static constexpr auto name = "forgets";
  void edit(auto&, kv::keep_set const&, kv::cache const&, auto&, kv::apply_stats*) const {}
};

/// Leaves the entries in another order.
struct turned_round : wrong {
  static constexpr auto name = "turned_round";
  void edit(auto& exec, kv::keep_set const& keep, kv::cache const& part, auto& state, kv::apply_stats* stats) const {
    wrong::edit(exec, keep, part, state, stats);
    int* const position = part.lanes.position.row(part.lanes.at(0));
    std::swap(position[0], position[1]);
  }
};

/// Refuses by the exception of another library.
struct throws : wrong {
  static constexpr auto name = "throws";
  void refuse(auto&, kv::keep_set const&, kv::cache const&) const { throw std::runtime_error("its lock is held"); }
};

/// Refuses by what is no exception.
struct throws_number : wrong {
  static constexpr auto name = "throws_number";
  void refuse(auto&, kv::keep_set const&, kv::cache const&) const { throw 5; }
};

/// It counts entries in a column of its own.
struct counts_calls : wrong {
  static constexpr auto name = "counts_calls";
  [[nodiscard]] std::vector<kv::column> columns(kv::cache const&) const { return {{.name = "calls"}}; }
  void edit(auto& exec, kv::keep_set const& keep, kv::cache const& part, auto& state, kv::apply_stats* stats) const {
    kv::expects(state.columns().size() == state.recorder_columns() + 1, "apply", "state", "without calls",
                "make_state was not given this applier");
    wrong::edit(exec, keep, part, state, stats);
  }
};

/// It would need a pool of blocks.
struct drops : wrong {
  static constexpr auto name = "drops";
  static constexpr kv::applier_effects effects{.drops_blocks = true};
};

/// Its name is that of a layout.
struct mask_again : wrong {
  static constexpr auto name = "mask";
};

}  // namespace

KVPOLICY_PLUGIN(known) {
  char const* const set = std::getenv("KVPOLICY_OWN_APPLIERS");
  std::string_view const asked = set == nullptr ? "" : set;
  known.add(shortened{}).add(forgets{}).add(turned_round{}).add(throws{}).add(throws_number{}).add(counts_calls{});
  known.add(drops{});
  if (asked == "mask") known.add(mask_again{});
  if (asked == "again") known.add(forgets{});
  if (asked == "exception") throw std::runtime_error("it has no licence");
  if (asked == "number") throw 5;
}

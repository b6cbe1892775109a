// SPDX-License-Identifier: Apache-2.0
// Models whose layers differ: groups of layers that are alike, each with a cache of its own.
#pragma once

#include <algorithm>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/slots.hpp>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Layers that are alike: they have equally many KV heads of the same size, one kind of locator, and make their logits
/// in the same way.
struct layer_group {
  char const* name = "";      ///< for errors
  cache entries{};            ///< the cache of these layers; `entries.shape.layers` is their number
  std::vector<int> layers{};  ///< the model's number of each of these layers, ascending: layer i of `entries`
};

/// A layer of the model that has no cache of its own and reads that of another layer (as in Gemma 3n and YOCO). A
/// policy decides once, about the owner's entries.
struct shared_layer {
  int layer = 0;  ///< the model's number of the layer
  int owner = 0;  ///< the model's number of the layer whose cache it reads
};

/// Where a layer of the model keeps its entries: layer `layer` of group `group`. Both are -1 for a layer that has no
/// cache, such as a recurrent one.
struct place_of_layer {
  int group = -1;
  int layer = -1;
  friend bool operator==(place_of_layer const&, place_of_layer const&) = default;
};

/// The groups of a model. Layers that are in no group and share none have no keys and values.
///
///     kv::layer_groups model{.layers = 6,
///                            .groups = {{"full", full_cache, {2, 5}}, {"sliding", sliding_cache, {0, 1, 3, 4}}}};
///
/// A scorer or a budget that looks at the number of a layer (a table of retrieval heads, the dense layers of Quest)
/// sees the index in its group, 0 to `entries.shape.layers` - 1. `groups[g].layers` translates it. A budget that
/// sequences or layers share, or in bytes, is that of one group.
struct layer_groups {
  int layers = 0;  ///< of the whole model
  std::vector<layer_group> groups{};
  std::vector<shared_layer> shared{};

  /// Where a layer of the model keeps its entries.
  [[nodiscard]] place_of_layer find(int layer) const {
    for (shared_layer const& each : shared) {
      if (each.layer == layer) layer = each.owner;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      auto const& all = groups[g].layers;
      auto const found = std::find(all.begin(), all.end(), layer);
      if (found != all.end()) return {static_cast<int>(g), static_cast<int>(found - all.begin())};
    }
    return {};
  }
};

/// The groups of the listed slots: see `only` of a cache.
[[nodiscard]] inline layer_groups only(layer_groups const& all, slot_list const& batch) {
  layer_groups some = all;
  for (layer_group& each : some.groups) each.entries = only(each.entries, batch);
  return some;
}

namespace detail {

/// Calls `call`, and adds the name of the group to the text of an error.
template <class Call>
decltype(auto) in_group(layer_group const& group, Call const& call) {
  try {
    return call();
  } catch (invalid_argument const& refused) {
    throw invalid_argument(std::string(refused.what()).append(", in group ").append(group.name));
  }
}

/// Refuses groups that disagree with the model's layers.
inline void check_slots(char const* call, layer_group const& each, int slots) {
  expects(each.name != nullptr, call, "name", "null", "a group has a name, for errors");
  expects(
      each.entries.lanes.slot_total() == slots, call, [&] { return std::string("slots of group ").append(each.name); },
      each.entries.lanes.slot_total(),
      [&] { return "the other groups have " + std::to_string(slots) + ", and a request has one in all groups"; });
}

inline void check_groups(char const* call, layer_groups const& all) {
  expects(all.layers > 0, call, "layers", all.layers, "a model has at least one layer");
  expects(!all.groups.empty(), call, "groups", 0, "at least one group of layers has a cache");
  std::vector<char const*> owner(static_cast<std::size_t>(all.layers), nullptr);
  for (layer_group const& each : all.groups) check_slots(call, each, all.groups.front().entries.lanes.slot_total());
  auto const take = [&](int layer, char const* name) {
    expects(
        layer >= 0 && layer < all.layers, call, [&] { return std::string("layer in group ").append(name); }, layer,
        [&] { return "the model has layers 0 to " + std::to_string(all.layers - 1); });
    char const*& mine = owner[static_cast<std::size_t>(layer)];
    expects(mine == nullptr, call, "layer", layer,
            [&] { return std::string("it is in group ").append(mine).append(" and in group ").append(name); });
    mine = name;
  };
  for (layer_group const& each : all.groups) {
    for (int const layer : each.layers) take(layer, each.name);
    expects(
        std::ssize(each.layers) == each.entries.shape.layers, call,
        [&] { return std::string("layers of group ").append(each.name); }, each.layers.size(),
        [&] { return "the shape of its cache says " + std::to_string(each.entries.shape.layers); });
    expects(
        std::is_sorted(each.layers.begin(), each.layers.end()), call,
        [&] { return std::string("layers of group ").append(each.name); }, "not ascending",
        "layer i of the cache is the i-th of them");
  }
  for (shared_layer const& each : all.shared) {
    take(each.layer, "shared");
    bool const owned = std::any_of(all.groups.begin(), all.groups.end(), [&](layer_group const& one) {
      return std::find(one.layers.begin(), one.layers.end(), each.owner) != one.layers.end();
    });
    expects(owned, call, "shared.owner", each.owner,
            [&] { return "layer " + std::to_string(each.layer) + " reads the cache of a layer that has one"; });
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// The capabilities of an engine's memory and kernels, and the appliers that it therefore supports. Read this file first
// in this folder.
#pragma once

#include <array>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/layout/effects.hpp>
#include <optional>
#include <string_view>

namespace KVPOLICY_NAMESPACE::engines {

/// The appliers that the library ships. An applier of your own is described by its `effects`.
enum class applier { compact, compact_rerotated, list_rewrite, dead_slot, mask, overwrite, drop_blocks };

[[nodiscard]] constexpr std::array<char const*, 7> names(applier) {
  return {"compact", "compact_rerotated", "list_rewrite", "dead_slot", "mask", "overwrite", "drop_blocks"};
}

/// The shipped applier of that name, if there is one.
[[nodiscard]] constexpr std::optional<applier> applier_named(std::string_view name) {
  auto const all = names(applier{});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (name == all[i]) return static_cast<applier>(i);
  }
  return std::nullopt;
}

/// Facts about the memory and the kernels of one engine. The appliers that it supports are computed from them.
///
/// A granularity says which lanes share one table (or length, or mask): `token` means one for all layers and heads of a
/// sequence, `layer` one for the heads of a layer, and `lane` one for each lane.
struct capabilities {
  char const* name = "";
  granularity tables = granularity::sequence;   ///< of the slot lists or block tables that locate entries
  granularity lengths = granularity::sequence;  ///< of the number of entries that attention reads
  std::optional<granularity> masks{};  ///< of the masks over the pool that kernels read; empty: kernels read no mask
  bool frees_tokens = false;           ///< any single token can leave a sequence, through a list of slots or a call
  bool frees_blocks = false;           ///< any whole block can leave a sequence
  bool moves_rows = false;             ///< code outside of the engine may write rows of K and V between forwards
  bool position_gaps = false;          ///< positions are stored apart from places, so that some may be missing
  bool reserved_slot = false;          ///< there is a slot that no token owns, to which a map of positions may point
  bool prefix_reuse = false;           ///< sequences may share the memory of a common prefix
  char const* opaque = "";             ///< element types that only the engine can read; "" if there are none
  friend constexpr bool operator==(capabilities const&, capabilities const&) = default;
};

/// The effects of a shipped applier on memory, as its member `effects` lists them.
[[nodiscard]] constexpr applier_effects effects_of(applier by) {
  switch (by) {
    case applier::compact:
      return {.moves_rows = true, .leaves_gaps = true};
    case applier::compact_rerotated:
      return {.moves_rows = true, .rotates_keys = true};
    case applier::list_rewrite:
      return {.edits_list = true, .leaves_gaps = true};
    case applier::dead_slot:
      return {.edits_list = true, .redirects = true};
    case applier::mask:
      return {.masks = true};
    case applier::overwrite:
      return {.moves_rows = true, .edits_list = true, .leaves_gaps = true};
    case applier::drop_blocks:
      return {.drops_blocks = true, .leaves_gaps = true};
  }
  return {};
}

/// The reason why an engine cannot support an applier with keys of this type; null if it can.
[[nodiscard]] constexpr char const* refusal(capabilities const& can, applier_effects by, codec keys = codec::f32) {
  if (by.moves_rows && !can.moves_rows) return "its rows may not be moved";
  if (by.edits_list && !can.frees_tokens) return "no single token can leave a sequence";
  if (by.drops_blocks && !can.frees_blocks) return "no block can leave a sequence but the last";
  if (by.redirects && !can.reserved_slot) return "no slot is reserved that could be the dead one";
  if (by.masks && !can.masks) return "its kernels read no mask over the pool";
  if (by.leaves_gaps && !can.position_gaps) return "it takes positions from places, so none may be missing";
  if (by.rotates_keys && keys == codec::opaque) return "only the engine can turn opaque rows";
  return nullptr;
}
[[nodiscard]] constexpr char const* refusal(capabilities const& can, applier by, codec keys = codec::f32) {
  return refusal(can, effects_of(by), keys);
}

[[nodiscard]] constexpr bool supports(capabilities const& can, applier_effects by, codec keys = codec::f32) {
  return refusal(can, by, keys) == nullptr;
}
[[nodiscard]] constexpr bool supports(capabilities const& can, applier by, codec keys = codec::f32) {
  return supports(can, effects_of(by), keys);
}

/// The finest granularity of decisions that this engine can apply with an applier that it supports. An applier that
/// only moves rows can treat each lane separately. Any other is limited by the granularity of the engine's tables or
/// masks.
[[nodiscard]] constexpr granularity finest(capabilities const& can, applier_effects by) {
  if (by.masks) return can.masks.value_or(granularity::sequence);
  return by.moves_rows && !by.edits_list ? granularity::lane : can.tables;
}
[[nodiscard]] constexpr granularity finest(capabilities const& can, applier by) { return finest(can, effects_of(by)); }

/// True if lanes that decide separately at granularity `decides` can keep different numbers of entries. Otherwise the
/// lanes that share a length must keep equally many, and `apply` with the result of `bind` refuses a plan in which they
/// do not. A mask changes no length, so it is always possible with one.
[[nodiscard]] constexpr bool may_be_ragged(capabilities const& can, applier_effects by, granularity decides) {
  if (by.rotates_keys) return false;
  return by.masks || decides >= can.lengths;
}
[[nodiscard]] constexpr bool may_be_ragged(capabilities const& can, applier by, granularity decides) {
  return may_be_ragged(can, effects_of(by), decides);
}

}  // namespace KVPOLICY_NAMESPACE::engines

// What an engine's memory and kernels can do, and which appliers follow from that. The first file to read in this room.
#pragma once

#include <array>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/layout/effects.hpp>
#include <optional>
#include <string_view>

namespace KVPOLICY_NAMESPACE::engines {

/// The appliers that the library ships, by their names. One of your own is known by its `effects` alone.
enum class applier { compact, compact_rerotated, list_rewrite, dead_slot, mask, overwrite, drop_blocks };

[[nodiscard]] constexpr std::array<char const*, 7> names(applier) {
  return {"compact", "compact_rerotated", "list_rewrite", "dead_slot", "mask", "overwrite", "drop_blocks"};
}

/// The applier of that name; none if there is none.
[[nodiscard]] constexpr std::optional<applier> applier_named(std::string_view name) {
  auto const all = names(applier{});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (name == all[i]) return static_cast<applier>(i);
  }
  return std::nullopt;
}

/// Facts about one engine, as its memory and kernels are. Which appliers it supports is computed from them.
///
/// A granularity says what one table (length, mask) stands for: `token` is one for all layers and heads of a sequence,
/// `layer` one for the heads of a layer, `lane` one for each.
struct capabilities {
  char const* name = "";
  granularity tables = granularity::token;   ///< of the slot list or block table that finds an entry
  granularity lengths = granularity::token;  ///< of the number of entries that attention reads
  std::optional<granularity> masks{};  ///< of a mask over the units of the pool that kernels read; none: no such mask
  bool frees_tokens = false;   ///< a single token can leave a sequence, wherever it stands: a list of slots, or a call
  bool frees_blocks = false;   ///< a whole block can leave a sequence, wherever it stands
  bool moves_rows = false;     ///< rows of K and V may be written by others, between forwards
  bool position_gaps = false;  ///< positions are told apart from places, so that some may be missing
  bool reserved_slot = false;  ///< a slot that no token owns, which a map of positions may name
  bool prefix_reuse = false;   ///< sequences may share the memory of a common prefix
  char const* opaque = "";     ///< element types that only the engine can read; "" if there are none
  friend constexpr bool operator==(capabilities const&, capabilities const&) = default;
};

/// What a shipped applier does to memory: its `effects`.
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

/// Why an engine cannot carry out what an applier does, with keys of this type; null: it can.
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

/// The finest decision that this engine can carry out with an applier that it supports. Rows of a lane move by
/// themselves; the lists, tables and masks of lanes are as many as the engine has.
[[nodiscard]] constexpr granularity finest(capabilities const& can, applier_effects by) {
  if (by.masks) return can.masks.value_or(granularity::token);
  return by.moves_rows && !by.edits_list ? granularity::lane : can.tables;
}
[[nodiscard]] constexpr granularity finest(capabilities const& can, applier by) { return finest(can, effects_of(by)); }

/// True if lanes that decide apart by `decides` can keep different numbers of entries. Otherwise the lanes that share a
/// length must keep equally many, and `apply` of what `bind` returns refuses those that do not. A mask shortens
/// nothing.
[[nodiscard]] constexpr bool may_be_ragged(capabilities const& can, applier_effects by, granularity decides) {
  if (by.rotates_keys) return false;
  return by.masks || decides >= can.lengths;
}
[[nodiscard]] constexpr bool may_be_ragged(capabilities const& can, applier by, granularity decides) {
  return may_be_ragged(can, effects_of(by), decides);
}

}  // namespace KVPOLICY_NAMESPACE::engines

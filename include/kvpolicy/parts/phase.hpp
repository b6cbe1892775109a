// SPDX-License-Identifier: Apache-2.0
// When a policy is asked to decide, as data.
#pragma once

#include <array>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// After which part of its work an engine lets a policy decide:
///
/// - `step`: after every forward, decode steps included.
/// - `prefill`: after a prompt, or after the prompt of a turn. Decode steps decide nothing.
/// - `turn`: the same, for methods that do something at each turn of a conversation.
/// - `chunk`: after each chunk of a prompt.
/// - `layer`: after each layer of a prompt.
///
/// A scorer states it as `static constexpr phase when`; without it the phase is `step`. The part `when(phase)` of a
/// spec replaces it. It tells engines and programs when to call `decide`. Of the library's calls only a decision by a
/// ratio reads it: see `drop_ratio`.
enum class phase { step, prefill, turn, chunk, layer };

[[nodiscard]] constexpr std::array<char const*, 5> names(phase) {
  return {"step", "prefill", "turn", "chunk", "layer"};
}

}  // namespace KVPOLICY_NAMESPACE

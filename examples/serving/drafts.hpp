// SPDX-License-Identifier: Apache-2.0
// Drafts by prompt lookup: the tokens that followed the same few tokens earlier in the text.
#pragma once

#include <algorithm>
#include <span>

#include "request.hpp"

namespace serving {

/// Returns up to `most` tokens that followed the last earlier occurrence of the last `same` tokens of the text.
[[nodiscard]] inline bytes look_up_drafts(std::span<std::uint8_t const> text, int same, int most) {
  auto const length = static_cast<std::size_t>(same);
  if (most <= 0 || text.size() <= length) return {};
  auto const last = text.end() - same;
  auto const found = std::find_end(text.begin(), text.end() - 1, last, text.end());
  if (found == text.end() - 1) return {};
  auto const begin = found + same;
  return {begin, begin + std::min<std::ptrdiff_t>(most, text.end() - begin)};
}

}  // namespace serving

// SPDX-License-Identifier: Apache-2.0
// The model as the engine calls it. serving.cpp gives it tinylm, and the tests a model that shows every wrong row.
#pragma once

#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/recorders/record_retention.hpp>
#include <span>

#include "held_memory.hpp"

namespace serving {

namespace kv = kvpolicy;

/// The new tokens of one request in a forward: the last `tokens` bytes of `text`. The queries of the last `queries` of
/// them are kept.
struct forward_part {
  std::span<std::uint8_t const> text;
  int tokens = 0;
  int slot = 0;
  int queries = 0;
};

/// A model that runs the new tokens of many requests in one forward.
class decoder {
 public:
  virtual ~decoder() = default;
  [[nodiscard]] virtual kv::shape shape() const = 0;

  /// Runs the parts. The new tokens were appended to the slots of `into`, and their rows are written by the call. The
  /// rows of the results are those of the first part, then those of the second, and so on.
  virtual void forward(std::span<forward_part const> parts, kv::cache const& into) = 0;

  // The results of the last forward.
  [[nodiscard]] virtual std::span<float const> logits(int row) const = 0;
  /// The queries that a part has asked for.
  [[nodiscard]] virtual kv::queries queries(int part) const = 0;
  /// The log beta of the rows, as computed by a gate.
  [[nodiscard]] virtual kv::log_beta log_betas(int first, int rows) const = 0;

  /// What the model holds for policies: query rows, and a gate.
  virtual void count(held_memory& into) const = 0;
};

}  // namespace serving

// SPDX-License-Identifier: Apache-2.0
// What requests cost, in prefilled tokens.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// A request that was served, or all requests of one kind.
struct served_tokens {
  std::int64_t prefilled = 0;  ///< tokens of the prompt that were computed: those of a prefix cache are not among them
  std::int64_t decoded = 0;    ///< tokens of the answer
  double length = 0;  ///< entries that a decoding step read, on average over the steps: a policy makes them fewer
};

/// The cost of reading one entry in a decoding step, in the cost of prefilling one token.
///
/// - `width`: the number of values of a token's hidden row; `parameters`: those of the model; `operations_a_byte`: how
///   many operations the hardware does in the time in which it reads a byte (some hundreds on a GPU).
/// - throws: `invalid_argument` if one of them is not positive and finite.
[[nodiscard]] inline double cost_of_a_read(int layers, int width, double parameters, double operations_a_byte) {
  auto const positive = [](char const* name, double value) {
    expects(value > 0 && std::isfinite(value), "cost_of_a_read", name, value, "it is more than 0, and finite");
  };
  positive("layers", layers);
  positive("width", width);
  positive("parameters", parameters);
  positive("operations_a_byte", operations_a_byte);
  return 2.0 * layers * width * operations_a_byte / parameters;
}

/// Prefill token equivalents (PTE): the sum of prefilled + read x length x decoded over requests. Recomputing a prompt
/// that was evicted and reading a long cache are on one scale.
///
/// - `read`: see `cost_of_a_read`.
/// - throws: `invalid_argument` if a number is negative.
[[nodiscard]] inline double prefill_token_equivalents(std::span<served_tokens const> requests, double read) {
  expects(read >= 0, "prefill_token_equivalents", "read", read, "a cost cannot be negative");
  double sum = 0;
  for (served_tokens const& each : requests) {
    expects(each.prefilled >= 0, "prefill_token_equivalents", "prefilled", each.prefilled,
            "a count cannot be negative");
    expects(each.decoded >= 0, "prefill_token_equivalents", "decoded", each.decoded, "a count cannot be negative");
    expects(each.length >= 0, "prefill_token_equivalents", "length", each.length, "a length cannot be negative");
    sum += static_cast<double>(each.prefilled) + read * each.length * static_cast<double>(each.decoded);
  }
  return sum;
}

}  // namespace KVPOLICY_NAMESPACE

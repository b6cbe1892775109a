// What gates keep between two launches.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/cuda/perceptron.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// Entries of a lane for which there is room for sums of slices; more of them keep a device busy without.
inline constexpr int split_entries = 64;

/// Floats of scratch for a gate of so many outputs in all its layers.
[[nodiscard]] constexpr std::int64_t gate_parts(std::int64_t outputs, int hidden) {
  return outputs * split_entries * perceptron_work::slices_of(hidden);
}

/// Scratch is reserved by the caller, on the executor that runs the gates.
template <class Executor>
void check_gate_scratch(char const* call, Executor const& exec, std::size_t needed) {
  expects(exec.reserved() >= needed, call, "exec", "an executor without scratch for these weights",
          [&] { return std::string(call) + ".reserve comes first"; });
}

}  // namespace KVPOLICY_NAMESPACE::detail

// The scratch that gates use between two launches.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/perceptron/perceptron.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// The number of entries of a lane for which scratch holds partial sums of slices. More entries keep a device busy
/// without slices of their own.
inline constexpr int split_entries = 64;

/// Floats of scratch for gates that have `outputs` outputs in all layers together.
[[nodiscard]] constexpr std::int64_t gate_parts(std::int64_t outputs, int hidden) {
  return outputs * split_entries * perceptron_work::slices_of(hidden);
}

/// Throws unless the caller has reserved scratch on the executor that runs the gates.
template <class Executor>
void check_gate_scratch(char const* call, Executor const& exec, std::size_t needed) {
  expects(exec.reserved() >= needed, call, "exec", "an executor without scratch for these weights",
          [&] { return std::string(call) + ".reserve comes first"; });
}

}  // namespace KVPOLICY_NAMESPACE::detail

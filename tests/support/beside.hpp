// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/core/state.hpp>

namespace kvpolicy_test {

/// Adds the columns of a recorder that the state's policy does not have, as those of an applier: every call moves them.
template <class State, class Recorder>
void keep_beside(State& state, Recorder const& keeps) {
  for (kvpolicy::column const& each : keeps.columns(state.model(), state.lanes().capacity)) state.add(each);
}

}  // namespace kvpolicy_test

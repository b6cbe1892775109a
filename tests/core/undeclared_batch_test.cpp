// SPDX-License-Identifier: Apache-2.0
// Tensors of a batch that were described as those of one sequence are refused.

#include "laws/refusal.hpp"

using namespace kvpolicy_test;

TEST_SUITE("core/signal_rows") {
  TEST_CASE("a tensor of several sequences and layers that is described without the number of sequences is refused") {
    working_batch now;
    kv::shape const& model = now.view.shape;
    std::vector<float> const data(2 * 2 * 4 * 3 * 16);
    std::vector<int> const positions{7, 8, 9, 7, 8, 9};
    kv::lanes const one_layer = now.view.lanes.layers_only(0, 1);
    auto const observes = [&](kv::lanes const& batch, auto const& rows) {
      kv::observe(now.exec, now.policy, kv::signals(batch, kv::keys_of(now.view), rows), now.state);
    };

    auto const queries = kv::queries_of(data.data(), model, 3, positions.data());
    now.refuses(
        "observe: queries.layer = 192, but that is also the stride of sequences, of which there are 2: say their "
        "number where the tensor is described",
        [&] { observes(now.view.lanes, queries); });
    auto const probabilities = kv::probabilities_of(data.data(), model, 3, 16, positions.data());
    now.refuses(
        "observe: attention_probabilities.layer = 768, but that is also the stride of sequences, of which there are "
        "2: say their number where the tensor is described",
        [&] { observes(now.view.lanes, probabilities); });

    CHECK_NOTHROW(observes(one_layer, queries));                     // one layer has no stride between layers
    for (int s = 0; s < 2; ++s) now.state.history().truncate(s, 1);  // the same rows are shown again
    CHECK_NOTHROW(observes(now.view.lanes, kv::queries_of(data.data(), model, 3, positions.data(), {.sequences = 2})));
  }
}

// SPDX-License-Identifier: Apache-2.0
// The attention that entries have received, weighted by the norms of their values.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct received_by_value {
  using scorer = kv::received_by_value;
  static constexpr auto header = "received_attention.hpp";
  static constexpr refusal refusals[] = {
      {"received_by_value(group=last)",
       "parse: column 1: received_by_value.group = last, but query heads have no order"}};

  static scorer any() {
    return {.by_age = any_bool(),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max)};
  }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    auto const group = static_cast<reference::reduction>(with.group);
    return reference::received(reference::rows_of_group(lane.attention(), group), reference::row_norms(lane.values),
                               lane.positions, with.by_age);
  }

  /// Its numbers are those of `received_attention`.
  static void worked() { CHECK(kv::parse("received_by_value | budget(9)").needs().size() == 3); }
};

}  // namespace kvpolicy_test::methods

// SPDX-License-Identifier: Apache-2.0
// A plugin: parts of your own in kvreplay, by `kvreplay --plugin libplugin.so`.
// example-begin plugin
#include <kvpolicy/plugin.hpp>

#include "scrubbed.hpp"
#include "squared.hpp"
#include "unlike_the_mean.hpp"
#include "value_aware.hpp"

/// A system: a name for an admission, here of the last entries only, and its fields.
struct sliding_window {
  int window = 64;
  static constexpr auto name = "sliding_window";
  static constexpr auto fields() { return kvpolicy::make_fields(kvpolicy::field{"window", &sliding_window::window}); }
  [[nodiscard]] auto admission() const {
    return kvpolicy::admission{.score = kvpolicy::head_table{}, .window = window, .pick = kvpolicy::at_least{0.5f}};
  }
  friend bool operator==(sliding_window const&, sliding_window const&) = default;
};

KVPOLICY_PLUGIN(known) {
  known.add(value_aware{}).add(mine::unlike_the_mean{}).add_stage(squared<kvpolicy::full>{});
  known.add(sliding_window{}).add(scrubbed{});
}
// example-end plugin

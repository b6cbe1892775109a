// SPDX-License-Identifier: Apache-2.0
// A plugin: parts of your own in kvreplay, by `kvreplay --plugin libplugin.so`.
#include <kvpolicy/plugin.hpp>

#include "squared.hpp"
#include "value_aware.hpp"

// example-begin plugin
KVPOLICY_PLUGIN(known) { known.add(value_aware{}).add_stage(squared<kvpolicy::full>{}); }
// example-end plugin

// SPDX-License-Identifier: Apache-2.0
// A plugin: parts of your own in kvreplay, by `kvreplay --plugin libplugin.so`.
// example-begin plugin
#include <kvpolicy/plugin.hpp>

#include "squared.hpp"
#include "value_aware.hpp"

KVPOLICY_PLUGIN(known) { known.add(value_aware{}).add_stage(squared<kvpolicy::full>{}); }
// example-end plugin

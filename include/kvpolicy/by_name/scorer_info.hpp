// SPDX-License-Identifier: Apache-2.0
// What lists of a registry say of a scorer or of a system.
#pragma once

#include <kvpolicy/by_name/set_fields.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/parts/phase.hpp>
#include <string>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The description of a scorer or of a system in a list.
struct scorer_info {
  std::string name;
  std::vector<field_info> fields;
  std::vector<std::string> needs;    ///< the names of the signals that it reads
  std::vector<std::string> tensors;  ///< the tensor of a trace from which each of them is made
  granularity decides = granularity::lane;
  phase when = phase::step;
  bool prompts_only = false;   ///< it decides once, at the end of a prompt
  bool decodes_only = false;   ///< it decides while decoding, by what decode steps have shown
  std::string rows_field;      ///< the field that names the rows of heads that it reads; empty: it reads none
  bool has_no_budget = false;  ///< it says itself how many entries stay
  bool keeps_prompts = false;  ///< its published settings protect the prompt
  int slack = 0;               ///< of its published settings: entries beyond the budget with which it waits
};

}  // namespace KVPOLICY_NAMESPACE

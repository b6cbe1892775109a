// SPDX-License-Identifier: Apache-2.0
// What a policy by name reads.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <vector>

namespace kvpolicy_python {

namespace kv = kvpolicy;

/// What a policy reads, found out from the columns that it records and the signals that its scorer needs.
struct policy_facts {
  std::string text;
  std::string scorer;
  kv::granularity decides = kv::granularity::lane;
  kv::budget_scope scope = kv::budget_scope::lane;
  std::vector<std::string> needs;
  int window_rows = 0;     ///< how many last query rows it records
  bool every_row = false;  ///< whether it reads the query rows of every forward
  bool session = false;    ///< whether it keeps something between turns
  int turn_rows = 0;       ///< how many of a turn's last query rows it reads
};

/// Parses a policy and finds out what it reads.
///
/// - throws: `invalid_argument` that names the column of a mistake.
[[nodiscard]] policy_facts facts_of(std::string const& spec);

/// The text of a policy of the sections admit:, select: and evict:, with every parameter.
///
/// - throws: as `facts_of`.
[[nodiscard]] std::string cache_policy_text(std::string const& spec);

/// The names of the scorers with which a policy can begin.
[[nodiscard]] std::vector<std::string> scorer_names();

}  // namespace kvpolicy_python

// SPDX-License-Identifier: Apache-2.0
// TRIM-KV written out: what each entry's retention has come to.
#pragma once

#include <vector>

namespace kvpolicy_reference {

/// (t - p_j + offset) log beta_j, where t is the newest position.
inline std::vector<double> retention_scores(std::vector<double> const& log_beta, std::vector<int> const& position,
                                            int age_offset) {
  std::vector<double> scores;
  for (std::size_t e = 0; e < log_beta.size(); ++e)
    scores.push_back(static_cast<double>(position.back() - position[e] + age_offset) * log_beta[e]);
  return scores;
}

}  // namespace kvpolicy_reference

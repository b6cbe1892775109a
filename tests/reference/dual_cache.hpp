// SPDX-License-Identifier: Apache-2.0
// Admission written out: who is admitted, what a query sees, and the two caches of a lane.
#pragma once

#include "attention.hpp"
#include "basics.hpp"
#include "methods.hpp"
#include "pooling.hpp"
#include "selection.hpp"

namespace kvpolicy_reference {

// --- Who is admitted -------------------------------------------------------------------------------------------------

/// When a gate admits.
struct admission {
  double threshold = 0.1;
  bool strict = false;  ///< g > threshold, as the released code, and not g >= threshold
};

/// A NaN is never admitted.
inline bool admits(double gate, admission const& how) {
  if (std::isnan(gate)) return false;
  return how.strict ? gate > how.threshold : gate >= how.threshold;
}

inline flags admitted(row const& gates, admission const& how) {
  flags result;
  for (double const gate : gates) result.push_back(admits(gate, how));
  return result;
}

/// Local attention: the first `sinks` tokens.
inline flags admitted_sinks(int count, int sinks) { return ends(count, sinks, 0); }

/// DuoAttention: a retrieval lane admits every token, a streaming lane its sinks.
inline flags duo_admitted(int count, int sinks, bool retrieval) {
  return admitted_sinks(count, retrieval ? count : sinks);
}

/// DuoAttention's table [layers][KV heads] of learned alpha: a lane is a retrieval lane iff alpha >= 0.5. NaN streams.
inline std::vector<flags> retrieval_lanes(matrix const& alpha) {
  std::vector<flags> result;
  for (row const& layer : alpha) result.push_back(admitted(layer, {.threshold = 0.5}));
  return result;
}

/// quantile(values, q), linear between neighbours: what DuoAttention takes for its threshold.
inline double quantile(row values, double q) {
  require(!values.empty() && q >= 0 && q <= 1, "a quantile of some values");
  std::sort(values.begin(), values.end());
  double const at = q * static_cast<double>(values.size() - 1);
  auto const below = static_cast<std::size_t>(std::floor(at));
  std::size_t const above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

/// The same by sparsity: retrieval iff alpha >= quantile(alpha, sparsity) over all lanes, alpha clipped to [0, 1]. Of
/// equal alphas the lower (layer, head) counts as the larger, which stands for the noise of the released code: as many
/// lanes are retrieval lanes as there would be if all values differed. sparsity >= 1: none; <= 0: all.
inline std::vector<flags> retrieval_lanes(matrix const& alpha, double sparsity) {
  row all;
  for (row const& layer : alpha) {
    for (double const a : layer) all.push_back(std::clamp(a, 0.0, 1.0));
  }
  int const lanes = static_cast<int>(all.size());
  row ranks;  // values that differ: 0 .. lanes - 1
  for (int rank = 0; rank < lanes; ++rank) ranks.push_back(rank);
  int retrieval = lanes;
  if (sparsity >= 1) retrieval = 0;
  if (sparsity > 0 && sparsity < 1) retrieval = count_of(admitted(ranks, {.threshold = quantile(ranks, sparsity)}));
  std::vector<int> const kept = select(all, flags(all.size(), false), retrieval).kept;
  std::vector<flags> result;
  int lane = 0;
  for (row const& layer : alpha) {
    flags of_layer;
    for (std::size_t head = 0; head < layer.size(); ++head)
      of_layer.push_back(std::find(kept.begin(), kept.end(), lane++) != kept.end());
    result.push_back(of_layer);
  }
  return result;
}

// --- What a query sees -----------------------------------------------------------------------------------------------

/// Row i of the vertical-slash mask: (i >= j) and (i - j < window or j is admitted). The window counts the query.
inline std::vector<int> visible(int i, flags const& admit, int window) {
  require(window >= 1, "a query sees itself");
  std::vector<int> result;
  for (int j = 0; j <= i; ++j) {
    if (i - j < window || admit.at(static_cast<std::size_t>(j))) result.push_back(j);
  }
  return result;
}

/// The released code's: the slash of all queries of a block begins where that of its first query does, so that query i
/// sees between window and window + block - 1 tokens of it.
inline std::vector<int> block_visible(int i, flags const& admit, int window, int block = 64) {
  int const first = std::max(0, i / block * block - window + 1);
  std::vector<int> result;
  for (int j = 0; j <= i; ++j) {
    if (j >= first || admit.at(static_cast<std::size_t>(j))) result.push_back(j);
  }
  return result;
}

// --- The dual cache --------------------------------------------------------------------------------------------------

/// A token as admission sees it.
struct gated_token {
  int position = 0;
  double gate = 0;
  bool operator==(gated_token const&) const = default;
};

/// What became of a token that left the window.
enum class fate { promoted, refused, over_cap };

struct victim {
  int position = 0;
  fate what = fate::refused;
  bool operator==(victim const&) const = default;
};

struct dual_options {
  int window = 256;
  admission admit = {};
  int cap = -1;       ///< how many tokens the global part may hold; -1: any number
  int max_draft = 0;  ///< how many drafts the ring has rows for besides the window
};

/// One lane: the last `window` committed tokens, the admitted ones among those before, and drafts. A token's fate is
/// decided when it leaves the window, and that is when a later token is committed: a draft makes nobody leave.
class dual_lane {
 public:
  explicit dual_lane(dual_options const& how) : how_{how} {
    require(how.window >= 1 && how.max_draft >= 0, "a window holds its query");
  }

  /// The window's positions, and the global part's, ascending; those of drafts.
  std::vector<int> local() const { return positions(window_); }
  std::vector<int> global() const { return positions(global_); }
  std::vector<int> drafts() const { return positions(drafts_); }

  /// Everybody who has left the window, in that order.
  std::vector<victim> const& left() const { return left_; }

  /// Pages that the global part fills.
  int pages(int page = 16) const { return (static_cast<int>(global_.size()) + page - 1) / page; }

  /// Takes in a prefill, a chunk of one, or a single token. There are no drafts.
  void append(std::vector<gated_token> const& chunk) {
    require(drafts_.empty(), "a token is not appended behind drafts");
    for (gated_token const& token : chunk) {
      require(window_.empty() || window_.back().position < token.position, "positions ascend");
      window_.push_back(token);
    }
    while (static_cast<int>(window_.size()) > how_.window) {
      leave(window_.front());
      window_.erase(window_.begin());
    }
  }

  /// Takes in a token that may be rolled back.
  void draft(gated_token const& token) {
    require(static_cast<int>(drafts_.size()) < how_.max_draft, "more drafts than the ring has rows for");
    drafts_.push_back(token);
  }

  /// Accepts the first `accepted` drafts and rolls the others back.
  void commit(int accepted) {
    require(accepted >= 0 && accepted <= static_cast<int>(drafts_.size()), "only drafts are accepted");
    std::vector<gated_token> const taken(drafts_.begin(), drafts_.begin() + accepted);
    drafts_.clear();
    append(taken);
  }

  /// Rolls the last `tokens` drafts back.
  void roll_back(int tokens) {
    require(tokens >= 0 && tokens <= static_cast<int>(drafts_.size()), "only drafts are rolled back");
    drafts_.erase(drafts_.end() - tokens, drafts_.end());
  }

  /// Keeps these ordinals of the global part, which ascend: an eviction over admitted tokens.
  void keep_global(std::vector<int> const& kept) {
    std::vector<gated_token> survivors;
    for (int const ordinal : kept) survivors.push_back(global_.at(static_cast<std::size_t>(ordinal)));
    global_ = survivors;
  }

  /// What the newest token sees: what it would if all drafts were accepted. So a draft sees what it will see later as
  /// a committed token, and window tokens beyond its reach by their gates.
  std::vector<int> seen() const {
    dual_lane after = *this;
    after.commit(static_cast<int>(drafts_.size()));
    std::vector<int> result = after.global();
    for (int const position : after.local()) result.push_back(position);
    return result;
  }

 private:
  static std::vector<int> positions(std::vector<gated_token> const& tokens) {
    std::vector<int> result;
    for (gated_token const& token : tokens) result.push_back(token.position);
    return result;
  }

  void leave(gated_token const& token) {
    fate what = fate::promoted;
    if (how_.cap >= 0 && static_cast<int>(global_.size()) >= how_.cap) what = fate::over_cap;
    if (!admits(token.gate, how_.admit)) what = fate::refused;
    if (what == fate::promoted) global_.push_back(token);
    left_.push_back({token.position, what});
  }

  dual_options how_;
  std::vector<gated_token> window_, global_, drafts_;
  std::vector<victim> left_;
};

/// The ring's slots of a lane that holds these window positions after `written` tokens of a stream whose prefill had
/// `prefilled`: the prefill's last min(prefilled, window) tokens stand in slots 0, 1, ...; each later token takes the
/// next slot while there is one, and then the oldest token's.
inline std::vector<int> ring_slots(int prefilled, int written, int window) {
  std::vector<int> slots;
  for (int t = std::max(0, prefilled - window); t < prefilled; ++t) slots.push_back(t);
  std::size_t oldest = 0;
  for (int t = prefilled; t < written; ++t) {
    if (static_cast<int>(slots.size()) < window) {
      slots.push_back(t);
    } else {
      slots[oldest] = t;
      oldest = (oldest + 1) % slots.size();
    }
  }
  return slots;
}

// --- Eviction of what was admitted -----------------------------------------------------------------------------------

/// One round of WG-KV's eviction over a lane's global part: all stay but the lowest floor(share * len) by attention of
/// the window's rows, normalised over the global part alone, the maximum of the group, summed over rows, max-pooled
/// over 5. `global` has its keys, and query rows that are younger than all of them.
inline decision admitted_eviction(lane_attention const& global, double share = 0.1) {
  row const mass = attention_mass(global, {.group = reduction::max, .order = reduction_order::group_then_rows});
  row const scores = pooled(mass, {pool_kind::maximum, 5}, 0);
  int const count = static_cast<int>(scores.size());
  int const dropped = static_cast<int>(std::floor(share * count + 1e-9));
  return {scores, select(scores, flags(scores.size(), false), count - dropped)};
}

}  // namespace kvpolicy_reference

// SPDX-License-Identifier: Apache-2.0
// What the header of a method in tests/methods has, and what its reference is told.
//
//   struct NAME {                     // in tests/methods/NAME.hpp, which tests/methods/methods_test.cpp includes by
//   itself
//     using scorer = kv::NAME;
//     static scorer any();                                                // in a property: sensible parameters
//     static reference::row scores(scorer const&, told_of_lane const&);   // from the description, in double
//     static int last(scorer const&);                                     // how many of the last entries are forced
//     static int sinks(scorer const&);                                    // if it forces the first positions
//     static constexpr refusal refusals[] = {{spec, error}, ...};         // parameters out of range
//     static void worked();                                               // its worked numbers
//                                              or of (scorer, lane, forced) for a scorer that ranks candidates;
//                                              or of (scorer, all lanes, which) for one that reads others of a layer;
//                                              or of these, forced and the budget for one that puts entries first;
//                                              empty: rounding decides; NaN: an entry that is forced, of any score
//     static bool forces(scorer const&, told_of_lane const&, int);        // whether it forces an entry besides
//     static constexpr double size;                                       // of numbers that cancel in scores; else 1
//     static bool decides(scorer const&, told_of_lane const&);            // if it does not always
//     static kv::rope turns(scorer const&);                               // how keys turn, if that counts
//     static kv::registry known();                                        // if its specs name a table
//   };
#pragma once

#include "reference/moments.hpp"
#include "reference/selection.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// The entries of one lane, oldest first.
struct told_of_lane {
  int number = 0;  ///< of the lane: layer by layer, head by head
  std::vector<int> positions;
  reference::row log_beta, born;
  [[nodiscard]] reference::matrix const& unturned() const { return values; }  ///< keys before RoPE
  reference::matrix keys, values;
  reference::matrix queries[2];  ///< the rows of each query head of the lane, one for each entry

  [[nodiscard]] reference::lane_attention attention() const {
    return {
        .keys = keys, .key_positions = positions, .queries = {queries[0], queries[1]}, .query_positions = positions};
  }
};

/// A spec and the error that it gets.
struct refusal {
  char const* spec;
  char const* error;
};

/// Two layers of two lanes of random tokens, all of which the lanes hold.
class told_lanes {
 public:
  static constexpr int lanes = 4, dims = 4, group = 2;

  /// What is known of the model's queries: a mean for each query head, lengths of its pairs, and its covariance.
  static inline float const query_mean[lanes * group][dims] = {
      {1, -0.3f, 0.5f, 0.8f}, {0, 2, -1, 0},        {3, 0, 0, 1}, {-1, -1, 1, 1},
      {0, 0, 0, 0},           {0.5f, 0.25f, 4, -2}, {1, 1, 1, 1}, {-2, 0.5f, 0, 3}};
  static inline float const query_radius[lanes * group][dims / 2] = {{1.3f, 1}, {1, 2.5f}, {3, 1},    {2, 2},
                                                                     {1, 0.5f}, {5, 2.5f}, {1.5f, 4}, {2, 3.25f}};
  static double query_square(int head, int a, int b) {
    auto const at = [&](int row, int c) { return ((7 * head + 3 * row + 5 * c) % 5 - 2) / 8.0; };
    double sum = 0;
    for (int c = 0; c < dims; ++c) sum += at(a, c) * at(b, c);
    return sum;
  }
  static kv::query_model profile(kv::rope const& turns) {
    static auto const square = [] {
      std::vector<float> made;
      for (int i = 0; i < lanes * group * dims * dims; ++i) {
        made.push_back(static_cast<float>(query_square(i / (dims * dims), i / dims % dims, i % dims)));
      }
      return made;
    }();
    kv::query_model made = kv::query_model_of(query_mean[0], query_radius[0], {2, 2 * group, 2, dims}, turns);
    made.square = made.mean;
    made.square.base = reinterpret_cast<std::byte const*>(square.data());
    made.square.rows = dims;
    made.square.row = std::int64_t{4} * dims;
    made.square.head = made.square.row * dims;
    made.square.layer = made.square.head * made.square.heads;
    return made;
  }
  /// The moments of a query head of a lane.
  static reference::moments moments(int lane, int of_group) {
    int const head = lane * group + of_group;
    reference::moments made{{query_mean[head], query_mean[head] + dims}, {}};
    for (int a = 0; a < dims; ++a) {
      made.square.emplace_back();
      for (int b = 0; b < dims; ++b) made.square.back().push_back(query_square(head, a, b));
    }
    return made;
  }

  explicit told_lanes(int bound)
      : bound_(bound), position_(as_size(lanes * bound)), keys_(as_size(lanes * bound * dims)), values_(keys_) {
    told.resize(lanes);
    for (int s = 0; s < lanes; ++s) told[as_size(s)].number = s;
  }

  /// Appends the tokens of `more`, of which there are as many in every lane, and observes them.
  template <class Policy>
  void forward(Policy const& policy, kv::state<kv::host_executor>& state, std::vector<told_of_lane> const& more) {
    auto const tokens = static_cast<int>(more[0].positions.size());
    kv::cache now = view();
    kv::append(exec, now, state, {.tokens = tokens, .position = more[0].positions.front()});
    std::vector<float> log_beta, born, queries(as_size(lanes * group * tokens * dims));
    for (int s = 0; s < lanes; ++s) {
      told_of_lane const& one = more[as_size(s)];
      for (int e = 0; e < tokens; ++e) {
        log_beta.push_back(static_cast<float>(one.log_beta[as_size(e)]));
        born.push_back(static_cast<float>(one.born[as_size(e)]));
        for (int d = 0; d < dims; ++d) {
          int const row = (s / 2 * bound_ + count_[s] - tokens + e) * 2 + s % 2;  // all heads of a token in turn
          keys_[as_size(row * dims + d)] = static_cast<float>(one.keys[as_size(e)][as_size(d)]);
          values_[as_size(row * dims + d)] = static_cast<float>(one.values[as_size(e)][as_size(d)]);
          for (int h = 0; h < group; ++h) {
            queries[as_size(((s * group + h) * tokens + e) * dims + d)] =
                static_cast<float>(one.queries[h][as_size(e)][as_size(d)]);
          }
        }
      }
      told_of_lane& to = told[as_size(s)];
      to.positions.insert(to.positions.end(), one.positions.begin(), one.positions.end());
      to.log_beta.insert(to.log_beta.end(), one.log_beta.begin(), one.log_beta.end());
      to.born.insert(to.born.end(), one.born.begin(), one.born.end());
      to.keys.insert(to.keys.end(), one.keys.begin(), one.keys.end());
      to.values.insert(to.values.end(), one.values.begin(), one.values.end());
      for (int h = 0; h < group; ++h) {
        to.queries[h].insert(to.queries[h].end(), one.queries[h].begin(), one.queries[h].end());
      }
    }
    kv::log_beta const fresh{numbers(log_beta, tokens)};
    kv::birth_score const born_now{numbers(born, tokens)};
    kv::queries rows = rows_of(queries, tokens);
    rows.position = {more[0].positions.data()};
    kv::observe(exec, policy, kv::signals{now.lanes, kv::keys_of(now), kv::values_of(now), rows, fresh, born_now},
                state);
  }
  template <class Policy>
  void decide(Policy const& policy, kv::state<kv::host_executor>& state, kv::plan<kv::host_executor>& into) {
    kv::cache const now = view();
    kv::external_queries const again = repeated();
    norms_.assign(as_size(lanes * bound_), 0.0f);
    for (int i = 0; i < lanes * bound_; ++i) {
      told_of_lane const& lane = told[as_size(i / bound_)];
      if (as_size(i % bound_) < lane.values.size()) norms_[as_size(i)] = value_norm(lane, as_size(i % bound_));
    }
    kv::value_norms const norms{{norms_.data(), 0, 2 * bound_, bound_}};
    kv::queries rows{again};
    rows.position = {told[0].positions.data()};
    kv::pre_rope_keys const unturned{kv::row_view(kv::values_of(now))};  // others than the keys
    kv::decide(
        exec, policy,
        kv::signals{now.lanes, kv::keys_of(now), kv::values_of(now), profile(turns), again, norms, rows, unturned},
        state, into);
  }
  /// The norm that the engine gives for the value of an entry.
  static float value_norm(told_of_lane const& lane, std::size_t e) {
    double sum = 0;
    for (double const each : lane.values[e]) sum += std::fabs(each);
    return static_cast<float>(sum / 8);
  }

  kv::cache view() {
    return kv::contiguous_cache(keys_.data(), values_.data(), {2, 2 * group, 2, dims}, bound_, count_,
                                position_.data());
  }

  kv::host_executor exec{2};
  kv::rope turns{};
  std::vector<told_of_lane> told;

  /// Row r of the lanes' tokens is about the entries of its chunk of this size.
  static constexpr int chunk = 5;

 private:
  /// The query rows of all tokens as rows about a chunk of entries each, whose own keys are the tokens' values.
  kv::external_queries repeated() {
    int const tokens = static_cast<int>(told[0].positions.size());
    again_.clear(), again_keys_.clear(), begin_.clear(), end_.clear();
    for (told_of_lane const& one : told) {
      for (auto const& head : one.queries) append(head, again_);
      append(one.values, again_keys_);
    }
    for (int e = 0; e < tokens; ++e) {
      begin_.push_back(e / chunk * chunk);
      end_.push_back(std::min(tokens, e / chunk * chunk + chunk));
    }
    kv::external_queries made{rows_of(again_, tokens)};
    made.spans = {{begin_.data()}, {end_.data()}, rows_of(again_keys_, tokens)};
    made.spans.keys.heads = 2;
    made.spans.keys.layer = made.spans.keys.head * 2;
    return made;
  }
  static void append(reference::matrix const& rows, std::vector<float>& to) {
    for (auto const& row : rows) {
      for (double const each : row) to.push_back(static_cast<float>(each));
    }
  }

  static kv::entry_numbers numbers(std::vector<float> const& of, int tokens) {
    return {.base = reinterpret_cast<std::byte const*>(of.data()),
            .layer = std::int64_t{8} * tokens,
            .head = std::int64_t{4} * tokens,
            .entry = 4,
            .entries = tokens};
  }

  static kv::queries rows_of(std::vector<float> const& of, int tokens) {
    kv::queries made;
    made.base = reinterpret_cast<std::byte const*>(of.data());
    made.dims = dims;
    made.row = std::int64_t{4} * dims;
    made.head = made.row * tokens;
    made.heads = 2 * group;
    made.layer = made.head * made.heads;
    made.rows = tokens;
    return made;
  }

  int bound_;
  int count_[lanes] = {};
  std::vector<int> position_;
  std::vector<float> keys_, values_, again_, again_keys_, norms_;
  std::vector<int> begin_, end_;
};

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// An eviction by name about a batch of sequences, for a caller that keeps keys and values itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layer_signals.hpp"

namespace kvpolicy_python {

/// What each lane keeps, or which pages it reads. Lanes are in the order of sequence, layer, head.
struct decision {
  std::vector<std::int64_t> indptr{0};
  std::shared_ptr<std::int32_t> indices;  ///< `indptr.back()` of them, in the memory of the evictor's device
  kv::report report{};
};

/// Counts, positions and recorded signals of a batch under one policy, and its decisions. The caller keeps keys and
/// values, tells how many tokens each sequence received, and moves rows as `decide` says. Lanes of a sequence may come
/// to hold unequal numbers of entries. One call runs at a time; others wait.
class evictor {
 public:
  evictor() = default;
  evictor(evictor const&) = delete;
  evictor& operator=(evictor const&) = delete;
  virtual ~evictor() = default;

  /// Adds tokens[s] tokens to sequence s. Their rows are the last ones of the next arrays.
  virtual void append(std::vector<int> const& tokens) = 0;
  /// Takes the last tokens[s] tokens of sequence s back.
  virtual void remove_last(std::vector<int> const& tokens) = 0;
  /// Shows rows and numbers of one layer to the policy: those of the latest `append`, or the last of them.
  virtual void observe(int layer, shown_tokens const& shown, given_rows const& given) = 0;
  /// Decides what every lane keeps. Until `apply` nothing is changed. A decision that rests on nothing is refused, and
  /// then there is none.
  virtual decision decide(given_rows const& given) = 0;
  /// Chooses the pages that each lane reads, by a selection such as "select: quest(page=16) | budget(512)" and the
  /// query rows of the newest tokens. Nothing is recorded: page bounds are computed anew from the keys.
  virtual decision select(std::string const& spec, given_rows const& given, std::vector<rows> const& queries) = 0;
  /// Moves counts, positions and recorded signals as the latest decision says; the caller moves keys and values.
  virtual void apply() = 0;

  /// The entries of each sequence's longest lane.
  [[nodiscard]] virtual std::vector<int> counts() const = 0;
  /// The entries of every lane, [sequence, layer, KV head].
  [[nodiscard]] virtual std::vector<int> lane_counts() const = 0;
  /// The positions of what the lanes of a layer hold, [sequence, KV head, entry of the longest lane]; -1 after a lane's
  /// last entry.
  [[nodiscard]] virtual std::vector<int> positions(int layer, int& most) const = 0;
  [[nodiscard]] virtual int sequences() const = 0;
  [[nodiscard]] virtual model_shape const& model() const = 0;
  /// The tokens that each sequence has received, dropped ones included.
  [[nodiscard]] virtual std::vector<int> tokens() const = 0;
  [[nodiscard]] virtual std::string policy() const = 0;
  /// Whose memory it reads, as PyTorch names it.
  [[nodiscard]] virtual std::string device() const = 0;
};

/// What an evictor is made of.
struct evictor_options {
  std::string policy;
  model_shape model{};
  int sequences = 1;
  int capacity = 1024;  ///< the tokens of a sequence for which there is room at first
};

/// An evictor of host memory.
///
/// - throws: `invalid_argument` if the policy or a size is not sound.
[[nodiscard]] std::unique_ptr<evictor> make_host_evictor(evictor_options const& from, int threads);

/// Whether the package was built for a device.
extern bool const has_device;

/// An evictor of the memory of a device, for arrays of that device. Its calls run on `stream` in their order.
///
/// - throws: also `invalid_argument` if there is no such device.
[[nodiscard]] std::unique_ptr<evictor> make_device_evictor(evictor_options const& from, int device,
                                                           std::uintptr_t stream);

}  // namespace kvpolicy_python

// SPDX-License-Identifier: Apache-2.0
// Verb: rotates keys (RoPE) from their old positions to new ones.
#pragma once

#include <cstddef>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The channels of a key that can turn: all, or of a latent cache those that are not values.
struct turned_channels {
  int begin = 0;
  int count = 0;
};

/// The larger part of a key's row before or behind its values.
[[nodiscard]] constexpr turned_channels turned_channels_of(cache const& in) {
  value_channels const values = values_in_keys(in);
  int const behind = in.k.channels - values.end;
  return values.begin > behind ? turned_channels{0, values.begin} : turned_channels{values.end, behind};
}

}  // namespace detail

/// Which two channels form a pair: i and i + D/2 (neox), or 2i and 2i + 1 (gptj).
enum class rope_style { neox, gptj };

[[nodiscard]] constexpr std::array<char const*, 2> names(rope_style) { return {"neox", "gptj"}; }

/// A table of inverse frequencies, in the form of a model's `inv_freq`: [dims / 2] radians per position, one per pair
/// of channels, in the order of the pairs, in float32 or float64. This is a view: the memory belongs to the executor
/// (on a device it is device memory) and must outlive the calls that use it. It converts to false if there is no table.
class rope_frequencies {
 public:
  constexpr rope_frequencies() = default;
  constexpr rope_frequencies(std::nullptr_t) {}
  constexpr rope_frequencies(float const* table) : single_(table) {}
  constexpr rope_frequencies(double const* table) : double_(table) {}

  [[nodiscard]] KVPOLICY_HD constexpr explicit operator bool() const {
    return single_ != nullptr || double_ != nullptr;
  }
  /// Radians per position of one pair. There must be a table.
  [[nodiscard]] KVPOLICY_HD constexpr double operator[](int pair) const {
    return double_ != nullptr ? double_[pair] : static_cast<double>(single_[pair]);
  }
  friend bool operator==(rope_frequencies const&, rope_frequencies const&) = default;

 private:
  float const* single_ = nullptr;
  double const* double_ = nullptr;
};

/// Rotary embedding (Su et al. 2021, arXiv:2104.09864). Pair i of a row at position p is rotated by p *
/// theta^(-2i/dims), or by p * frequency[i] if there is a table. A table describes an embedding with scaled frequencies
/// (linear interpolation, the scaling of Llama 3, YaRN), which no theta can express.
///
/// The angle must be linear in the position. Keys cannot be rotated afterwards if frequencies change with the length
/// (dynamic NTK, or LongRoPE when it switches). A factor on the length of keys (the attention scaling of YaRN) is
/// already in the keys, and stays there.
struct rope {
  double theta = 10000.0;  ///< not used if there is a table
  rope_style style = rope_style::neox;
  int dims = 0;                  ///< how many channels are rotated, from the first on; 0: all. Of a latent cache: from
                                 ///< the first channel that is no value on; 0: all that are no values
  rope_frequencies frequency{};  ///< [dims / 2] radians per position; replaces theta

  static constexpr auto name = "rope";
  static constexpr auto fields() {
    return make_fields(field{"theta", &rope::theta}, field{"style", &rope::style}, field{"dims", &rope::dims});
  }
  friend bool operator==(rope const&, rope const&) = default;
};

/// Copies of 16-bit keys as they were before their first turn, so that a key which turns often is rounded once. Views
/// of the executor's memory; null: there are none.
struct first_keys {
  by_lane<std::byte> keys{};  ///< for each entry the channels that turn, one after another
  by_lane<int> written{};     ///< for each entry 1 + the position of the copy; 0: there is no copy yet
};

namespace detail {

/// The number of channels that turn.
[[nodiscard]] constexpr int turned_dims(cache const& in, rope const& how) {
  return how.dims != 0 ? how.dims : turned_channels_of(in).count;
}

}  // namespace detail

namespace ops {

/// `rerotate(exec, lanes, cache, rope, first)`: rotates the key of entry i from its position to position i, and sets
/// its position to i. Drafts are rotated, too. A row whose position does not change is not written. With `first` a key
/// is copied before its first turn, and each turn begins from the copy: then a key has been rounded once.
///
/// - in, out: keys of `cache.k`, and `lanes.position`. Angles are computed in double, sines and rows in float, and
///   results are rounded once to the element type of the plane. Without `first` each further rotation rounds again. The
///   host adds two angles by products of floats, so its sines and cosines are within 2.5e-7 (4 * 2^-24) of the exact
///   ones.
/// - in, out: `first`, optional, for planes of 2-byte elements.
/// - cost: reads and writes every key whose position changes. Tables of sines and cosines are in scratch.
/// - NaN: a frequency that is NaN or infinite makes the channels of its pair NaN; a pair of frequency 0 is not rotated.
/// Of a latent cache only channels that are no values are rotated (the RoPE part of MLA's rows).
///
/// - throws: `invalid_argument` if dims is odd or exceeds the channels that can be rotated, if theta is not positive
/// and
///   there is no table, or if the plane is opaque or fp8, whose elements would have to be quantised anew. The length of
///   a table is unknown, and is not checked.
struct rerotate_t : verb<rerotate_t> {
  static constexpr auto name = "rerotate";
  static void check(lanes const&, cache const& in, rope const& how, first_keys const& = {}) {
    int const most = detail::turned_channels_of(in).count;
    int const dims = detail::turned_dims(in, how);
    expects(dims > 0 && dims % 2 == 0, "rerotate", "rope.dims", dims, "channels turn in pairs");
    expects(dims <= most, "rerotate", "rope.dims", dims, [&] {
      char const* const rest = detail::is_latent(in) ? " channels that are no values" : " channels";
      return "a key has " + std::to_string(most) + rest;
    });
    expects(how.theta > 0 || how.frequency, "rerotate", "rope.theta", how.theta,
            "frequencies are powers of a positive number");
    expects(in.k.element != codec::opaque, "rerotate", "k", "opaque rows", "only their engine can turn them");
    expects(!is_fp8(in.k.element), "rerotate", "k", name_of(in.k.element),
            "turned keys would have to be quantised anew, and their scales are the engine's");
  }
};
inline constexpr rerotate_t rerotate{};

}  // namespace ops

}  // namespace KVPOLICY_NAMESPACE

// Verb: keys turned from the positions that they were rotated at to others.
#pragma once

#include <cstddef>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Which two channels turn together: i and i + D/2, or 2i and 2i + 1.
enum class rope_style { neox, gptj };

[[nodiscard]] constexpr std::array<char const*, 2> names(rope_style) { return {"neox", "gptj"}; }

/// A table of inverse frequencies, as models keep it (`inv_freq`): [dims / 2] radians per position, one for each pair
/// of channels in the order of the pairs, float32 or float64. A view: memory of the executor (on a device, device
/// memory) that outlives the calls which use it. False where there is no table.
class rope_frequencies {
 public:
  constexpr rope_frequencies() = default;
  constexpr rope_frequencies(std::nullptr_t) {}
  constexpr rope_frequencies(float const* table) : single_(table) {}
  constexpr rope_frequencies(double const* table) : double_(table) {}

  [[nodiscard]] KVPOLICY_HD constexpr explicit operator bool() const {
    return single_ != nullptr || double_ != nullptr;
  }
  /// Radians per position of one pair. Only where there is a table.
  [[nodiscard]] KVPOLICY_HD constexpr double operator[](int pair) const {
    return double_ != nullptr ? double_[pair] : static_cast<double>(single_[pair]);
  }
  friend bool operator==(rope_frequencies const&, rope_frequencies const&) = default;

 private:
  float const* single_ = nullptr;
  double const* double_ = nullptr;
};

/// Rotary embedding (Su et al. 2021, arXiv:2104.09864): pair i of a row at position p turns by p * theta^(-2i/dims), or
/// by p * frequency[i] where there is a table. A table describes an embedding whose frequencies are scaled (linear
/// interpolation, Llama 3's scaling, YaRN), which no theta does.
///
/// Linear in the position; embeddings whose frequencies change with the length (dynamic NTK, LongRoPE where it
/// switches) cannot be turned afterwards. A factor on the length of keys (YaRN's attention scaling) is in the keys
/// already and stays there.
struct rope {
  double theta = 10000.0;  ///< not read where there is a table
  rope_style style = rope_style::neox;
  int dims = 0;                  ///< channels that turn, the first of a row; 0: all
  rope_frequencies frequency{};  ///< [dims / 2] radians per position, instead of theta's

  static constexpr auto name = "rope";
  static constexpr auto fields() {
    return std::tuple{field{"theta", &rope::theta}, field{"style", &rope::style}, field{"dims", &rope::dims}};
  }
  friend bool operator==(rope const&, rope const&) = default;
};

namespace ops {

/// `rerotate(exec, lanes, cache, rope)`: entry i's key, rotated at its position, turns to position i, and i becomes its
/// position. Drafts too. A row whose position does not change is not touched.
///
/// - in, out: keys of `cache.k`, `lanes.position`. Angles in double, sines and rows in float, rounded once to the
/// plane's type;
///   each further turn rounds again.
/// - cost: reads and writes every key whose position changes; tables of sines and cosines in scratch.
/// - NaN: a frequency that is NaN or infinite makes the channels of its pair NaN; a pair of frequency 0 does not turn.
/// - throws: `invalid_argument` if dims is odd or more than a row has, theta is not positive and there is no table of
///   frequencies, or the plane is opaque. How long a table is cannot be seen, and is not checked.
struct rerotate_t : verb<rerotate_t> {
  static constexpr auto name = "rerotate";
  static void check(lanes const&, cache const& in, rope const& how) {
    int const dims = how.dims != 0 ? how.dims : in.k.dims;
    expects(dims > 0 && dims % 2 == 0, "rerotate", "rope.dims", dims, "channels turn in pairs");
    expects(dims <= in.k.dims, "rerotate", "rope.dims", dims,
            [&] { return "a key has " + std::to_string(in.k.dims) + " channels"; });
    expects(how.theta > 0 || how.frequency, "rerotate", "rope.theta", how.theta,
            "frequencies are powers of a positive number");
    expects(in.k.element != codec::opaque, "rerotate", "k", "opaque rows", "only their engine can turn them");
  }
};
inline constexpr rerotate_t rerotate{};

}  // namespace ops

}  // namespace KVPOLICY_NAMESPACE

// Verb: keys turned from the positions that they were rotated at to others.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Which two channels turn together: i and i + D/2, or 2i and 2i + 1.
enum class rope_style { neox, gptj };

[[nodiscard]] constexpr std::array<char const*, 2> names(rope_style) { return {"neox", "gptj"}; }

/// Rotary embedding (Su et al. 2021, arXiv:2104.09864): pair i of a row at position p turns by p * theta^(-2i/dims).
/// Linear in the position; embeddings whose frequencies change with the length cannot be turned afterwards.
struct rope {
  double theta = 10000.0;
  rope_style style = rope_style::neox;
  int dims = 0;                      ///< channels that turn, the first of a row; 0: all
  float const* frequency = nullptr;  ///< radians a position of each pair, instead of theta's; of a scaled embedding

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
/// - throws: `invalid_argument` if dims is odd or more than a row has, theta is not positive, or the plane is opaque.
struct rerotate_t : verb<rerotate_t> {
  static constexpr auto name = "rerotate";
  static void check(lanes const&, cache const& in, rope const& how) {
    int const dims = how.dims != 0 ? how.dims : in.k.dims;
    expects(dims > 0 && dims % 2 == 0, "rerotate", "rope.dims", dims, "channels turn in pairs");
    expects(dims <= in.k.dims, "rerotate", "rope.dims", dims,
            [&] { return "a key has " + std::to_string(in.k.dims) + " channels"; });
    expects(how.theta > 0 || how.frequency != nullptr, "rerotate", "rope.theta", how.theta,
            "frequencies are powers of a positive number");
    expects(in.k.element != codec::opaque, "rerotate", "k", "opaque rows", "only their engine can turn them");
  }
};
inline constexpr rerotate_t rerotate{};

}  // namespace ops

namespace detail {

/// Bytes of scratch that re-rotation of this cache needs.
template <class Backend>
std::size_t rerotate_scratch(cache const& in) {
  if constexpr (implementation<ops::rerotate_t, Backend>::provided) {
    return implementation<ops::rerotate_t, Backend>::scratch(in);
  } else {
    return 0;
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

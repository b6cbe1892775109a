// SPDX-License-Identifier: Apache-2.0
// Checks of the views that an engine passes: shapes, strides, overlap. They do not read K or V.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/check_lanes.hpp>
#include <kvpolicy/core/contract/check_places.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signal_rows.hpp>
#include <limits>
#include <utility>

namespace KVPOLICY_NAMESPACE {
namespace detail {

#if defined(KVPOLICY_COMPILED)  // the library kvpolicy::compiled holds them
void check_shape(char const* call, shape const& model);
void check_locator(char const* call, locator const& where, lanes const& batch);
void check_same_table(char const* call, char const* name, by_lane<int> const& table, by_lane<int const> const& read);
void check_cache(char const* call, cache const& in);
void check_whole(char const* call, lanes const& batch, shape const& model);
#else
inline void check_shape(char const* call, shape const& model) {
  expects(model.layers > 0, call, "shape.layers", model.layers, "a model has at least one layer");
  expects(model.kv_heads > 0, call, "shape.kv_heads", model.kv_heads, "a model has at least one KV head");
  expects(model.query_heads > 0, call, "shape.query_heads", model.query_heads, "a model has at least one query head");
  expects(model.query_heads % model.kv_heads == 0, call, "shape.query_heads", model.query_heads,
          [&] { return "it must be a multiple of the KV heads (" + std::to_string(model.kv_heads) + ")"; });
  expects(model.head_dim > 0, call, "shape.head_dim", model.head_dim, "a head has at least one channel");
  expects(model.value_dim >= 0, call, "shape.value_dim", model.value_dim, "a size cannot be negative");
  auto const small = [&](int channels) {
    return std::int64_t{channels} * model.query_heads <= std::numeric_limits<int>::max() / std::int64_t{sizeof(float)};
  };
  auto const rule = [&] {
    return "rows of " + std::to_string(model.query_heads) + " heads are less than 2 GiB of f32";
  };
  expects(small(model.head_dim), call, "shape.head_dim", model.head_dim, rule);
  expects(small(model.value_dim), call, "shape.value_dim", model.value_dim, rule);
}

/// One axis of a plane: the number of its elements, and the bytes between two of them.
struct axis {
  std::int64_t extent = 1;
  std::int64_t stride = 0;
};

/// Addresses that axes reach are less than this apart, so that sums of a few of them fit into 64 bits.
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 60;

/// True if all that the axes reach lies within `most_bytes`. What follows computes with such axes only.
inline bool addressable(std::array<axis, 6> const& axes) {
  std::int64_t reach = 0;
  for (axis const& one : axes) {
    if (one.extent <= 1) continue;
    std::int64_t const most = (most_bytes - reach) / (one.extent - 1);
    if (one.stride < -most || one.stride > most) return false;
    reach += (one.extent - 1) * std::abs(one.stride);
  }
  return true;
}

/// True if no two index tuples have an address in common: with the axes sorted by stride, each stride is at least the
/// span of the smaller axes.
inline bool disjoint(std::array<axis, 6> axes, std::int64_t bytes) {
  for (axis& one : axes) one = one.extent > 1 ? one : axis{};
  std::sort(axes.begin(), axes.end(), [](axis a, axis b) { return std::abs(a.stride) < std::abs(b.stride); });
  std::int64_t spanned = bytes;
  for (axis const& one : axes) {
    if (one.extent <= 1) continue;
    if (std::abs(one.stride) < spanned) return false;
    spanned += (one.extent - 1) * std::abs(one.stride);
  }
  return true;
}

/// The axes of a plane. A plane may have stride 0 over layers or heads if each layer or head has its own row of the
/// table: then there is one pool of pages for all lanes (WG-KV), and the table says which lane has which page.
inline std::array<axis, 6> axes_of(plane const& rows, shape const& model, locator const& where) {
  std::int64_t const tokens = where.kind == locating::slot_map ? 1 : where.unit_tokens;
  if (rows.bases.data != nullptr) {  // along the axes of the table of pointers, strides do not give addresses
    return {axis{rows.bases.layer != 0 ? 1 : model.layers, rows.layer_stride},
            axis{rows.bases.unit != 0 ? 1 : where.units, rows.unit_stride},
            axis{tokens, rows.token_stride},
            axis{rows.bases.head != 0 ? 1 : model.kv_heads, rows.head_stride},
            axis{rows.channels, rows.channel_stride},
            axis{}};
  }
  int const layers = rows.layer_stride == 0 && where.table.layer != 0 ? 1 : model.layers;
  int const heads = rows.head_stride == 0 && where.table.head != 0 ? 1 : model.kv_heads;
  return {axis{layers, rows.layer_stride}, axis{where.units, rows.unit_stride},      axis{tokens, rows.token_stride},
          axis{heads, rows.head_stride},   axis{rows.channels, rows.channel_stride}, axis{}};
}

/// Refuses strides that reach too far, and elements that share bytes.
inline void check_strides(char const* call, char const* name, plane const& rows, cache const& in) {
  std::array const all{axis{in.shape.layers, rows.layer_stride},      axis{in.where.units, rows.unit_stride},
                       axis{in.where.unit_tokens, rows.token_stride}, axis{in.shape.kv_heads, rows.head_stride},
                       axis{rows.channels, rows.channel_stride},      axis{}};
  expects(addressable(all), call, name, "strides", "its elements are 2^60 bytes apart");
  expects(disjoint(axes_of(rows, in.shape, in.where), bytes_of(rows.element)), call, name, "strides",
          "two of its elements share bytes");
}

/// The lowest byte that the axes reach from a plane's base, and the byte after the highest, counted from `zero`. What
/// is farther away than the axes of two planes reach is told to be just so far away.
inline std::pair<std::int64_t, std::int64_t> extent_of(plane const& rows, std::array<axis, 6> const& axes,
                                                       std::byte const* zero) {
  auto const from =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.base) - reinterpret_cast<std::uintptr_t>(zero));
  std::int64_t low = std::clamp(from, -4 * most_bytes, 3 * most_bytes);
  std::int64_t high = low + bytes_of(rows.element);
  for (axis const& one : axes) {
    std::int64_t const reach = one.extent > 1 ? (one.extent - 1) * one.stride : 0;
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

/// True if two planes in one buffer interleave without overlap: after the `shared` largest common axes are removed, the
/// rest of both planes fits into one stride of the smallest removed axis, and the two rests do not overlap.
inline bool interleaved(plane const& keys, std::array<axis, 6> k, plane const& values, std::array<axis, 6> v,
                        int shared) {
  std::int64_t step = std::numeric_limits<std::int64_t>::max();
  for (int taken = 0; taken < shared; ++taken) {
    std::size_t largest = k.size();
    for (std::size_t i = 0; i < k.size(); ++i) {
      bool const common = k[i].extent == v[i].extent && k[i].stride == v[i].stride && k[i].extent > 1;
      if (common && (largest == k.size() || std::abs(k[i].stride) > std::abs(k[largest].stride))) largest = i;
    }
    if (largest == k.size()) return false;
    step = std::abs(k[largest].stride);
    k[largest] = v[largest] = axis{};
  }
  auto const [k_low, k_high] = extent_of(keys, k, keys.base);
  auto const [v_low, v_high] = extent_of(values, v, keys.base);
  return (k_high <= v_low || v_high <= k_low) && std::max(k_high, v_high) - std::min(k_low, v_low) <= step;
}

/// True if no element of one plane lies in the other, however the two planes interleave.
inline bool apart(plane const& keys, std::array<axis, 6> const& k, plane const& values, std::array<axis, 6> const& v) {
  bool found = false;
  for (int shared = 0; shared <= 4 && !found; ++shared) found = interleaved(keys, k, values, v, shared);
  return found;
}

inline void check_plane(char const* call, char const* name, plane const& rows, int dims, cache const& in) {
  expects(rows.base != nullptr || rows.bases.data != nullptr, call, name, "null", "a plane is the engine's memory");
  check_scales(call, name, rows);
  expects(
      rows.channels == dims || rows.element == codec::opaque, call, [&] { return std::string(name) + ".channels"; },
      rows.channels, [&] { return "the shape says " + std::to_string(dims) + " channels"; });
  check_strides(call, name, rows, in);
}

/// Refuses a table other than the one that the locator reads: a null pointer, other memory, or other strides.
inline void check_same_table(char const* call, char const* name, by_lane<int> const& table,
                             by_lane<int const> const& read) {
  expects(table.data != nullptr || read.data == nullptr, call, name, "null",
          "it is the table that the cache's locator reads, to be written");
  expects(table.data == read.data, call, name, "another table",
          "it is the table that the cache's locator reads, to be written");
  auto const one = [&](char const* member, std::int64_t given, std::int64_t wanted) {
    expects(
        given == wanted, call, [&] { return std::string(name) + member; }, given,
        [&] { return "the locator's table has stride " + std::to_string(wanted); });
  };
  one(".sequence", table.sequence, read.sequence);
  one(".layer", table.layer, read.layer);
  one(".head", table.head, read.head);
  expects(table.slots == read.slots, call, name, "of other slots",
          "it is the table that the cache's locator reads: restrict it to the batch with kvpolicy::only");
}

inline void check_locator(char const* call, locator const& where, lanes const& batch) {
  check_places(call, "", where, batch);
  expects(!finds_by_sequence(where) || where.unit_tokens >= batch.capacity, call, "where.unit_tokens",
          where.unit_tokens, [&] { return "a row holds `capacity` tokens (" + std::to_string(batch.capacity) + ")"; });
}

/// Checks the values: a plane of their own, or the first channels of the keys' rows, which the shape has to say.
inline void check_values(char const* call, cache const& in) {
  int const dims = in.shape.value_dim != 0 ? in.shape.value_dim : in.shape.head_dim;
  if (has_memory(in.v) || in.shape.value_dim == 0) return check_plane(call, "v", in.v, dims, in);
  expects(dims <= in.k.channels || in.k.element == codec::opaque, call, "shape.value_dim", dims, [&] {
    return "values without memory of their own are in the keys' rows, of " + std::to_string(in.k.channels) +
           " channels";
  });
}

inline void check_overlap(char const* call, cache const& in) {
  if (is_latent(in)) return;
  if (in.k.bases.data != nullptr || in.v.bases.data != nullptr) return;  // this check does not read pointers
  expects(apart(in.k, axes_of(in.k, in.shape, in.where), in.v, axes_of(in.v, in.shape, in.where)), call, "k and v",
          "overlapping", "keys and values are different memory");
}

/// Checks everything about a cache that can be checked without reading device memory.
inline void check_cache(char const* call, cache const& in) {
  check_shape(call, in.shape);
  check_lanes(call, in.lanes, in.shape);
  check_locator(call, in.where, in.lanes);
  check_plane(call, "k", in.k, in.shape.head_dim, in);
  check_values(call, in);
  check_overlap(call, in);
  check_logits(call, "logits", in.logits, in.lanes);
  for (plane const& each : in.more) {
    expects(each.base != nullptr || each.bases.data != nullptr, call, "more", "null", "a plane is the engine's memory");
    check_strides(call, "more", each, in);
  }
}

/// Refuses to append to or truncate some layers only of a cache with drafts, because drafts are counted for each
/// sequence.
inline void check_whole(char const* call, lanes const& batch, shape const& model) {
  expects(batch.in_flight == nullptr || batch.layers() == model.layers, call, "lanes.layers", batch.layers(), [&] {
    return "drafts are counted for all " + std::to_string(model.layers) + " layers of a sequence together";
  });
}

#endif

/// Refuses memory that the executor's kernels cannot access. An executor that can check this has the member
/// `reaches(pointer)`.
template <class Executor>
void check_reach([[maybe_unused]] char const* call, [[maybe_unused]] Executor& exec, [[maybe_unused]] char const* name,
                 [[maybe_unused]] void const* at) {
  if constexpr (requires { static_cast<bool>(exec.reaches(at)); }) {
    expects(at == nullptr || exec.reaches(at), call, name, "memory of the host",
            "the executor's kernels read it: memory of the device, or memory that both share");
  }
}

/// As above, for the memory of a cache.
template <class Executor>
void check_reach(char const* call, Executor& exec, cache const& in) {
  check_reach(call, exec, "k", in.k.base);
  check_reach(call, exec, "v", in.v.base);
  check_reach(call, exec, "k.scales", in.k.scales.data);
  check_reach(call, exec, "v.scales", in.v.scales.data);
  check_reach(call, exec, "where.table", in.where.table.data);
  check_reach(call, exec, "lanes.count", in.lanes.count.data);
  check_reach(call, exec, "lanes.position", in.lanes.position.data);
  check_reach(call, exec, "lanes.in_flight", in.lanes.in_flight);
  check_reach(call, exec, "logits.sinks", in.logits.sinks.data);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE

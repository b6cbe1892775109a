// SPDX-License-Identifier: Apache-2.0
// Device implementation of record_key_sums: each thread adds up a few channels of one entry over all lanes.
#pragma once

#include <cstddef>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/key_sums.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds up `Each` channels of an entry over the lanes of its sequence, in order, so that each sum always has the same
/// bits. Unless `Each` is 1, its elements are 16 contiguous, aligned bytes. With `Fp8` they are elements of fp8, and
/// `Each` is 1.
template <int Each, bool Fp8>
struct key_adder {
  kvpolicy::lanes lanes;
  row_view from;

  /// Behind the last lane, the last one is loaded again and not added.
  KVPOLICY_HD void add(int sequence, int entry, int first, float* sum) const {
    int const lanes_here = lanes.layers() * lanes.heads;
    for (int i = 0; i < lanes_here; i += ahead) {
      float part[ahead][static_cast<std::size_t>(Each)];
      for (int j = 0; j < ahead; ++j) {
        int const at = i + j < lanes_here ? i + j : lanes_here - 1;
        lane const one{lanes.sequence_begin + sequence, lanes.layer_begin + at / lanes.heads, at % lanes.heads};
        read(from.row(one, entry) + first * from.rows.channel_stride, part[j]);
        if constexpr (Fp8) part[j][0] *= from.scale(one, entry);
      }
      for (int j = 0; j < ahead; ++j) {
        for (int e = 0; e < Each; ++e) sum[e] += i + j < lanes_here ? part[j][e] : 0.0f;
      }
    }
  }

 private:
  static constexpr int ahead = 4;  ///< loads of rows that are in flight at once

  KVPOLICY_HD void read(std::byte const* at, float* to) const {
    if constexpr (Fp8) {
      to[0] = any_element_at(from.rows.element, at);
    } else if constexpr (Each == 1) {
      to[0] = element_at(from.rows.element, at);
    } else {
      row_piece const all = *reinterpret_cast<row_piece const*>(at);
      for (int w = 0; w < 4; ++w) unpack(all.word[w], to + w * (Each / 4));
    }
  }

  KVPOLICY_HD void unpack(unsigned word, float* to) const {
    if constexpr (Each == 4) {
      to[0] = same_bits<float>(word);
    } else {
      two_numbers const numbers = halves_of(from.rows.element, word);
      to[0] = numbers.first;
      to[1] = numbers.second;
    }
  }
};

/// Records `Each` channels of an entry that have no sum yet, unless a lane does not have the entry.
template <int Each, bool Fp8 = false>
struct record_key_sums_body {
  key_adder<Each, Fp8> adder;
  key_sums to;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    kvpolicy::lanes const& lanes = adder.lanes;
    int const pieces = adder.from.rows.channels / Each;
    int const first = static_cast<int>(i % pieces) * Each;
    int const entry = static_cast<int>(i / pieces % lanes.capacity);
    int const sequence = static_cast<int>(i / pieces / lanes.capacity);
    if (!in_all_lanes(sequence, entry) || key_sums::is_recorded(*to.at(lanes, sequence, entry, first))) return;
    float sum[static_cast<std::size_t>(Each)] = {};
    adder.add(sequence, entry, first, sum);
    for (int e = 0; e < Each; ++e) *to.at(lanes, sequence, entry, first + e) = key_sums::recorded(sum[e]);
  }

 private:
  KVPOLICY_HD bool in_all_lanes(int sequence, int entry) const {
    kvpolicy::lanes const& lanes = adder.lanes;
    for (int layer = lanes.layer_begin; layer < lanes.layer_end; ++layer) {
      for (int head = 0; head < lanes.heads; ++head) {
        if (entry >= lanes.committed({lanes.sequence_begin + sequence, layer, head})) return false;
      }
    }
    return true;
  }
};

/// Calls launch.operator()<Each, Fp8>() for the elements of these rows.
template <class Launch>
void by_pieces(plane const& rows, Launch const& launch) {
  int const each = 16 / bytes_of(rows.element);
  bool const wide = rows.contiguous() && rows.channels % each == 0 && alignment_of(rows, true) == 16;
  if (is_fp8(rows.element)) {
    launch.template operator()<1, true>();
  } else if (!wide) {
    launch.template operator()<1, false>();
  } else if (each == 4) {
    launch.template operator()<4, false>();
  } else {
    launch.template operator()<8, false>();
  }
}

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::record_key_sums_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keys const& from, lanes const& batch, key_sums const& to) {
    detail::check_aligned("record_key_sums", "keys", from.rows);
    if (!to.fits(batch, from.rows.channels)) return;
    detail::by_pieces(from.rows, [&]<int Each, bool Fp8>() {
      std::int64_t const all = std::int64_t{batch.sequences} * batch.capacity * (from.rows.channels / Each);
      detail::launch_each(exec, all, detail::record_key_sums_body<Each, Fp8>{{batch, from}, to});
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

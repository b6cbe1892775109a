// SPDX-License-Identifier: Apache-2.0
// Host implementation of similarity: blocks of the keys that compete are multiplied by all keys of their lane.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/keys_as_rows.hpp>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/mean_row.hpp>
#include <kvpolicy/ops/similarity.hpp>
#include <limits>
#include <numeric>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The sums of one lane.
class lane_similarity {
 public:
  static std::size_t scratch(shape const& model, int bound) {
    auto const entries = static_cast<std::size_t>(bound), dims = static_cast<std::size_t>(model.head_dim);
    return scratch_of<double>(entries) + scratch_of<double>(dims) + scratch_of<int>(entries) +
           2 * scratch_of<float>(entries) + scratch_of<float>(floats_of_values) + scratch_of<float>(most_rows * dims) +
           lane_logits::scratch(model);
  }

  lane_similarity(host_executor const& exec, keys const& from, lane one, int entries, std::span<std::byte> memory)
      : exec_(exec), keys_(from), lane_(one), entries_(entries), arena_(memory) {
    keys_.logits = {.scale = 1.0f};
    auto const bound = static_cast<std::size_t>(entries);
    auto const dims = static_cast<std::size_t>(keys_.rows.channels);
    sum_ = arena_.take<double>(bound);
    total_ = arena_.take<double>(dims);
    among_ = arena_.take<int>(bound);
    inverse_norm_ = arena_.take<float>(bound);
    average_ = arena_.take<float>(bound);
    values_ = arena_.take<float>(floats_of_values);
    rows_ = arena_.take<float>(most_rows * dims);
  }

  void compute(float* out) {
    for (int e = 0; e < entries_; ++e) {
      if (out[e] != none) among_[count_++] = e;
    }
    implementation<ops::row_norm_t, host>::combine_rows(exec_, keys_, lane_, 0, entries_, inverted{}, inverse_norm_);
    find_averages();
    std::fill_n(sum_, entries_, 0.0);
    for (int first = 0; first < count_; first += most_rows) add(first, std::min(most_rows, count_ - first));
    for (int i = 0; i < count_; ++i) out[among_[i]] = static_cast<float>(sum_[among_[i]] / count_);
  }

 private:
  static constexpr float none = -std::numeric_limits<float>::infinity();
  static constexpr std::size_t floats_of_values =
      keys_of_a_tile * most_rows + 16;  // a whole vector may follow the last

  static constexpr int at_once = 16;  ///< partial sums, so that a compiler can add vectors

  struct inverted {
    float operator()(float, float norm) const { return inverse_norm(norm); }
  };
  [[nodiscard]] query_view load(int first, int count) {
    return keys_as_rows(keys_, lane_, count, [&](int i) { return among_[first + i]; }, rows_);
  }

  /// The average of each row, which is the product of its unit key with the sum of all of them, less its own.
  void find_averages() {
    int const dims = keys_.rows.channels;
    std::fill_n(total_, dims, 0.0);
    auto const each = [&](auto const& visit) {
      for (int i = 0; i < count_; ++i) {
        (void)load(i, 1);
        visit(i, static_cast<double>(inverse_norm_[among_[i]]));
      }
    };
    each([&](int, double inverse) {
      for (int d = 0; d < dims; ++d) total_[d] += inverse * static_cast<double>(rows_[d]);
    });
    each([&](int i, double inverse) {
      double all = 0, own = 0;
      for (int d = 0; d < dims; ++d) {
        double const unit = inverse * static_cast<double>(rows_[d]);
        all += unit * total_[d];
        own += unit * unit;
      }
      average_[i] = static_cast<float>((all - own) / count_);
    });
  }

  /// Adds the rows [first, first + count) of those that compete to the sums of all entries.
  void add(int first, int count) {
    query_view const rows = load(first, count);
    scratch_arena arena = arena_;
    lane_logits products(exec_, keys_, rows, lane_, {0, count, 1}, arena);
    row_block block = products.block_storage(0);
    block.set_rows(exec_.simd_level(), products.rows_for(count));
    products.pack(block, 0, count);
    lane_logits::amx_registers const registers = products.acquire(block);
    float inverse[most_rows];
    for (int r = 0; r < count; ++r) inverse[r] = inverse_norm_[among_[first + r]];
    for (int e = 0; e < entries_; e += keys_of_a_tile) {
      int const keys = products.load_tile(e, entries_);
      products.multiply_tile(block, keys, values_);
      for (int k = 0; k < keys; ++k) {
        float const* const product = values_ + static_cast<std::ptrdiff_t>(k) * block.rows;
        auto const counted = [&](int r) {
          float const cosine = product[r] * inverse[r] * inverse_norm_[e + k];
          return cosine < average_[first + r] ? 0.0f : cosine;
        };
        float part[at_once] = {};
        int r = 0;
        for (; r + at_once <= count; r += at_once) {
          for (int i = 0; i < at_once; ++i) part[i] += counted(r + i);
        }
        for (; r < count; ++r) part[0] += counted(r);
        int const* const own = std::lower_bound(among_ + first, among_ + first + count, e + k);
        if (own < among_ + first + count && *own == e + k) part[0] -= counted(static_cast<int>(own - among_ - first));
        sum_[e + k] += static_cast<double>(std::accumulate(part, part + at_once, 0.0f));
      }
    }
  }

  host_executor const& exec_;
  keys keys_;
  lane lane_;
  int entries_;
  scratch_arena arena_;
  double *sum_, *total_;
  int* among_;  ///< the entries that compete
  float *inverse_norm_, *average_, *values_, *rows_;
  int count_ = 0;
};

}  // namespace detail

template <>
struct implementation<ops::similarity_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::lane_similarity::scratch(model, bound); }

  static void run(host_executor& exec, keys const& from, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::lane_similarity(exec, from, one, out.lanes.committed(one), exec.scratch(worker))
          .compute(out.row(segment));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

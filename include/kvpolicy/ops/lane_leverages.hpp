// SPDX-License-Identifier: Apache-2.0
// The leverages of one lane, as one thread of the host or the threads of a block compute them.
#pragma once

#include <cmath>
#include <kvpolicy/ops/leverage.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// One thread of the host, in the place of a block of threads.
struct one_thread {
  [[nodiscard]] static constexpr int thread() { return 0; }
  [[nodiscard]] static constexpr int threads() { return 1; }
  static constexpr void sync() {}
};

/// The memory in which the leverages of a lane are computed. Matrices have rows of `pitch` numbers.
struct leverage_memory {
  static constexpr int at_once = 16;  ///< rows of entries that are in `batch`
  static constexpr int block = 8;     ///< columns whose sums are computed together
  double* gram;                       ///< [D] rows, which the factor of the smaller matrix overwrites
  double* basis;                      ///< [D] rows: the sketch, and then what centred rows are multiplied by
  double* factor;                     ///< [D] rows
  double* mean;                       ///< [pitch]
  double* column;                     ///< [pitch]
  double* batch;                      ///< [at_once] rows
  double* weight;                     ///< [at_once]

  [[nodiscard]] KVPOLICY_HD static constexpr int pitch(int dims) { return (dims + block - 1) / block * block; }
  /// The doubles of all but `batch` and `weight`, and of these.
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t of_lane(int dims) {
    auto const row = static_cast<std::size_t>(pitch(dims));
    return row * (3 * static_cast<std::size_t>(dims) + 2);
  }
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t of_batch(int dims) {
    return at_once * (static_cast<std::size_t>(pitch(dims)) + 1);
  }
  [[nodiscard]] KVPOLICY_HD static constexpr leverage_memory in(double* lane, double* batch, int dims) {
    std::int64_t const row = pitch(dims), matrix = row * dims;
    return {lane,  lane + matrix,        lane + 2 * matrix, lane + 3 * matrix, lane + 3 * matrix + row,
            batch, batch + at_once * row};
  }
};

/// The leverages of one lane. `Team` has `thread()`, `threads()` and `sync()`, and all of its threads make all calls.
/// Every sum is of one thread, in an order that does not depend on how many threads there are.
template <class Team, class Among>
class lane_leverages {
 public:
  KVPOLICY_HD lane_leverages(Team& team, row_view const& rows, leverage_options const& how, Among const& among,
                             lanes const& batch, lane one, leverage_memory const& memory)
      : team_(team),
        rows_(rows),
        how_(how),
        among_(among),
        batch_(batch),
        position_(batch.position.row(one)),
        lane_(one),
        at_(memory),
        entries_(batch.committed(one)),
        dims_(rows.rows.channels),
        pitch_(leverage_memory::pitch(dims_)),
        small_(how.sketch.columns > 0 && how.sketch.columns < dims_ ? how.sketch.columns : dims_) {}

  /// False if there is no factor for any of the jitters.
  KVPOLICY_HD bool compute(float* out) {
    if (how_.centre) find_mean();
    find_gram();
    double trace = 0;
    for (int d = 0; d < dims_; ++d) trace += at_.gram[row_of(d) + d];
    if (!(trace - trace == 0)) return fill(out), true;
    make_basis();
    bool const sketched = how_.sketch.columns > 0;
    if (sketched) reduce_gram();
    double const* const from = sketched ? at_.factor : at_.gram;
    double* const to = sketched ? at_.gram : at_.factor;
    double jitter = how_.jitter;
    int tries = how_.retries;
    while (!factorise(from, jitter, to, small_, false)) {
      if (tries-- == 0) return false;
      jitter *= 10;
    }
    solve(to);
    if (how_.less_mean) less_ = usual_mean();
    for (int e = 0; e < entries_; e += leverage_memory::at_once) write(e, out);
    return true;
  }

 private:
  [[nodiscard]] KVPOLICY_HD std::int64_t row_of(int d) const { return std::int64_t{d} * pitch_; }
  [[nodiscard]] KVPOLICY_HD bool takes(int e) const { return among_(entry{lane_, e, entries_, position_[e], 0}); }
  [[nodiscard]] KVPOLICY_HD double weight_of(int e) const {
    return how_.weights.data != nullptr ? static_cast<double>(how_.weights.row(lane_)[e]) : 1.0;
  }
  /// Calls visit(i) for the numbers below `count` that are this thread's.
  template <class Visit>
  KVPOLICY_HD void each(int count, Visit const& visit) const {
    for (int i = team_.thread(); i < count; i += team_.threads()) visit(i);
  }

  /// Reads rows of entries from `first` on, less `mean`, if any; zeros for those that do not take part.
  KVPOLICY_HD void read(int first, double const* mean) {
    team_.sync();
    plane const& from = rows_.rows;
    for (int r = 0; r < leverage_memory::at_once; ++r) {
      int const e = first + r;
      bool const there = e < entries_ && takes(e);
      std::byte const* const row = there ? rows_.row(lane_, e) : nullptr;
      double const scale = there && from.scales.data != nullptr ? static_cast<double>(rows_.scale(lane_, e)) : 1.0;
      each(pitch_, [&](int d) {
        double x = 0;
        if (there && d < dims_) x = scale * static_cast<double>(load(from.element, row + d * from.channel_stride));
        at_.batch[row_of(r) + d] = there && d < dims_ && mean != nullptr ? x - mean[d] : x;
      });
      if (team_.thread() == 0) at_.weight[r] = there ? weight_of(e) + static_cast<double>(how_.more) : 0;
    }
    team_.sync();
  }

  KVPOLICY_HD void find_mean() {
    each(pitch_, [&](int d) { at_.mean[d] = 0; });
    double all = 0;
    for (int e = 0; e < entries_; e += leverage_memory::at_once) {
      read(e, nullptr);
      for (int r = 0; r < leverage_memory::at_once; ++r) {
        double const weight = at_.weight[r];
        all += weight;
        each(dims_, [&](int d) { at_.mean[d] += weight * at_.batch[row_of(r) + d]; });
      }
    }
    each(dims_, [&](int d) { at_.mean[d] /= all > 0 ? all : 1; });
  }

  /// The Gram matrix, without the jitter.
  KVPOLICY_HD void find_gram() {
    int const blocks = pitch_ / leverage_memory::block;
    each(dims_ * pitch_, [&](int i) { at_.gram[i] = 0; });
    for (int e = 0; e < entries_; e += leverage_memory::at_once) {
      read(e, how_.centre ? at_.mean : nullptr);
      each(dims_ * blocks, [&](int i) {
        int const a = i / blocks, b = i % blocks * leverage_memory::block;
        if (b <= a) add_products(at_.batch + a, at_.batch + b, at_.gram + row_of(a) + b);
      });
    }
    team_.sync();
    each(dims_ * dims_, [&](int i) {
      int const a = i / dims_, b = i % dims_;
      if (b < a) at_.gram[row_of(b) + a] = at_.gram[row_of(a) + b];
    });
    team_.sync();
  }
  /// Adds the products of a channel of the rows in `batch` with those of a block of channels.
  KVPOLICY_HD void add_products(double const* one, double const* some, double* to) const {
    double sum[leverage_memory::block] = {};
    for (int r = 0; r < leverage_memory::at_once; ++r) {
      double const x = at_.weight[r] * one[row_of(r)];
      for (int j = 0; j < leverage_memory::block; ++j) sum[j] += x * some[row_of(r) + j];
    }
    for (int j = 0; j < leverage_memory::block; ++j) to[j] += sum[j];
  }

  /// The sketch, or a square matrix with the same product with its transpose; without a sketch the identity.
  KVPOLICY_HD void make_basis() {
    row_sketch const& sketch = how_.sketch;
    each(dims_ * pitch_, [&](int i) { at_.basis[i] = sketch.columns == 0 && i / pitch_ == i % pitch_ ? 1 : 0; });
    team_.sync();
    if (small_ < dims_) {
      each(dims_ * small_,
           [&](int i) { at_.basis[row_of(i / small_) + i % small_] = sketch.at(lane_, i / small_, i % small_); });
    } else if (sketch.columns > 0) {
      each(dims_ * pitch_, [&](int i) { at_.factor[i] = 0; });
      for (int c = 0; c < sketch.columns; ++c) {
        team_.sync();
        each(dims_, [&](int d) { at_.column[d] = sketch.at(lane_, d, c); });
        team_.sync();
        each(dims_ * dims_, [&](int i) {
          at_.factor[row_of(i / dims_) + i % dims_] += at_.column[i / dims_] * at_.column[i % dims_];
        });
      }
      team_.sync();
      factorise(at_.factor, 0, at_.basis, dims_, true);
    }
    team_.sync();
  }

  /// The Gram matrix of rows that are multiplied by the basis, in `factor`.
  KVPOLICY_HD void reduce_gram() {
    for (int j = 0; j < small_; ++j) {
      each(dims_, [&](int a) {
        double sum = 0;
        for (int b = 0; b < dims_; ++b) sum += at_.gram[row_of(a) + b] * at_.basis[row_of(b) + j];
        at_.column[a] = sum;
      });
      team_.sync();
      each(small_, [&](int i) {
        double sum = 0;
        for (int a = 0; a < dims_; ++a) sum += at_.basis[row_of(a) + i] * at_.column[a];
        at_.factor[row_of(i) + j] = sum;
      });
      team_.sync();
    }
  }

  /// Writes the lower Cholesky factor of `size` rows of a matrix, to whose diagonal `more` is added. A pivot that is
  /// not above 0 fails, or its column becomes zeros if `singular`: then the product is still the matrix.
  KVPOLICY_HD bool factorise(double const* from, double more, double* to, int size, bool singular) const {
    for (int j = 0; j < size; ++j) {
      double const* const pivots = to + row_of(j);
      each(size - j, [&](int i) {
        double* const row = to + row_of(j + i);
        double sum = from[row_of(j + i) + j] + (i == 0 ? more : 0);
        for (int l = 0; l < j; ++l) sum -= row[l] * pivots[l];
        row[j] = sum;
      });
      team_.sync();
      double const pivot = pivots[j];
      team_.sync();
      if (!(pivot > 0) && !singular) return false;
      double const root = pivot > 0 ? ::sqrt(pivot) : 0;
      each(size - j, [&](int i) {
        double& number = to[row_of(j + i) + j];
        number = i == 0 ? root : root > 0 ? number / root : 0;
      });
      team_.sync();
    }
    return true;
  }

  /// Multiplies the basis by the inverse of the transposed factor: the leverage of a row is the square of its norm
  /// then.
  KVPOLICY_HD void solve(double const* factor) const {
    each(dims_, [&](int d) {
      double* const row = at_.basis + row_of(d);
      for (int c = 0; c < small_; ++c) {
        double const* const of = factor + row_of(c);
        double sum = row[c];
        for (int l = 0; l < c; ++l) sum -= row[l] * of[l];
        row[c] = sum / of[c];
      }
    });
  }

  KVPOLICY_HD void write(int first, float* out) {
    read(first, how_.centre ? at_.mean : nullptr);
    int const left = entries_ - first;
    each(left < leverage_memory::at_once ? left : leverage_memory::at_once, [&](int r) {
      int const e = first + r;
      out[e] = takes(e) ? static_cast<float>(weight_of(e) * square_of(at_.batch + row_of(r)) - less_) : no_score;
    });
  }
  [[nodiscard]] KVPOLICY_HD double square_of(double const* row) const {
    double square = 0;
    for (int c = 0; c < small_; c += leverage_memory::block) {
      double sum[leverage_memory::block] = {};
      int const end =
          how_.sketch.columns > 0 || dims_ < c + leverage_memory::block ? dims_ : c + leverage_memory::block;
      for (int d = 0; d < end; ++d) {  // without a sketch the basis is a lower triangle, transposed
        double const* const basis = at_.basis + row_of(d) + c;
        for (int j = 0; j < leverage_memory::block; ++j) sum[j] += row[d] * basis[j];
      }
      for (int j = 0; j < leverage_memory::block; ++j) square += sum[j] * sum[j];
    }
    return square;
  }

  /// The mean of leverages of rows that differ, as many as the first lane of the layer has.
  [[nodiscard]] KVPOLICY_HD double usual_mean() const {
    lane const first{lane_.sequence, lane_.layer, 0};
    int const count = batch_.committed(first);
    int rows = 0;
    for (int e = 0; e < count; ++e) rows += among_(entry{first, e, count, batch_.position.row(first)[e], 0}) ? 1 : 0;
    int const rank = how_.centre ? rows - 1 : rows;
    return rows > 0 ? static_cast<double>(rank < small_ ? rank : small_) / rows : 0;
  }

  /// Writes NaN for all entries that take part.
  KVPOLICY_HD void fill(float* out) const {
    each(entries_, [&](int e) { out[e] = takes(e) ? same_bits<float>(0x7FC00000u) : no_score; });
  }

  static constexpr float no_score = -std::numeric_limits<float>::infinity();

  Team& team_;
  row_view const& rows_;
  leverage_options const& how_;
  Among const& among_;
  lanes const& batch_;
  int const* position_;
  lane lane_;
  leverage_memory at_;
  int entries_;
  int dims_;
  int pitch_;
  int small_;  ///< columns of the basis
  double less_ = 0;
};

}  // namespace KVPOLICY_NAMESPACE::detail

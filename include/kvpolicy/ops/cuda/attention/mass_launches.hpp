// SPDX-License-Identifier: Apache-2.0
// The launches of a call of attention_mass: the statistics of rows, unless log-sum-exps (LSE) are given, then the
// masses.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/attention/mass_fragments.hpp>
#include <kvpolicy/ops/cuda/attention/mass_of_heads.hpp>
#include <kvpolicy/ops/cuda/attention/mass_rows.hpp>
#include <kvpolicy/ops/cuda/attention/mma.hpp>
#include <limits>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// The arguments of one call, and what follows from them on the host.
class mass_call {
 public:
  /// `name`: of the verb that is called. Refuses keys and rows that a device cannot read.
  mass_call(char const* name, keys const& from, query_view const& rows, attention_mass_options const& how,
            score_view const& out)
      : name_(name), how_(how) {
    check_aligned(name, "keys", from.rows);
    if (rows.rows > 0) check_aligned(name, rows);
    task_.from = from;
    task_.rows = rows;
    task_.scores = out;
    task_.domain = how.domain;
    task_.group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    task_.scale = scale_of(from.logits, from.rows.channels);
    task_.soft_cap = from.logits.soft_cap;
    task_.sinks = from.logits.sinks;
    task_.used = how.used();
    task_.weight = how.weight;
    task_.only_last = how.rows == reduction::last;
    task_.on_logits = how.order == reduction_order::group_on_logits && task_.group > 1;
    task_.group_maximum = how.group == reduction::max;
    if (task_.on_logits && how.group == reduction::mean) task_.logit_weight = 1.0f / static_cast<float>(task_.group);
    task_.rows_apart = how.order == reduction_order::rows_then_group || task_.group == 1;
    bool const whole_domain = how.domain == key_domain::all || (how.domain == key_domain::past && task_.sees_all());
    given_ = rows.lse.data != nullptr && whole_domain && !task_.on_logits;
  }

  [[nodiscard]] char const* name() const { return name_; }
  [[nodiscard]] attention_task const& task() const { return task_; }
  [[nodiscard]] bool sums_are_given() const { return given_; }
  [[nodiscard]] bool heads_first() const { return how_.order == reduction_order::all_heads_then_rows; }

  /// The most rows of a query head that can be used.
  [[nodiscard]] int rows() const {
    if (task_.only_last) return task_.rows.rows < 1 ? 0 : 1;
    int const used = task_.used.most(task_.scores.lanes.capacity);
    return used > 0 && used < task_.rows.rows ? used : task_.rows.rows;
  }
  /// The task for rows [first, first + most) of the used ones. For statistics the heads of a row are neighbours.
  [[nodiscard]] attention_task part(int first, int most, bool rows_apart) const {
    attention_task some = task_;
    some.first_row = first;
    some.most_rows = most;
    some.rows_apart = rows_apart && !some.on_logits;
    return some;
  }

  /// `further`: it adds to the masses of a launch before; `last`: no other launch follows, so that a mean over lanes is
  /// divided now.
  [[nodiscard]] mass_reduction reduction_of(bool further, bool last = true) const {
    int const together = task_.scores.lanes.size() / task_.scores.segments();
    bool const mean_of_group = how_.group == reduction::mean && !task_.on_logits;
    return {.rows_maximum = how_.rows == reduction::max,
            .mean_rows = how_.rows == reduction::mean,
            .divide_by = mean_of_group ? task_.group : 1,
            .lanes_maximum = how_.lanes == reduction::max,
            .lanes_divide_by = how_.lanes == reduction::mean && last ? together : 1,
            .accumulate = how_.accumulate || further};
  }

  /// True if rows may be split into several launches that add to the same masses.
  [[nodiscard]] bool is_additive() const {
    bool const group = task_.on_logits || task_.group == 1 || !task_.group_maximum || !task_.rows_apart;
    if (heads_first()) return true;  // the rows of a launch are complete
    bool const lanes = task_.scores.lanes.size() == task_.scores.segments() || how_.lanes != reduction::max;
    return how_.rows != reduction::max && group && lanes;
  }
  /// True if the mass of an entry is a plain sum of probabilities, which fragment kernels add up in registers.
  [[nodiscard]] bool is_plain_sum() const {
    bool const group = task_.group == 1 || (!task_.group_maximum && !task_.on_logits);
    return how_.rows != reduction::max && group && !(task_.soft_cap > 0) && how_.weight.is_one();
  }
  /// For a call that does not add rows up.
  void check_rows_at_once() const {
    expects(rows() <= sums_storage::most_rows, name_, "queries.rows", rows(),
            [] { return "a device takes " + std::to_string(sums_storage::most_rows) + " rows at once"; });
  }
  void check_rows() const {
    expects(given_ || rows() <= sums_storage::most_rows || is_additive(), name_, "queries.rows", rows(), [] {
      return "a device takes " + std::to_string(sums_storage::most_rows) +
             " rows at once, of more it can add masses up and nothing else, unless their log-sum-exps are given";
    });
  }

 private:
  char const* name_;
  attention_task task_;
  attention_mass_options how_;
  bool given_ = false;
};

/// The kernels of a product: those that have a tile of logits in shared memory, or those that have all in registers.
template <class Product>
struct mass_kernels {
  using storage = sums_storage;
  using sums = sums_kernel<Product>;
  using finalize = finalize_body<sums_storage>;
  using masses = mass_kernel<Product>;
  static constexpr bool packs = false;
};
template <codec Element, int Spans>
struct mass_kernels<fragment_product<Element, Spans>> {
  using storage = sums_storage;
  using sums = fragment_sums_kernel<fragment_product<Element, Spans>>;
  using finalize = finalize_fragments;
  using masses = fragment_mass_kernel<fragment_product<Element, Spans>>;
  static constexpr bool packs = true;  ///< each block packs all rows first
};

/// The scratch of the statistics of rows.
template <class Product = fma_product>
[[nodiscard]] std::size_t bytes_of_sums(int group, lanes const& batch) {
  return typename mass_kernels<Product>::storage(group, batch.capacity, batch.size(), nullptr).bytes(batch.size());
}

/// The launches of one call with one kind of product.
template <class Executor, class Product>
class mass_launches {
 public:
  mass_launches(Executor& exec, mass_call const& call, Product const& product)
      : exec_(exec),
        call_(call),
        product_(product),
        scores_(call.task().scores),
        storage_(call.task().group, scores_.lanes.capacity, scores_.lanes.size(), exec.scratch()) {
    if (computes_sums()) check_scratch(call.name(), exec, storage_.bytes(scores_.lanes.size()));
  }

  void run() { run_with<typename mass_kernels<Product>::masses>(); }
  /// `Masses`: the kernel of masses. With that of all heads before rows, a launch folds its rows into those before.
  template <class Masses>
  void run_with() {
    bool const heads = call_.heads_first();
    int const most = computes_sums() || heads ? sums_storage::most_rows : std::numeric_limits<int>::max();
    for (int first = 0; first == 0 || first < call_.rows(); first += most) {
      if (computes_sums()) sums(first);
      masses<Masses>(call_.part(first, most, call_.task().rows_apart && !heads),
                     call_.reduction_of(first > 0, heads || first + most >= call_.rows()));
    }
  }

  [[nodiscard]] auto const& storage() const { return storage_; }
  /// What is known of rows once their statistics are launched.
  [[nodiscard]] known_sums known() const {
    return {call_.sums_are_given(), mass_kernels<Product>::packs ? log2_of_e : 1.0f, storage_};
  }

  /// Launches another reduction of a part of the rows.
  template <class Reduction>
  void reduce(attention_task const& part, Reduction const& reduction) {
    launch_reduction(exec_, part, product_, reduction, entries_of_piece());
  }

  /// Launches the statistics of up to most_rows rows.
  void sums(int first) {
    int const most = min_op{}(call_.rows() - first, sums_storage::most_rows);
    int const at_once = storage_.rows_of_launch(call_.task().group);
    int const blocks = scores_.lanes.size() * storage_.stretches;
    for (int row = 0; row < most; row += at_once) {
      typename mass_kernels<Product>::sums const kernel{call_.part(first + row, min_op{}(at_once, most - row), false),
                                                        product_, storage_};
      launch_unless_fault(exec_, launch_shape{blocks, threads(), kernel.shared()}, kernel);
      int const slot = row * (call_.task().on_logits ? 1 : call_.task().group);
      launch_each(exec_, std::int64_t{scores_.lanes.size()} * storage_.slots,
                  typename mass_kernels<Product>::finalize{storage_, slot, call_.task()});
    }
  }

 private:
  [[nodiscard]] bool computes_sums() const { return !call_.sums_are_given() && call_.rows() > 0; }
  [[nodiscard]] auto threads() const { return at_most<tile_entries>(exec_.threads().entry); }

  /// The entries of a block: fewer where longer pieces would leave multiprocessors idle.
  [[nodiscard]] int entries_of_piece() const {
    int tiles = whole_tiles(exec_.config().entries_of_a_block) / tile_entries;
    if constexpr (mass_kernels<Product>::packs) return entries_of_waves(4 * tiles * tile_entries);
    auto const blocks = [&] { return scores_.segments() * (scores_.lanes.capacity / (tiles * tile_entries) + 1); };
    while (tiles > 1 && blocks() < 4 * exec_.config().processors) tiles /= 2;
    return tiles * tile_entries;
  }

  template <class Kernel>
  void masses(attention_task const& part, mass_reduction const& how) {
    int const entries = entries_of_piece();
    int const pieces = (scores_.lanes.capacity + entries - 1) / entries;
    Kernel const kernel{{part, known(), how, exec_.faults(), pieces, entries}, product_};
    exec_.launch(launch_shape{scores_.segments() * pieces, threads(), kernel.shared()}, kernel);
  }

  /// As entries_of_piece, for blocks that pack all rows first. A block has some `most` entries, and the blocks fill
  /// the multiprocessors once, or nearly a whole number of times.
  [[nodiscard]] int entries_of_waves(int most) const {
    using kernel = typename mass_kernels<Product>::masses;
    std::int64_t const at_once = std::int64_t{kernel::least_blocks} * exec_.config().processors;
    std::int64_t const segments = scores_.segments() > 0 ? scores_.segments() : 1;
    std::int64_t const most_at_once = at_once * most;
    std::int64_t const waves = (scores_.lanes.capacity * segments + most_at_once - 1) / most_at_once;
    std::int64_t const pieces = at_once * waves / segments;
    std::int64_t const each = pieces > 0 ? (scores_.lanes.capacity + pieces - 1) / pieces : scores_.lanes.capacity;
    return static_cast<int>((each + warp_size - 1) / warp_size * warp_size);
  }

  Executor& exec_;
  mass_call const& call_;
  Product product_;
  score_view const& scores_;
  typename mass_kernels<Product>::storage storage_;
};

}  // namespace KVPOLICY_NAMESPACE::detail

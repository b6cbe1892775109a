// SPDX-License-Identifier: Apache-2.0
// Device implementation of visit_attention: the statistics of rows as for masses, and then a thread for each entry that
// visits its rows in their order.
#pragma once

#include <kvpolicy/ops/cuda/attention_mass.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One block for each piece of a lane. Heads of a row are neighbours in `task`.
template <class Product, class Visit>
struct visit_kernel {
  attention_task task;
  Product product;
  known_sums sums;
  mass_reduction how;
  Visit visit;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  [[nodiscard]] static std::size_t shared(Product const& product) {
    return attention_storage::bytes() + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = task.scores.lanes.at(block.index() / pieces);
    int const begin = block.index() % pieces * entries;
    shared_arena arena(block);
    attention_storage const temp_storage(arena, task.scaled());
    used_rows const used = used_rows_of(block, task, one);
    int const all = used.count * task.group;
    int const end = begin + entries < used.entries ? begin + entries : used.entries;
    block.sync();
    if (begin < end && all > 0) product.prepare(block, task, used, one, arena, all);
    for (int e = begin; e < end && all > 0; e += tile_entries) {
      block.sync();
      temp_storage.take_entries(block, task, used, one, e, end);
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        temp_storage.take_rows(block, task, used, one, base, count, sums);
        product.run(block, task, used, one, temp_storage, arena, base, count);
        block.sync();
        temp_storage.apply_cap(block, task, count);
        reduce_rows(block, task, how, temp_storage, used, base, count, call{*this, temp_storage, used, one, e, base});
      }
    }
  }

 private:
  struct call {
    visit_kernel const& of;
    attention_storage const& temp_storage;
    used_rows const& used;
    lane one;
    int first, base;

    KVPOLICY_HD void operator()(int e, float value, int i) const {
      if (!temp_storage.sees(i, e)) return;
      int const row = used.begin + used.row_of(of.task, base + i);
      float const share = of.how.divide_by > 1 ? 1.0f / static_cast<float>(of.how.divide_by) : 1.0f;
      lanes const& batch = of.task.scores.lanes;
      of.visit(value * share, attention_row{row, of.task.position_of(one, row)},
               entry{one, first + e, used.entries, batch.position.row(one)[first + e], 0});
    }
  };
};

/// The launches of one call.
template <class Executor, class Product>
class visit_launches : mass_launches<Executor, Product> {
 public:
  using mass_launches<Executor, Product>::mass_launches;

  template <class Visit>
  void run(Visit const& visit) {
    for (int first = 0; first < this->call_.rows(); first += sums_storage::most_rows) {
      if (!this->call_.sums_are_given()) this->sums(first);
      int const entries = this->entries_of_piece();
      int const pieces = (this->scores_.lanes.capacity + entries - 1) / entries;
      visit_kernel<Product, Visit> const kernel{this->call_.part(first, sums_storage::most_rows, false),
                                                this->product_,
                                                known_sums{this->call_.sums_are_given(), this->storage_},
                                                this->call_.reduction_of(false),
                                                visit,
                                                pieces,
                                                entries};
      this->exec_.launch(
          launch_shape{this->scores_.segments() * pieces, this->threads(), kernel.shared(this->product_)}, kernel);
    }
  }
};

}  // namespace detail

/// Takes three launches for each 1024 rows, or one with `rows.lse`. It multiplies by multiply-adds: a step has few
/// rows.
template <kernel_backend Backend>
struct implementation<ops::visit_attention_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return implementation<ops::compute_attention_mass_t, Backend>::scratch(model, batch);
  }

  template <class Executor, class Visit>
  static void run(Executor& exec, lanes const& batch, keys const& from, query_view const& rows,
                  visited_attention const& how, Visit const& visit) {
    if (rows.rows == 0) return;
    detail::check_aligned("visit_attention", "keys", from.rows);
    detail::check_aligned("visit_attention", rows);
    score_view const scores{batch};
    detail::mass_call const call(from, rows, ops::visit_attention_t::options(how), scores);
    if (!call.sums_are_given()) {
      int const lanes = batch.size();
      detail::check_scratch("visit_attention", exec,
                            detail::sums_storage(call.task().group, batch.capacity, lanes, nullptr).bytes(lanes));
    }
    detail::fma_product const product{detail::reader_of(from.rows), detail::reader_of(rows),
                                      from.rows.scales.data != nullptr};
    detail::visit_launches<Executor, detail::fma_product>(exec, call, product).run(visit);
  }
};

}  // namespace KVPOLICY_NAMESPACE

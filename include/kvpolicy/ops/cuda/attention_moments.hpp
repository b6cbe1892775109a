// SPDX-License-Identifier: Apache-2.0
// Device implementation of attention_moments: the statistics of rows as for masses, and then a thread for each entry
// that adds up its rows in their order.
#pragma once

#include <kvpolicy/ops/attention_moments.hpp>
#include <kvpolicy/ops/cuda/attention_mass.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One block for each piece of a lane. A lane has one query head.
template <class Product>
struct moments_kernel {
  attention_task task;
  Product product;
  known_sums sums;
  moments_options how;
  moment_rows to;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  [[nodiscard]] static std::size_t shared(Product const& product) {
    return attention_storage::bytes() + 3 * shared_arena::bytes_of_piece<float>(tile_entries) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / pieces;
    lane const one = task.scores.lane_of(segment);
    int const begin = block.index() % pieces * entries;
    shared_arena arena(block);
    attention_storage const temp_storage(arena, task.scaled());
    entry_sums const add{arena.take<float>(tile_entries), arena.take<float>(tile_entries),
                         arena.take<float>(tile_entries)};
    used_rows const used = used_rows_of(block, task, one);
    int const end = begin + entries < used.entries ? begin + entries : used.entries;
    std::int64_t const before = used.count > 0 && !task.sees_all() ? task.position_of(one, used.begin) : no_position;
    block.sync();
    if (begin < end && used.count > 0) product.prepare(block, task, used, one, arena, used.count);
    for (int e = begin; e < end; e += tile_entries) {
      block.sync();
      temp_storage.take_entries(block, task, used, one, e, end);
      for (int k = block.thread(); k < tile_entries; k += block.threads())
        add.sum[k] = add.squares[k] = add.entropy[k] = 0;
      for (int base = 0; base < used.count; base += product.tile()) {
        int const count = used.count - base < product.tile() ? used.count - base : product.tile();
        block.sync();
        temp_storage.take_rows(block, task, used, one, base, count, sums);
        product.run(block, task, used, one, temp_storage, arena, base, count);
        block.sync();
        temp_storage.apply_cap(block, task, count);
        add_rows(block, temp_storage, count, add);
      }
      put(block, segment, one, used, before, e, end, add);
    }
  }

 private:
  /// Sums of a tile's entries.
  struct entry_sums {
    float* sum;
    float* squares;
    float* entropy;
  };

  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, attention_storage const& temp_storage, int count,
                            entry_sums const& add) const {
    for (int e = block.thread(); e < tile_entries; e += block.threads()) {
      for (int i = 0; i < count; ++i) {
        float const p =
            probability(temp_storage, i, e, temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i]);
        add.sum[e] += p;
        add.squares[e] += p * p;
        add.entropy[e] -= p * ::logf(p + 1e-10f);
      }
    }
  }
  template <class Block>
  KVPOLICY_HD void put(Block& block, int segment, lane one, used_rows const& used, std::int64_t before, int first,
                       int end, entry_sums const& add) const {
    entry_moments const write{task.scores.row(segment), to.variance.row(one), to.entropy.row(one), how.gamma,
                              how.accumulate};
    int const* const position = task.scores.lanes.position.row(one);
    for (int k = block.thread(); k < tile_entries && first + k < end; k += block.threads()) {
      bool const is_scored = used.count > 0 && position[first + k] < before;
      write.put(first + k, used.count, is_scored ? add.sum[k] : 0, is_scored ? add.squares[k] : 0);
      write.put_entropy(first + k, is_scored ? add.entropy[k] : 0);
    }
  }
};

/// The launches of one call.
template <class Executor, class Product>
class moments_launches : mass_launches<Executor, Product> {
 public:
  using mass_launches<Executor, Product>::mass_launches;

  void run(moments_options const& how, moment_rows const& to) {
    int const entries = this->entries_of_piece();
    int const pieces = (this->scores_.lanes.capacity + entries - 1) / entries;
    if (this->call_.rows() > 0) this->sums(0);
    moments_kernel<Product> const kernel{this->call_.part(0, sums_storage::most_rows, true),
                                         this->product_,
                                         known_sums{false, this->storage_},
                                         how,
                                         to,
                                         pieces,
                                         entries};
    this->exec_.launch(launch_shape{this->scores_.segments() * pieces, this->threads(), kernel.shared(this->product_)},
                       kernel);
  }
};

}  // namespace detail

/// Takes three launches. It takes up to 1024 rows.
template <kernel_backend Backend>
struct implementation<ops::attention_moments_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return implementation<ops::compute_attention_mass_t, Backend>::scratch(model, batch);
  }

  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view const& rows, moments_options const& how,
                  moment_rows const& to, score_view const& out) {
    detail::check_aligned("attention_moments", "keys", from.rows);
    if (rows.rows > 0) detail::check_aligned("attention_moments", rows);
    int const group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    keys const those = detail::keys_of_head(from, group, how.head);
    query_view const some = detail::rows_of_head(rows, group, how.head);
    detail::mass_call const call(those, some, {.last_rows = how.last_rows}, out);
    expects(call.rows() <= detail::sums_storage::most_rows, "attention_moments", "queries.rows", call.rows(),
            [] { return "a device takes " + std::to_string(detail::sums_storage::most_rows) + " rows at once"; });
    if (out.segments() == 0) return;
    if (call.rows() > 0) {
      int const lanes = out.lanes.size();
      detail::check_scratch("attention_moments", exec,
                            detail::sums_storage(1, out.lanes.capacity, lanes, nullptr).bytes(lanes));
    }
    detail::fma_product const product{detail::reader_of(from.rows), detail::reader_of(some),
                                      from.rows.scales.data != nullptr};
    detail::moments_launches<Executor, detail::fma_product>(exec, call, product).run(how, to);
  }
};

}  // namespace KVPOLICY_NAMESPACE

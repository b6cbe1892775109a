// SPDX-License-Identifier: Apache-2.0
// Device implementation of attention_mass. One kind of launch computes the softmax statistics of each row (its maximum
// and the sum of its weights), unless the caller gives log-sum-exps (LSE). Another kind adds the probabilities to
// masses.
#pragma once

#include <kvpolicy/ops/cuda/attention/mass_launches.hpp>

namespace KVPOLICY_NAMESPACE {

/// Where all heads come before rows, masses take a launch for each 1024 rows, and multiply-adds. Else two launches
/// compute the statistics of up to 256 rows of a lane's heads; one launch computes the masses of up to
/// 1024 rows of a query head. Where `rows.lse` is given, there is one launch in all.
///
/// Every mass has the same bits whatever the launch numbers. More than 1024 rows of a query head are accepted only
/// where the masses of rows add up, or with `rows.lse`. Scratch: 8 bytes for each lane, stretch of 1024 entries (64 at
/// most) and each of 256 rows, and 8 bytes for each of 1024 rows of a lane's query heads.
template <kernel_backend Backend>
struct implementation<ops::compute_attention_mass_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return detail::bytes_of_sums(model.group(), batch);
  }

  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
                  score_view const& out) {
    detail::check_aligned("compute_attention_mass", "keys", from.rows);
    if (rows.rows > 0) detail::check_aligned("compute_attention_mass", rows);
    detail::mass_call const call(from, rows, how, out);
    call.check_rows();
    if (out.segments() == 0) return;
    if (!call.sums_are_given() && call.rows() > 0) {
      detail::check_scratch("compute_attention_mass", exec, detail::bytes_of_sums(call.task().group, out.lanes));
    }
    detail::fma_product const plain = detail::fma_product::of(from.rows, rows);
    if (call.heads_first()) return detail::mass_launches(exec, call, plain).run_heads_first();
    if (rows.rows > 0 && call.is_plain_sum()) {
      bool const done = run_fragments<codec::bf16>(exec, call) || run_fragments<codec::f16>(exec, call) ||
                        run_fragments<codec::f32>(exec, call);
      if (done) return;
    }
    if (rows.rows > 0 && detail::mma_product::takes(from.rows)) {
      detail::mass_launches(exec, call, tensor_product(exec.config(), call)).run();
    } else {
      detail::mass_launches(exec, call, plain).run();
    }
  }

 private:
  /// Runs the call if a product of fragments takes its keys.
  template <codec Element, class Executor>
  static bool run_fragments(Executor& exec, detail::mass_call const& call) {
    return run_fragments_of<detail::fragment_product<Element, 2>>(exec, call) ||
           run_fragments_of<detail::fragment_product<Element, 4>>(exec, call);
  }
  template <class Product, class Executor>
  static bool run_fragments_of(Executor& exec, detail::mass_call const& call) {
    detail::attention_task const& task = call.task();
    if (!Product::takes(task.from.rows)) return false;
    std::size_t const shared = static_cast<std::size_t>(shared_of(exec.config()));
    detail::mass_launches(exec, call, Product::of(task.from.rows, task.rows, rows_at_once(call), shared)).run();
    return true;
  }

  static detail::mma_product tensor_product(launch_config const& numbers, detail::mass_call const& call) {
    int const group = call.task().group;
    int const slots = group > detail::sums_storage::slots_of_launch ? group : detail::sums_storage::slots_of_launch;
    std::size_t const others =
        sizeof(detail::attention_storage) + static_cast<std::size_t>(slots) * sizeof(detail::running_sum) + 64;
    return detail::mma_product::of(call.task().from.rows, call.task().rows, rows_at_once(call),
                                   static_cast<std::size_t>(shared_of(numbers)) - others);
  }

  /// The rows of a lane that one launch handles at most, of all heads.
  static int rows_at_once(detail::mass_call const& call) {
    return detail::at_most<detail::sums_storage::most_rows>(call.rows()) * call.task().group;
  }
  /// Shared memory of which two blocks fit on a multiprocessor that has at least 96 KiB of it.
  static int shared_of(launch_config const& numbers) {
    return numbers.shared_bytes < 96 * 1024 ? numbers.shared_bytes : numbers.shared_bytes / 2;
  }
};

}  // namespace KVPOLICY_NAMESPACE

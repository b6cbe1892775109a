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
    detail::mass_call const call("compute_attention_mass", from, rows, how, out);
    call.check_rows();
    if (out.segments() == 0) return;
    using detail::fma_product;
    if (call.heads_first()) {
      detail::mass_launches launches(exec, call, fma_product::of(from.rows, rows));
      return launches.template run_with<detail::heads_kernel<fma_product>>();
    }
    bool const fragments = rows.rows > 0 && call.is_plain_sum() &&
                           run_fragments<codec::bf16, codec::f16, codec::f32>(exec, call, shared_of(exec.config()));
    if (fragments) return;
    if (rows.rows > 0 && detail::mma_product::takes(from.rows)) {
      int const slots = detail::max_op{}(call.task().group, detail::sums_storage::slots_of_launch);
      std::size_t const others = detail::shared_of_reduction<detail::lane_masses>() +
                                 static_cast<std::size_t>(slots) * sizeof(detail::running_sum) + 64;
      run_by<detail::mma_product>(exec, call, shared_of(exec.config()) - others);
    } else {
      detail::mass_launches(exec, call, fma_product::of(from.rows, rows)).run();
    }
  }

 private:
  /// Runs the call if a product of fragments takes its keys.
  template <codec... Elements, class Executor>
  static bool run_fragments(Executor& exec, detail::mass_call const& call, std::size_t shared) {
    return ((run_by<detail::fragment_product<Elements, 2>>(exec, call, shared) ||
             run_by<detail::fragment_product<Elements, 4>>(exec, call, shared)) ||
            ...);
  }
  template <class Product, class Executor>
  static bool run_by(Executor& exec, detail::mass_call const& call, std::size_t shared) {
    detail::attention_task const& task = call.task();
    if (!Product::takes(task.from.rows)) return false;
    int const rows_at_once = detail::at_most<detail::sums_storage::most_rows>(call.rows()) * task.group;
    detail::mass_launches(exec, call, Product::of(task.from.rows, task.rows, rows_at_once, shared)).run();
    return true;
  }

  /// Shared memory of which two blocks fit on a multiprocessor that has at least 96 KiB of it.
  static std::size_t shared_of(launch_config const& numbers) {
    return static_cast<std::size_t>(numbers.shared_bytes < 96 * 1024 ? numbers.shared_bytes : numbers.shared_bytes / 2);
  }
};

}  // namespace KVPOLICY_NAMESPACE

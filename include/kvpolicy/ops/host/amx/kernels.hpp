// SPDX-License-Identifier: Apache-2.0
// The table of the kernels of a processor with AMX.
#pragma once

#include <kvpolicy/ops/host/amx/products.hpp>
#include <kvpolicy/ops/host/amx/sweeps.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(__x86_64__)

/// The kernels of a processor with AMX.
template <int Rows>
struct amx_blocks {
  static constexpr amx_shapes shapes{};

  [[gnu::target(KVPOLICY_AMX)]] static void begin() { _tile_loadconfig(&shapes); }
  [[gnu::target(KVPOLICY_AMX)]] static void end() { _tile_release(); }

  static constexpr block_products kernels = [] {
    block_products made = avx512_bf16::logits_of_pairs[Rows];
    made.set(product_kernel::tiles_f16, amx_products<Rows, codec::f16, 3>::all);
    made.set(product_kernel::tiles_bf16, amx_products<Rows, codec::bf16, 1>::all);
    made.set(product_kernel::tiles_bf16_parts, amx_products<Rows, codec::bf16, 3>::all);
    if constexpr (Rows == most_rows) made.sweep_bf16 = amx_sweeps::run;
    made.pack_tiles = amx_rows::pack;
    made.begin_tiles = begin;
    made.end_tiles = end;
    return made;
  }();
};
inline constexpr logits_kernels logits_of_amx{avx512_bf16::logits_of_pairs.few, amx_blocks<16>::kernels,
                                              amx_blocks<most_rows>::kernels};

#endif

}  // namespace KVPOLICY_NAMESPACE::detail

// Host implementation of fill_row.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <kvpolicy/ops/fill_row.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fill_row_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, cache const& in, place at, float key, float value) {
    for (int layer = 0; layer < in.shape.layers; ++layer) {
      for (int head = 0; head < in.shape.kv_heads; ++head) {
        fill(in.k, layer, at, head, key);
        if (!detail::is_latent(in)) fill(in.v, layer, at, head, value);
      }
    }
  }

 private:
  static void fill(plane const& rows, int layer, place at, int head, float value) {
    std::byte* const row = rows.row(layer, at, head);
    for (int d = 0; d < rows.dims; ++d) store(rows.element, value, row + d * rows.dim);
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif

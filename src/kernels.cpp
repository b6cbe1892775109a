// SPDX-License-Identifier: Apache-2.0
// The kernels of the host, which programs that define KVPOLICY_COMPILED_KERNELS only declare. Their tables are defined
// in the headers; a list of their addresses makes the compiler write each of them down here. The library
// kvpolicy::compiled is built from this file, and so are programs of tests.
#include <kvpolicy/ops/host/kernels/bounds.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/gates.hpp>
#include <kvpolicy/ops/host/kernels/listing.hpp>
#include <kvpolicy/ops/host/kernels/lowest.hpp>
#include <kvpolicy/ops/host/kernels/norms.hpp>
#include <kvpolicy/ops/host/kernels/pool.hpp>
#include <kvpolicy/ops/host/kernels/products.hpp>
#include <kvpolicy/ops/host/kernels/residual.hpp>
#include <kvpolicy/ops/host/kernels/rope.hpp>
#include <kvpolicy/ops/host/kernels/row_pools.hpp>
#include <kvpolicy/ops/host/kernels/row_sums.hpp>
#include <kvpolicy/ops/host/kernels/select.hpp>
#include <kvpolicy/ops/host/kernels/slots.hpp>
#include <kvpolicy/ops/host/kernels/softmax.hpp>
#include <kvpolicy/ops/host/kernels/spread.hpp>
#include <kvpolicy/ops/host/kernels/transpose.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE::detail {

[[gnu::used]] auto const kernels_of_the_host = std::tuple{
    &bounds_of_isa, &element_rows_of_isa, &gates_of_isa,    &listing_of_isa, &logits_of_isa,    &lowest_of_isa,
    &norms_of_isa,  &pool_of_isa,         &residual_of_isa, &rope_of_isa,    &row_pools_of_isa, &row_sums_of_isa,
    &select_of_isa, &slots_of_isa,        &softmax_of_isa,  &spread_of_isa,  &transpose_of_isa,
};

}  // namespace KVPOLICY_NAMESPACE::detail

// SPDX-License-Identifier: Apache-2.0
// One suite for all engines: planes find what the engine finds, appliers leave what the engine looks for.

#include "engines/histories.hpp"

namespace {

using namespace kvpolicy_test;

/// Every element of the view is the element that the engine's index arithmetic finds.
template <class Mock>
void finds_what_the_engine_finds() {
  bool const may_be_opaque =
      Mock::engine::can.opaque[0] != '\0' && !std::same_as<typename Mock::engine, engines::llama_cpp>;
  pool_options how = any_pool<Mock>(may_be_opaque && *rc::gen::inRange(0, 4) == 0);
  how.rows = Mock::engine::can.tables;
  RC_LOG() << how << '\n';
  Mock pool(how);
  kv::cache const view = pool.view();
  kv::detail::check_cache("view", view);
  std::size_t elements = 0;
  for (std::size_t i = 0; i < pool.lane_count(); ++i) {
    kv::lane const this_lane = pool.lane_at(i);
    for (int ordinal = 0; ordinal < pool.how.bound; ++ordinal) {
      RC_ASSERT(view.where.at(this_lane, ordinal) ==
                (kv::place{pool.table_entry(this_lane, ordinal / pool.page()), ordinal % pool.page()}));
    }
    if (this_lane.sequence != 0) continue;
    for (of const side : {of::keys, of::values}) {
      kv::plane const& rows = side == of::keys ? view.k : view.v;
      RC_ASSERT(rows.channels == pool.dims(side));
      for (int unit = 0; unit < pool.units(); ++unit) {
        for (int token = 0; token < pool.page(); ++token) {
          for (int d = 0; d < rows.channels; ++d, ++elements) {
            std::byte const* const found =
                rows.row(this_lane.layer, {unit, token}, this_lane.head) + d * rows.channel_stride;
            RC_ASSERT(found == pool.element(side, this_lane, unit, token, d));
            RC_ASSERT(pool.inside(found) >= 0);
          }
        }
      }
    }
  }
  std::size_t bytes = 0;
  for (auto const& tensor : pool.memory()) bytes += tensor.size() - 128;
  RC_ASSERT(bytes == elements * as_size(kv::bytes_of(pool.how.element)));
}

/// Appends and evictions, some times over; then every token is where the engine looks for it.
template <class Mock, applier By>
void survives(bool opaque) {
  pool_options const how = any_pool<Mock>(opaque);
  int const budget = *rc::gen::inRange(1, 9);
  RC_LOG() << how << ", budget " << budget << '\n';
  history<Mock, By> run(how, budget);
  for (int round = 0; round < 3; ++round) {
    int const together = *rc::gen::inRange(0, 8);
    for (int s = 0; s < how.sequences; ++s) run.append(s, std::min(together, run.room(s)));
    run.check();
    run.evict();
    run.check();
  }
}

template <class Mock, applier By>
void applier_of_engine() {
  using engine = typename Mock::engine;
  if constexpr (engines::supports(engine::can, By)) {
    char const* const name = engines::names(By)[as_size(By)];
    INFO(engine::can.name, " by ", name);
    holds("tokens survive where the engine looks", 40, [] { survives<Mock, By>(false); });
    if constexpr (By != applier::compact_rerotated && !std::same_as<engine, engines::llama_cpp>) {
      holds("opaque rows survive", 10, [] { survives<Mock, By>(true); });
    }
  }
}

template <class Mock>
void all_appliers() {
  applier_of_engine<Mock, applier::compact>();
  applier_of_engine<Mock, applier::compact_rerotated>();
  applier_of_engine<Mock, applier::list_rewrite>();
  applier_of_engine<Mock, applier::dead_slot>();
  applier_of_engine<Mock, applier::mask>();
  applier_of_engine<Mock, applier::overwrite>();
  applier_of_engine<Mock, applier::drop_blocks>();
}

}  // namespace

TYPE_TO_STRING(llama_mock<engines::llama_cpp>);
TYPE_TO_STRING(llama_mock<engines::llama_cpp_flash>);
TYPE_TO_STRING(sglang_mock);
TYPE_TO_STRING(vllm_mock);
TYPE_TO_STRING(tensorrt_mock);
TYPE_TO_STRING(flashinfer_mock<engines::flashinfer>);
TYPE_TO_STRING(flashinfer_mock<engines::flashinfer_heads>);
TYPE_TO_STRING(openvino_mock);

TEST_SUITE("engines") {
  TEST_CASE_TEMPLATE("a view finds every element that the engine finds, and no other", Mock,
                     llama_mock<engines::llama_cpp>, llama_mock<engines::llama_cpp_flash>, sglang_mock, vllm_mock,
                     tensorrt_mock, flashinfer_mock<engines::flashinfer>, flashinfer_mock<engines::flashinfer_heads>,
                     openvino_mock) {
    holds("elements and places", 40, [] { finds_what_the_engine_finds<Mock>(); });
  }

  TEST_CASE_TEMPLATE("after evictions and appends the engine finds every token that was kept", Mock,
                     llama_mock<engines::llama_cpp>, llama_mock<engines::llama_cpp_flash>, sglang_mock, vllm_mock,
                     tensorrt_mock, flashinfer_mock<engines::flashinfer>, flashinfer_mock<engines::flashinfer_heads>,
                     openvino_mock) {
    all_appliers<Mock>();
  }
}

// SPDX-License-Identifier: Apache-2.0
// attention_mass: every option, layout, element type and instruction set, against softmax written out in double.
#include <kvpolicy/kvpolicy.hpp>
#include <sstream>

#include "fuzz/bytes.hpp"
#include "reference/methods.hpp"
#include "support/mock_batch.hpp"
#include "support/scores.hpp"

namespace {

using namespace kvpolicy_fuzz;
using namespace kvpolicy_test;

kv::attention_mass_options any_options(bytes& from) {
  kv::attention_mass_options how;
  how.domain = from.one_of({kv::key_domain::all, kv::key_domain::past});
  how.rows = static_cast<kv::reduction>(from.below(4));
  how.group = static_cast<kv::reduction>(from.below(3));
  how.lanes = static_cast<kv::reduction>(from.below(3));
  how.order = static_cast<kv::reduction_order>(from.below(3));
  how.last_rows = from.one_of({0, 0, 1, 2, 15, 17, 100});
  how.accumulate = from.coin();
  return how;
}

reference::mass_options plain(kv::attention_mass_options const& how) {
  return {static_cast<reference::key_domain>(how.domain), static_cast<reference::reduction>(how.rows),
          static_cast<reference::reduction>(how.group), static_cast<reference::reduction_order>(how.order)};
}

/// The log-sum-exp of every stored row of every query head, as an attention kernel would have left it.
std::vector<float> row_lse(mock_cache& cache, mock_queries& queries, int capacity) {
  int const heads = cache.model().query_heads;
  int const layers = cache.model().layers;
  auto const all = static_cast<std::size_t>(cache.options().sequences * layers * heads * capacity);
  std::vector<float> made(all, 123.0f);
  for (int i = 0; i < cache.lane_count(); ++i) {
    kv::lane const this_lane = cache.lane_at(i);
    auto const lane = reference_lane(cache, queries, this_lane);
    auto const logits = reference::attention_logits(lane);
    auto const visible = reference::visibility(lane, reference::key_domain::all);
    for (int h = 0; h < cache.model().group(); ++h) {
      for (std::size_t r = 0; r < lane.query_positions.size(); ++r) {
        double sum = 0;
        auto const& row = logits[static_cast<std::size_t>(h)][r];
        for (std::size_t e = 0; e < row.size(); ++e) sum += visible[r][e] ? std::exp(row[e]) : 0.0;
        int const stored = queries.view().stored(this_lane, static_cast<int>(r));
        int const query_head = this_lane.head * cache.model().group() + h;
        int const at = ((this_lane.sequence * layers + this_lane.layer) * heads + query_head) * capacity + stored;
        made[static_cast<std::size_t>(at)] = static_cast<float>(std::log(sum));
      }
    }
  }
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bytes from(data, size);
  kv::host_executor exec(1, any_isa(from));
  kv::attention_mass_options how = any_options(from);
  auto const decides = how.accumulate ? kv::granularity::lane : static_cast<kv::granularity>(from.below(3));
  bool const give_lse = from.coin();
  int const rows_wished = from.one_of({1, 2, 3, 0, 15, 16, 17, 33});
  int const spare = from.one_of({0, 0, 1, 4});
  auto const element = from.one_of({kv::codec::f32, kv::codec::f16, kv::codec::bf16});
  int const content_of = from.below(3);
  bool const drafts = from.coin();
  mock_options shape = any_mock(from);
  shape.shared_entries = decides != kv::granularity::lane;
  // What infinite or missing numbers come to is a promise about rows whose LSE is not given.
  shape.rows = content_of == 0 ? content::smooth : content_of == 1 || give_lse ? content::few : content::troubled;
  mock_cache cache(shape);
  fill(cache, drafts);
  int const rows = std::min(rows_wished, shape.bound + 10);
  mock_queries queries(cache, element, rows, rows + spare);
  fill(queries, cache, shape.rows);
  auto const before = cache.save();

  kv::query_view view = queries.view();
  std::vector<float> lse;
  if (give_lse && rows > 0) {
    lse = row_lse(cache, queries, rows + spare);
    int const heads = shape.model.query_heads;
    view.lse = {lse.data(), std::int64_t{shape.model.layers} * heads * (rows + spare),
                std::int64_t{heads} * (rows + spare), rows + spare};
  }
  exec.reserve(kv::implementation<kv::ops::compute_attention_mass_t, kv::host>::scratch(cache.model(), shape.bound));
  owned_scores out(cache.lanes(), decides);
  kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), view, how, out.view());

  int const together = cache.lane_count() / out.view().segments();
  for (int s = 0; s < out.view().segments(); ++s) {
    reference::matrix masses;
    std::size_t const count = static_cast<std::size_t>(cache.committed(out.view().lane_of(s)));
    for (int i = s * together; i < (s + 1) * together; ++i) {
      auto lane = reference_lane(cache, queries, cache.lane_at(i));
      if (how.last_rows > 0) lane = reference::last_rows(lane, how.last_rows);
      masses.push_back(reference::attention_mass(lane, plain(how)));
    }
    auto expected = reference::reduced(masses, static_cast<reference::reduction>(how.lanes), count);
    if (how.accumulate) {
      expected = masses.front();
      for (double& each : expected) each += 0.5;  // what was in the row before
    }
    expected.resize(static_cast<std::size_t>(out.stride()), 0.5);
    std::ostringstream text;
    comparison const result = compare(out.row(s, out.stride()), expected);
    text << "mass of segment " << s << " is the reference's: " << result << "; " << shape;
    require(result.same, text.str());
  }
  require(cache.save() == before, "the cache is only read");
  return 0;
}

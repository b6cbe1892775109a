// SPDX-License-Identifier: Apache-2.0
// visit_attention against the reference's rows, on the host and on the emulated device.

#include "reference/methods.hpp"
#include "support/device.hpp"
#include "support/masses.hpp"

namespace visit_attention_test {

using namespace kvpolicy_test;

/// What a visit was told: the probability of each row and entry of each lane, and the last row that each entry saw.
struct told {
  told(mock_cache& of, int rows)
      : lanes(of.lanes()),
        width(rows),
        values(as_size(of.lane_count() * rows * of.options().bound), -1.0f),
        last(as_size(of.lane_count() * of.options().bound), -1) {}
  [[nodiscard]] float& at(kv::lane one, int row, int e) {
    return values[as_size((lanes.index(one) * width + row) * lanes.capacity + e)];
  }
  kv::lanes lanes;
  int width;
  std::vector<float> values;
  std::vector<int> last;
};

struct note {
  told* to;
  KVPOLICY_HD void operator()(float p, kv::attention_row const& row, kv::entry const& at) const {
    int& before = to->last[as_size(to->lanes.index(at.lane) * to->lanes.capacity + at.ordinal)];
    bool const right = row.index > before && at.position == to->lanes.position.row(at.lane)[at.ordinal] &&
                       at.position <= row.position && to->at(at.lane, row.index, at.ordinal) == -1.0f;
    before = row.index;
    to->at(at.lane, row.index, at.ordinal) = right ? p : std::nanf("");
  }
};

template <class Executor>
told visited(Executor& exec, mock_cache& cache, kv::query_view const& rows, kv::visited_attention const& how) {
  reserve_for<kv::ops::visit_attention_t>(exec, cache);
  told made(cache, std::max(rows.rows, 1));
  kv::ops::visit_attention(exec, cache.lanes(), kv::keys_of(cache.view()), rows, how, note{&made});
  if constexpr (requires { exec.check(); }) exec.check();
  return made;
}

TEST_SUITE("device/visit_attention") {
  TEST_CASE("every row is visited in its order with the reference's probabilities, and no other") {
    holds("visit_attention == reference", 60, [] {
      current_case of({1, 2, 0, 9, 33});
      auto& [shape, cache, rows, queries] = of;
      kv::visited_attention const how{*rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max),
                                      *rc::gen::element(0, 0, 1, 5)};
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, shape.seed);
      told on_host = visited(host, cache, queries.view(), how), on_device = visited(device, cache, queries.view(), how);
      for (kv::lane const one : lanes_of(cache)) {
        auto const lane = reference_lane(cache, queries, one);
        reference::matrix const expected = reference::rows_of_group(lane, static_cast<reference::reduction>(how.group));
        int const all = static_cast<int>(expected.size());
        int const first = how.last_rows > 0 ? std::max(0, all - how.last_rows) : 0;
        for (int r = 0; r < on_host.width; ++r) {
          for (int e = 0; e < shape.bound; ++e) {
            bool const seen = r >= first && r < all && e < cache.committed(one) &&
                              lane.key_positions[as_size(e)] <= lane.query_positions[as_size(r)];
            double const right = seen ? expected[as_size(r)][as_size(e)] : -1;
            RC_ASSERT(std::fabs(static_cast<double>(on_host.at(one, r, e)) - right) < 2e-5);
            RC_ASSERT(std::fabs(static_cast<double>(on_device.at(one, r, e)) - right) < 2e-5);
          }
        }
      }
    });
  }
}

}  // namespace visit_attention_test

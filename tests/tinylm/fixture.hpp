// SPDX-License-Identifier: Apache-2.0
// What the tests of the model share: the exported weights, and texts to read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "tinylm/session.hpp"

namespace tinylm_test {

namespace kv = kvpolicy;

/// The folder of the exported weights. Programs that run far from their sources are told another one.
inline std::string weights_file(std::string const& name) {
  char const* const told = std::getenv("KVPOLICY_TINYLM_WEIGHTS");
  return (told != nullptr ? std::string(told) : TINYLM_WEIGHTS_DIR) + "/" + name;
}

/// The exported model, loaded once, with two threads and a pool that is large enough for every test.
struct fixture {
  kv::host_executor exec{2};
  tinylm::model lm{tinylm::read_weights(weights_file("weights.safetensors"))};
  tinylm::kv_pool pool{lm.about().shape(), 4096};

  static fixture& get() {
    static fixture one;
    return one;
  }
};

struct golden {
  std::vector<std::uint8_t> text;
  std::vector<float> logits;  ///< [text][256]

  explicit golden(std::string const& name) {
    tinylm::safetensors const file(weights_file("golden.safetensors"));
    auto const& shape = file.tensors().at(name + ".ids").shape;
    auto const ids = file.bytes(name + ".ids", "U8", shape);
    for (std::byte const one : ids) text.push_back(static_cast<std::uint8_t>(one));
    logits = file.floats(name + ".logits", {shape.at(0), 256});
  }
};

inline double furthest(std::span<float const> a, std::span<float const> b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return worst;
}

/// All logits of a text that is read in chunks.
template <class Policy>
std::vector<float> logits_of(std::span<std::uint8_t const> text, Policy const& policy,
                             tinylm::session_options const& options) {
  fixture& with = fixture::get();
  tinylm::session<Policy> reader(with.lm, with.exec, with.pool, policy, options);
  std::vector<float> all;
  reader.prefill(text, [&](int, std::span<float const> rows) { all.insert(all.end(), rows.begin(), rows.end()); });
  return all;
}

/// The positions that every lane still holds.
inline std::vector<std::vector<int>> positions_of(kv::cache const& cache) {
  std::vector<std::vector<int>> all;
  for (int i = 0; i < cache.lanes.size(); ++i) {
    int const* const row = cache.lanes.position.row(cache.lanes.at(i));
    all.emplace_back(row, row + *cache.lanes.count.row(cache.lanes.at(i)));
  }
  return all;
}

}  // namespace tinylm_test

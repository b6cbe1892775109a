// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <ostream>

namespace kvpolicy_test {

namespace kv = kvpolicy;

/// How an engine's planes lie in memory. N tokens, H heads, D channels; packed: K and V in turn; one_pool: pages that
/// any lane may hold, found through a table for each lane; latent: values are the first channels of the keys' rows, and
/// latent_view: there is a plane of values inside of those rows.
enum class arrangement { nhd, hnd, transposed_v, packed_rows, packed_units, reversed, one_pool, latent, latent_view };

/// Which rows of fp8 have a scale of their own. Scales of tokens are a further plane, which moves with the rows.
enum class scaling { none, tensor, head, token };

/// What the rows hold: anything, few distinct values (ties), some NaN and infinities, or numbers which tell lane and
/// position and which every element type holds exactly.
enum class content { smooth, few, troubled, fingerprint };

struct mock_options {
  kv::shape model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4};
  int sequences = 1;
  int bound = 16;
  kv::codec element = kv::codec::f32;
  arrangement memory = arrangement::nhd;
  kv::locating where = kv::locating::identity;
  bool shared_table = true;     ///< one table row for all lanes of a sequence, or one for each lane
  bool shared_entries = false;  ///< one count and one row of positions for all lanes of a sequence
  int page = 4;
  scaling scales = scaling::none;
  int padding = 0;  ///< bytes behind every row
  int skew = 0;     ///< bytes by which the planes start beside their natural alignment
  content rows = content::smooth;
  std::uint64_t seed = 1;
};

inline std::ostream& operator<<(std::ostream& out, mock_options const& how) {
  char const* const memory[] = {"nhd",      "hnd",      "transposed_v", "packed_rows", "packed_units",
                                "reversed", "one_pool", "latent",       "latent_view"};
  char const* const scales[] = {"", ", a scale", ", a scale a head", ", a scale a token"};
  char const* const where[] = {"identity", "slot_map", "block_table", "ring"};
  char const* const rows[] = {"smooth", "few", "troubled", "fingerprint"};
  return out << how.sequences << " sequences, " << how.model.layers << " layers, " << how.model.query_heads << "/"
             << how.model.kv_heads << " heads, D " << how.model.head_dim << ", Dv " << how.model.value_dim << ", bound "
             << how.bound << ", " << kv::name_of(how.element) << scales[static_cast<int>(how.scales)] << ", "
             << memory[static_cast<int>(how.memory)] << ", " << where[static_cast<int>(how.where)]
             << (how.shared_table ? ", shared table" : ", a table a lane") << ", page " << how.page << ", padding "
             << how.padding << ", skew " << how.skew << ", " << rows[static_cast<int>(how.rows)] << ", seed "
             << how.seed;
}

/// Inside a property: any shape, memory layout, locator and element type. Wide heads come in small batches.
inline mock_options any_mock(int most_lanes = 12) {
  auto const one_of = [](auto... each) { return *rc::gen::element(each...); };
  mock_options how;
  how.model.head_dim = one_of(4, 4, 4, 1, 5, 16, 33, 64, 80, 128, 256);
  int const lanes = how.model.head_dim >= 64 ? 3 : most_lanes;
  how.sequences = *rc::gen::inRange(1, 4);
  how.model.layers = *rc::gen::inRange(1, 4);
  how.model.kv_heads = *rc::gen::inRange(1, 4);
  if (how.sequences * how.model.kv_heads > lanes) how.sequences = 1;
  if (how.sequences * how.model.kv_heads * how.model.layers > lanes) how.model.layers = 1;
  how.model.query_heads = how.model.kv_heads * (how.model.head_dim >= 64 ? one_of(1, 2) : one_of(1, 1, 4, 8));
  how.bound = one_of(40, 1, 31, 32, 33, 34);
  how.element = one_of(kv::codec::f32, kv::codec::f32, kv::codec::f16, kv::codec::f16, kv::codec::bf16, kv::codec::bf16,
                       kv::codec::e4m3, kv::codec::e5m2);
  if (kv::is_fp8(how.element)) how.scales = one_of(scaling::none, scaling::tensor, scaling::head, scaling::token);
  how.memory = one_of(arrangement::nhd, arrangement::hnd, arrangement::transposed_v, arrangement::packed_rows,
                      arrangement::packed_units, arrangement::reversed, arrangement::one_pool, arrangement::latent,
                      arrangement::latent_view);
  bool const packed = how.memory == arrangement::packed_rows || how.memory == arrangement::packed_units;
  how.model.value_dim = packed ? one_of(0, how.model.head_dim) : one_of(0, 3);
  bool const latent = how.memory == arrangement::latent || how.memory == arrangement::latent_view;
  if (latent) how.model.value_dim = how.model.head_dim - how.model.head_dim / 4;
  how.where = one_of(kv::locating::identity, kv::locating::slot_map, kv::locating::block_table, kv::locating::ring);
  how.shared_table = *rc::gen::arbitrary<bool>();
  if (how.memory == arrangement::one_pool) {
    how.shared_table = false;
    if (how.where != kv::locating::slot_map) how.where = kv::locating::block_table;
  }
  how.page = one_of(4, 16);
  how.padding = one_of(0, 0, 12);
  how.skew = one_of(0, 0, 0, 2);
#if defined(KVPOLICY_TEST_ON_DEVICE)
  how.skew = 0;  // a device reads elements where they are aligned
#endif
  how.seed = *rc::gen::inRange<std::uint64_t>(0, 1u << 20);
  return how;
}

}  // namespace kvpolicy_test

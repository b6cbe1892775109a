// SPDX-License-Identifier: Apache-2.0
// The attention of a chunk's queries over a layer's live entries, lane by lane, through the block table.
#pragma once

#include <cstdint>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/mask_rows.hpp>
#include <span>
#include <vector>

namespace tinylm {

namespace kv = kvpolicy;

/// The post-RoPE queries of one or several forwards: floats [layer][query head][row][D], and the position of each row.
/// They stay until `clear`, so that a policy may observe layer by layer or all layers at once. Made for a model of
/// fewer layers, the memory of a layer is that of later ones, too: one layer's is enough for a forward.
class query_rows {
 public:
  query_rows(kv::shape const& model, int capacity) : model_(model), capacity_(capacity) {
    kv::expects(capacity >= 1, "query_rows", "capacity", capacity, "a forward brings at least one row");
    values_.resize(index(model.layers - 1, model.query_heads, 0));
  }

  [[nodiscard]] int rows() const { return static_cast<int>(position_.size()); }
  [[nodiscard]] int capacity() const { return capacity_; }
  void clear() { position_.clear(); }

  /// Adds `rows` rows for the positions from `position` on, and returns the index of the first. The caller writes their
  /// values.
  int add(int position, int rows) {
    int const first = this->rows();
    kv::expects(rows <= capacity_ - first, "query_rows", "rows", rows,
                "there is room for " + std::to_string(capacity_ - first));
    position_.reserve(static_cast<std::size_t>(capacity_));
    for (int r = 0; r < rows; ++r) position_.push_back(position + r);
    return first;
  }

  [[nodiscard]] float* row(int layer, int head, int row) { return values_.data() + index(layer, head, row); }
  [[nodiscard]] float const* row(int layer, int head, int row) const {
    return values_.data() + index(layer, head, row);
  }

  /// All rows as a signal.
  [[nodiscard]] kv::queries signal() const { return signal(0, rows()); }

  /// The rows [first, first + rows) as a signal: those of one sequence, if a forward had several.
  [[nodiscard]] kv::queries signal(int first, int rows) const {
    auto const bytes = [&](int layer, int head, int row) {
      return static_cast<std::int64_t>(index(layer, head, row) * sizeof(float));
    };
    kv::queries all{};
    all.base = reinterpret_cast<std::byte const*>(values_.data()) + bytes(0, 0, first);
    all.dims = model_.head_dim;
    all.layer = bytes(1, 0, 0);
    all.head = bytes(0, 1, 0);
    all.row = bytes(0, 0, 1);
    all.heads = model_.query_heads;
    all.rows = rows;
    all.position = {position_.data() + first, 0, 0, 0};
    return all;
  }

 private:
  [[nodiscard]] std::size_t index(int layer, int head, int row) const {
    auto const size = [](int n) { return static_cast<std::size_t>(n); };
    return ((size(layer % model_.layers) * size(model_.query_heads) + size(head)) * size(capacity_) + size(row)) *
           size(model_.head_dim);
  }

  kv::shape model_;
  int capacity_;
  std::vector<float> values_;
  std::vector<int> position_;
};

/// The mask of a policy that admits: a row sees the last `window` positions, its own included, and all admitted
/// entries.
struct vertical_slash {
  kv::by_lane<std::uint8_t const> admitted{};  ///< one row for each lane, with one byte for each entry
  int window = 0;
};

/// The arguments of the attention of one sequence.
struct attention_call {
  kv::cache const& entries;
  query_rows const& queries;
  int sequence = 0;  ///< the index of the sequence in `entries`
  int layer = 0;
  int first = 0;  ///< rows [first, first + rows) attend
  int rows = 0;
  int seen_first = 0;                        ///< position of the first of them
  kv::by_lane<std::uint8_t const> hidden{};  ///< one row for each lane, one byte for each position: not 0 hides it. For
                                             ///< tests
  kv::mask_rows const* mask = nullptr;       ///< an additive f32 mask over units; null: no mask
  vertical_slash const* slash = nullptr;     ///< null: a row sees all entries up to its own
  float* out = nullptr;                      ///< [rows][query head][D]
};

/// Computes softmax(q k / sqrt(D)) v. A row sees the entries of its lane at positions up to its own. `scratch` has one
/// vector for each worker. The workers share the rows of all calls.
void attend(kv::host_executor& exec, std::span<attention_call const> calls, std::vector<std::vector<float>>& scratch);

}  // namespace tinylm

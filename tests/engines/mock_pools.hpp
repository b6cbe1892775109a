// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

#include "support/test.hpp"

namespace kvpolicy_test {

namespace engines = kvpolicy::engines;

struct pool_options {
  int layers = 2, heads = 2, dims = 4, value_dims = 4;
  int sequences = 2;
  int bound = 24;
  int page = 4;  ///< where the engine has pages
  kv::codec element = kv::codec::f32;
  int variant = 0;                                   ///< of engines that have several layouts
  kv::granularity rows = kv::granularity::sequence;  ///< what a row of the table stands for
  bool one_owner_a_cell = true;                      ///< false: lanes mask cells that the engine fills for all of them
  int rotated = 0;                                   ///< by how many rows of the table sequences stand beside their own
  std::uint64_t seed = 1;
};

inline std::ostream& operator<<(std::ostream& out, pool_options const& how) {
  return out << how.layers << " layers, " << how.heads << " heads, D " << how.dims << ", Dv " << how.value_dims << ", "
             << how.sequences << " sequences, page " << how.page << ", " << kv::name_of(how.element) << ", variant "
             << how.variant << ", seed " << how.seed;
}

/// What all mock pools have: tensors with guard bytes around, a table of units, counts and positions of every lane.
/// Unit 0 is nobody's. A pool adds how its engine finds an element: index arithmetic written out, in elements.
class mock_pool {
 public:
  static constexpr int variants = 1;
  static constexpr bool packed = false;
  static constexpr bool paged = false;

  mock_pool(pool_options const& options, int page)
      : how(options), page_(page), random_(options.seed), units_(1 + how.sequences * pages() + random_.below(4)) {
    count_.assign(lane_count(), 0);
    drafts_.assign(as_size(how.sequences), 0);
    position_.assign(lane_count() * as_size(how.bound), -1);
    make_table();
  }
  mock_pool(mock_pool const&) = delete;
  mock_pool& operator=(mock_pool const&) = delete;

  pool_options const how;

  [[nodiscard]] kv::shape model() const {
    return {how.layers, 2 * how.heads, how.heads, how.dims, how.value_dims == how.dims ? 0 : how.value_dims};
  }
  [[nodiscard]] int page() const { return page_; }
  [[nodiscard]] int units() const { return units_; }
  [[nodiscard]] int pages() const { return (how.bound + page_ - 1) / page_; }
  [[nodiscard]] int dims(of side) const { return side == of::keys ? how.dims : how.value_dims; }
  [[nodiscard]] std::size_t lane_count() const { return as_size(how.sequences * how.layers * how.heads); }
  [[nodiscard]] kv::lane lane_at(std::size_t i) const {
    int const n = static_cast<int>(i);
    return {n / how.heads / how.layers, n / how.heads % how.layers, n % how.heads};
  }
  [[nodiscard]] std::size_t index(kv::lane this_lane) const {
    return as_size((this_lane.sequence * how.layers + this_lane.layer) * how.heads + this_lane.head);
  }

  [[nodiscard]] kv::lanes lanes() {
    return lanes_over(count_, position_, how.sequences, how.layers, how.heads, how.bound, drafts_.data());
  }

  /// A by-lane table with a row of `width` for each of what `how.rows` names.
  template <class T>
  [[nodiscard]] kv::by_lane<T> rows_of(std::vector<T>& memory, int width) const {
    std::int64_t const head = how.rows == kv::granularity::lane ? width : 0;
    std::int64_t const layer = how.rows == kv::granularity::sequence ? 0 : head != 0 ? head * how.heads : width;
    std::int64_t const sequence = layer != 0 ? layer * how.layers : width;
    return {memory.data(), sequence, layer, head};
  }
  [[nodiscard]] std::size_t row_count() const {
    std::size_t const s = as_size(how.sequences), l = as_size(how.layers);
    if (how.rows == kv::granularity::sequence) return s;
    return how.rows == kv::granularity::layer ? s * l : lane_count();
  }
  /// The row of a lane in tables that `rows_of` describes.
  [[nodiscard]] std::size_t row(kv::lane this_lane) const {
    if (how.rows == kv::granularity::sequence) return as_size(this_lane.sequence);
    if (how.rows == kv::granularity::layer) return as_size(this_lane.sequence * how.layers + this_lane.layer);
    return index(this_lane);
  }
  [[nodiscard]] kv::by_lane<int> table() { return rows_of(table_, pages()); }
  [[nodiscard]] int& table_entry(kv::lane this_lane, int i) {
    this_lane.sequence = (this_lane.sequence + how.rotated) % how.sequences;
    return table_[row(this_lane) * as_size(pages()) + as_size(i)];
  }
  [[nodiscard]] int count(kv::lane this_lane) const { return count_[index(this_lane)]; }
  [[nodiscard]] int position(kv::lane this_lane, int ordinal) const {
    return position_[index(this_lane) * as_size(how.bound) + as_size(ordinal)];
  }

  /// True if nothing was written outside the tensors.
  [[nodiscard]] bool guards_hold() const {
    for (auto const& each : tensors_) {
      for (std::size_t i = 0; i < guard; ++i) {
        if (each[i] != fence || each[each.size() - 1 - i] != fence) return false;
      }
    }
    return true;
  }
  /// Offset of an address in the tensor that holds it; -1 if none does.
  [[nodiscard]] std::ptrdiff_t inside(std::byte const* at) const {
    for (auto const& each : tensors_) {
      std::byte const* const begin = each.data() + guard;
      if (at >= begin && at < each.data() + each.size() - guard) return at - begin;
    }
    return -1;
  }
  [[nodiscard]] std::vector<std::vector<std::byte>> const& memory() const { return tensors_; }

 protected:
  static constexpr std::size_t guard = 64;
  static constexpr std::byte fence{0xA5};

  /// A tensor of so many elements; returns where it begins.
  std::byte* allocate(std::int64_t elements) {
    auto const bytes = as_size(elements * kv::bytes_of(how.element));
    tensors_.emplace_back(bytes + 2 * guard, fence);
    return tensors_.back().data() + guard;
  }
  [[nodiscard]] std::byte* at(std::byte* base, std::int64_t element) const {
    return base + element * kv::bytes_of(how.element);
  }

  /// A tensor of keys and one of values for each layer, of so many rows.
  void allocate_layers(std::int64_t rows) {
    for (int l = 0; l < how.layers; ++l) {
      k.push_back(allocate(rows * how.dims));
      v.push_back(allocate(rows * how.value_dims));
    }
  }
  [[nodiscard]] std::byte* of_layer(of side, kv::lane this_lane) const {
    return (side == of::keys ? k : v)[as_size(this_lane.layer)];
  }

  std::vector<std::byte*> k, v;  ///< of each layer, where the engine has tensors for each

 private:
  void make_table() {
    table_.assign(row_count() * as_size(pages()), 0);
    std::vector<int> order;
    for (int l = 0; l < how.layers; ++l) {
      for (int h = 0; h < how.heads; ++h) {
        if (order.empty() || how.one_owner_a_cell) order = random_.permutation(units_ - 1);
        for (int s = 0; s < how.sequences; ++s) {
          for (int i = 0; i < pages(); ++i) {
            table_entry({s, l, h}, i) = 1 + order[as_size(s * pages() + i)];
          }
        }
      }
    }
  }

  int page_;
  dice random_;
  int units_;
  std::vector<std::vector<std::byte>> tensors_;
  std::vector<int> table_, count_, position_, drafts_;
};

template <class Engine>
struct llama_mock : mock_pool {
  using engine = Engine;
  explicit llama_mock(pool_options const& options) : mock_pool(options, 1) {
    allocate_layers(std::int64_t{units()} * how.heads);
  }
  kv::cache view() {
    engine const pool{.shape = model(),
                      .k = k.data(),
                      .v = v.data(),
                      .type_k = how.element,
                      .type_v = how.element,
                      .k_row_bytes = how.dims,
                      .v_row_bytes = how.value_dims,
                      .kv_size = units(),
                      .cells = {table().data, table().sequence, table().layer, table().head}};
    return pool.view(lanes());
  }
  std::byte* element(of side, kv::lane this_lane, int cell, int, int d) {
    bool const transposed = side == of::values && std::same_as<Engine, engines::llama_cpp>;
    std::int64_t const element = transposed ? std::int64_t{this_lane.head * how.value_dims + d} * units() + cell
                                            : std::int64_t{cell * how.heads + this_lane.head} * dims(side) + d;
    return at(of_layer(side, this_lane), element);
  }
};

struct sglang_mock : mock_pool {
  using engine = engines::sglang;
  static constexpr int variants = 2;  ///< rows of requests in turn, or wherever the request pool has put them
  explicit sglang_mock(pool_options options) : mock_pool((options.rotated = options.variant, options), 1) {
    allocate_layers(std::int64_t{units()} * how.heads);
    for (int s = 0; s < how.sequences; ++s) first.push_back((s + how.rotated) % how.sequences * pages());
  }
  kv::cache view() {
    engine const pool{.shape = model(),
                      .k_buffer = k.data(),
                      .v_buffer = v.data(),
                      .element = how.element,
                      .row_bytes = how.dims,
                      .size = units() - 1,
                      .list = table().data,
                      .list_stride = pages(),
                      .first = how.variant == 1 ? first.data() : nullptr};
    return pool.view(lanes());
  }
  std::byte* element(of side, kv::lane this_lane, int slot, int, int d) {
    return at(of_layer(side, this_lane), std::int64_t{slot * how.heads + this_lane.head} * dims(side) + d);
  }
  std::vector<int> first;
};

struct vllm_mock : mock_pool {
  using engine = engines::vllm;
  static constexpr int variants = 10;
  static constexpr bool packed = true;
  static constexpr bool paged = true;
  static constexpr std::array orders{engine::flash_attention, engine::flash_infer_nhd, engine::flash_infer_hnd,
                                     engine::packed_lbhn,     engine::packed_lbnh,     engine::packed_lhbn,
                                     engine::packed_blhn,     engine::packed_blnh,     engine::packed_bhln,
                                     engine::cpu_keys};
  explicit vllm_mock(pool_options const& options) : mock_pool(options, options.page) {
    std::int64_t const layer = 2LL * units() * page() * how.heads * how.dims;
    std::int64_t const heads = how.variant == 9 ? 1 : how.heads;
    std::int64_t const side = how.variant == 0 ? layer / 2 : page() * heads * how.dims;
    if (how.variant >= 3 && how.variant < 9) {
      base = allocate(layer * how.layers);
      return;
    }
    for (int l = 0; l < how.layers; ++l) {
      k.push_back(allocate(layer));
      v.push_back(at(k.back(), side));
    }
  }
  kv::cache view() {
    engine const pool{.shape = model(),
                      .order = orders[as_size(how.variant)],
                      .value_order = how.variant == 9 ? engine::cpu_values : std::string_view{},
                      .base = base,
                      .k = k.empty() ? nullptr : k.data(),
                      .v = v.empty() ? nullptr : v.data(),
                      .element = how.element,
                      .row_bytes = how.dims,
                      .num_blocks = units(),
                      .block_size = page(),
                      .block_table = table().data,
                      .max_blocks = pages()};
    return pool.view(lanes());
  }
  std::byte* element(of side, kv::lane this_lane, int block, int token, int d) {
    std::int64_t const s = side == of::values ? 1 : 0, b = block, n = token, h = this_lane.head, l = this_lane.layer;
    std::int64_t const B = units(), N = page(), H = how.heads, D = how.dims, L = how.layers;
    std::int64_t const elements[] = {(((s * B + b) * N + n) * H + h) * D + d,
                                     (((b * 2 + s) * N + n) * H + h) * D + d,
                                     (((b * 2 + s) * H + h) * N + n) * D + d,
                                     ((((l * B + b) * H + h) * N + n) * 2 + s) * D + d,
                                     ((((l * B + b) * N + n) * H + h) * 2 + s) * D + d,
                                     ((((l * H + h) * B + b) * N + n) * 2 + s) * D + d,
                                     ((((b * L + l) * H + h) * N + n) * 2 + s) * D + d,
                                     ((((b * L + l) * N + n) * H + h) * 2 + s) * D + d,
                                     ((((b * H + h) * L + l) * N + n) * 2 + s) * D + d,
                                     ((b * H + h) * 2 + s) * N * D + (side == of::keys ? d * N + n : n * D + d)};
    return at(k.empty() ? base : of_layer(of::keys, this_lane), elements[how.variant]);
  }
  std::byte* base = nullptr;
};

struct tensorrt_mock : mock_pool {
  using engine = engines::tensorrt_llm;
  static constexpr bool packed = true;
  static constexpr bool paged = true;
  explicit tensorrt_mock(pool_options const& options) : mock_pool(options, options.page) {
    pool = allocate(2LL * units() * how.layers * how.heads * page() * how.dims);
  }
  kv::cache view() {
    engine const described{.shape = model(),
                           .pool = pool,
                           .element = how.element,
                           .row_bytes = how.dims,
                           .max_blocks = units(),
                           .tokens_per_block = page(),
                           .block_ids = table().data,
                           .max_blocks_per_sequence = pages()};
    return described.view(lanes());
  }
  std::byte* element(of side, kv::lane this_lane, int block, int token, int d) {
    std::int64_t const half = (std::int64_t{block} * how.layers + this_lane.layer) * 2 + (side == of::values ? 1 : 0);
    return at(pool, ((half * how.heads + this_lane.head) * page() + token) * how.dims + d);
  }
  std::byte* pool = nullptr;
};

/// Variants: NHD and HND, keys and values apart and together.
template <class Engine>
struct flashinfer_mock : mock_pool {
  using engine = Engine;
  static constexpr int variants = 4;
  static constexpr bool packed = true;
  static constexpr bool paged = true;
  explicit flashinfer_mock(pool_options const& options) : mock_pool(options, options.page) {
    std::int64_t const rows = std::int64_t{units()} * page() * how.heads;
    for (int l = 0; l < how.layers; ++l) {
      k.push_back(allocate(rows * how.dims * (together() ? 2 : 1)));
      v.push_back(together() ? at(k.back(), std::int64_t{page()} * how.heads * how.dims) : allocate(rows * how.dims));
    }
  }
  kv::cache view() {
    auto const by = hnd() ? engines::page_strides::hnd(page(), how.heads, how.dims, together())
                          : engines::page_strides::nhd(page(), how.heads, how.dims, together());
    engine const pool{.shape = model(),
                      .k_data = k.data(),
                      .v_data = v.data(),
                      .element = how.element,
                      .row_bytes = how.dims,
                      .k_strides = by,
                      .v_strides = by,
                      .pages = units(),
                      .page_size = page(),
                      .table = {table().data, table().sequence, table().layer, table().head}};
    return pool.view(lanes());
  }
  std::byte* element(of side, kv::lane this_lane, int p, int token, int d) {
    std::int64_t const h = this_lane.head, n = token, H = how.heads, N = page();
    std::int64_t const in_page = hnd() ? h * N + n : n * H + h;
    if (!together()) return at(of_layer(side, this_lane), (p * N * H + in_page) * how.dims + d);
    std::int64_t const half = p * 2 + (side == of::values ? 1 : 0);
    return at(of_layer(of::keys, this_lane), (half * N * H + in_page) * how.dims + d);
  }
  [[nodiscard]] bool hnd() const { return how.variant % 2 == 1; }
  [[nodiscard]] bool together() const { return how.variant >= 2; }
};

struct openvino_mock : mock_pool {
  using engine = engines::openvino;
  static constexpr bool paged = true;
  explicit openvino_mock(pool_options const& options) : mock_pool(options, options.page) {
    allocate_layers(std::int64_t{units()} * how.heads * page());
  }
  kv::cache view() {
    engine const pool{.shape = model(),
                      .k = k.data(),
                      .v = v.data(),
                      .element = how.element,
                      .row_bytes = how.dims,
                      .num_blocks = units(),
                      .block_size = page(),
                      .block_tables = {table().data, table().sequence, table().layer, 0}};
    return pool.view(lanes());
  }
  std::byte* element(of side, kv::lane this_lane, int block, int token, int d) {
    return at(of_layer(side, this_lane),
              ((std::int64_t{block} * how.heads + this_lane.head) * page() + token) * dims(side) + d);
  }
};

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <utility>

#include "reference/basics.hpp"
#include "support/dice.hpp"
#include "support/elements.hpp"
#include "support/mock_options.hpp"

namespace kvpolicy_test {

namespace reference = kvpolicy_reference;

enum class of { keys, values };

/// An engine's cache: its memory with guard bytes around it, tables, counts, positions. It finds its rows by arithmetic
/// of its own, and holds nothing until `fill` or `put`.
class mock_cache {
 public:
  explicit mock_cache(mock_options const& how) : options_(how), dice_(how.seed) {
    if (!kv::is_fp8(how.element)) options_.scales = scaling::none;
    lay_out();
    make_tables();
    make_scales();
    int const rows = how.shared_entries ? how.sequences : lane_count();
    count_.assign(as_size(rows), 0);
    position_.assign(as_size(rows) * as_size(how.bound), -1);
    in_flight_.assign(as_size(how.sequences), 0);
  }
  mock_cache(mock_cache const&) = delete;
  mock_cache& operator=(mock_cache const&) = delete;

  [[nodiscard]] mock_options const& options() const { return options_; }
  [[nodiscard]] kv::shape const& model() const { return options_.model; }
  [[nodiscard]] int value_dim() const { return model().value_dim != 0 ? model().value_dim : model().head_dim; }
  [[nodiscard]] int lane_count() const { return options_.sequences * model().layers * model().kv_heads; }
  [[nodiscard]] kv::lane lane_at(int i) const {
    return {i / model().kv_heads / model().layers, i / model().kv_heads % model().layers, i % model().kv_heads};
  }
  [[nodiscard]] int index(kv::lane this_lane) const {
    return (this_lane.sequence * model().layers + this_lane.layer) * model().kv_heads + this_lane.head;
  }
  dice& random() { return dice_; }

  // --- What the library sees -----------------------------------------------------------------------------------------

  [[nodiscard]] kv::lanes lanes() {
    auto const shared = options_.shared_entries;
    std::int64_t const head = shared ? 0 : 1;
    std::int64_t const layer = head * model().kv_heads;
    std::int64_t const sequence = shared ? 1 : layer * model().layers;
    std::int64_t const n = options_.bound;
    return {.sequences = options_.sequences,
            .layer_begin = 0,
            .layer_end = model().layers,
            .heads = model().kv_heads,
            .capacity = options_.bound,
            .count = {count_.data(), sequence, layer, head},
            .position = {position_.data(), sequence * n, layer * n, head * n},
            .in_flight = in_flight_.data()};
  }

  [[nodiscard]] kv::locator where() const {
    std::int64_t const head = options_.shared_table ? 0 : table_row_;
    std::int64_t const layer = head * model().kv_heads;
    std::int64_t const sequence = options_.shared_table ? table_row_ : layer * model().layers;
    kv::by_lane<int const> const table{table_.empty() ? nullptr : table_.data(), sequence, layer, head};
    switch (options_.where) {
      case kv::locating::slot_map:
        return kv::slot_map(table, units_);
      case kv::locating::block_table:
        return kv::block_table(table, unit_tokens_, units_);
      case kv::locating::ring:
        return {kv::locating::ring, table, unit_tokens_, units_};
      default:
        return kv::identity_map(unit_tokens_, options_.sequences);
    }
  }

  [[nodiscard]] kv::cache view() {
    bool const keys_only = options_.memory == arrangement::latent;
    kv::cache made{model(), lanes(), plane(of::keys), keys_only ? kv::plane{} : plane(of::values), where()};
    if (options_.scales != scaling::token) return made;
    planes_of_scales_ = {scales_plane(key_scale_), scales_plane(value_scale_)};
    made.more = {planes_of_scales_.data(), latent() ? 1u : 2u};
    return made;
  }

  // --- What the test sees --------------------------------------------------------------------------------------------

  [[nodiscard]] int& count(kv::lane this_lane) { return count_[entries_row(this_lane)]; }
  [[nodiscard]] int drafts(int sequence) const { return in_flight_[as_size(sequence)]; }
  [[nodiscard]] int committed(kv::lane this_lane) { return count(this_lane) - drafts(this_lane.sequence); }
  [[nodiscard]] int position(kv::lane this_lane, int ordinal) const {
    return position_[entries_row(this_lane) * as_size(options_.bound) + as_size(ordinal)];
  }
  /// Positions of the first `count` entries.
  [[nodiscard]] std::vector<int> positions(kv::lane this_lane, int count) const {
    std::vector<int> all;
    for (int e = 0; e < count; ++e) all.push_back(position(this_lane, e));
    return all;
  }

  /// The address of one element of an entry's row.
  [[nodiscard]] std::byte* element(of plane, kv::lane this_lane, int ordinal, int dim) {
    strides const& by = plane == of::keys ? key_ : value_;
    auto const [unit, token] = place_of(this_lane, ordinal);
    return memory_.data() + by.base + this_lane.layer * by.layer + unit * by.unit + token * by.token +
           this_lane.head * by.head + dim * by.dim;
  }
  /// The numbers of an entry's row: its elements, each times the row's scale.
  [[nodiscard]] reference::row row(of plane, kv::lane this_lane, int ordinal) {
    reference::row values;
    int const dims = plane == of::keys ? model().head_dim : value_dim();
    for (int d = 0; d < dims; ++d) {
      auto const stored = static_cast<float>(decoded(options_.element, element(plane, this_lane, ordinal, d)));
      values.push_back(static_cast<double>(stored * scale(plane, this_lane, ordinal)));
    }
    return values;
  }
  /// Writes a row. The values of a latent cache are in its keys' rows, and are not written.
  void write(of plane, kv::lane this_lane, int ordinal, reference::row const& values) {
    if (latent() && plane == of::values) return;
    if (options_.scales == scaling::token) {
      scale(plane, this_lane, ordinal) = one_scale(index(this_lane) + 5 * ordinal + (plane == of::keys ? 0 : 1));
    }
    for (std::size_t d = 0; d < values.size(); ++d) {
      double const stored = values[d] / static_cast<double>(scale(plane, this_lane, ordinal));
      encode(options_.element, stored, element(plane, this_lane, ordinal, static_cast<int>(d)));
    }
  }
  [[nodiscard]] bool latent() const {
    return options_.memory == arrangement::latent || options_.memory == arrangement::latent_view;
  }
  /// What the elements of an entry's row are multiplied by.
  [[nodiscard]] float& scale(of plane, kv::lane this_lane, int ordinal) {
    std::vector<float>& all = plane == of::keys || latent() ? key_scale_ : value_scale_;
    return all[scale_index(this_lane, ordinal)];
  }
  [[nodiscard]] std::size_t scale_index(kv::lane this_lane, int ordinal) const {
    kv::element_scales const by = scales();
    auto const [unit, token] = place_of(this_lane, ordinal);
    return as_size(this_lane.layer * by.layer + unit * by.unit + token * by.token + this_lane.head * by.head);
  }
  [[nodiscard]] reference::matrix rows(of plane, kv::lane this_lane, int count) {
    reference::matrix all;
    for (int e = 0; e < count; ++e) all.push_back(row(plane, this_lane, e));
    return all;
  }

  /// The row of lane and position in a cache of fingerprints.
  [[nodiscard]] reference::row fingerprint(of plane, kv::lane this_lane, int position) const {
    reference::row values;
    int const dims = plane == of::keys ? model().head_dim : value_dim();
    if (latent()) plane = of::keys;
    dice from(options_.seed * 1000003u + static_cast<std::uint64_t>(index(this_lane)) * 7919u +
              static_cast<std::uint64_t>(position) * 2u + (plane == of::keys ? 1u : 0u));
    int const most = kv::is_fp8(options_.element) ? 4 : 128;
    for (int d = 0; d < dims; ++d) values.push_back(from.between(-most, most) / 64.0);
    return values;
  }

  /// Replaces the entries of a lane: their positions, and rows of the cache's content.
  void put(kv::lane this_lane, std::vector<int> const& positions) {
    count(this_lane) = static_cast<int>(positions.size());
    for (std::size_t e = 0; e < positions.size(); ++e) {
      position_[entries_row(this_lane) * as_size(options_.bound) + e] = positions[e];
      write_new_row(this_lane, static_cast<int>(e), positions[e]);
    }
  }
  /// What an engine does before it appends: writes the rows of one entry behind the last.
  void write_new_row(kv::lane this_lane, int ordinal, int position) {
    for (of const plane : {of::keys, of::values}) write(plane, this_lane, ordinal, new_row(plane, this_lane, position));
  }
  void set_drafts(int sequence, int drafts) { in_flight_[as_size(sequence)] = drafts; }

  /// Everything that a library call could have changed, to compare byte for byte.
  struct snapshot {
    std::vector<std::byte> memory;
    std::vector<int> table, count, position, in_flight;
    std::vector<float> key_scale, value_scale;
    friend bool operator==(snapshot const&, snapshot const&) = default;
  };
  [[nodiscard]] snapshot save() const {
    return {memory_, table_, count_, position_, in_flight_, key_scale_, value_scale_};
  }
  [[nodiscard]] std::ptrdiff_t offset_of(std::byte const* at) const { return at - memory_.data(); }

 private:
  struct strides {
    std::int64_t base = 0, layer = 0, unit = 0, token = 0, head = 0, dim = 0;
  };
  static constexpr std::int64_t guard = 64;

  void lay_out();
  void make_tables();
  [[nodiscard]] reference::row new_row(of plane, kv::lane this_lane, int position);

  [[nodiscard]] kv::plane plane(of which) {
    strides const& by = which == of::keys ? key_ : value_;
    int const dims = which == of::keys ? model().head_dim : value_dim();
    kv::plane made{memory_.data() + by.base, options_.element, dims, by.layer, by.unit, by.token, by.head, by.dim};
    if (options_.scales == scaling::none) return made;
    made.scales = scales();
    made.scales.data = which == of::keys || latent() ? key_scale_.data() : value_scale_.data();
    return made;
  }
  /// The strides of scales.
  [[nodiscard]] kv::element_scales scales() const {
    if (options_.scales == scaling::none || options_.scales == scaling::tensor) return {};
    std::int64_t const of_head = options_.scales == scaling::token ? std::int64_t{units_} * unit_tokens_ : 1;
    std::int64_t const pool = options_.memory == arrangement::one_pool ? 0 : 1;
    std::int64_t const tokens = options_.scales == scaling::token ? 1 : 0;
    return {.layer = pool * of_head * model().kv_heads,
            .unit = tokens * unit_tokens_,
            .token = tokens,
            .head = pool * of_head};
  }
  [[nodiscard]] kv::plane scales_plane(std::vector<float>& of) const {
    kv::element_scales const by = scales();
    return {reinterpret_cast<std::byte*>(of.data()),
            kv::codec::f32,
            1,
            4 * by.layer,
            4 * by.unit,
            4 * by.token,
            4 * by.head,
            4};
  }
  /// Fingerprints are held exactly with powers of two only.
  [[nodiscard]] float one_scale(int i) const {
    float const some[] = {0.25f, 1.0f, options_.rows == content::fingerprint ? 0.5f : 0.3f};
    return some[i % 3];
  }
  void make_scales() {
    auto const rows = as_size(units_) * as_size(unit_tokens_);
    std::size_t const all = rows * as_size(model().layers * model().kv_heads);
    for (std::vector<float>* const each : {&key_scale_, &value_scale_}) {
      each->assign(all, 1.0f);
      for (std::size_t i = 0; i < all && options_.scales != scaling::none; ++i) {
        (*each)[i] = one_scale(static_cast<int>(i) + (each == &key_scale_ ? 0 : 1));
      }
    }
  }
  [[nodiscard]] std::size_t entries_row(kv::lane this_lane) const {
    return as_size(options_.shared_entries ? this_lane.sequence : index(this_lane));
  }
  [[nodiscard]] std::pair<int, int> place_of(kv::lane this_lane, int ordinal) const {
    auto const row = as_size((options_.shared_table ? this_lane.sequence : index(this_lane)) * table_row_);
    auto const entry = [&](int i) { return table_[row + as_size(i)]; };
    switch (options_.where) {
      case kv::locating::slot_map:
        return {entry(ordinal), 0};
      case kv::locating::block_table:
        return {entry(ordinal / unit_tokens_), ordinal % unit_tokens_};
      case kv::locating::ring:
        return {this_lane.sequence, (entry(0) + ordinal) % unit_tokens_};
      default:
        return {this_lane.sequence, ordinal};
    }
  }

  mock_options options_;
  dice dice_;
  int unit_tokens_ = 1;
  int units_ = 1;
  int table_row_ = 0;
  strides key_;
  strides value_;
  std::vector<std::byte> memory_;
  std::vector<int> table_, count_, position_, in_flight_;
  std::vector<float> key_scale_, value_scale_;
  std::array<kv::plane, 2> planes_of_scales_{};
};

inline void mock_cache::lay_out() {
  bool const direct = options_.where == kv::locating::identity || options_.where == kv::locating::ring;
  int const pages = (options_.bound + options_.page - 1) / options_.page;
  if (direct) unit_tokens_ = options_.bound + dice_.below(3);
  if (options_.where == kv::locating::block_table) unit_tokens_ = options_.page;
  units_ = options_.sequences * (direct ? 1 : options_.where == kv::locating::slot_map ? options_.bound : pages);
  bool const one_pool = options_.memory == arrangement::one_pool;
  if (one_pool) units_ *= model().layers * model().kv_heads;
  if (!direct) units_ += dice_.below(5);

  std::int64_t const w = kv::bytes_of(options_.element);
  std::int64_t const tokens = unit_tokens_, units = units_, heads = one_pool ? 1 : model().kv_heads;
  std::int64_t const layers = one_pool ? 1 : model().layers;
  auto const nhd = [&](std::int64_t row, std::int64_t every) {
    return strides{
        0, units * tokens * heads * row * every, tokens * heads * row * every, heads * row * every, row * every, w};
  };
  std::int64_t const k_row = model().head_dim * w + options_.padding;
  std::int64_t const v_row = value_dim() * w + options_.padding;
  key_ = nhd(k_row, 1);
  value_ = nhd(v_row, 1);
  if (options_.memory == arrangement::hnd) {
    key_ = {0, units * heads * tokens * k_row, heads * tokens * k_row, k_row, tokens * k_row, w};
    value_ = {0, units * heads * tokens * v_row, heads * tokens * v_row, v_row, tokens * v_row, w};
  }
  if (options_.memory == arrangement::transposed_v) {
    std::int64_t const channel = tokens * w + options_.padding;
    value_ = {0,      units * heads * value_dim() * channel, heads * value_dim() * channel, w, value_dim() * channel,
              channel};
  }
  std::int64_t const k_bytes = layers * key_.layer;
  std::int64_t const v_bytes = layers * value_.layer;
  key_.base = guard + options_.skew;
  value_.base = key_.base + k_bytes + guard;
  bool const packable = k_row == v_row;
  if (options_.memory == arrangement::packed_rows && packable) {
    key_ = value_ = nhd(k_row, 2);
    key_.base = guard + options_.skew;
    value_.base = key_.base + k_row;
  }
  if (options_.memory == arrangement::packed_units && packable) {
    key_.unit = value_.unit = 2 * key_.unit;
    key_.layer = value_.layer = units * key_.unit;
    value_.base = key_.base + tokens * heads * k_row;
  }
  if (options_.memory == arrangement::reversed) {
    for (strides* each : {&key_, &value_}) {
      each->base += (layers - 1) * each->layer + (tokens - 1) * each->token;
      each->layer = -each->layer;
      each->token = -each->token;
    }
  }
  if (latent()) value_ = key_;
  if (one_pool) key_.layer = key_.head = value_.layer = value_.head = 0;
  memory_.assign(as_size(k_bytes + v_bytes + 3 * guard + options_.skew), std::byte{0xA5});
}

inline void mock_cache::make_tables() {
  if (options_.where == kv::locating::identity) return;
  bool const ring = options_.where == kv::locating::ring;
  int const pages = (options_.bound + options_.page - 1) / options_.page;
  table_row_ = ring ? 1 : options_.where == kv::locating::slot_map ? options_.bound : pages;
  int const lanes = options_.shared_table ? 1 : model().layers * model().kv_heads;
  table_.assign(as_size(options_.sequences * lanes * table_row_), 0);
  bool const one_pool = options_.memory == arrangement::one_pool;
  std::vector<int> places;
  for (int lane = 0; lane < lanes; ++lane) {
    if (lane == 0 || !one_pool)
      places = dice_.permutation(units_);  // no two sequences, of a pool no two lanes, share any
    int const first = one_pool ? lane * options_.sequences * table_row_ : 0;
    for (int s = 0; s < options_.sequences; ++s) {
      for (int i = 0; i < table_row_; ++i) {
        table_[as_size((s * lanes + lane) * table_row_ + i)] =
            ring ? dice_.below(unit_tokens_) : places[as_size(first + s * table_row_ + i)];
      }
    }
  }
}

inline reference::row mock_cache::new_row(of plane, kv::lane this_lane, int position) {
  if (options_.rows == content::fingerprint) return fingerprint(plane, this_lane, position);
  reference::row values(as_size(plane == of::keys ? model().head_dim : value_dim()));
  for (double& each : values) each = options_.rows == content::few ? dice_.between(-1, 1) : dice_.real(2.0);
  if (options_.rows == content::troubled && dice_.chance(10)) {
    double const nothing = std::numeric_limits<double>::quiet_NaN();
    values[as_size(dice_.below(static_cast<int>(values.size())))] =
        dice_.one_of<double>({nothing, nothing, reference::infinity, -reference::infinity, -0.0});
  }
  return values;
}

}  // namespace kvpolicy_test

// SPDX-License-Identifier: Apache-2.0
// Worlds: caches of every kind, with requests in their slots, that all calls of an engine can be made on. A law makes
// two of them, or compares one before and after a call.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

using byte_image = std::vector<std::byte>;

inline void add(byte_image& to, void const* from, std::size_t bytes) {
  auto const* const first = static_cast<std::byte const*>(from);
  to.insert(to.end(), first, first + bytes);
}
template <class T>
void add(byte_image& to, std::vector<T> const& from) {
  add(to, from.data(), from.size() * sizeof(T));
}
inline void add_number(byte_image& to, int number) { add(to, &number, sizeof number); }

/// The whole memory of a state, and what it remembers of its slots.
template <class State>
void add_state(byte_image& to, State const& of) {
  kv::lanes const& all = of.lanes();
  for (kv::recorded_column const& each : of.columns()) {
    bool const slides = each.about.extent == kv::column_extent::lane_entry;
    auto const* const shifted = each.rows.row({0, all.layer_begin, 0});
    add(to, shifted - (slides ? of.slid() * each.about.bytes : 0),
        as_size(each.rows.sequence) * as_size(all.sequences));
  }
  add_number(to, of.slid());
  for (int slot = 0; slot < all.sequences; ++slot) {
    if constexpr (requires { of.history().used(slot); }) add_number(to, of.history().used(slot) ? 1 : 0);
    if constexpr (requires { of.history().newest(slot, 0); }) {
      for (int layer = all.layer_begin; layer < all.layer_end; ++layer)
        add_number(to, of.history().newest(slot, layer));
    }
  }
}

/// What one lane holds: its entries, their positions, rows and recorded numbers. It does not depend on the places.
template <class State>
void add_lane(byte_image& to, kv::cache const& all, State const& state, kv::lane one) {
  int const count = *all.lanes.count.row(one);
  add_number(to, count);
  add_number(to, all.lanes.in_flight != nullptr ? *all.lanes.drafts(one.sequence) : 0);
  add(to, all.lanes.position.row(one), as_size(count) * sizeof(int));
  for (int e = 0; e < count; ++e) {
    for (kv::plane const* rows : {&all.k, &all.v}) {
      add(to, rows->row(one.layer, all.where.at(one, e), one.head), as_size(rows->channels) * 4);
    }
  }
  for (kv::recorded_column const& each : state.columns()) {
    int const elements = each.about.units == 0 ? count : each.about.units;
    add(to, each.rows.row(one), as_size(elements) * as_size(each.about.bytes));
  }
}

enum class kind { plain, shared_table, groups, dual };
inline constexpr kind all_kinds[] = {kind::plain, kind::shared_table, kind::groups, kind::dual};
inline char const* text_of(kind of) {
  constexpr char const* names[] = {"a plain cache", "lanes that share a block table", "groups", "a dual cache"};
  return names[static_cast<int>(of)];
}

/// The part of a batch that a call is about: all, sequences 1 and 2, layer 1, or the slots 3 and 1.
enum class view { whole, sequences, layers, list };
inline constexpr view all_views[] = {view::whole, view::sequences, view::layers, view::list};
inline char const* text_of(view of) {
  constexpr char const* names[] = {"whole", "sequences_only", "layers_only", "a list of slots"};
  return names[static_cast<int>(of)];
}
inline constexpr int listed_slots[] = {3, 1};
inline constexpr kv::slot_list the_list{listed_slots, 2, nullptr};

inline kv::lanes part_of(kv::lanes const& all, view of) {
  if (of == view::sequences) return all.sequences_only(1, 3);
  if (of == view::layers) return all.layers_only(1, 2);
  return of == view::list ? kv::only(all, the_list) : all;
}
inline kv::cache part_of(kv::cache const& all, view of) {
  if (of == view::list) return kv::only(all, the_list);
  kv::cache part = all;
  part.lanes = part_of(all.lanes, of);
  return part;
}
inline kv::dual_cache part_of(kv::dual_cache const& all, view of) {
  if (of == view::list) return kv::only(all, the_list);
  kv::dual_cache part = all;
  part.window.lanes = part_of(all.window.lanes, of);
  part.pages.entries.lanes = part_of(all.pages.entries.lanes, of);
  return part;
}
inline kv::layer_groups part_of(kv::layer_groups const& all, view of) {
  kv::layer_groups part = all;
  for (kv::layer_group& each : part.groups) each.entries = part_of(each.entries, of);
  return part;
}
/// The sequence of a part that is in a slot; -1 if none is.
inline int sequence_in(view of, int slot) {
  if (of == view::list) return slot == 3 ? 0 : slot == 1 ? 1 : -1;
  return of == view::sequences && (slot < 1 || slot > 2) ? -1 : slot;
}
inline bool is_in(view of, kv::lane one) {
  return sequence_in(of, one.sequence) >= 0 && (of != view::layers || one.layer == 1);
}

/// An engine in small. Slot 0 is free, and in the others are requests of 10 tokens and more.
struct world {
  static constexpr int slots = 4, bound = 24;
  using state_type = kv::state<kv::host_executor>;
  struct piece {  ///< a cache of its own, with its state: one, or one of each group, or the window and the pages
    kv::cache* all;
    state_type* state;
  };

  kv::host_executor exec{1};
  std::array<int, slots> length{};  ///< tokens of each request
  byte_image saved;                 ///< of a slot

  world() = default;
  world(world const&) = delete;
  world& operator=(world const&) = delete;
  virtual ~world() = default;

  [[nodiscard]] virtual std::vector<piece> pieces() = 0;
  [[nodiscard]] virtual byte_image memory() const = 0;
  virtual void append(view of, kv::append_request const& new_tokens) = 0;
  virtual void commit(view of, int sequence, int tokens) = 0;
  virtual void truncate(view of, int sequence, int position) = 0;
  /// Records the numbers of the newest `tokens[slot]` tokens of the sequences of a part.
  virtual void record(view of, std::vector<int> const& tokens) = 0;
  virtual void reset(std::span<int const> some) = 0;
  virtual void fork(int from, int to) = 0;
  virtual void move(int from, int to) = 0;
  virtual std::size_t saved_bytes(int slot) = 0;
  virtual void save(int slot, std::span<std::byte> to) = 0;
  virtual void load(int slot, std::span<std::byte const> from) = 0;
  /// Of a dual cache: about its pages. There are two plans, so that two decisions can wait.
  virtual void decide(view of, int plan) = 0;
  virtual void apply(view of, int plan) = 0;

  /// Makes room in the window of a dual cache for new tokens of each sequence of a part.
  virtual void promote(view, std::vector<int> const&) {}
  /// Writes the rows of the newest tokens of a slot.
  virtual void write_rows(int slot, int tokens) = 0;
  /// A state and a plan that are made anew.
  virtual void make_state() = 0;
  virtual void make_plan() = 0;

  void reset_one(int slot) { reset(std::span<int const>(&slot, 1)); }
  void save_one(int slot) {
    saved.resize(saved_bytes(slot));
    save(slot, saved);
  }

  /// The same for so many tokens of each slot that holds a request.
  void observe(view of, int tokens) {
    std::vector<int> some;
    for (int const each : length) some.push_back(std::min(each, tokens));
    record(of, some);
  }

  /// One step of some slots, each with so many new tokens, in the batch of all.
  void step(std::vector<int> const& tokens) {
    promote(view::whole, tokens);
    for (int s = 0; s < slots; ++s) {
      int const some = tokens[as_size(s)];
      if (some == 0) continue;
      append(view::whole, {s, some, length[as_size(s)]});
      length[as_size(s)] += some;
      write_rows(s, some);
    }
    record(view::whole, tokens);
  }
  void step_one(int slot, int tokens = 1) {
    std::vector<int> some(slots, 0);
    some[as_size(slot)] = tokens;
    step(some);
  }
  /// Another request in a slot, with as many entries (of a dual cache: in the pages).
  void refill(int slot) {
    auto const entries = [&] { return *pieces().back().all->lanes.count.row({slot, 0, 0}); };
    int const before = entries();
    reset_one(slot);
    length[as_size(slot)] = 0;
    ++salt;
    while (entries() < before) step_one(slot);
  }

  [[nodiscard]] byte_image image() {
    byte_image made = memory();
    for (piece const& each : pieces()) add_state(made, *each.state);
    add(made, saved);
    return made;
  }
  /// Calls visit(piece, lane) for all lanes.
  template <class Visit>
  void for_each_lane(Visit const& visit) {
    for (piece const& each : pieces()) {
      for (int i = 0; i < each.all->lanes.size(); ++i) visit(each, each.all->lanes.at(i));
    }
  }
  [[nodiscard]] std::vector<byte_image> lanes() {
    std::vector<byte_image> made;
    for_each_lane([&](piece const& each, kv::lane one) { add_lane(made.emplace_back(), *each.all, *each.state, one); });
    return made;
  }

  /// The number that is recorded of a token.
  [[nodiscard]] float number(int slot, int position) const {
    return number_of(static_cast<std::uint64_t>((salt * 8 + slot) * 4096 + position));
  }

  /// The gate of a token, which lets two of three through.
  [[nodiscard]] static float gate(int position) {
    return position % 3 == 1 ? 0.25f : 0.75f + 0.001f * static_cast<float>(position);
  }

  int salt = 0;

 protected:
  /// Eight steps of all slots together, a decision, and two steps more; then slot 0 is free.
  void begin(bool ragged) {
    for (int t = 0; t < 8; ++t) step({1, 1, 1, 1});
    decide(view::whole, 0);
    apply(view::whole, 0);
    for (int t = 0; t < 2; ++t) step({1, 1, 1, 1});
    if (ragged) step({0, 0, 1, 2});
    reset_one(0);
    length[0] = 0;
    save_one(3);
  }

  /// The numbers of new tokens, [layer][sequence][head][token]: gates, or log betas if `sign` is negative.
  template <class Signal>
  Signal numbers(kv::shape const& model, view of, std::vector<int> const& tokens, float sign) {
    int const sequences = of == view::list ? 2 : slots;
    int const most = std::max(1, *std::max_element(tokens.begin(), tokens.end()));
    std::vector<float>& told = sign > 0 ? gates : betas;
    told.assign(as_size(model.layers * sequences * model.kv_heads * most), 0.5f * sign);
    counts.assign(as_size(sequences), 0);
    for (int slot = 0; slot < slots; ++slot) {
      int const s = of == view::list ? sequence_in(of, slot) : slot;
      int const some = tokens[as_size(slot)];
      if (s < 0) continue;
      counts[as_size(s)] = some;
      for (int row = 0; row < model.layers * model.kv_heads; ++row) {
        int const at = ((row / model.kv_heads * sequences + s) * model.kv_heads + row % model.kv_heads) * most;
        for (int t = 0; t < some; ++t) {
          int const position = length[as_size(slot)] - some + t;
          told[as_size(at + t)] = sign > 0 ? gate(position) : -0.5f - 0.4f * number(slot * 8 + row, position);
        }
      }
    }
    Signal made{kv::entry_numbers_of(told.data(), model, most, {.sequences = sequences})};
    made.counts = {counts.data(), 1, 0, 0};
    return made;
  }

 private:
  std::vector<float> gates, betas;
  std::vector<int> counts;
};

/// One cache. Lanes drop what TRIM-KV scores lowest.
class cache_world : public world {
 public:
  using policy_type = kv::eviction<kv::trim_kv>;
  static constexpr policy_type policy{.budget = {6}};

  explicit cache_world(bool shared, bool ragged = true) : cell(shared, 2, 2, 0) {
    cell.make(exec);
    begin(ragged);
  }

  /// A mock with its state and its plans, which a group has, too.
  struct cell_type {
    cell_type(bool shared, int layers, int heads, std::uint64_t seed) : mock(shape_of(shared, layers, heads, seed)) {}
    static mock_options shape_of(bool shared, int layers, int heads, std::uint64_t seed) {
      mock_options how;
      how.model = {.layers = layers, .query_heads = heads, .kv_heads = heads, .head_dim = 4};
      how.sequences = slots;
      how.bound = bound;
      how.where = shared ? kv::locating::block_table : kv::locating::identity;
      how.rows = content::fingerprint;
      how.seed = seed + 1;
      return how;
    }
    void make(kv::host_executor& exec) {
      state.emplace(kv::make_state(exec, policy, all));
      for (auto& each : plans) each.emplace(kv::make_plan(exec, policy, all, kv::compact{}));
    }
    void write_rows(int slot, int tokens, int length) {
      for (kv::lane const one : lanes_of(mock)) {
        for (int t = 1; one.sequence == slot && t <= tokens; ++t)
          mock.write_new_row(one, mock.count(one) - t, length - t);
      }
    }
    void add_to(byte_image& made) const {
      auto const now = mock.save();
      add(made, now.memory);
      for (auto const* each : {&now.table, &now.count, &now.position, &now.in_flight}) add(made, *each);
    }
    mock_cache mock;
    kv::cache all = mock.view();
    std::optional<state_type> state;
    std::array<std::optional<kv::plan<kv::host_executor>>, 2> plans;
  };

  std::vector<piece> pieces() override { return {{&cell.all, &*cell.state}}; }
  byte_image memory() const override {
    byte_image made;
    cell.add_to(made);
    return made;
  }
  void append(view of, kv::append_request const& new_tokens) override {
    kv::cache part = part_of(cell.all, of);
    kv::append(exec, part, *cell.state, new_tokens);
  }
  void commit(view of, int sequence, int tokens) override {
    kv::cache part = part_of(cell.all, of);
    kv::commit(exec, part, sequence, tokens);
  }
  void truncate(view of, int sequence, int position) override {
    kv::cache part = part_of(cell.all, of);
    kv::truncate(exec, part, *cell.state, sequence, position);
  }
  void record(view of, std::vector<int> const& tokens) override {
    auto const told = numbers<kv::log_beta>(cell.all.shape, of, tokens, -1);
    kv::observe(exec, policy, kv::signals{part_of(cell.all.lanes, of), told}, *cell.state);
  }
  void reset(std::span<int const> some) override { kv::reset(exec, cell.all, *cell.state, some); }
  void fork(int from, int to) override { kv::fork(exec, cell.all, *cell.state, from, to); }
  void move(int from, int to) override { kv::move(exec, cell.all, *cell.state, from, to); }
  std::size_t saved_bytes(int slot) override { return kv::saved_bytes(exec, cell.all, *cell.state, slot); }
  void save(int slot, std::span<std::byte> to) override { kv::save(exec, cell.all, *cell.state, slot, to); }
  void load(int slot, std::span<std::byte const> from) override { kv::load(exec, cell.all, *cell.state, slot, from); }
  void decide(view of, int plan) override {
    kv::decide(exec, policy, kv::signals{part_of(cell.all.lanes, of)}, *cell.state, *cell.plans[index(plan)]);
  }
  void apply(view of, int plan) override {
    kv::cache part = part_of(cell.all, of);
    kv::apply(exec, kv::compact{}, *cell.plans[index(plan)], part, *cell.state);
  }
  void write_rows(int slot, int tokens) override { cell.write_rows(slot, tokens, length[index(slot)]); }
  void make_state() override { static_cast<void>(kv::make_state(exec, policy, cell.all)); }
  void make_plan() override { static_cast<void>(kv::make_plan(exec, policy, cell.all, kv::compact{})); }

  static std::size_t index(int i) { return as_size(i); }
  cell_type cell;
};

}  // namespace kvpolicy_test

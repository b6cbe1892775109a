// SPDX-License-Identifier: Apache-2.0
// No call of the library reads or writes device memory from the host: here that memory can be touched in kernels alone.
#if !defined(__CUDACC__)  // on a GPU every call would fail that did
#include <sys/mman.h>

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Pages that are open while a kernel or a copy runs.
class closed_memory {
 public:
  closed_memory()
      : begin_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~closed_memory() { ::munmap(begin_, bytes); }
  closed_memory(closed_memory const&) = delete;
  closed_memory& operator=(closed_memory const&) = delete;

  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    auto* const piece = reinterpret_cast<T*>(begin_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    REQUIRE(used_ <= bytes);
    return piece;
  }
  void open() { REQUIRE(::mprotect(begin_, bytes, PROT_READ | PROT_WRITE) == 0); }
  void close() { REQUIRE(::mprotect(begin_, bytes, PROT_NONE) == 0); }

 private:
  static constexpr std::size_t bytes = 32 << 20;
  std::byte* begin_;
  std::size_t used_ = 0;
};

closed_memory& device_memory() {
  static closed_memory memory;
  return memory;
}

class closed_executor : public emulated_executor {
 public:
  template <class T>
  class buffer {
   public:
    buffer(closed_executor&, std::size_t count) : data_(device_memory().take<T>(count)), count_(count) {}
    [[nodiscard]] T* data() { return data_; }
    [[nodiscard]] T const* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return count_; }

   private:
    T* data_;  // pages begin as zeros
    std::size_t count_;
  };

  template <class Threads, class Kernel>
  void launch(kv::launch_shape<Threads> const& shape, Kernel const& kernel) {
    device_memory().open();
    emulated_executor::launch(shape, kernel);
    device_memory().close();
  }
  template <class Number>
  void select_numbers(std::int64_t count, Number const& number, kv::selected_numbers to, std::byte* storage) {
    device_memory().open();
    emulated_executor::select_numbers(count, number, to, storage);
    device_memory().close();
  }
  void copy(std::byte* to, std::byte const* from, std::size_t count) {
    ++copies;
    device_memory().open();
    emulated_executor::copy(to, from, count);
    device_memory().close();
  }
  template <class T>
  void fetch(T* to, T const* from, std::size_t count) {
    copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from), count * sizeof(T));
  }
  int copies = 0;  ///< a captured graph would read the host's memory when it is replayed
};

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr int lanes = 4, bound = 40, row = model.head_dim * 4;

/// Filled with anything, from the host; closed afterwards.
template <class T, class Fill>
T* filled(std::size_t count, Fill const& fill) {
  device_memory().open();
  T* const made = device_memory().take<T>(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = fill(static_cast<int>(i));
  device_memory().close();
  return made;
}
float number(int i) { return static_cast<float>(i * 37 % 101) / 50.0f - 1.0f; }
int none(int) { return 0; }

kv::lanes lanes_of(int* count, int* position, int entries) {
  return {.layer_end = 2,
          .heads = 2,
          .capacity = entries,
          .count = {count, lanes, 2, 1},
          .position = {position, lanes * entries, 2 * entries, entries}};
}

kv::plane pool_of(int rows) {
  return {.base = reinterpret_cast<std::byte*>(filled<float>(as_size(rows * model.head_dim), number)),
          .channels = model.head_dim,
          .unit_stride = row,
          .channel_stride = 4};
}

/// One pool of slots; each lane has a list of its own.
struct listed_cache {
  kv::by_lane<int> list = {filled<int>(lanes * bound, [](int i) { return i; }), lanes* bound, 2 * bound, bound};
  kv::cache view{.shape = model,
                 .lanes = lanes_of(filled<int>(lanes, none), filled<int>(lanes* bound, none), bound),
                 .k = pool_of(lanes * bound),
                 .v = pool_of(lanes * bound),
                 .where = kv::slot_map({list.data, list.sequence, list.layer, list.head}, lanes* bound)};
  listed_cache() { view.lanes.in_flight = filled<int>(1, none); }
};

kv::queries queries(int rows) {
  std::int64_t const head = std::int64_t{row} * rows;
  auto const count = as_size(model.layers * model.query_heads * rows * model.head_dim);
  return {{.base = reinterpret_cast<std::byte*>(filled<float>(count, number)),
           .dims = model.head_dim,
           .layer = head * model.query_heads,
           .head = head,
           .row = row,
           .heads = model.query_heads,
           .rows = rows,
           .position = {filled<int>(as_size(rows), [](int i) { return i; })}}};
}

template <class Policy, class Applier>
void evict(Policy const& policy, listed_cache& cache, Applier const& how) {
  closed_executor exec;
  auto [state, plan] = state_and_plan(exec, policy, cache.view);
  exec.copies = 0;  // making a state copies its first epochs
  auto* const told = filled<kv::apply_stats>(1, [](int) { return kv::apply_stats{}; });
  kv::append(exec, cache.view, state, {.tokens = 30, .position = 0});
  kv::append(exec, cache.view, state, {.tokens = 3, .position = 30, .in_flight = true});
  kv::truncate(exec, cache.view, state, 0, 32);
  kv::commit(exec, cache.view, 0, 1);
  kv::signals const in{cache.view.lanes, kv::keys_of(cache.view), kv::values_of(cache.view), queries(30)};
  observe_and_decide(exec, policy, in, state, plan);
  kv::apply(exec, how, plan, cache.view, state, told);
  CHECK(exec.copies == 0);
  exec.check();
  kv::fetched_keep const keep(exec, plan.keep());
  CHECK(keep.segments() == lanes);
  kv::apply_stats found;
  exec.fetch(&found, told, 1);
  CHECK(found.logical_kept > 0);
}

TEST_SUITE("device/untouched") {
  TEST_CASE("evictions and what carries them out") {
    auto const policy = kv::eviction{.score = kv::snapkv{.window = 4}, .budget = kv::per_lane{12}};
    auto const rows = kv::eviction{.score = kv::knorm{}, .budget = kv::per_layer{12}};
    auto* const freed = filled<int>(lanes * bound + lanes, none);
    listed_cache a, b, c, d, e, f;
    kv::unit_list const gone{{freed, lanes * bound, 2 * bound, bound}, {freed + lanes * bound, lanes, 2, 1}};
    evict(policy, a, kv::compact{});
    evict(rows, b, kv::list_rewrite<>{.list = b.list, .freed = gone});
    evict(kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{12}}, c, kv::overwrite{c.list});
    evict(kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{29}, .pick = kv::lowest_one{}}, d,
          kv::overwrite{d.list});
    evict(policy, e, kv::compact_rerotated{});
    kv::mask_rows const mask{{filled<std::byte>(lanes * 256, [](int) { return std::byte{1}; }), 1024, 512, 256},
                             kv::mask_form::boolean,
                             lanes * bound};
    evict(policy, f, kv::mask{f.list, mask});
  }

  TEST_CASE("admission, selection and eviction in one step") {
    constexpr int window = 8, page = 4, pages = 40;
    kv::cache_policy const policy{.admit = kv::policies::local_attention({.window = window, .sinks = 2}),
                                  .select = kv::policies::quest({.score = {.page = page}, .dense_layers = 0}),
                                  .evict = kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{12}}};
    auto* const oldest = filled<int>(1, none);
    auto* const table = filled<int>(lanes * 10, [](int) { return pages; });
    kv::plane ring = pool_of(lanes * window);
    ring.head_stride = row * window;
    ring.layer_stride = 2 * ring.head_stride;
    ring.token_stride = std::exchange(ring.unit_stride, lanes * row * window);
    kv::plane rows = pool_of((pages + 1) * page);
    rows.token_stride = std::exchange(rows.unit_stride, row * page);
    kv::dual_cache both{.window = {.shape = model,
                                   .lanes = {.layer_end = 2,
                                             .heads = 2,
                                             .capacity = window,
                                             .count = {filled<int>(1, none)},
                                             .position = {filled<int>(window, none)}},
                                   .k = ring,
                                   .v = ring,
                                   .where = {kv::locating::ring, {oldest}, window, 1}},
                        .oldest = {oldest}};
    both.window.v.base = pool_of(lanes * window).base;
    both.pages = {
        .entries = {.shape = model,
                    .lanes = lanes_of(filled<int>(lanes, none), filled<int>(lanes * bound, none), bound),
                    .k = rows,
                    .v = rows,
                    .where = kv::block_table({table, 40, 20, 10}, page, pages + 1)},
        .table = {table, 40, 20, 10},
        .num_pages = {filled<int>(lanes, none), lanes, 2, 1},
        .free_pages = {filled<int>(pages, [](int i) { return i; }), filled<int>(1, [](int) { return pages; }), pages}};
    both.pages.entries.v.base = pool_of((pages + 1) * page).base;
    closed_executor exec;
    auto [state, plans] = state_and_plan(exec, policy, both);
    exec.copies = 0;  // making states copies their first epochs
    kv::queries const asks = queries(1);
    for (int t = 0; t < 30; ++t) {
      kv::step(exec, policy, kv::signals{both.window.lanes}, both, state, plans, {.tokens = 1, .position = t}, [&] {
        kv::select_pages(exec, policy, kv::signals{both.pages.entries.lanes, asks}, state.pages, plans);
      });
    }
    kv::truncate(exec, both, state, 0, 29);
    CHECK(exec.copies == 0);
    exec.check();
    int count = 0;
    exec.fetch(&count, both.pages.entries.lanes.count.data, 1);
    CHECK(count == 2);  // the sinks
  }
}

}  // namespace
#endif

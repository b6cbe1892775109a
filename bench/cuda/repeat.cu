// SPDX-License-Identifier: Apache-2.0
// The same bits every time: decisions and their effects on a GPU, twenty times from the same memory, and once more in a
// graph that was captured on other data. Prints a line for each; exit status 1 if one differs, 77 without a GPU.
//
//     gpu_repeat [RUNS]     fewer runs for the tools that make each of them a hundred times slower
#include <cstdio>
#include <cstdlib>

#include "cuda/promoting.cuh"

namespace {

namespace kv = kvpolicy;
namespace gpu = bench::gpu;

int times = 20;
constexpr int entries = 4129;  // no multiple of anything
constexpr int rows = 32;
constexpr kv::shape model{.layers = 2, .query_heads = 32, .kv_heads = 8, .head_dim = 128};

/// FNV-1a, of eight bytes at once.
class digest {
 public:
  template <class T>
  void add(std::vector<T> const& of) {
    auto const* const bytes = reinterpret_cast<unsigned char const*>(of.data());
    std::size_t const size = of.size() * sizeof(T);
    for (std::size_t at = 0; at < size; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min<std::size_t>(8, size - at));
      value_ = (value_ ^ word) * 0x100000001B3u;
    }
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

/// A cache that is put back before every run; of the second kind of data keys and values have changed places.
class fixture {
 public:
  fixture()
      : host_(model, entries, kv::codec::bf16),
        host_rows_(model, entries, rows, kv::codec::bf16),
        cache_(host_),
        first_k_(cache_.k().get()),
        first_v_(cache_.v().get()),
        asking_(model, rows, host_rows_.view()) {}

  /// In the order of the stream.
  void put_back(gpu::stream const& on, bool other_data) const {
    auto const copy = [&](gpu::array<std::byte> const& to, gpu::array<std::byte> const& from) {
      gpu::checked("cudaMemcpyAsync",
                   cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, on.get()));
    };
    copy(cache_.k(), other_data ? first_v_ : first_k_);
    copy(cache_.v(), other_data ? first_k_ : first_v_);
    cache_.reset(on);
  }
  [[nodiscard]] kv::cache cache() const { return cache_.view(); }
  [[nodiscard]] auto in() const {
    kv::cache const shown = cache_.view();
    return kv::signals{shown.lanes, kv::keys_of(shown), kv::values_of(shown), kv::queries{asking_.view()},
                       kv::recent_queries{asking_.view()}};
  }
  void add_to(digest& all) const {
    all.add(cache_.k().get());
    all.add(cache_.v().get());
    all.add(cache_.counts().get());
    all.add(cache_.positions().get());
  }

 private:
  bench::model_cache host_;
  bench::model_queries host_rows_;
  gpu::device_cache cache_;
  gpu::array<std::byte> first_k_, first_v_;
  gpu::device_queries asking_;
};

int differ = 0;

/// `run` changes what `read` reads; `put_back(other)` undoes that, and says on which data it begins again.
template <class PutBack, class Run, class Read>
void alike(char const* name, gpu::stream const& on, bool replays, PutBack const& put_back, Run const& run,
           Read const& read) {
  auto const once = [&](bool other, auto const& work) {
    put_back(other);
    work();
    on.wait();
    return read();
  };
  std::uint64_t const first = once(false, run);
  int others = 0;
  for (int i = 1; i < times; ++i) others += once(false, run) != first ? 1 : 0;
  std::printf("%-24s %d runs, %d of them differ", name, times, others);
  differ += others;
  if (replays) {
    std::uint64_t const eager = once(true, run);
    put_back(false);
    on.wait();
    gpu::graph const captured(on, run);
    bool const same = once(true, [&] { captured.launch(on); }) == eager && eager != first;
    std::printf("; a replay on other data %s", same ? "does not" : "DIFFERS");
    differ += same ? 0 : 1;
  }
  std::printf("\n");
}

/// decide and apply. A policy that observes carries what it saw into the next run: its state is made anew, and there is
/// no replay.
template <class Policy>
void policy_alike(char const* name, fixture const& on_data, Policy const& policy, bool observes) {
  gpu::stream const on;
  gpu::executor exec(on);
  kv::cache cache = on_data.cache();
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  alike(
      name, on, !observes,
      [&](bool other) {
        on_data.put_back(on, other);
        if (observes) held = kv::make_state(exec, policy, cache);
      },
      [&] {
        auto const in = on_data.in();
        if (observes) kv::observe(exec, policy, in, held);
        kv::decide(exec, policy, in, held, plan);
        kv::apply(exec, kv::compact{}, plan, cache, held);
      },
      [&] {
        kv::fetched_keep const keep(exec, plan.keep());
        digest all;
        for (int i = 0; i < keep.segments(); ++i) {
          auto const listed = keep.listed(i);
          all.add(std::vector<int>(listed.begin(), listed.end()));
        }
        on_data.add_to(all);
        return all.value();
      });
}

/// observe and select of Quest.
void quest_alike(fixture const& on_data) {
  gpu::stream const on;
  gpu::executor exec(on);
  kv::cache const cache = on_data.cache();
  auto const policy = kv::policies::quest({.dense_layers = 1});
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  alike(
      "quest", on, false,
      [&](bool other) {
        on_data.put_back(on, other);
        held = kv::make_state(exec, policy, cache);
      },
      [&] {
        kv::observe(exec, policy, on_data.in(), held);
        kv::select_pages(exec, policy, on_data.in(), held, plan);
      },
      [&] {
        kv::fetched_keep const keep(exec, plan.keep());
        digest all;
        for (int i = 0; i < keep.segments(); ++i) {
          auto const listed = keep.listed(i);
          all.add(std::vector<int>(listed.begin(), listed.end()));
        }
        return all.value();
      });
}

/// 300 steps of WG-KV, twenty times.
void promotion_alike() {
  gpu::stream const on;
  std::vector<float> gates(288);
  bench::noise random(3);
  for (float& each : gates) each = random.uniform();
  std::uint64_t found = 0;
  alike(
      "wg_kv", on, false, [](bool) {},
      [&] {
        gpu::executor exec(on);
        gpu::promoting<gpu::executor, gpu::array> steps(exec, gates);
        for (int i = 0; i < 300; ++i) steps.promote(), steps.write();
        exec.check();
        digest all;
        all.add(steps.model().k.get());
        all.add(steps.model().v.get());
        all.add(steps.model().table.get());
        all.add(steps.model().count.get());
        all.add(steps.model().position.get());
        found = all.value();
      },
      [&] { return found; });
}

void run() {
  constexpr int budget = entries / 4;
  fixture const data;
  policy_alike("snapkv", data, kv::policies::snapkv({.budget = budget}), false);
  policy_alike("snapkv, shared budget", data, kv::policies::ada_snapkv(budget), false);
  policy_alike("tova", data, kv::policies::tova({.budget = budget}), false);
  policy_alike("knorm", data, kv::policies::knorm({.budget = budget}), false);
  policy_alike("h2o", data, kv::policies::h2o({.budget = budget}), true);
  quest_alike(data);
  promotion_alike();
}

}  // namespace

int main(int count, char** arguments) try {
  if (count > 1) times = std::max(2, std::atoi(arguments[1]));
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU\n");
    return 77;
  }
  run();
  if (differ == 0) std::printf("all alike\n");
  if (differ != 0) std::printf("%d differ\n", differ);
  return differ == 0 ? 0 : 1;
} catch (std::exception const& wrong) {
  std::fprintf(stderr, "%s\n", wrong.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// The limits of this machine, measured in the same process as everything that is compared with them: the bandwidth of
// copies and reads, and the peak of the multiply-add that verbs use, for any number of threads. The code for each
// instruction set is chosen as in the library, so a plain -O2 build measures them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <kvpolicy/bench/rounds.hpp>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {

namespace kv = kvpolicy;

/// Memory like that of an engine: aligned to a cache line, with pages that are not yet touched.
class memory {
 public:
  explicit memory(std::size_t bytes = 0) : bytes_(bytes) {
    if (bytes == 0) return;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct release {
    void operator()(std::byte* of) const { std::free(of); }
  };
  std::unique_ptr<std::byte, release> data_;
  std::size_t bytes_;
};

using kvpolicy::bench::median;

template <class Work>
double seconds_of(Work const& work) {
  return kvpolicy::bench::host_clock{}(work);
}

/// The bytes of the last-level cache of the first processor; 32 MiB if the system does not report them.
inline std::size_t last_level_bytes() {
  for (char const* const index : {"index3", "index2"}) {
    std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/") + index + "/size");
    std::size_t kib = 0;
    if (file >> kib && kib > 0) return kib << 10;
  }
  return std::size_t{32} << 20;
}

/// A size that no cache can contain: five times the last-level cache.
inline std::size_t memory_bound_bytes() { return std::max(std::size_t{160} << 20, 5 * last_level_bytes()); }

namespace floors {

using lanes_of_four [[gnu::vector_size(16)]] = float;

// Reading -------------------------------------------------------------------------------------------------------------

inline std::uint64_t read_portable(std::byte const* from, std::size_t bytes) {
  std::uint64_t folded[8] = {};
  for (std::size_t at = 0; at + 64 <= bytes; at += 64) {
    std::uint64_t words[8];
    std::memcpy(words, from + at, 64);
    for (int i = 0; i < 8; ++i) folded[i] ^= words[i];
  }
  for (int i = 1; i < 8; ++i) folded[0] ^= folded[i];
  return folded[0];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline std::uint64_t read_avx2(std::byte const* from, std::size_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (std::size_t at = 0; at + 128 <= bytes; at += 128) {
    auto const* const p = reinterpret_cast<__m256i const*>(from + at);
    a = _mm256_xor_si256(a, _mm256_loadu_si256(p));
    b = _mm256_xor_si256(b, _mm256_loadu_si256(p + 1));
    c = _mm256_xor_si256(c, _mm256_loadu_si256(p + 2));
    d = _mm256_xor_si256(d, _mm256_loadu_si256(p + 3));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  alignas(32) std::uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), a);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

__attribute__((target("avx512f"))) inline std::uint64_t read_avx512(std::byte const* from, std::size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (std::size_t at = 0; at + 256 <= bytes; at += 256) {
    a = _mm512_xor_si512(a, _mm512_loadu_si512(from + at));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(from + at + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(from + at + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(from + at + 192));
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  alignas(64) std::uint64_t words[8];
  _mm512_store_si512(words, a);
  return words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
}

// Copies with non-temporal stores. `to` is aligned to a cache line, and whole lines are copied.
__attribute__((target("avx2"))) inline void stream_avx2(std::byte* to, std::byte const* from, std::size_t bytes) {
  for (std::size_t at = 0; at + 64 <= bytes; at += 64) {
    auto const* const p = reinterpret_cast<__m256i const*>(from + at);
    auto* const q = reinterpret_cast<__m256i*>(to + at);
    _mm256_stream_si256(q, _mm256_loadu_si256(p));
    _mm256_stream_si256(q + 1, _mm256_loadu_si256(p + 1));
  }
  _mm_sfence();
}

// Multiply-adds -------------------------------------------------------------------------------------------------------
//
// There are enough chains to hide the latency. They start from different values, or the compiler would merge them.

__attribute__((target("avx512f"))) inline float fma_avx512(std::int64_t rounds) {
  __m512 const x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  __m512 a = _mm512_set1_ps(0), b = _mm512_set1_ps(1), c = _mm512_set1_ps(2), d = _mm512_set1_ps(3),
         e = _mm512_set1_ps(4), f = _mm512_set1_ps(5), g = _mm512_set1_ps(6), h = _mm512_set1_ps(7),
         i = _mm512_set1_ps(8), j = _mm512_set1_ps(9), k = _mm512_set1_ps(10), l = _mm512_set1_ps(11);
  for (std::int64_t round = 0; round < rounds; ++round) {
    a = _mm512_fmadd_ps(a, x, y);
    b = _mm512_fmadd_ps(b, x, y);
    c = _mm512_fmadd_ps(c, x, y);
    d = _mm512_fmadd_ps(d, x, y);
    e = _mm512_fmadd_ps(e, x, y);
    f = _mm512_fmadd_ps(f, x, y);
    g = _mm512_fmadd_ps(g, x, y);
    h = _mm512_fmadd_ps(h, x, y);
    i = _mm512_fmadd_ps(i, x, y);
    j = _mm512_fmadd_ps(j, x, y);
    k = _mm512_fmadd_ps(k, x, y);
    l = _mm512_fmadd_ps(l, x, y);
  }
  a = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)), _mm512_add_ps(e, f));
  g = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(g, h), _mm512_add_ps(i, j)), _mm512_add_ps(k, l));
  return _mm512_cvtss_f32(_mm512_add_ps(a, g));
}

__attribute__((target("avx2,fma"))) inline float fma_avx2(std::int64_t rounds) {
  __m256 const x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  __m256 a = _mm256_set1_ps(0), b = _mm256_set1_ps(1), c = _mm256_set1_ps(2), d = _mm256_set1_ps(3),
         e = _mm256_set1_ps(4), f = _mm256_set1_ps(5), g = _mm256_set1_ps(6), h = _mm256_set1_ps(7),
         i = _mm256_set1_ps(8), j = _mm256_set1_ps(9), k = _mm256_set1_ps(10), l = _mm256_set1_ps(11);
  for (std::int64_t round = 0; round < rounds; ++round) {
    a = _mm256_fmadd_ps(a, x, y);
    b = _mm256_fmadd_ps(b, x, y);
    c = _mm256_fmadd_ps(c, x, y);
    d = _mm256_fmadd_ps(d, x, y);
    e = _mm256_fmadd_ps(e, x, y);
    f = _mm256_fmadd_ps(f, x, y);
    g = _mm256_fmadd_ps(g, x, y);
    h = _mm256_fmadd_ps(h, x, y);
    i = _mm256_fmadd_ps(i, x, y);
    j = _mm256_fmadd_ps(j, x, y);
    k = _mm256_fmadd_ps(k, x, y);
    l = _mm256_fmadd_ps(l, x, y);
  }
  a = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)), _mm256_add_ps(e, f));
  g = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(g, h), _mm256_add_ps(i, j)), _mm256_add_ps(k, l));
  return _mm256_cvtss_f32(_mm256_add_ps(a, g));
}

__attribute__((target("avx512f,avx512bf16"))) inline float dot_bf16(std::int64_t rounds) {
  auto const x = (__m512bh)_mm512_set1_epi32(0x3F803F80);  // NOLINT: only this cast makes a __m512bh of integers
  __m512 a = _mm512_set1_ps(0), b = _mm512_set1_ps(1), c = _mm512_set1_ps(2), d = _mm512_set1_ps(3),
         e = _mm512_set1_ps(4), f = _mm512_set1_ps(5), g = _mm512_set1_ps(6), h = _mm512_set1_ps(7),
         i = _mm512_set1_ps(8), j = _mm512_set1_ps(9), k = _mm512_set1_ps(10), l = _mm512_set1_ps(11);
  for (std::int64_t round = 0; round < rounds; ++round) {
    a = _mm512_dpbf16_ps(a, x, x);
    b = _mm512_dpbf16_ps(b, x, x);
    c = _mm512_dpbf16_ps(c, x, x);
    d = _mm512_dpbf16_ps(d, x, x);
    e = _mm512_dpbf16_ps(e, x, x);
    f = _mm512_dpbf16_ps(f, x, x);
    g = _mm512_dpbf16_ps(g, x, x);
    h = _mm512_dpbf16_ps(h, x, x);
    i = _mm512_dpbf16_ps(i, x, x);
    j = _mm512_dpbf16_ps(j, x, x);
    k = _mm512_dpbf16_ps(k, x, x);
    l = _mm512_dpbf16_ps(l, x, x);
  }
  a = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)), _mm512_add_ps(e, f));
  g = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(g, h), _mm512_add_ps(i, j)), _mm512_add_ps(k, l));
  return _mm512_cvtss_f32(_mm512_add_ps(a, g));
}
#endif

inline float multiply_add_portable(std::int64_t rounds) {
  lanes_of_four const x = {0.999f, 0.999f, 0.999f, 0.999f}, y = {0.001f, 0.001f, 0.001f, 0.001f};
  lanes_of_four a = y, b = a + y, c = b + y, d = c + y, e = d + y, f = e + y, g = f + y, h = g + y;
  for (std::int64_t round = 0; round < rounds; ++round) {
    a = a * x + y;
    b = b * x + y;
    c = c * x + y;
    d = d * x + y;
    e = e * x + y;
    f = f * x + y;
    g = g * x + y;
    h = h * x + y;
  }
  a = a + b + c + d + e + f + g + h;
  return a[0];
}

/// A loop of multiply-adds: its name, its operations per round (a multiplication and an addition are two), and its
/// code.
struct peak_loop {
  char const* name;
  double operations;
  float (*run)(std::int64_t rounds);
};

/// The multiply-add of floats for this instruction set.
inline peak_loop fma_loop(kv::isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= kv::isa::avx512) return {"vfmadd 512-bit f32", 12.0 * 16 * 2, fma_avx512};
  if (simd_level >= kv::isa::avx2) return {"vfmadd 256-bit f32", 12.0 * 8 * 2, fma_avx2};
#endif
  (void)simd_level;
  return {"multiply and add, 128-bit f32", 8.0 * 4 * 2, multiply_add_portable};
}

/// The multiply-add that computes logits of this element type: vdpbf16ps for bf16, if there is one.
inline peak_loop peak_of(kv::isa simd_level, kv::codec element) {
#if defined(__x86_64__)
  if (element == kv::codec::bf16 && simd_level >= kv::isa::avx512_bf16)
    return {"vdpbf16ps 512-bit", 12.0 * 32 * 2, dot_bf16};
#endif
  (void)element;
  return fma_loop(simd_level);
}

/// Prevents a result from being optimised away.
template <class T>
inline void keep(T value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

inline constexpr int pieces = 64;  ///< pieces of a pass, distributed among threads as the library distributes lanes

/// Calls work(first byte, bytes) for each piece of a buffer. Pieces are whole cache lines.
template <class Work>
void in_pieces(kv::host_executor& exec, std::size_t bytes, Work const& work) {
  std::size_t const each = bytes / pieces / 256 * 256;
  exec.for_each(pieces, [&](int piece, int) {
    std::size_t const first = each * static_cast<std::size_t>(piece);
    work(first, piece + 1 == pieces ? bytes - first : each);
  });
}

/// Reads every byte of a piece once.
inline void read_piece(kv::isa simd_level, std::byte const* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (simd_level >= kv::isa::avx512) return keep(read_avx512(from, bytes));
  if (simd_level >= kv::isa::avx2) return keep(read_avx2(from, bytes));
#endif
  (void)simd_level;
  keep(read_portable(from, bytes));
}

/// Reads every byte once.
inline void read_pass(kv::host_executor& exec, std::byte const* from, std::size_t bytes) {
  in_pieces(exec, bytes,
            [&](std::size_t first, std::size_t some) { read_piece(exec.simd_level(), from + first, some); });
}

inline void copy_pass(kv::host_executor& exec, std::byte* to, std::byte const* from, std::size_t bytes) {
  in_pieces(exec, bytes, [&](std::size_t first, std::size_t some) { std::memcpy(to + first, from + first, some); });
  asm volatile("" : : : "memory");
}

/// Copies without fetching the overwritten lines; uses memcpy if there is no such store.
inline void stream_pass(kv::host_executor& exec, std::byte* to, std::byte const* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (exec.simd_level() >= kv::isa::avx2) {
    return in_pieces(exec, bytes,
                     [&](std::size_t first, std::size_t some) { stream_avx2(to + first, from + first, some); });
  }
#endif
  copy_pass(exec, to, from, bytes);
}

/// What a floor does with a column: it reads every byte once, or writes it, or both.
enum class touching { read, write, both };

/// Bytes that a verb must touch at least once.
struct column {
  touching how;
  void const* data;
  std::size_t bytes;
};

inline void write_portable(std::byte* to, std::size_t bytes, bool keeps) {
  for (std::size_t at = 0; at + 64 <= bytes; at += 64) {
    std::uint64_t words[8] = {};
    if (keeps) std::memcpy(words, to + at, 64);
    asm volatile("" : : "r"(words) : "memory");
    std::memcpy(to + at, words, 64);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline void write_avx2(std::byte* to, std::size_t bytes, bool keeps) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (std::size_t at = 0; at + 64 <= bytes; at += 64) {
    auto* const p = reinterpret_cast<__m256i*>(to + at);
    if (keeps) a = _mm256_loadu_si256(p), b = _mm256_loadu_si256(p + 1);
    asm volatile("" : "+x"(a), "+x"(b));
    _mm256_storeu_si256(p, a);
    _mm256_storeu_si256(p + 1, b);
  }
}

__attribute__((target("avx512f"))) inline void write_avx512(std::byte* to, std::size_t bytes, bool keeps) {
  __m512i a = _mm512_setzero_si512();
  for (std::size_t at = 0; at + 64 <= bytes; at += 64) {
    if (keeps) a = _mm512_loadu_si512(to + at);
    asm volatile("" : "+v"(a));
    _mm512_storeu_si512(to + at, a);
  }
}
#endif

/// Writes every byte of a piece once: what was there (`keeps`), or zeros.
inline void write_piece(kv::isa simd_level, std::byte* to, std::size_t bytes, bool keeps) {
#if defined(__x86_64__)
  if (simd_level >= kv::isa::avx512) return write_avx512(to, bytes, keeps);
  if (simd_level >= kv::isa::avx2) return write_avx2(to, bytes, keeps);
#endif
  (void)simd_level;
  write_portable(to, bytes, keeps);
}

/// The plain loop that a verb is compared with: touches every column once, with as many threads as the verb may use.
inline void touch_pass(kv::host_executor& exec, std::initializer_list<column> columns) {
  exec.for_each(pieces, [&](int piece, int) {
    for (column const& each : columns) {
      std::size_t const part = each.bytes / pieces / 256 * 256;
      std::size_t const first = part * static_cast<std::size_t>(piece);
      std::size_t const bytes = piece + 1 == pieces ? each.bytes - first : part;
      auto* const data = static_cast<std::byte*>(const_cast<void*>(each.data)) + first;
      if (each.how == touching::read) {
        read_piece(exec.simd_level(), data, bytes);
      } else {
        write_piece(exec.simd_level(), data, bytes, each.how == touching::both);
      }
    }
  });
}

/// Runs this many operations at the peak rate, on all threads.
inline void peak_pass(kv::host_executor& exec, peak_loop const& of, double operations) {
  exec.for_each(pieces,
                [&](int, int) { keep(of.run(static_cast<std::int64_t>(operations / pieces / of.operations))); });
}

/// The limits for one number of threads.
struct rates {
  double memcpy = 0, stream = 0, read = 0;  ///< bytes per second; each byte of a copy counts once
  double fma = 0, dot = 0;                  ///< operations per second; dot is 0 without vdpbf16ps
  [[nodiscard]] double copy() const { return std::max(memcpy, stream); }
  /// The highest bytes per second of any pass, to which a verb that reads its input once is compared.
  [[nodiscard]] double best() const { return std::max(copy(), read); }
};

inline rates measure(int threads) {
  kv::host_executor exec(threads);
  std::size_t const bytes = memory_bound_bytes();
  memory const from(bytes), to(bytes);
  std::memset(from.data(), 1, bytes);
  std::memset(to.data(), 2, bytes);
  peak_loop const fma = fma_loop(exec.simd_level());
  peak_loop const dot = peak_of(exec.simd_level(), kv::codec::bf16);
  double const operations = 2e9;
  rates best;
  for (int round = 0; round < 5; ++round) {
    auto const note = [](double& rate, double amount, double seconds) { rate = std::max(rate, amount / seconds); };
    auto const all = static_cast<double>(bytes);
    note(best.memcpy, all, seconds_of([&] { copy_pass(exec, to.data(), from.data(), bytes); }));
    note(best.stream, all, seconds_of([&] { stream_pass(exec, to.data(), from.data(), bytes); }));
    note(best.read, all, seconds_of([&] { read_pass(exec, from.data(), bytes); }));
    note(best.fma, operations, seconds_of([&] { peak_pass(exec, fma, operations); }));
    if (dot.name != fma.name) note(best.dot, operations, seconds_of([&] { peak_pass(exec, dot, operations); }));
  }
  return best;
}

/// Measures on first use, once per process and number of threads.
inline rates const& of(int threads) {
  static rates const one = measure(1);
  if (threads == 1) return one;
  static rates const two = measure(2);
  return two;
}

}  // namespace floors
}  // namespace bench

// SPDX-License-Identifier: Apache-2.0
// Prefetching. Nothing here changes a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Floats per cache line.
inline constexpr int floats_of_a_line = 16;

/// Prefetches a line into the second-level cache, or the first one (`Locality` 3), at this place between the reads
/// around it. Compilers put prefetches next to one another, and reads then wait for all of them: a pass over memory
/// takes up to half as long again.
template <int Locality = 2>
KVPOLICY_OP void prefetch_here(std::byte const* line) {
  __asm__ __volatile__("" ::: "memory");
  __builtin_prefetch(line, 0, Locality);
  __asm__ __volatile__("" ::: "memory");
}

/// How far ahead of its use a stream of memory is prefetched. A processor fetches a stream by itself, but too late if
/// there is work between its reads.
inline constexpr std::uintptr_t bytes_ahead = 8192;

/// Prefetches the line that a stream reads `bytes_ahead` after this one. It may be after the stream's end.
KVPOLICY_OP void prefetch_stream(void const* now) {
  prefetch_here(reinterpret_cast<std::byte const*>(reinterpret_cast<std::uintptr_t>(now) + bytes_ahead));
}

/// Prefetches while a step of keys is multiplied: the keys of the next step, those of the step after it into the
/// second-level cache, which supports more outstanding misses, and the lines to which products will be written. Keys
/// are fetched in the order of memory. A few lines are fetched with every line of a key, because fetching all at once
/// would stall.
template <int Step>
class step_prefetcher {
 public:
  KVPOLICY_OP step_prefetcher(void const* const* keys, int bytes, float const* out, int floats)
      : key_(keys + Step), bytes_(bytes), rounds_((bytes + line - 1) / line), out_(out), end_(out + floats) {
    each_ = (floats + rounds_ - 1) / rounds_;
    if (key_[0] == key_[1]) rounds_ = 0;  // the rows of a tile are all that there is, and are in the cache
  }

  /// Is called once per line of the keys. Later passes over the same keys have nothing left to fetch.
  KVPOLICY_OP void next() {
    if (rounds_ == 0) return;
    --rounds_;
    for (int i = 0; i < Step; ++i) {
      __builtin_prefetch(static_cast<std::byte const*>(*key_) + at_);
      __builtin_prefetch(static_cast<std::byte const*>(key_[Step]) + at_, 0, 2);
      at_ += line;
      key_ += at_ >= bytes_ ? 1 : 0;
      at_ = at_ >= bytes_ ? 0 : at_;
    }
    float const* const last = each_ < end_ - out_ ? out_ + each_ : end_;
    for (; out_ < last; out_ += floats_of_a_line) __builtin_prefetch(out_, 1);
  }

 private:
  static constexpr int line = 4 * floats_of_a_line;

  void const* const* key_;
  int bytes_;
  int at_ = 0;
  int rounds_;
  float const* out_;
  float const* end_;
  int each_;
};

/// Prefetches the keys of the next tile into the second-level cache, line by line in the order of memory. A product of
/// few rows fetches as many lines as it reads, and spreads them over its work. The first-level cache supports too few
/// outstanding misses for the full bandwidth of memory.
struct tile_prefetcher {
  void const* const* key;
  int bytes;
  int at = 0;
  KVPOLICY_OP void next() {
    prefetch_here(static_cast<std::byte const*>(*key) + at);
    at += 64;
    key += at >= bytes ? 1 : 0;
    at = at >= bytes ? 0 : at;
  }
};

/// Prefetches a row into the second-level cache, a line with every call, while another row is worked on: a pass over
/// memory is then over a row that is in the cache.
struct row_prefetcher {
  std::byte const* line = nullptr;
  std::byte const* end = nullptr;

  row_prefetcher() = default;
  row_prefetcher(float const* row, int count)
      : line(reinterpret_cast<std::byte const*>(row)), end(reinterpret_cast<std::byte const*>(row + count)) {}

  KVPOLICY_OP void next() {
    __builtin_prefetch(line, 0, 2);
    line += line < end ? 64 : 0;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

// What products fetch before it is used. Nothing here changes a result.
#pragma once

#include <cstddef>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Floats of a cache line.
inline constexpr int floats_of_a_line = 16;

/// What is fetched while a step of keys is multiplied: the keys behind it, in the order of memory, and the lines that
/// its products will be written to; a few with every line of a key, for all at once would keep each other waiting.
template <int Step>
class step_ahead {
 public:
  [[gnu::always_inline]] inline step_ahead(void const* const* keys, int bytes, float const* out, int floats)
      : key_(keys + Step), bytes_(bytes), rounds_((bytes + line - 1) / line), out_(out), end_(out + floats) {
    each_ = (floats + rounds_ - 1) / rounds_;
  }

  /// Once a line of the keys; passes over the same keys after the first have nothing left to fetch.
  [[gnu::always_inline]] inline void fetch() {
    if (rounds_ == 0) return;
    --rounds_;
    for (int i = 0; i < Step; ++i) {
      __builtin_prefetch(static_cast<std::byte const*>(*key_) + at_);
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

/// The keys of the next tile into the second-level cache, in the order of memory and two lines at a time: as many as a
/// round of a product of few rows reads of a key. The first level has too few misses in flight for a whole memory's
/// speed.
struct tile_ahead {
  void const* const* key;
  int bytes;
  int at = 0;
  /// Inlined, or g++ takes it for a call without effect.
  [[gnu::always_inline]] inline void fetch() {
    __builtin_prefetch(static_cast<std::byte const*>(*key) + at, 0, 2);
    __builtin_prefetch(static_cast<std::byte const*>(*key) + at + 64, 0, 2);
    at += 128;
    key += at >= bytes ? 1 : 0;
    at = at >= bytes ? 0 : at;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

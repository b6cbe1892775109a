// SPDX-License-Identifier: Apache-2.0
// What each lane holds of a text, step by step: the entries at first, and those that each step drops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "page.hpp"

namespace keep_map {

/// The entries that segments hold, a bit for each. Segments start at whole bytes, and entry 0 is the lowest bit of the
/// first. A segment is a lane, or several lanes that decide together.
class bitmap {
 public:
  bitmap(int segments, int entries)
      : stride_((static_cast<std::size_t>(entries) + 7) / 8), bytes_(stride_ * static_cast<std::size_t>(segments)) {}

  void set(int segment, int entry) { byte(segment, entry) |= bit(entry); }
  void clear(int segment, int entry) { byte(segment, entry) &= static_cast<std::uint8_t>(~bit(entry)); }
  [[nodiscard]] bool has(int segment, int entry) const { return (bytes_[place(segment, entry)] & bit(entry)) != 0; }
  [[nodiscard]] std::vector<std::uint8_t> const& bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::size_t place(int segment, int entry) const {
    return static_cast<std::size_t>(segment) * stride_ + static_cast<std::size_t>(entry) / 8;
  }
  [[nodiscard]] std::uint8_t& byte(int segment, int entry) { return bytes_[place(segment, entry)]; }
  [[nodiscard]] static std::uint8_t bit(int entry) { return static_cast<std::uint8_t>(1U << entry % 8); }

  std::size_t stride_;
  std::vector<std::uint8_t> bytes_;
};

/// The history of one row and one text. Step 0 is the first decision. Entries that have not arrived count as held.
class history {
 public:
  history(int segments, int entries) : segments_(segments), entries_(entries), first_(segments, entries) {}

  /// Step 0: the entries that are held of the first `arrived`.
  void begin(bitmap held, int arrived) {
    first_ = std::move(held);
    for (int s = 0; s < segments_; ++s) {
      for (int e = arrived; e < entries_; ++e) first_.set(s, e);
    }
    ends_.assign(1, 0);
  }

  /// In the step that is under way the segment drops an entry.
  void drop(int segment, int entry) {
    gone_.push_back(static_cast<std::uint32_t>(segment));
    gone_.push_back(static_cast<std::uint32_t>(entry));
  }
  /// The step that is under way has ended.
  void end_step() { ends_.push_back(static_cast<std::uint32_t>(gone_.size() / 2)); }

  [[nodiscard]] nlohmann::json json() const {
    return {{"kept", base64(first_.bytes())}, {"ends", ends_}, {"gone", base64_of_numbers(gone_)}};
  }

 private:
  int segments_;
  int entries_;
  bitmap first_;
  std::vector<std::uint32_t> ends_{0};
  std::vector<std::uint32_t> gone_;
};

/// A history from looks at what is held after each step.
class watched_history {
 public:
  watched_history(int segments, int entries)
      : segments_(segments), made_(segments, entries), before_(segments, entries) {}

  /// Notes what is held of the first `arrived` entries: first at step 0, and then once after each step.
  void look(bitmap const& now, int arrived) {
    if (arrived_ < 0) {
      made_.begin(now, arrived);
    } else {
      for (int s = 0; s < segments_; ++s) {
        for (int e = 0; e < arrived; ++e) {
          bool const was_held = e >= arrived_ || before_.has(s, e);
          if (was_held && !now.has(s, e)) made_.drop(s, e);
        }
      }
      made_.end_step();
    }
    before_ = now;
    arrived_ = arrived;
  }

  [[nodiscard]] history const& made() const { return made_; }
  [[nodiscard]] nlohmann::json json() const { return made_.json(); }

 private:
  int segments_;
  int arrived_ = -1;
  history made_;
  bitmap before_;
};

}  // namespace keep_map

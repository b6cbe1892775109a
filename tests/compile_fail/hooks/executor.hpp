// SPDX-License-Identifier: Apache-2.0
// An executor of a backend on which every verb does nothing: calls are compiled, and cost no time.
#pragma once

#include <cstddef>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <vector>

struct nowhere {};
template <class Verb>
struct kvpolicy::implementation<Verb, nowhere> {
  template <class... Args>
  static void run(Args const&...) {}
  template <class... Args>
  static std::size_t scratch(Args const&...) {
    return 0;
  }
};
struct no_executor {
  using backend = nowhere;
  template <class T>
  struct buffer : std::vector<T> {
    buffer() = default;
    buffer(no_executor&, std::size_t size) : std::vector<T>(size) {}
  };
  static void reserve(std::size_t) {}
  [[nodiscard]] static std::size_t reserved() { return 0; }
  static void copy(std::byte*, std::byte const*, std::size_t) {}
};

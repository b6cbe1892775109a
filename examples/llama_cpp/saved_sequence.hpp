// SPDX-License-Identifier: Apache-2.0
// The bytes of a saved sequence: a header with a sum over all of them, and what the library saves of it.
#pragma once

#include <ggml.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "context_options.hpp"
#include "sequence_tables.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

namespace detail {

/// The first bytes of a saved sequence.
struct saved_header {
  std::array<char, 8> magic{'k', 'v', 'l', 'l', 'a', 'm', 'a', '\n'};
  std::uint32_t version = 1;
  std::int32_t type_k = 0;
  std::int32_t type_v = 0;
  sequence_size size{};
  std::uint64_t bytes = 0;  ///< of everything
  std::uint64_t sum = 0;    ///< over everything, with 0 in its own place
};
static_assert(std::is_trivially_copyable_v<saved_header> && std::has_unique_object_representations_v<saved_header>);

/// The sum over a header and the bytes that follow it. It finds damage, not forgery.
[[nodiscard]] inline std::uint64_t sum_of(saved_header header, std::span<std::byte const> rest) {
  header.sum = 0;
  return kv::detail::sum_of(rest, kv::detail::sum_of(std::as_bytes(std::span(&header, 1))));
}

/// Makes the bytes of a saved sequence, of which write(span) writes the last `rest`.
template <class Write>
[[nodiscard]] std::vector<std::byte> pack(context_options const& options, sequence_size const& size, std::size_t rest,
                                          Write const& write) {
  saved_header header;
  header.type_k = options.type_k;
  header.type_v = options.type_v;
  header.size = size;
  header.bytes = sizeof header + rest;
  std::vector<std::byte> made(sizeof header + rest);
  std::span<std::byte> const behind = std::span(made).subspan(sizeof header);
  write(behind);
  header.sum = sum_of(header, behind);
  std::memcpy(made.data(), &header, sizeof header);
  return made;
}

/// Reads the header of a saved sequence, and checks everything that can be checked without its cache.
///
/// - throws: `kvpolicy::invalid_argument` if the bytes are none of a sequence of such a cache, or are not those that
///   were saved.
[[nodiscard]] inline sequence_size unpack(char const* call, context_options const& options,
                                          std::span<std::byte const> from) {
  saved_header found;
  kv::expects(from.size() >= sizeof found, call, "bytes", from.size(), "they end within the header");
  std::memcpy(&found, from.data(), sizeof found);
  saved_header const wanted;
  kv::expects(found.magic == wanted.magic, call, "bytes", "no saved sequence", "engine::save writes them");
  kv::expects(found.version == wanted.version, call, "version", found.version,
              [&] { return "this engine reads version " + std::to_string(wanted.version); });
  kv::expects(found.bytes == from.size(), call, "bytes", from.size(), [&] {
    return "the saved sequence has " + std::to_string(found.bytes) + ": it is truncated, or more follows";
  });
  kv::expects(found.sum == sum_of(found, from.subspan(sizeof found)), call, "bytes", "damaged",
              "the sum of what was saved is another one");
  sequence_size const& size = found.size;
  bool const sound =
      size.count >= 0 && size.count <= size.length && size.evicted_at >= 0 && size.evicted_at <= size.length;
  kv::expects(sound, call, "bytes", "damaged", "the header's numbers contradict each other");
  auto const check_type = [&](char const* name, ggml_type mine, std::int32_t saved) {
    kv::expects(mine == saved, call, name, ggml_type_name(mine),
                [&] { return "the rows were saved as " + std::string(ggml_type_name(static_cast<ggml_type>(saved))); });
  };
  check_type("type_k", options.type_k, found.type_k);
  check_type("type_v", options.type_v, found.type_v);
  return size;
}

}  // namespace detail
}  // namespace llama_cpp

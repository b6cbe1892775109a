// SPDX-License-Identifier: Apache-2.0
// Writes the memories of a session store to a file, and reads them back. This header needs nlohmann-json and POSIX, so
// the umbrella header does not include it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/io/write_safetensors.hpp>
#include <kvpolicy/session/session_store.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The name of the i-th session's tensor, and the key of its id in the metadata.
[[nodiscard]] inline std::string session_key(std::size_t i) {
  return std::string("session.").append(std::to_string(i));
}

[[nodiscard]] inline std::vector<std::uint64_t> extents_of(memory_shape const& shape) {
  return {static_cast<std::uint64_t>(shape.layers), static_cast<std::uint64_t>(shape.query_heads),
          static_cast<std::uint64_t>(shape.dims)};
}

}  // namespace detail

/// Writes all memories of a store as safetensors. The tensors session.0, session.1, ... are F32 [layers, query heads,
/// channels], the oldest commit first. In the metadata `session.i` is the printed id of the i-th session,
/// `kvpolicy.sessions` the version of this format ("1"), and `memory` the shape. A session that a lease has taken is
/// written with the memory that it had before. Other threads may use the store meanwhile.
///
/// - throws: as `write_safetensors`: `invalid_argument` for a path that it may not replace, and `std::system_error` if
///   writing fails. A file at `path` is unchanged then.
/// - cost: O(floats). It keeps the floats in memory until they are written, also if the store replaces them meanwhile.
inline void save_sessions(session_store const& from, std::filesystem::path const& path) {
  std::vector<remembered> const all = from.snapshot();
  std::map<std::string, std::string> metadata{{"kvpolicy.sessions", "1"}, {"memory", to_string(from.extents())}};
  std::vector<tensor_to_write> tensors;
  for (std::size_t i = 0; i < all.size(); ++i) {
    metadata[detail::session_key(i)] = to_string(all[i].id);
    tensors.push_back({detail::session_key(i), detail::extents_of(from.extents()), *all[i].memory});
  }
  write_safetensors(path, metadata, tensors);
}

/// Replaces all memories of a store with those of a file. If the file has more sessions than the store's capacity, the
/// last committed ones are kept.
///
/// - throws: `invalid_argument`, one line, if a lease has taken a session of the store, or if the file was not written
///   by `save_sessions`: it is not a sound safetensors file, it has another version, memories of another shape, an
///   infinite or NaN float, a text that is no id, or an id twice. The store is unchanged then.
/// - cost: O(floats of the file). All of them are in memory at once, in addition to those of the store.
inline void load_sessions(session_store& into, std::filesystem::path const& path) {
  safetensors_reader file(path);
  std::string const needed = to_string(into.extents());
  std::string const& version = file.metadata("kvpolicy.sessions");
  file.refuse(version != "1", "metadata kvpolicy.sessions", version, "this is version 1");
  std::string const& memory = file.metadata("memory");
  file.refuse(memory != needed, "metadata memory", memory,
              [&] { return std::string("the store's memories are ").append(needed); });
  std::vector<remembered> all;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    std::string const key = detail::session_key(i);
    session_id id = session_id::parse(file.metadata(key));
    auto floats = std::make_shared<std::vector<float>>(file.floats(key, detail::extents_of(into.extents())));
    all.push_back({std::move(id), std::move(floats)});
  }
  into.assign(all);
}

}  // namespace KVPOLICY_NAMESPACE

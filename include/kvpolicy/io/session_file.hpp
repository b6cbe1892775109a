// The memories of a session store as a file, and back. Needs nlohmann-json, so the umbrella header does not include it.
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

/// Under what the i-th session stands in a file: its tensor, and its name in the metadata.
[[nodiscard]] inline std::string session_key(std::size_t i) {
  return std::string("session.").append(std::to_string(i));
}

[[nodiscard]] inline std::vector<std::uint64_t> extents_of(memory_shape const& shape) {
  return {static_cast<std::uint64_t>(shape.layers), static_cast<std::uint64_t>(shape.query_heads),
          static_cast<std::uint64_t>(shape.dims)};
}

}  // namespace detail

/// Writes what a store keeps as safetensors: tensors session.0, session.1, … of F32 [layers, query heads, channels],
/// the oldest commit first; in the metadata `session.i` is the name of the i-th as it prints, `kvpolicy.sessions` the
/// version of this format ("1") and `memory` the shape. Of sessions that are out, what they remembered before. Others
/// go on with the store meanwhile.
///
/// - throws: as `write_safetensors`, `invalid_argument` for a path that it may not replace and `std::system_error` if
///   writing fails; then a file that stood there stands there still.
/// - cost: O(floats); holds the floats that are being written, also those that have been replaced since.
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

/// Replaces what a store keeps by what a file holds; of more sessions than the store's capacity, the last committed.
///
/// - throws: `invalid_argument`, one line, if a session of the store is out, or the file is not one of `save_sessions`:
///   truncated or otherwise no sound safetensors file, of another version, memories of another shape, a float that is
///   infinite or NaN, a name that is none, or is there twice. Then the store was not changed.
/// - cost: O(floats of the file), all in memory at once beside those of the store.
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

// SPDX-License-Identifier: Apache-2.0
// A writer of safetensors files, which appear under their name when they are complete. This header needs nlohmann-json
// and POSIX, so the umbrella header does not include it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/io/atomic_file.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

static_assert(std::endian::native == std::endian::little,
              "a safetensors file is little endian, and written as it lies");

/// A float32 tensor to be written. The number of its values is the product of its shape.
struct tensor_to_write {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::span<float const> values;
};

/// Writes a safetensors file with the tensors in the order of the list. It is an `atomic_file`: it replaces `path` in
/// one step when all of it is on the disk, and keeps the mode of the file that it replaces. Several writers of one path
/// do not disturb each other.
///
/// - in: tensors whose names differ; names and metadata are UTF-8.
/// - throws: `invalid_argument` if a name appears twice, is `__metadata__` or is not UTF-8, if the number of a tensor's
///   values differs from its shape, or if `path` is empty, a directory, a device, a FIFO, a socket or a symbolic link,
///   or no file can be created in its folder; `std::system_error` if writing fails, as on a full disk. `path` is
///   unchanged then.
inline void write_safetensors(std::filesystem::path const& path, std::map<std::string, std::string> const& metadata,
                              std::span<tensor_to_write const> tensors) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (tensor_to_write const& one : tensors) {
    expects(!header.contains(one.name), "write_safetensors", "tensor", one.name, "this name is there twice");
    expects(one.name != "__metadata__", "write_safetensors", "tensor", one.name, "the format has that name for itself");
    std::uint64_t elements = 1;
    for (std::uint64_t const extent : one.shape) {
      bool const fits = extent == 0 || elements <= std::numeric_limits<std::uint64_t>::max() / extent;
      expects(fits, "write_safetensors", std::string("tensor ").append(one.name), extent, "its shape has no size");
      elements *= extent;
    }
    expects(elements == one.values.size(), "write_safetensors", std::string("tensor ").append(one.name),
            one.values.size(), [&] { return std::string("its shape makes ").append(std::to_string(elements)); });
    std::uint64_t const end = at + one.values.size_bytes();
    header[one.name] = {{"dtype", "F32"}, {"shape", one.shape}, {"data_offsets", {std::exchange(at, end), end}}};
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  expects(text == header.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore), "write_safetensors", "names",
          "bytes that are not UTF-8", "names and metadata are UTF-8");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  auto const length = static_cast<std::uint64_t>(text.size());
  atomic_file file(path, "write_safetensors", "file");
  file.append(&length, sizeof length);
  file.append(text.data(), text.size());
  for (tensor_to_write const& one : tensors) file.append(one.values.data(), one.values.size_bytes());
  file.commit();
}

}  // namespace KVPOLICY_NAMESPACE

// A writer of files of named tensors: a file is there when it is whole. Needs nlohmann-json, so the umbrella header
// does not include it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <kvpolicy/core/error.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

static_assert(std::endian::native == std::endian::little,
              "a safetensors file is little endian, and written as it lies");

/// A tensor to be written: float32, as many as the shape says.
struct tensor_to_write {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::span<float const> values;
};

namespace detail {

/// A file under another name until it is whole; gone if it never is.
class unfinished_file {
 public:
  explicit unfinished_file(std::filesystem::path const& path) : path_(path), unfinished_(path) {
    unfinished_ += ".unfinished";
    file_.open(unfinished_, std::ios::binary | std::ios::trunc);
    expects(file_.is_open(), "write_safetensors", "file", path_.string(), "it cannot be written");
  }
  unfinished_file(unfinished_file const&) = delete;
  unfinished_file& operator=(unfinished_file const&) = delete;
  ~unfinished_file() {
    if (unfinished_.empty()) return;
    file_.close();
    std::error_code ignored;
    std::filesystem::remove(unfinished_, ignored);
  }
  void put(void const* from, std::size_t bytes) {
    file_.write(static_cast<char const*>(from), static_cast<std::streamsize>(bytes));
  }
  void finish() {
    file_.close();
    expects(!file_.fail(), "write_safetensors", "file", path_.string(), "it cannot be written to its end");
    std::error_code failed;
    std::filesystem::rename(unfinished_, path_, failed);
    expects(!failed, "write_safetensors", "file", path_.string(), "it cannot be replaced");
    unfinished_.clear();
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path unfinished_;
  std::ofstream file_;
};

}  // namespace detail

/// Writes a safetensors file, the tensors one behind the other as they are listed. Until it is whole it is called
/// `path`.unfinished; then it takes the place of `path` at once. One writer a path. Nothing waits for the disk.
///
/// - in: names that differ and, with the metadata, are UTF-8.
/// - throws: `invalid_argument` if a tensor's values are not as many as its shape says, or the file cannot be
///   written. Then what stood under `path` stands there still.
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
  detail::unfinished_file file(path);
  file.put(&length, sizeof length);
  file.put(text.data(), text.size());
  for (tensor_to_write const& one : tensors) file.put(one.values.data(), one.values.size_bytes());
  file.finish();
}

}  // namespace KVPOLICY_NAMESPACE

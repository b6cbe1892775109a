// SPDX-License-Identifier: Apache-2.0
// A reader of safetensors files that checks everything it reads. This header needs nlohmann-json, so the umbrella
// header does not include it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/io/safetensors_header.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace KVPOLICY_NAMESPACE {

static_assert(std::endian::native == std::endian::little, "a safetensors file is little endian, and read as it lies");

/// An open safetensors file with its named tensors and its metadata. The constructor checks every number of the header
/// against the file. The bytes of a tensor are read on request. Only one thread may use it at a time.
///
/// - throws: `invalid_argument`, one line that names the file, the tensor and the value.
/// - source: the format of huggingface/safetensors, with its limit of 100 MB for a header.
class safetensors_reader : public safetensors_index {
 public:
  explicit safetensors_reader(std::filesystem::path const& path)
      : safetensors_index(path.filename().string()), file_(path, std::ios::binary) {
    std::error_code failed;
    bool const regular = std::filesystem::is_regular_file(path, failed);
    file_.seekg(0, std::ios::end);  // the size of the file that is open: another may have replaced it at this path
    std::streamoff const end = file_.tellg();
    expects(file_.is_open() && regular && end >= 0, "safetensors", "file", path.string(), "it cannot be opened");
    auto const size = static_cast<std::uint64_t>(end);
    std::uint64_t header = 0;
    if (size >= 8) fetch(0, std::as_writable_bytes(std::span(&header, 1)), "header length");
    check_sizes(size, header);
    std::string text(static_cast<std::size_t>(header), '\0');
    fetch(8, std::as_writable_bytes(std::span(text)), "header");
    read_header(text, size - 8 - header);
    data_ = 8 + header;
  }

  /// Reads a tensor, which must be float32 and of exactly this shape.
  /// - throws: `invalid_argument` if there is no such tensor, or its type or shape differs.
  [[nodiscard]] std::vector<float> floats(std::string const& key, std::vector<std::uint64_t> const& shape) {
    file_tensor const& one = of_shape(key, shape);
    std::string const what = std::string("tensor ").append(key);
    refuse(one.dtype != "F32", what + " dtype", one.dtype, "it is read as F32");
    std::vector<float> values(static_cast<std::size_t>(one.end - one.begin) / sizeof(float));
    fetch(data_ + one.begin, std::as_writable_bytes(std::span(values)), what);
    return values;
  }

 private:
  void fetch(std::uint64_t at, std::span<std::byte> to, std::string_view what) {
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
    refuse(!file_, what, to.size(), "so many bytes cannot be read");
  }

  std::ifstream file_;
  std::uint64_t data_ = 0;  // offset of the first byte after the header
};

}  // namespace KVPOLICY_NAMESPACE

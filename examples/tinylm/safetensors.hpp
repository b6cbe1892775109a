// SPDX-License-Identifier: Apache-2.0
// A reader of safetensors files whose tensors are read where they lie in the mapped file.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/io/safetensors_header.hpp>
#include <span>
#include <string>
#include <vector>

namespace tinylm {

namespace kv = kvpolicy;

/// A file that is mapped into memory while this object lives. If it is writable, a written page becomes a private copy,
/// and the file does not change.
class mapped_file {
 public:
  explicit mapped_file(std::filesystem::path const& path, bool writable = false) {
    int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    kv::expects(file >= 0, "safetensors", "file", path.string(), "it cannot be opened");
    struct stat about{};
    bool const known = ::fstat(file, &about) == 0 && S_ISREG(about.st_mode);
    size_ = known ? static_cast<std::size_t>(about.st_size) : 0;
    void* const memory =
        size_ > 0 ? ::mmap(nullptr, size_, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_PRIVATE, file, 0)
                  : nullptr;
    ::close(file);
    kv::expects(known && memory != MAP_FAILED, "safetensors", "file", path.string(), "it cannot be mapped");
    data_ = static_cast<std::byte const*>(memory);
  }
  mapped_file(mapped_file const&) = delete;
  mapped_file& operator=(mapped_file const&) = delete;
  ~mapped_file() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  [[nodiscard]] std::span<std::byte const> bytes() const { return {data_, size_}; }

 private:
  std::byte const* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An open safetensors file with its named tensors and its metadata, which are read where they lie. The constructor
/// checks everything.
///
/// - throws: `kvpolicy::invalid_argument`, one line that names the file, the tensor and the value.
class safetensors : public kv::safetensors_index {
 public:
  using tensor = kv::file_tensor;

  explicit safetensors(std::filesystem::path const& path, bool writable = false)
      : safetensors_index(path.filename().string()), file_(path, writable) {
    std::uint64_t const size = file_.bytes().size();
    std::uint64_t header = 0;
    if (size >= 8) std::memcpy(&header, file_.bytes().data(), 8);
    check_sizes(size, header);
    data_ = file_.bytes().subspan(8 + static_cast<std::size_t>(header));
    read_header({reinterpret_cast<char const*>(file_.bytes().data()) + 8, static_cast<std::size_t>(header)},
                data_.size());
  }

  /// The address of a tensor's bytes. They may be written if the file was opened writable.
  [[nodiscard]] std::byte* at(tensor const& one) const { return const_cast<std::byte*>(data_.data()) + one.begin; }

  /// The bytes of a tensor, which must have exactly this type and shape.
  [[nodiscard]] std::span<std::byte const> bytes(std::string const& key, std::string const& dtype,
                                                 std::vector<std::uint64_t> const& shape) const {
    tensor const& one = of_shape(key, shape);
    refuse(one.dtype != dtype, "tensor " + key + " dtype", one.dtype, "it is read as " + dtype);
    return data_.subspan(static_cast<std::size_t>(one.begin), static_cast<std::size_t>(one.end - one.begin));
  }

  /// Reads a tensor of floats of any width as float32. It must have exactly this shape.
  [[nodiscard]] std::vector<float> floats(std::string const& key, std::vector<std::uint64_t> const& shape) const {
    tensor const& one = of_shape(key, shape);
    bool const number = one.dtype == "F32" || one.dtype == "F16" || one.dtype == "BF16";
    refuse(!number, "tensor " + key + " dtype", one.dtype, "it is read as numbers with a fraction");
    kv::codec const as = one.dtype == "F32" ? kv::codec::f32 : one.dtype == "F16" ? kv::codec::f16 : kv::codec::bf16;
    auto const width = static_cast<std::size_t>(bytes_of(one.dtype));
    std::byte const* const from = data_.data() + one.begin;
    std::vector<float> values(static_cast<std::size_t>(one.end - one.begin) / width);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = kv::load(as, from + i * width);
    return values;
  }

 private:
  mapped_file file_;
  std::span<std::byte const> data_;
};

}  // namespace tinylm

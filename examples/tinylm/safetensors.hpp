// SPDX-License-Identifier: Apache-2.0
// A reader of safetensors files that checks every number of the header against the file.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/io/safetensors_header.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

/// An open safetensors file with its named tensors and its metadata. The constructor checks everything.
///
/// - throws: `kvpolicy::invalid_argument`, one line that names the file, the tensor and the value.
class safetensors {
 public:
  struct tensor {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;  ///< in bytes, from the end of the header
    std::uint64_t end = 0;
  };

  explicit safetensors(std::filesystem::path const& path, bool writable = false)
      : file_(path, writable), name_(path.filename().string()) {
    std::uint64_t const size = file_.bytes().size();
    refuse(size < 8, "size", size, "a header length takes 8 bytes");
    std::uint64_t header = 0;
    std::memcpy(&header, file_.bytes().data(), 8);
    refuse(header > size - 8, "header length", header, "the file has " + std::to_string(size - 8) + " bytes after it");
    refuse(header > 100'000'000, "header length", header, "a header has at most 100 MB");
    data_ = file_.bytes().subspan(8 + static_cast<std::size_t>(header));
    read_header({reinterpret_cast<char const*>(file_.bytes().data()) + 8, static_cast<std::size_t>(header)});
    check_layout();
  }

  [[nodiscard]] std::map<std::string, tensor> const& tensors() const { return tensors_; }

  [[nodiscard]] std::map<std::string, std::string> const& all_metadata() const { return metadata_; }

  /// The address of a tensor's bytes. They may be written if the file was opened writable.
  [[nodiscard]] std::byte* at(tensor const& one) const { return const_cast<std::byte*>(data_.data()) + one.begin; }

  /// The text of the metadata under this key.
  [[nodiscard]] std::string const& metadata(std::string const& key) const {
    auto const found = metadata_.find(key);
    refuse(found == metadata_.end(), "metadata " + key, "missing", "it is needed");
    return found->second;
  }

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
    std::size_t const width = bytes_of(one.dtype);
    std::byte const* const from = data_.data() + one.begin;
    std::vector<float> values(static_cast<std::size_t>(one.end - one.begin) / width);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = kv::load(as, from + i * width);
    return values;
  }

 private:
  using json = nlohmann::json;

  void refuse(bool wrong, std::string const& what, std::string const& value, std::string const& rule) const {
    if (wrong) kv::expects(false, "safetensors", name_ + ": " + what, value, rule);
  }
  void refuse(bool wrong, std::string const& what, std::uint64_t value, std::string const& rule) const {
    if (wrong) refuse(true, what, std::to_string(value), rule);
  }

  static std::size_t bytes_of(std::string const& dtype) {
    static constexpr std::pair<std::string_view, std::size_t> known[] = {
        {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
        {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    for (auto const& [name, bytes] : known) {
      if (name == dtype) return bytes;
    }
    return 0;
  }

  void read_header(std::string_view text) {
    json const header = kv::detail::parse_safetensors_header(
        text, [&](bool wrong, auto const& value, auto const& rule) { refuse(wrong, "header", value, rule); },
        [&](int depth, std::string const& name) {
          refuse(true, depth == 1 ? "tensor" : "header", name, "this name is there twice");
        });
    for (auto const& [key, value] : header.items())
      key == "__metadata__" ? read_metadata(value) : read_tensor(key, value);
  }

  void read_metadata(json const& from) {
    refuse(!from.is_object(), "__metadata__", from.type_name(), "it is an object");
    for (auto const& [key, value] : from.items()) {
      refuse(!value.is_string(), "metadata " + key, value.type_name(), "it is a string");
      metadata_[key] = value.get<std::string>();
    }
  }

  void read_tensor(std::string const& key, json const& from) {
    std::string const what = "tensor " + key;
    refuse(!from.is_object(), what, from.type_name(), "it is an object");
    tensor one;
    json const dtype = from.value("dtype", json{});
    refuse(!dtype.is_string(), what + " dtype", dtype.type_name(), "it is a string");
    one.dtype = dtype.get<std::string>();
    refuse(bytes_of(one.dtype) == 0, what + " dtype", one.dtype,
           "a tensor holds F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or integers of 8 to 64 bits");
    one.shape = numbers(what + " shape", from.value("shape", json{}));
    auto const offsets = numbers(what + " data_offsets", from.value("data_offsets", json{}));
    refuse(offsets.size() != 2, what + " data_offsets", offsets.size(), "they are two numbers");
    one.begin = offsets[0];
    one.end = offsets[1];
    check_size(what, one);
    tensors_.emplace(key, std::move(one));
  }

  [[nodiscard]] std::vector<std::uint64_t> numbers(std::string const& what, json const& from) const {
    refuse(!from.is_array(), what, from.type_name(), "it is an array");
    std::vector<std::uint64_t> all;
    for (json const& one : from) {
      refuse(!one.is_number_unsigned(), what, one.dump(-1, ' ', false, json::error_handler_t::replace),
             "sizes and offsets are whole and not negative");
      all.push_back(one.get<std::uint64_t>());
    }
    return all;
  }

  void check_size(std::string const& what, tensor const& one) const {
    refuse(one.begin > one.end, what + " data_offsets", one.begin, "it ends before, at " + std::to_string(one.end));
    refuse(one.end > data_.size(), what + " data_offsets", one.end,
           "the file holds " + std::to_string(data_.size()) + " bytes of data");
    std::uint64_t bytes = bytes_of(one.dtype);
    for (std::uint64_t const extent : one.shape) {
      bool const fits = !__builtin_mul_overflow(bytes, extent, &bytes);
      refuse(!fits, what + " shape", extent, "so many elements have no size in 64 bits");
    }
    refuse(bytes != one.end - one.begin, what + " bytes", one.end - one.begin,
           "shape and dtype make " + std::to_string(bytes));
  }

  /// Checks that the tensors are adjacent: each byte belongs to exactly one tensor.
  void check_layout() const {
    std::vector<std::pair<std::string, tensor>> in_order(tensors_.begin(), tensors_.end());
    std::sort(in_order.begin(), in_order.end(), [](auto const& a, auto const& b) {
      return std::pair(a.second.begin, a.second.end) < std::pair(b.second.begin, b.second.end);
    });
    std::uint64_t reached = 0;
    for (auto const& [key, one] : in_order) {
      std::string const what = "tensor " + key + " data_offsets";
      refuse(one.begin < reached, what, one.begin, "the tensor before it ends at " + std::to_string(reached));
      refuse(one.begin > reached, what, one.begin, "bytes from " + std::to_string(reached) + " on belong to no tensor");
      reached = one.end;
    }
    refuse(reached != data_.size(), "data", data_.size(), "the tensors end at " + std::to_string(reached));
  }

  [[nodiscard]] tensor const& of_shape(std::string const& key, std::vector<std::uint64_t> const& shape) const {
    auto const found = tensors_.find(key);
    refuse(found == tensors_.end(), "tensor " + key, "missing", "it is needed");
    auto const print = [](std::vector<std::uint64_t> const& extents) { return json(extents).dump(); };
    refuse(found->second.shape != shape, "tensor " + key + " shape", print(found->second.shape),
           "it must be " + print(shape));
    return found->second;
  }

  mapped_file file_;
  std::string name_;
  std::span<std::byte const> data_;
  std::map<std::string, tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace tinylm

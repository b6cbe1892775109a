// SPDX-License-Identifier: Apache-2.0
// A reader of safetensors files that checks everything it reads. This header needs nlohmann-json, so the umbrella
// header does not include it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/io/safetensors_header.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

static_assert(std::endian::native == std::endian::little, "a safetensors file is little endian, and read as it lies");

/// A tensor of a file: its element type, its extents, and the offsets of its bytes after the header.
struct file_tensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// An open safetensors file with its named tensors and its metadata. The constructor checks every number of the header
/// against the file. The bytes of a tensor are read on request. Only one thread may use it at a time.
///
/// - throws: `invalid_argument`, one line that names the file, the tensor and the value.
/// - source: the format of huggingface/safetensors, with its limit of 100 MB for a header.
class safetensors_reader {
 public:
  explicit safetensors_reader(std::filesystem::path const& path)
      : file_(path, std::ios::binary), name_(path.filename().string()) {
    std::error_code failed;
    bool const regular = std::filesystem::is_regular_file(path, failed);
    file_.seekg(0, std::ios::end);  // the size of the file that is open: another may have replaced it at this path
    std::streamoff const end = file_.tellg();
    expects(file_.is_open() && regular && end >= 0, "safetensors", "file", path.string(), "it cannot be opened");
    auto const size = static_cast<std::uint64_t>(end);
    refuse(size < 8, "size", size, "a header length takes 8 bytes");
    std::uint64_t header = 0;
    fetch(0, std::as_writable_bytes(std::span(&header, 1)), "header length");
    refuse(header > size - 8, "header length", header,
           [&] { return std::string("the file has ").append(std::to_string(size - 8)).append(" bytes after it"); });
    refuse(header > 100'000'000, "header length", header, "a header has at most 100 MB");
    data_ = 8 + header;
    bytes_ = size - data_;
    std::string text(static_cast<std::size_t>(header), '\0');
    fetch(8, std::as_writable_bytes(std::span(text)), "header");
    read_header(text);
    check_layout();
  }

  [[nodiscard]] std::map<std::string, file_tensor> const& tensors() const { return tensors_; }
  [[nodiscard]] std::map<std::string, std::string> const& all_metadata() const { return metadata_; }

  /// The text of the metadata under this key.
  /// - throws: `invalid_argument` if there is none.
  [[nodiscard]] std::string const& metadata(std::string const& key) const {
    auto const found = metadata_.find(key);
    refuse(found == metadata_.end(), std::string("metadata ").append(key), "missing", "it is needed");
    return found->second;
  }

  /// Reads a tensor, which must be float32 and of exactly this shape.
  /// - throws: `invalid_argument` if there is no such tensor, or its type or shape differs.
  [[nodiscard]] std::vector<float> floats(std::string const& key, std::vector<std::uint64_t> const& shape) {
    std::string const what = std::string("tensor ").append(key);
    auto const found = tensors_.find(key);
    refuse(found == tensors_.end(), what, "missing", "it is needed");
    file_tensor const& one = found->second;
    auto const print = [](std::vector<std::uint64_t> const& extents) { return nlohmann::json(extents).dump(); };
    refuse(one.dtype != "F32", what + " dtype", one.dtype, "it is read as F32");
    refuse(
        one.shape != shape, what + " shape", [&] { return print(one.shape); },
        [&] { return std::string("it must be ").append(print(shape)); });
    std::vector<float> values(static_cast<std::size_t>(one.end - one.begin) / sizeof(float));
    fetch(data_ + one.begin, std::as_writable_bytes(std::span(values)), what);
    return values;
  }

  /// Throws the reader's error about this file if `wrong`, for checks that only the caller can make.
  template <class Value, class Rule>
  void refuse(bool wrong, std::string_view what, Value const& value, Rule const& rule) const {
    expects(
        !wrong, "safetensors", [&] { return one_line(std::string(name_).append(": ").append(what)); },
        [&] { return one_line(kvpolicy::detail::spell(value)); }, rule);
  }

 private:
  using json = nlohmann::json;

  /// Replaces control characters, so that an error is one line whatever names the file contains.
  static std::string one_line(std::string text) {
    std::replace_if(text.begin(), text.end(), [](unsigned char each) { return each < 0x20 || each == 0x7F; }, ' ');
    return text;
  }

  void fetch(std::uint64_t at, std::span<std::byte> to, std::string_view what) {
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
    refuse(!file_, what, to.size(), "so many bytes cannot be read");
  }

  static std::uint64_t bytes_of(std::string_view dtype) {
    using known = std::pair<std::string_view, std::uint64_t>;
    static constexpr std::array<known, 15> all = {{{"F64", 8},
                                                   {"I64", 8},
                                                   {"U64", 8},
                                                   {"F32", 4},
                                                   {"I32", 4},
                                                   {"U32", 4},
                                                   {"F16", 2},
                                                   {"BF16", 2},
                                                   {"I16", 2},
                                                   {"U16", 2},
                                                   {"I8", 1},
                                                   {"U8", 1},
                                                   {"BOOL", 1},
                                                   {"F8_E4M3", 1},
                                                   {"F8_E5M2", 1}}};
    auto const* const found =
        std::find_if(all.begin(), all.end(), [&](known const& one) { return one.first == dtype; });
    return found != all.end() ? found->second : 0;
  }

  void read_header(std::string const& text) {
    json const header = kvpolicy::detail::parse_safetensors_header(
        text, [&](bool wrong, auto const& value, auto const& rule) { refuse(wrong, "header", value, rule); },
        [&](int, std::string const& name) { refuse(true, "header", name, "this name is there twice"); });
    for (auto const& [key, value] : header.items()) {
      key == "__metadata__" ? read_metadata(value) : read_tensor(key, value);
    }
  }

  void read_metadata(json const& from) {
    refuse(!from.is_object(), "__metadata__", from.type_name(), "it is an object");
    for (auto const& [key, value] : from.items()) {
      refuse(!value.is_string(), std::string("metadata ").append(key), value.type_name(), "it is a string");
      metadata_[key] = value.get<std::string>();
    }
  }

  void read_tensor(std::string const& key, json const& from) {
    std::string const what = std::string("tensor ").append(key);
    refuse(!from.is_object(), what, from.type_name(), "it is an object");
    json const dtype = from.value("dtype", json{});
    refuse(!dtype.is_string(), what + " dtype", dtype.type_name(), "it is a string");
    auto const offsets = numbers(what + " data_offsets", from.value("data_offsets", json{}));
    refuse(offsets.size() != 2, what + " data_offsets", offsets.size(), "they are two numbers");
    file_tensor one{dtype.get<std::string>(), numbers(what + " shape", from.value("shape", json{})), offsets[0],
                    offsets[1]};
    check_size(what, one);
    tensors_.emplace(key, std::move(one));
  }

  [[nodiscard]] std::vector<std::uint64_t> numbers(std::string const& what, json const& from) const {
    refuse(!from.is_array(), what, from.type_name(), "it is an array");
    std::vector<std::uint64_t> all;
    for (json const& one : from) {
      refuse(
          !one.is_number_unsigned(), what, [&] { return one.dump(-1, ' ', false, json::error_handler_t::replace); },
          "sizes and offsets are whole and not negative");
      all.push_back(one.get<std::uint64_t>());
    }
    return all;
  }

  void check_size(std::string const& what, file_tensor const& one) const {
    std::uint64_t bytes = bytes_of(one.dtype);
    refuse(bytes == 0, what + " dtype", one.dtype,
           "a tensor holds F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or integers of 8 to 64 bits");
    refuse(one.begin > one.end, what + " data_offsets", one.begin,
           [&] { return std::string("it ends before, at ").append(std::to_string(one.end)); });
    refuse(one.end > bytes_, what + " data_offsets", one.end,
           [&] { return std::string("the file holds ").append(std::to_string(bytes_)).append(" bytes of data"); });
    for (std::uint64_t const extent : one.shape) {
      bool const fits = extent == 0 || bytes <= std::numeric_limits<std::uint64_t>::max() / extent;
      refuse(!fits, what + " shape", extent, "so many elements have no size in 64 bits");
      bytes *= extent;
    }
    refuse(bytes != one.end - one.begin, what + " bytes", one.end - one.begin,
           [&] { return std::string("shape and dtype make ").append(std::to_string(bytes)); });
  }

  /// Checks that the tensors are adjacent: each byte belongs to exactly one tensor.
  void check_layout() const {
    std::vector<std::pair<std::pair<std::uint64_t, std::uint64_t>, std::string>> in_order;
    for (auto const& [key, one] : tensors_) in_order.push_back({{one.begin, one.end}, key});
    std::sort(in_order.begin(), in_order.end());
    std::uint64_t reached = 0;
    for (auto const& [place, key] : in_order) {
      std::string const what = std::string("tensor ").append(key).append(" data_offsets");
      std::string const before = std::to_string(reached);
      refuse(place.first < reached, what, place.first, "the tensor before it ends at " + before);
      refuse(place.first > reached, what, place.first, "bytes from " + before + " on belong to no tensor");
      reached = place.second;
    }
    refuse(reached != bytes_, "data", bytes_,
           [&] { return std::string("the tensors end at ").append(std::to_string(reached)); });
  }

  std::ifstream file_;
  std::string name_;
  std::uint64_t data_ = 0;   // offset of the first byte after the header
  std::uint64_t bytes_ = 0;  // number of bytes after the header
  std::map<std::string, file_tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace KVPOLICY_NAMESPACE

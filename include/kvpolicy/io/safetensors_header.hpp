// SPDX-License-Identifier: Apache-2.0
// Reads and checks the header of a safetensors file, for every reader of such files. This header needs nlohmann-json,
// so the umbrella header does not include it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The nesting depth of the brackets of a JSON text. Brackets in strings do not count. O(characters).
[[nodiscard]] inline int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const one = text[i];
    if (in_string && one == '\\') ++i;
    if (one == '"') in_string = !in_string;
    if (in_string) continue;
    if (one == '{' || one == '[') deepest = std::max(deepest, ++depth);
    if (one == '}' || one == ']') --depth;
  }
  return deepest;
}

/// Parses a header, which nests three levels deep. It refuses a header of more than 16 levels before it parses it,
/// because copying or printing a JSON value recurses and could overflow the stack.
///
/// - in: `refuse(wrong, value, rule)`, which throws if `wrong`; `twice(depth, name)`, which throws: an object has the
///   name twice. The names of tensors have the depth 1, and those of a tensor's fields 2.
/// - out: a JSON object, in which every name was there once.
template <class Refuse, class Twice>
[[nodiscard]] nlohmann::json parse_safetensors_header(std::string_view text, Refuse const& refuse, Twice const& twice) {
  constexpr int most = 16;
  using json = nlohmann::json;
  std::vector<std::set<std::string>> open;  // the names so far in each object that has begun and not ended
  std::pair<int, std::string> again;        // the depth and the name of one that is there twice; 0: none is
  auto const watch = [&](int level, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
      again = {level, parsed.get<std::string>()};
    }
    return true;
  };
  int const depth = nesting_depth(text);
  bool const parses = depth <= most;
  json header = parses ? json::parse(text, watch, false) : json(json::value_t::discarded);
  bool const object = parses ? header.is_object() : text[text.find_first_of("{[")] == '{';
  refuse(!object, std::to_string(text.size()) + " bytes", "they are not a JSON object");
  refuse(!parses, std::to_string(depth) + " levels of brackets", "they nest at most 16 levels deep");
  if (again.first != 0) twice(again.first, again.second);
  return header;
}

}  // namespace detail

/// A tensor of a file: its element type, its extents, and the offsets of its bytes after the header.
struct file_tensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The tensors and the metadata of a safetensors file, as its header lists them. Readers derive from it.
///
/// - source: the format of huggingface/safetensors, with its limit of 100 MB for a header.
class safetensors_index {
 public:
  explicit safetensors_index(std::string file_name) : name_(std::move(file_name)) {}

  [[nodiscard]] std::map<std::string, file_tensor> const& tensors() const { return tensors_; }
  [[nodiscard]] std::map<std::string, std::string> const& all_metadata() const { return metadata_; }

  /// The text of the metadata under this key.
  /// - throws: `invalid_argument` if there is none.
  [[nodiscard]] std::string const& metadata(std::string const& key) const {
    auto const found = metadata_.find(key);
    refuse(found == metadata_.end(), std::string("metadata ").append(key), "missing", "it is needed");
    return found->second;
  }

  /// The tensor of this name, which must have exactly this shape.
  /// - throws: `invalid_argument` if there is no such tensor, or its shape differs.
  [[nodiscard]] file_tensor const& of_shape(std::string const& key, std::vector<std::uint64_t> const& shape) const {
    std::string const what = std::string("tensor ").append(key);
    auto const found = tensors_.find(key);
    refuse(found == tensors_.end(), what, "missing", "it is needed");
    auto const print = [](std::vector<std::uint64_t> const& extents) { return nlohmann::json(extents).dump(); };
    refuse(
        found->second.shape != shape, what + " shape", [&] { return print(found->second.shape); },
        [&] { return std::string("it must be ").append(print(shape)); });
    return found->second;
  }
  /// The bytes of an element; 0: the type is not known.
  [[nodiscard]] static std::uint64_t bytes_of(std::string_view dtype) {
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

  /// Throws the reader's error about this file if `wrong`, for checks that only the caller can make.
  template <class Value, class Rule>
  void refuse(bool wrong, std::string_view what, Value const& value, Rule const& rule) const {
    expects(
        !wrong, "safetensors", [&] { return one_line(std::string(name_).append(": ").append(what)); },
        [&] { return one_line(kvpolicy::detail::spell(value)); }, rule);
  }

 protected:
  /// Checks the bytes of a file and those that its header says it has.
  void check_sizes(std::uint64_t size, std::uint64_t header) const {
    refuse(size < 8, "size", size, "a header length takes 8 bytes");
    refuse(header > size - 8, "header length", header,
           [&] { return std::string("the file has ").append(std::to_string(size - 8)).append(" bytes after it"); });
    refuse(header > 100'000'000, "header length", header, "a header has at most 100 MB");
  }
  /// Reads the header of a file with `bytes` of data behind it, and checks all numbers.
  void read_header(std::string_view text, std::uint64_t bytes) {
    bytes_ = bytes;
    json const header = kvpolicy::detail::parse_safetensors_header(
        text, [&](bool wrong, auto const& value, auto const& rule) { refuse(wrong, "header", value, rule); },
        [&](int depth, std::string const& name) {
          refuse(true, depth == 1 ? "tensor" : "header", name, "this name is there twice");
        });
    for (auto const& [key, value] : header.items()) {
      key == "__metadata__" ? read_metadata(value) : read_tensor(key, value);
    }
    check_layout();
  }

 private:
  using json = nlohmann::json;

  /// Replaces control characters, so that an error is one line whatever names the file contains.
  static std::string one_line(std::string text) {
    std::replace_if(text.begin(), text.end(), [](unsigned char each) { return each < 0x20 || each == 0x7F; }, ' ');
    return text;
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

  std::string name_;
  std::uint64_t bytes_ = 0;  // number of bytes after the header
  std::map<std::string, file_tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace KVPOLICY_NAMESPACE

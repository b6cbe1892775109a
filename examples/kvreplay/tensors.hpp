// SPDX-License-Identifier: Apache-2.0
// The tensors of a trace, which are read in place. Each is checked against the letters of its shape, and errors name
// it.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../executor.hpp"
#include "../tinylm/safetensors.hpp"

namespace kvreplay {

namespace kv = kvpolicy;
using tinylm::safetensors;

/// A tensor of numbers in the trace, or none: its address, element type and extents.
struct array {
  std::byte* data = nullptr;
  kv::codec element = kv::codec::f32;
  std::vector<std::int64_t> shape;
  bool mapped = true;  ///< false: a rounded copy in memory
  explicit operator bool() const { return data != nullptr; }
  /// The bytes between neighbours along an axis; -1 is the last axis.
  [[nodiscard]] std::int64_t stride(int axis) const {
    std::int64_t bytes = kv::bytes_of(element);
    for (std::size_t i = shape.size(); i-- > static_cast<std::size_t>(axis) + 1;) bytes *= shape[i];
    return bytes;
  }
  [[nodiscard]] std::int64_t count() const { return stride(-1) / kv::bytes_of(element); }
  [[nodiscard]] float value(std::int64_t i) const { return kv::load(element, data + i * kv::bytes_of(element)); }
  /// The index of the first of `elements` from `begin` on that is NaN or infinite, or -1.
  [[nodiscard]] std::int64_t first_not_finite(std::int64_t begin, std::int64_t elements) const;
};

namespace detail {

/// True if the exponent bits of any number are all ones. Compilers vectorise this loop.
template <class Bits>
[[nodiscard]] bool any_not_finite(std::byte const* from, std::int64_t count, Bits exponent) {
  unsigned found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, from + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    found |= static_cast<unsigned>((bits & exponent) == exponent);
  }
  return found != 0;
}

}  // namespace detail

inline std::int64_t array::first_not_finite(std::int64_t begin, std::int64_t elements) const {
  std::byte const* const from = data + begin * kv::bytes_of(element);
  bool const any = kv::is_fp8(element)         ? true
                   : element == kv::codec::f32 ? detail::any_not_finite<std::uint32_t>(from, elements, 0x7F800000)
                   : element == kv::codec::f16 ? detail::any_not_finite<std::uint16_t>(from, elements, 0x7C00)
                                               : detail::any_not_finite<std::uint16_t>(from, elements, 0x7F80);
  for (std::int64_t i = begin; any && i < begin + elements; ++i) {
    if (!std::isfinite(value(i))) return i;
  }
  return -1;
}

[[noreturn]] inline void refuse(std::string const& name, std::string const& found, std::string const& rule) {
  kv::expects(false, "kvreplay", "tensor " + name, found, rule);
  std::abort();
}

/// Checks that the rows [begin, end) of the queries [L,Hq,rows,D], which a policy reads, are finite.
inline void check_rows(array const& queries, int begin, int end) {
  std::int64_t const width = queries.shape[3];
  for (std::int64_t lane = 0; lane < queries.shape[0] * queries.shape[1]; ++lane) {
    std::int64_t const first = (lane * queries.shape[2] + begin) * width;
    std::int64_t const at = queries.first_not_finite(first, (end - begin) * width);
    if (at < 0) continue;
    refuse("queries", kv::to_string(queries.value(at)) + " in row " + std::to_string(at / width % queries.shape[2]),
           "rows that are looked with are finite");
  }
}

/// The numbers of the new entries [begin, end), from a tensor [L,Hkv,N].
[[nodiscard]] inline kv::entry_numbers numbers_of(array const& from, int begin, int end) {
  return {.base = from.data + begin * from.stride(2),
          .element = from.element,
          .layer = from.stride(0),
          .head = from.stride(1),
          .entry = from.stride(2),
          .entries = end - begin};
}

/// Reads tensors by name, of all layers or of some. Each extent has a letter, which stands for one number throughout
/// the file: L layers, Q query heads, K KV heads, N entries, D and V channels, W recent rows, R rows from elsewhere, T
/// turns. `h` is either query heads or KV heads; the caller decides when both are known.
class tensors {
 public:
  /// With a list of `layers`, ascending, reads only these of a tensor whose first axis is the layers. They are read in
  /// place if they are adjacent, and are copied otherwise.
  explicit tensors(std::string const& path, std::vector<int> layers = {})
      : file_(path, true), layers_(std::move(layers)) {}

  [[nodiscard]] safetensors const& file() const { return file_; }
  [[nodiscard]] bool has(std::string const& name) const { return file_.tensors().count(name) != 0; }

  array read(std::string const& name, std::string const& letters) {
    auto const found = file_.tensors().find(name);
    if (found == file_.tensors().end()) return {};
    safetensors::tensor const& one = found->second;
    bind(name, one, letters);
    array made;
    for (std::uint64_t const extent : one.shape) made.shape.push_back(static_cast<std::int64_t>(extent));
    made.data = file_.at(one);
    auto bytes = static_cast<std::size_t>(one.end - one.begin);
    if (!layers_.empty() && letters.front() == 'L') bytes = take_layers(made, bytes);
    std::optional<kv::codec> const element = element_of(one.dtype);
    bool const is_row = name == "keys" || name == "values";
    if (element && (is_row || !kv::is_fp8(*element))) {
      made.element = *element;
      if constexpr (!std::same_as<examples::executor, kv::host_executor>) {
        std::byte const* const from = std::exchange(made.data, nullptr);
        made.data = copied_.emplace_back(from, from + bytes).data();
        made.mapped = false;
      }
      return made;
    }
    if (!element && one.dtype != "F64")
      refuse(name, "dtype " + one.dtype, "it is F64, F32, F16, BF16, F8_E4M3 or F8_E5M2");
    made.data = element ? widen(*element, made.data, bytes) : round(made.data, bytes / 8);
    made.mapped = false;
    return made;
  }

  /// The number of axes of a tensor; 0 if it is not there.
  [[nodiscard]] std::size_t axes(std::string const& name) const {
    auto const found = file_.tensors().find(name);
    return found == file_.tensors().end() ? 0 : found->second.shape.size();
  }
  std::vector<int> read_integers(std::string const& name, std::string const& letters) {
    auto const found = file_.tensors().find(name);
    if (found == file_.tensors().end()) return {};
    safetensors::tensor const& one = found->second;
    bind(name, one, letters);
    bool const wide = one.dtype == "I64";
    if (!wide && one.dtype != "I32") refuse(name, "dtype " + one.dtype, "it is I32 or I64");
    std::vector<int> made;
    for (std::uint64_t at = 0; at < one.end - one.begin; at += wide ? 8 : 4) {
      std::int64_t value = 0;
      std::int32_t narrow = 0;
      std::memcpy(wide ? static_cast<void*>(&value) : &narrow, file_.at(one) + at, wide ? 8 : 4);
      if (!wide) value = narrow;
      if (value < 0 || value > 0x7FFFFFFF) refuse(name, std::to_string(value), "it has numbers of 0 to 2^31 - 1");
      made.push_back(static_cast<int>(value));
    }
    return made;
  }

  /// The number of layers that are read.
  [[nodiscard]] int layers() const { return layers_.empty() ? bound('L', 1) : static_cast<int>(std::ssize(layers_)); }
  [[nodiscard]] bool bound(char letter) const { return bound_.count(letter) != 0; }
  [[nodiscard]] int bound(char letter, int otherwise) const {
    auto const found = bound_.find(letter);
    return found != bound_.end() ? static_cast<int>(found->second.first) : otherwise;
  }
  /// The name of the tensor from which a letter got its number.
  [[nodiscard]] std::string const& bound_by(char letter) const { return bound_.at(letter).second; }

 private:
  static std::string print(std::vector<std::uint64_t> const& shape) {
    std::string text = "[";
    for (std::uint64_t const extent : shape) {
      if (text.size() > 1) text += ',';
      text += std::to_string(extent);
    }
    return text + "]";
  }

  void bind(std::string const& name, safetensors::tensor const& one, std::string const& letters) {
    std::vector<std::uint64_t> const& shape = one.shape;
    if (shape.size() != letters.size()) {
      refuse(name, "shape " + print(shape), "it has " + std::to_string(letters.size()) + " axes");
    }
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 0 || shape[i] > 0x7FFFFFFF) refuse(name, "shape " + print(shape), "every axis has 1 to 2^31 - 1");
      char const letter = letters[i];
      if (letter == 'h') continue;
      auto const [known, fresh] = bound_.try_emplace(letter, static_cast<std::int64_t>(shape[i]), name);
      if (!fresh && known->second.first != static_cast<std::int64_t>(shape[i])) {
        refuse(name, "shape " + print(shape),
               std::string("tensor ") + known->second.second + " has " + std::to_string(known->second.first) + " " +
                   meaning(letter));
      }
    }
  }
  static char const* meaning(char letter) {
    switch (letter) {
      case 'L':
        return "layers";
      case 'Q':
        return "query heads";
      case 'K':
        return "KV heads";
      case 'N':
        return "entries";
      case 'D':
      case 'V':
        return "channels";
      case 'S':
        return "columns";
      case 'T':
        return "turns";
      default:
        return "rows";
    }
  }

  /// Narrows a tensor of `bytes` to the layers that are read. Returns their bytes.
  std::size_t take_layers(array& of, std::size_t bytes) {
    std::size_t const row = bytes / static_cast<std::size_t>(of.shape.front());
    of.shape.front() = std::ssize(layers_);
    if (layers_.back() - layers_.front() + 1 == std::ssize(layers_)) {
      of.data += row * static_cast<std::size_t>(layers_.front());
      return row * layers_.size();
    }
    std::vector<std::byte>& to = copied_.emplace_back();
    to.reserve(row * layers_.size());
    for (int const layer : layers_) {
      std::byte const* const from = of.data + row * static_cast<std::size_t>(layer);
      to.insert(to.end(), from, from + row);
    }
    of.data = to.data();
    of.mapped = false;
    return to.size();
  }

  static std::optional<kv::codec> element_of(std::string const& dtype) {
    constexpr std::pair<char const*, kv::codec> known[] = {{"F32", kv::codec::f32},
                                                           {"F16", kv::codec::f16},
                                                           {"BF16", kv::codec::bf16},
                                                           {"F8_E4M3", kv::codec::e4m3},
                                                           {"F8_E5M2", kv::codec::e5m2}};
    for (auto const& [name, element] : known) {
      if (dtype == name) return element;
    }
    return {};
  }

  /// Numbers of 8 bits as floats: only keys and values are read as they are.
  std::byte* widen(kv::codec element, std::byte const* from, std::size_t count) {
    std::vector<float>& wide = rounded_.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) wide[i] = kv::load(element, from + i);
    return reinterpret_cast<std::byte*>(wide.data());
  }
  std::byte* round(std::byte const* from, std::size_t count) {
    std::vector<float>& rounded = rounded_.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) {
      double value = 0;
      std::memcpy(&value, from + 8 * i, 8);
      rounded[i] = static_cast<float>(value);
    }
    return reinterpret_cast<std::byte*>(rounded.data());
  }

  safetensors file_;
  std::vector<int> layers_;  ///< the layers that are read; empty: all
  std::list<std::vector<float>> rounded_;
  std::list<std::vector<std::byte>> copied_;  ///< layers that are not adjacent, and copies for a device
  std::map<char, std::pair<std::int64_t, std::string>> bound_;
};

}  // namespace kvreplay

// A recorded trace: a safetensors file whose tensors are checked against each other and read where they lie.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../tinylm/safetensors.hpp"

namespace kvreplay {

namespace kv = kvpolicy;
using tinylm::safetensors;

/// A tensor of numbers in the trace, or nothing: where it is, what it holds, its extents.
struct array {
  std::byte* data = nullptr;
  kv::codec element = kv::codec::f32;
  std::vector<std::int64_t> shape;
  explicit operator bool() const { return data != nullptr; }
  /// Bytes between neighbours along an axis; -1 is the last.
  [[nodiscard]] std::int64_t stride(int axis) const {
    std::int64_t bytes = kv::bytes_of(element);
    for (std::size_t i = shape.size(); i-- > static_cast<std::size_t>(axis) + 1;) bytes *= shape[i];
    return bytes;
  }
  [[nodiscard]] float value(std::int64_t i) const { return kv::load(element, data + i * kv::bytes_of(element)); }
};

/// The tensors of REPLAY's list that are there. Extents have letters: L layers, Q query heads, K KV heads, N entries, D
/// and V channels, W recent rows, T turns.
class trace {
 public:
  explicit trace(std::string const& path) : file_(path, true) {
    keys = read("keys", "LKND");
    values = read("values", "LKNV");
    pre_rope_keys = read("pre_rope_keys", "LKND");
    queries = read("queries", "LQND");
    recent_queries = read("recent_queries", "LQWD");
    attention_mass = read("attention_mass", "LHN");
    row_lse = read("row_lse", "LQw");
    log_beta = read("log_beta", "LKN");
    gate = read("gate", "LKN");
    positions = read_integers("positions", "N");
    token_ids = read_integers("token_ids", "N");
    turn_end = read_integers("turn_end", "T");
    span_begin = read_integers("span_begin", "T");
    span_end = read_integers("span_end", "T");
    for (auto const& [name, tensor] : file_.tensors()) {
      if (name.rfind("external.", 0) == 0)
        external[name.substr(9)] = read(name, tensor.shape.size() == 1 ? "N" : "LKN");
    }
    settle();
  }

  [[nodiscard]] kv::shape const& shape() const { return shape_; }
  [[nodiscard]] int entries() const { return entries_; }
  [[nodiscard]] int value_dim() const { return shape_.value_dim != 0 ? shape_.value_dim : shape_.head_dim; }
  [[nodiscard]] safetensors const& file() const { return file_; }
  [[nodiscard]] kv::rope rope() const {
    kv::rope how;
    auto const& known = file_.all_metadata();
    if (auto const found = known.find("rope_theta"); found != known.end()) {
      bool const number = kv::detail::read_value(found->second, how.theta);
      kv::expects(number && how.theta > 0, "kvreplay", "metadata rope_theta", found->second, "it is a positive number");
    }
    if (auto const found = known.find("rope_style"); found != known.end()) {
      kv::expects(kv::detail::read_value(found->second, how.style), "kvreplay", "metadata rope_style", found->second,
                  "it is neox or gptj");
    }
    return how;
  }

  array keys, values, pre_rope_keys, queries, recent_queries, attention_mass, row_lse, log_beta, gate;
  std::map<std::string, array> external;
  std::vector<int> positions, token_ids, turn_end, span_begin, span_end;

 private:
  using tensor = safetensors::tensor;

  [[noreturn]] static void refuse(std::string const& name, std::string const& found, std::string const& rule) {
    kv::expects(false, "kvreplay", "tensor " + name, found, rule);
    std::abort();
  }
  static std::string print(std::vector<std::uint64_t> const& shape) {
    std::string text = "[";
    for (std::uint64_t const extent : shape) {
      if (text.size() > 1) text += ',';
      text += std::to_string(extent);
    }
    return text + "]";
  }

  /// Binds the letters of a shape: each means one number throughout the file.
  void bind(std::string const& name, tensor const& one, std::string const& letters) {
    std::vector<std::uint64_t> const& shape = one.shape;
    if (shape.size() != letters.size()) {
      refuse(name, "shape " + print(shape), "it has " + std::to_string(letters.size()) + " axes");
    }
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 0 || shape[i] > 0x7FFFFFFF) refuse(name, "shape " + print(shape), "every axis has 1 to 2^31 - 1");
      char const letter = letters[i];
      if (letter == 'H') continue;  // query heads or KV heads: asked when both are known
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
      case 'T':
        return "turns";
      default:
        return "rows";
    }
  }

  array read(std::string const& name, std::string const& letters) {
    auto const found = file_.tensors().find(name);
    if (found == file_.tensors().end()) return {};
    tensor const& one = found->second;
    bind(name, one, letters);
    array made;
    for (std::uint64_t const extent : one.shape) made.shape.push_back(static_cast<std::int64_t>(extent));
    made.data = file_.at(one);
    if (one.dtype == "F32" || one.dtype == "F16" || one.dtype == "BF16") {
      made.element = one.dtype == "F32" ? kv::codec::f32 : one.dtype == "F16" ? kv::codec::f16 : kv::codec::bf16;
      return made;
    }
    if (one.dtype != "F64") refuse(name, "dtype " + one.dtype, "it is F64, F32, F16 or BF16");
    auto const count = static_cast<std::size_t>(one.end - one.begin) / 8;
    std::vector<float>& rounded = rounded_.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) {
      double value = 0;
      std::memcpy(&value, made.data + 8 * i, 8);
      rounded[i] = static_cast<float>(value);
    }
    made.data = reinterpret_cast<std::byte*>(rounded.data());
    return made;
  }

  std::vector<int> read_integers(std::string const& name, std::string const& letters) {
    auto const found = file_.tensors().find(name);
    if (found == file_.tensors().end()) return {};
    tensor const& one = found->second;
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

  [[nodiscard]] int bound(char letter, int otherwise) const {
    auto const found = bound_.find(letter);
    return found != bound_.end() ? static_cast<int>(found->second.first) : otherwise;
  }

  /// What follows from all tensors together.
  void settle() {
    kv::expects(bound_.count('N') != 0, "kvreplay", "trace", "without entries",
                "keys, positions or another tensor over the entries says how many there are");
    entries_ = bound('N', 0);
    int const heads = bound('K', bound('Q', 1));
    shape_ = {bound('L', 1), bound('Q', heads), heads, bound('D', 1), bound('V', bound('D', 1))};
    if (shape_.query_heads % shape_.kv_heads != 0) {
      refuse(bound_.at('Q').second, std::to_string(shape_.query_heads) + " query heads",
             "they are a multiple of " + std::to_string(shape_.kv_heads) + " KV heads");
    }
    if (attention_mass && attention_mass.shape[1] != shape_.kv_heads && attention_mass.shape[1] != shape_.query_heads) {
      refuse("attention_mass", std::to_string(attention_mass.shape[1]) + " heads",
             "the trace has " + std::to_string(shape_.query_heads) + " query heads and " +
                 std::to_string(shape_.kv_heads) + " KV heads");
    }
    if (recent_queries && bound('W', 0) > entries_) {
      refuse("recent_queries", std::to_string(bound('W', 0)) + " rows",
             "there are " + std::to_string(entries_) + " entries");
    }
    for (int i = 0; positions.empty() && i < entries_; ++i) implied_.push_back(i);
    if (positions.empty()) positions = implied_;
    for (std::size_t i = 1; i < positions.size(); ++i) {
      if (positions[i] <= positions[i - 1]) {
        refuse("positions", std::to_string(positions[i]),
               "they ascend, and the one before is " + std::to_string(positions[i - 1]));
      }
    }
    check_turns();
  }

  void check_turns() const {
    for (std::size_t t = 0; t < turn_end.size(); ++t) {
      int const before = t == 0 ? 0 : turn_end[t - 1];
      if (turn_end[t] <= before || turn_end[t] > entries_) {
        refuse("turn_end", std::to_string(turn_end[t]),
               "turns end after " + std::to_string(before) + " and at most at " + std::to_string(entries_));
      }
      if (span_begin.empty() || span_end.empty()) continue;
      if (span_end[t] < span_begin[t] || span_end[t] > turn_end[t]) {
        refuse("span_end", std::to_string(span_end[t]),
               "a span ends after its begin, " + std::to_string(span_begin[t]) + ", and within its turn");
      }
    }
  }

  safetensors file_;
  std::list<std::vector<float>> rounded_;
  std::map<char, std::pair<std::int64_t, std::string>> bound_;
  std::vector<int> implied_;
  kv::shape shape_{};
  int entries_ = 0;
};

}  // namespace kvreplay

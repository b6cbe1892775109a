// What kvreplay writes: a safetensors file, a JSON object, a table.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "replay.hpp"

namespace kvreplay {

/// A safetensors file being put together. It appears under its name only when it is whole.
class tensor_file {
 public:
  /// `put(stream)` writes the bytes.
  void add(std::string const& name, char const* dtype, std::vector<std::int64_t> const& shape, std::int64_t bytes,
           std::function<void(std::ofstream&)> put) {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at_, at_ + bytes}}};
    at_ += bytes;
    puts_.push_back(std::move(put));
  }
  template <class T>
  void add(std::string const& name, char const* dtype, std::vector<std::int64_t> const& shape,
           std::vector<T> const& values) {
    auto const bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    add(name, dtype, shape, bytes,
        [&values, bytes](std::ofstream& to) { to.write(reinterpret_cast<char const*>(values.data()), bytes); });
  }

  void write(std::string const& path) const {
    std::string const unfinished = path + ".unfinished";
    {
      std::ofstream to(unfinished, std::ios::binary);
      std::string text = header_.dump();
      text.resize((text.size() + 7) / 8 * 8, ' ');
      auto const size = static_cast<std::uint64_t>(text.size());
      to.write(reinterpret_cast<char const*>(&size), 8);
      to.write(text.data(), static_cast<std::streamsize>(text.size()));
      for (auto const& put : puts_) put(to);
      to.flush();
      kv::expects(to.good(), "kvreplay", "--out", path, "it cannot be written");
    }
    kv::expects(std::rename(unfinished.c_str(), path.c_str()) == 0, "kvreplay", "--out", path, "it cannot be written");
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::vector<std::function<void(std::ofstream&)>> puts_;
  std::int64_t at_ = 0;
};

[[nodiscard]] inline char const* dtype_of(kv::codec element) {
  return element == kv::codec::f32 ? "F32" : element == kv::codec::f16 ? "F16" : "BF16";
}

inline void write_results(options const& with, trace const& of, replay& by, results const& found) {
  tensor_file file;
  std::int64_t const segments = found.segments;
  file.add("keep.offsets", "I64", {segments + 1}, found.keep.offsets);
  file.add("keep.ordinals", "I64", {std::ssize(found.keep.ordinals)}, found.keep.ordinals);
  if (!found.scores.empty()) file.add("scores", "F32", {segments, of.entries()}, found.scores);
  if (with.how == mode::decode) file.add("events", "I64", {std::ssize(found.events) / 3, 3}, found.events);
  if (with.how == mode::turns) {
    file.add("turn.offsets", "I64", {std::ssize(found.turns.offsets)}, found.turns.offsets);
    file.add("turn.ordinals", "I64", {std::ssize(found.turns.ordinals)}, found.turns.ordinals);
  }
  if (with.attend) {
    file.add("output", "F32", {of.shape().layers, of.shape().query_heads, of.value_dim()}, found.output);
  }
  bool const moves = with.lay == layout::compact || with.lay == layout::compact_rerotated;
  for (bool const keys : {true, false}) {
    array const& from = keys ? of.keys : of.values;
    if (!moves || !from) continue;
    std::int64_t rows = 0;
    by.for_each_kept_row(keys, [&](std::byte const*) { ++rows; });
    std::int64_t const row = from.shape[3] * kv::bytes_of(from.element);
    file.add(keys ? "keys" : "values", dtype_of(from.element), {rows, from.shape[3]}, rows * row,
             [&by, keys, row](std::ofstream& to) {
               by.for_each_kept_row(keys,
                                    [&](std::byte const* at) { to.write(reinterpret_cast<char const*>(at), row); });
             });
  }
  file.write(with.out);
}

[[nodiscard]] inline nlohmann::json summary(options const& with, trace const& of, kv::any_policy const& policy,
                                            results const& found) {
  nlohmann::json fields = nlohmann::json::object();
  for (kv::scorer_info const& one : kv::shipped().list()) {
    if (one.name != with.policy) continue;
    for (kv::field_info const& field : one.fields) fields[field.name] = field.value;
  }
  for (std::string const& set : with.set) fields[set.substr(0, set.find('='))] = set.substr(set.find('=') + 1);
  return {{"policy", with.policy},
          {"spec", kv::to_string(policy)},
          {"fields", fields},
          {"mode", kv::to_string(with.how)},
          {"layout", kv::to_string(with.lay)},
          {"granularity", kv::to_string(policy.decides())},
          {"segments", found.segments},
          {"entries", of.entries()},
          {"logical_kept", found.told.logical_kept},
          {"physical_freed", found.told.physical_freed},
          {"attended_length", found.told.attended_length},
          {"nan_scores", found.report.nan_scores},
          {"forced_over_budget", found.report.forced_over_budget},
          {"ms", {{"decide", found.decide_ms}, {"apply", found.apply_ms}}},
          {"warnings", nlohmann::json::array()}};
}

/// Every policy with its fields, defaults, signals, granularity and modes.
[[nodiscard]] inline nlohmann::json listing() {
  nlohmann::json all = nlohmann::json::array();
  for (kv::scorer_info const& one : kv::shipped().list()) {
    nlohmann::json fields = nlohmann::json::array();
    for (kv::field_info const& each : one.fields) {
      fields.push_back({{"name", each.name}, {"type", each.type}, {"default", each.value}});
    }
    all.push_back({{"name", one.name},
                   {"fields", fields},
                   {"signals", one.needs},
                   {"granularity", kv::to_string(one.decides)},
                   {"modes", {"prefill", "decode", "turns"}}});
  }
  return all;
}

inline void print_listing(nlohmann::json const& all) {
  for (nlohmann::json const& one : all) {
    std::string fields, needs;
    for (nlohmann::json const& each : one["fields"]) {
      fields +=
          (fields.empty() ? "" : ", ") + each["name"].get<std::string>() + "=" + each["default"].get<std::string>();
    }
    for (nlohmann::json const& each : one["signals"]) needs += (needs.empty() ? "" : ", ") + each.get<std::string>();
    fmt::print("{:<14} {:<6} {:<50} needs {}\n", one["name"].get<std::string>(), one["granularity"].get<std::string>(),
               fields.empty() ? "-" : fields, needs.empty() ? "nothing" : needs);
  }
}

[[nodiscard]] inline nlohmann::json description(trace const& of) {
  nlohmann::json tensors = nlohmann::json::object();
  for (auto const& [name, one] : of.file().tensors()) tensors[name] = {{"dtype", one.dtype}, {"shape", one.shape}};
  return {{"layers", of.shape().layers},
          {"query_heads", of.shape().query_heads},
          {"kv_heads", of.shape().kv_heads},
          {"head_dim", of.shape().head_dim},
          {"value_dim", of.value_dim()},
          {"entries", of.entries()},
          {"tensors", tensors},
          {"metadata", of.file().all_metadata()}};
}

}  // namespace kvreplay

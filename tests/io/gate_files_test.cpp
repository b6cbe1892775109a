// SPDX-License-Identifier: Apache-2.0
// Files of gates: what is written is what the verbs see, a file that does not fit is refused by name, and PyTorch's
// gates of the same weights are ours.

#include <kvpolicy/io/gate_files.hpp>
#include <kvpolicy/io/write_safetensors.hpp>

#include "io/temporary_folder.hpp"

namespace {

using namespace kvpolicy_test;

/// The tensors of a gate, to be bent before they are written.
struct gate_file {
  std::vector<kv::tensor_to_write> tensors;
  std::vector<std::vector<float>> held;
  std::map<std::string, std::string> metadata;

  void add(std::string const& name, std::vector<std::uint64_t> const& shape) {
    held.reserve(6);
    std::uint64_t count = 1;
    for (std::uint64_t const extent : shape) count *= extent;
    std::vector<float>& values = held.emplace_back(count);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(held.size() * 100 + i);
    tensors.push_back({name, shape, values});
  }
};

/// L = 2, Hkv = 3, D = 4, E = 5.
gate_file write_gates() {
  gate_file made;
  made.add("write_gate.pre_norm.weight", {2, 4});
  made.add("write_gate.post_norm.weight", {2, 4});
  made.add("write_gate.fc1.weight", {2, 3, 5, 8});
  made.add("write_gate.fc1.bias", {2, 3, 5});
  made.add("write_gate.fc2.weight", {2, 3, 5});
  made.add("write_gate.fc2.bias", {2, 3});
  return made;
}

/// L = 2, Hkv = 3, d = 7, E = 5.
gate_file retention_gates() {
  gate_file made;
  made.add("retention_gate.fc1.weight", {2, 5, 7});
  made.add("retention_gate.fc1.bias", {2, 5});
  made.add("retention_gate.fc2.weight", {2, 3, 5});
  made.add("retention_gate.fc2.bias", {2, 3});
  return made;
}

template <class File>
File read(gate_file const& file) {
  temporary_folder const folder;
  kv::write_safetensors(folder / "gate", file.metadata, file.tensors);
  return File{kv::safetensors_reader(folder / "gate")};
}

template <class File>
std::string refused(gate_file file, std::function<void(gate_file&)> const& bend) {
  for (std::size_t i = 0; i < file.tensors.size(); ++i) file.tensors[i].values = file.held[i];
  bend(file);
  return error_of([&] { static_cast<void>(read<File>(file)); });
}

std::filesystem::path golden(char const* name) {
  return std::filesystem::path(KVPOLICY_SOURCE_DIR) / "tests" / "io" / "golden" / name;
}

/// Two layers of two heads, five entries each, by PyTorch.
struct golden_lanes {
  std::vector<int> count = std::vector<int>(4, 5);
  std::vector<float> out = std::vector<float>(20);
  kv::lanes lanes{.layer_end = 2, .heads = 2, .capacity = 5, .count = {count.data(), 0, 2, 1}};
  kv::by_lane<float> rows{out.data(), 0, 10, 5};

  void compare(std::vector<float> const& expected) const {
    for (std::size_t i = 0; i < out.size(); ++i)
      CHECK(static_cast<double>(out[i]) == doctest::Approx(static_cast<double>(expected[i])).epsilon(1e-5));
  }
};

}  // namespace

TEST_SUITE("io/gate_files") {
  TEST_CASE("write gates are read as they were written, and may be moved") {
    gate_file file = write_gates();
    CHECK(read<kv::write_gate_file>(file).model().empty());
    file.metadata["model"] = "tinylm";
    kv::write_gate_file first = read<kv::write_gate_file>(file);
    kv::write_gate_file const moved = std::move(first);
    kv::write_gate_weights const& weights = moved.weights();
    CHECK(moved.model() == "tinylm");
    CHECK(weights.layers == 2);
    CHECK(weights.heads == 3);
    CHECK(weights.dims == 4);
    CHECK(weights.hidden == 5);
    CHECK(weights.pre_norm[7] == 107);
    CHECK(weights.post_norm[0] == 200);
    CHECK(weights.fc1[239] == 539);
    CHECK(weights.fc1_bias[1] == 401);
    CHECK(weights.fc2[29] == 529);
    CHECK(weights.fc2_bias[5] == 605);
  }

  TEST_CASE("retention gates are read as they were written, and may be moved") {
    gate_file file = retention_gates();
    CHECK(read<kv::retention_gate_file>(file).model().empty());
    file.metadata["model"] = "tinylm";
    kv::retention_gate_file first = read<kv::retention_gate_file>(file);
    kv::retention_gate_file const moved = std::move(first);
    kv::retention_gate_weights const& weights = moved.weights();
    CHECK(moved.model() == "tinylm");
    CHECK(weights.layers == 2);
    CHECK(weights.heads == 3);
    CHECK(weights.width == 7);
    CHECK(weights.hidden == 5);
    CHECK(weights.fc1[69] == 169);
    CHECK(weights.fc1_bias[9] == 209);
    CHECK(weights.fc2[0] == 300);
    CHECK(weights.fc2_bias[5] == 405);
  }

  TEST_CASE("what does not fit is refused by the name of its tensor") {
    auto const of_write = [](auto const& bend) { return refused<kv::write_gate_file>(write_gates(), bend); };
    auto const of_retention = [](auto const& bend) {
      return refused<kv::retention_gate_file>(retention_gates(), bend);
    };
    CHECK(of_write([](gate_file&) {}).empty());
    CHECK(of_write([](gate_file& file) { file.tensors.pop_back(); }) ==
          "safetensors: gate: tensor write_gate.fc2.bias = missing, but a write_gate has it");
    CHECK(of_write([](gate_file& file) { file.held[1][2] = std::numeric_limits<float>::infinity(); }) ==
          "safetensors: gate: tensor write_gate.post_norm.weight = inf, but its numbers are finite");
    CHECK(of_write([](gate_file& file) { file.tensors[0].shape = {4, 2}; }) ==
          "safetensors: gate: tensor write_gate.pre_norm.weight shape = [4,2], but it must be [2,4]");
    CHECK(of_write([](gate_file& file) { file.tensors[2].shape = {2, 15, 8}; }) ==
          "safetensors: gate: tensor write_gate.fc1.weight axes = 3, but it has 4");
    CHECK(of_write([](gate_file& file) { file.tensors[2].shape = {2, 3, 8, 5}; }) ==
          "safetensors: gate: tensor write_gate.fc1.weight = 5, but a row has 2 D columns");
    CHECK(of_write([](gate_file& file) {
            file.tensors[2].shape = {2, 0, 5, 8};
            file.tensors[2].values = {};
          }) == "safetensors: gate: tensor write_gate.fc1.weight shape = 0, but an axis has 1 to 16777216");
    CHECK(of_retention([](gate_file&) {}).empty());
    CHECK(of_retention([](gate_file& file) { file.tensors.erase(file.tensors.begin()); }) ==
          "safetensors: gate: tensor retention_gate.fc1.weight = missing, but a retention_gate has it");
    CHECK(of_retention([](gate_file& file) { file.held[3][0] = std::numeric_limits<float>::quiet_NaN(); }) ==
          "safetensors: gate: tensor retention_gate.fc2.bias = nan, but its numbers are finite");
    CHECK(of_retention([](gate_file& file) { file.tensors[2].shape = {2, 5, 3}; }) ==
          "safetensors: gate: tensor retention_gate.fc2.weight shape = [2,5,3], but it must be [2,5,5]");
    CHECK(of_retention([](gate_file& file) { file.tensors[1].shape = {10}; }) ==
          "safetensors: gate: tensor retention_gate.fc1.bias axes = 1, but it has 2");
  }

  TEST_CASE("PyTorch's write gates are ours") {
    kv::write_gate_file const gate{kv::safetensors_reader(golden("write_gate.safetensors"))};
    kv::safetensors_reader file(golden("write_gate.safetensors"));
    std::vector<float> const pre = file.floats("pre", {2, 2, 5, 8});
    std::vector<float> const post = file.floats("post", {2, 2, 5, 8});
    auto const rows_of = [](std::vector<float> const& of) {
      auto* const base = reinterpret_cast<std::byte*>(const_cast<float*>(of.data()));
      return kv::row_view{{.base = base,
                           .channels = 8,
                           .layer_stride = 320,
                           .token_stride = 32,
                           .head_stride = 160,
                           .channel_stride = 4},
                          kv::identity_map(5)};
    };
    golden_lanes lanes;
    kv::host_executor exec;
    kv::ops::write_gates.reserve(exec, gate.weights());
    kv::ops::write_gates(exec, lanes.lanes, rows_of(pre), rows_of(post), gate.weights(), lanes.rows);
    lanes.compare(file.floats("g", {2, 2, 5}));
  }

  TEST_CASE("PyTorch's retention gates are ours") {
    kv::retention_gate_file const gate{kv::safetensors_reader(golden("retention_gate.safetensors"))};
    kv::safetensors_reader file(golden("retention_gate.safetensors"));
    std::vector<float> const rows = file.floats("hidden", {2, 5, 16});
    kv::hidden_rows const given{
        .base = reinterpret_cast<std::byte const*>(rows.data()), .dims = 16, .layer = 320, .row = 64};
    golden_lanes lanes;
    kv::host_executor exec;
    kv::ops::retention_gates.reserve(exec, gate.weights());
    kv::ops::retention_gates(exec, lanes.lanes, given, gate.weights(), lanes.rows);
    lanes.compare(file.floats("log_beta", {2, 2, 5}));
  }
}

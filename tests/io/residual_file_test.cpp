// SPDX-License-Identifier: Apache-2.0
// A residual head's file: what is written is what the policy sees, and a file that does not fit is refused by name.

#include <kvpolicy/io/residual_file.hpp>
#include <kvpolicy/io/write_safetensors.hpp>

#include "io/temporary_folder.hpp"

namespace {

using namespace kvpolicy_test;

/// The tensors of a head, to be bent before they are written.
struct head_file {
  std::vector<kv::tensor_to_write> tensors;
  std::vector<std::vector<float>> held;

  head_file(std::uint64_t dims, std::uint64_t width, std::uint64_t hidden) {
    std::uint64_t const phi = 3 * dims + 1;
    held.reserve(11);
    add("w_q.weight", {width, phi}), add("w_q.bias", {width});
    add("w_k.weight", {width, dims}), add("w_k.bias", {width});
    add("w_v.weight", {width, dims}), add("w_v.bias", {width});
    add("fc1.weight", {hidden, phi + width}), add("fc1.bias", {hidden});
    add("fc2.weight", {1, hidden}), add("fc2.bias", {1});
    add("alpha", {});
  }
  void add(std::string const& name, std::vector<std::uint64_t> const& shape) {
    std::uint64_t count = 1;
    for (std::uint64_t const extent : shape) count *= extent;
    std::vector<float>& values = held.emplace_back(count);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(held.size()) + static_cast<float>(i);
    tensors.push_back({"residual." + name, shape, values});
  }
};

std::string refused(head_file const& file) {
  temporary_folder const folder;
  kv::write_safetensors(folder / "head", {}, file.tensors);
  return error_of([&] { kv::residual_weights const read{kv::safetensors_reader(folder / "head")}; });
}

}  // namespace

TEST_SUITE("io/residual_file") {
  TEST_CASE("a head is read as it was written, and has the paper's number of parameters") {
    head_file const file(128, 128, 256);
    temporary_folder const folder;
    kv::write_safetensors(folder / "head", {}, file.tensors);
    kv::residual_weights const read{kv::safetensors_reader(folder / "head")};
    kv::residual_head const& head = read.head();
    CHECK(head.dims == 128);
    CHECK(head.width == 128);
    CHECK(head.hidden == 256);
    CHECK(head.w_q[3] == 4.0f);
    CHECK(head.fc2_bias[0] == 10.0f);
    CHECK(head.alpha == 11.0f);
    CHECK(kv::residual_head::parameters(128, 128, 256) == 214'274);
    CHECK(kv::residual_head::parameters(64, 128, 256) == 124'162);
  }

  TEST_CASE("what does not fit is refused by the name of its tensor") {
    auto const bent = [](std::function<void(head_file&)> const& bend) {
      head_file file(8, 8, 6);
      bend(file);
      return refused(file);
    };
    CHECK(refused(head_file(8, 8, 6)).empty());
    CHECK(bent([](auto& file) { file.tensors.pop_back(); }) ==
          "safetensors: head: tensor residual.alpha = missing, but a residual head has eleven tensors");
    CHECK(bent([](auto& file) { file.held[4][2] = std::numeric_limits<float>::quiet_NaN(); }) ==
          "safetensors: head: tensor residual.w_v.weight = nan, but its numbers are finite");
    CHECK(bent([](auto& file) { file.tensors[2].shape = {4, 16}; }) ==
          "safetensors: head: tensor residual.w_k.weight shape = [4,16], but it must be [8,8]");
    CHECK(bent([](auto& file) { file.tensors[0].shape = {100, 2}; }) ==
          "safetensors: head: tensor residual.w_q.weight = 2, but it has 3 D + 1 columns");
    CHECK(refused(head_file(8, 6, 6)) ==
          "safetensors: head: tensor residual.w_q.weight = 6, but four heads share its rows evenly");
    CHECK(bent([](auto& file) { file.tensors[10].shape = {1}; }).empty());
  }
}

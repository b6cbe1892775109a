// SPDX-License-Identifier: Apache-2.0
#include "tinylm/safetensors.hpp"

#include "io/bad_headers.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

}  // namespace

TEST_SUITE("tinylm") {
  TEST_CASE("safetensors: a sound file is read, whatever the width of its numbers") {
    temporary_folder const folder;
    write_bytes(folder / "x",
                file_of(R"({"__metadata__":{"width":"2"},)" + entry("a", "F16", "[2]", "[0,4]") + "," +
                            entry("b", "F32", "[1,1]", "[4,8]") + "," + entry("c", "BF16", "[]", "[8,10]") + "}",
                        10));
    tinylm::safetensors const read(folder / "x");
    CHECK(read.metadata("width") == "2");
    CHECK(read.floats("a", {2}) == std::vector{1.8115234375f, 1.8115234375f});
    CHECK(read.floats("b", {1, 1}) == std::vector{std::bit_cast<float>(0x3f3f3f3f)});
    CHECK(read.floats("c", {}) == std::vector{0.74609375f});
  }

  TEST_CASE("safetensors: headers that lie are refused by their line") { refuses_bad_headers<tinylm::safetensors>(); }

  TEST_CASE("safetensors: what is not there, or is something else, is named") {
    temporary_folder const folder;
    write_bytes(folder / "x",
                file_of("{" + entry("a", "F32", "[2,1]", "[0,8]") + "," + entry("u", "U8", "[1]", "[8,9]") + "}", 9));
    tinylm::safetensors const read(folder / "x");
    auto const says = [](std::string const& text, auto const& call) {
      CHECK(file_error_of(call) == "safetensors: x: " + text);
    };
    says("tensor b = missing, but it is needed", [&] { (void)read.floats("b", {2}); });
    says("tensor a shape = [2,1], but it must be [1,2]", [&] { (void)read.floats("a", {1, 2}); });
    says("tensor u dtype = U8, but it is read as numbers with a fraction", [&] { (void)read.floats("u", {1}); });
    says("tensor a dtype = F32, but it is read as U8", [&] { (void)read.bytes("a", "U8", {2, 1}); });
    says("metadata width = missing, but it is needed", [&] { (void)read.metadata("width"); });
    CHECK(error_of([&] { tinylm::safetensors("/nowhere/a.safetensors"); }) ==
          "safetensors: file = /nowhere/a.safetensors, but it cannot be opened");
    CHECK(error_of([&] { tinylm::safetensors("/"); }) == "safetensors: file = /, but it cannot be mapped");
  }
}

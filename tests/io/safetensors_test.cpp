// SPDX-License-Identifier: Apache-2.0
// Files of tensors: what is written reads back, and every lie of a header is refused by its line.

#include <sys/stat.h>

#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/io/write_safetensors.hpp>

#include "io/bad_headers.hpp"
#include "io/small_disk.hpp"

namespace {

using namespace kvpolicy_test;

}  // namespace

TEST_SUITE("io/safetensors") {
  TEST_CASE("what is written reads back, and stands in the file as the format says") {
    temporary_folder const folder;
    std::vector<float> const a = {1.5f, -2.0f, 3.25f, 0.0f, 7.0f, 1e-40f}, b = {42.0f};
    std::vector<kv::tensor_to_write> const tensors = {{"b", {2, 3}, a}, {"a", {}, b}, {"none", {0, 4}, {}}};
    kv::write_safetensors(folder / "x.safetensors", {{"text", "\"quoted\"\n\u00fc"}}, tensors);
    CHECK(folder.files() == 1);
    kv::safetensors_reader read(folder / "x.safetensors");
    CHECK(read.floats("b", {2, 3}) == a);
    CHECK(read.floats("a", {}) == b);
    CHECK(read.floats("none", {0, 4}).empty());
    CHECK(read.metadata("text") == "\"quoted\"\n\u00fc");
    CHECK(read.all_metadata().size() == 1);
    REQUIRE(read.tensors().size() == 3);
    CHECK(read.tensors().at("b").begin == 0);
    CHECK(read.tensors().at("a").begin == 24);
    std::string const bytes = read_bytes(folder / "x.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    CHECK(header % 8 == 0);
    CHECK(bytes.size() == 8 + header + 28);
    CHECK(std::memcmp(bytes.data() + 8 + header, a.data(), 24) == 0);
  }

  TEST_CASE("headers that lie are refused by their line") { refuses_bad_headers<kv::safetensors_reader>(); }

  TEST_CASE("a header of 4 GB that is there is refused before it is read") {
    temporary_folder const folder;
    write_bytes(folder / "large", with_length(std::uint64_t{4} << 30, "{}"));
    std::filesystem::resize_file(folder / "large", 8 + (std::uint64_t{4} << 30));  // a hole: it takes no room
    CHECK(file_error_of([&] { kv::safetensors_reader const read(folder / "large"); }) ==
          "safetensors: large: header length = 4294967296, but a header has at most 100 MB");
  }

  TEST_CASE("what is not there, or is something else, is named") {
    temporary_folder const folder;
    write_bytes(folder / "x",
                file_of("{" + entry("a", "F32", "[2,1]", "[0,8]") + "," + entry("u", "U8", "[1]", "[8,9]") + "," +
                            entry("h", "F16", "[1]", "[9,11]") + "}",
                        11));
    kv::safetensors_reader read(folder / "x");
    CHECK(read.floats("a", {2, 1}) == std::vector(2, std::bit_cast<float>(0x3f3f3f3f)));
    CHECK(file_error_of([&] { (void)read.floats("b", {2}); }) ==
          "safetensors: x: tensor b = missing, but it is needed");
    CHECK(file_error_of([&] { (void)read.floats("a", {1, 2}); }) ==
          "safetensors: x: tensor a shape = [2,1], but it must be [1,2]");
    CHECK(file_error_of([&] { (void)read.floats("u", {1}); }) ==
          "safetensors: x: tensor u dtype = U8, but it is read as F32");
    CHECK(file_error_of([&] { (void)read.floats("h", {1}); }) ==
          "safetensors: x: tensor h dtype = F16, but it is read as F32");
    CHECK(file_error_of([&] { (void)read.metadata("width"); }) ==
          "safetensors: x: metadata width = missing, but it is needed");
    for (std::string const path : {"/nowhere/a.safetensors", "/"}) {
      CHECK(file_error_of([&] { kv::safetensors_reader const none(path); }) ==
            "safetensors: file = " + path + ", but it cannot be opened");
    }
  }

  TEST_CASE("a file that is cut short after it was opened is refused when it is read") {
    temporary_folder const folder;
    write_bytes(folder / "x", file_of("{" + entry("a", "F32", "[4096]", "[0,16384]") + "}", 16384));
    kv::safetensors_reader read(folder / "x");
    std::filesystem::resize_file(folder / "x", 8192);
    CHECK(file_error_of([&] { (void)read.floats("a", {4096}); }) ==
          "safetensors: x: tensor a = 16384, but so many bytes cannot be read");
  }
}

TEST_SUITE("io/write_safetensors") {
  TEST_CASE("a file that cannot be written to its end leaves what stood there, and nothing beside it") {
    temporary_folder const folder;
    std::vector<float> const some(4, 1.0f), many(100'000, 2.0f);
    std::vector<kv::tensor_to_write> const old{{"a", {4}, some}}, next{{"a", {100'000}, many}};
    kv::write_safetensors(folder / "x", {}, old);
    std::string const before = read_bytes(folder / "x");
    std::string text;
    {
      small_disk const full(1000);
      text = file_error_of([&] { kv::write_safetensors(folder / "x", {}, next); });
    }
    CHECK(text == "system_error write_safetensors: file = " + (folder / "x").string() +
                      ", but it cannot be written to its end: File too large");
    CHECK(read_bytes(folder / "x") == before);
    CHECK(folder.files() == 1);
    kv::write_safetensors(folder / "x", {}, next);
    CHECK(kv::safetensors_reader(folder / "x").floats("a", {100'000}) == many);
    CHECK(folder.files() == 1);
  }

  TEST_CASE("a path that cannot be written, or replaced, is refused") {
    temporary_folder const folder;
    std::filesystem::create_directories(folder / "full" / "of");
    std::filesystem::create_symlink("full", folder / "link");
    REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
    auto const refuses = [&](std::filesystem::path const& path, std::string const& why) {
      CHECK(file_error_of([&] { kv::write_safetensors(path, {}, {}); }) ==
            "write_safetensors: file = " + path.string() + ", but it cannot be written: " + why);
      CHECK(folder.files() == 3);
    };
    refuses(folder / "full", "it is a directory");
    refuses(folder / "link", "it is a symbolic link");
    refuses(folder / "fifo", "it is a FIFO");
    refuses("", "a file has a name");
    refuses("/nowhere/x", "No such file or directory");
  }

  TEST_CASE("a file that is replaced keeps its mode") {
    temporary_folder const folder;
    write_bytes(folder / "x", "old");
    REQUIRE(::chmod((folder / "x").c_str(), 0600) == 0);
    kv::write_safetensors(folder / "x", {}, {});
    struct stat about{};
    REQUIRE(::stat((folder / "x").c_str(), &about) == 0);
    CHECK((about.st_mode & 07777U) == 0600U);
    CHECK(kv::safetensors_reader(folder / "x").tensors().empty());
  }

  TEST_CASE("tensors that are not what they say are refused, and no file is written") {
    temporary_folder const folder;
    std::vector<float> const five(5);
    auto const refuses = [&](std::vector<kv::tensor_to_write> const& all, std::string const& rule) {
      CHECK(file_error_of([&] { kv::write_safetensors(folder / "x", {}, all); }) == "write_safetensors: " + rule);
      CHECK(folder.files() == 0);
    };
    refuses({{"a", {2, 3}, five}}, "tensor a = 5, but its shape makes 6");
    refuses({{"a", {5}, five}, {"a", {5}, five}}, "tensor = a, but this name is there twice");
  }
}

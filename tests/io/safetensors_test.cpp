// Files of tensors: what is written reads back, and every lie of a header is refused by its line.

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <bit>
#include <cstring>
#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/io/write_safetensors.hpp>
#include <string>
#include <vector>

#include "io/small_disk.hpp"
#include "io/temporary_folder.hpp"

namespace {

namespace kv = kvpolicy;
using namespace kvpolicy_test;

std::string with_length(std::uint64_t length, std::string const& rest) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + rest;
}

std::string file_of(std::string const& header, std::size_t data) {
  return with_length(header.size(), header + std::string(data, '\x3f'));
}

std::string error_of(auto const& call) {
  try {
    call();
  } catch (kv::invalid_argument const& error) {
    return error.what();
  } catch (std::system_error const& error) {
    return std::string("system_error ") + error.what();
  }
  return "accepted";
}

/// Why a file of this content is refused, without the words that all refusals have in common.
std::string refusal(std::string const& content) {
  temporary_folder const folder;
  write_bytes(folder / "bad.safetensors", content);
  std::string const text = error_of([&] { kv::safetensors_reader const read(folder / "bad.safetensors"); });
  std::string const common = "safetensors: bad.safetensors: ";
  return text.starts_with(common) ? text.substr(common.size()) : text;
}

std::string refusal_of(std::string const& header, std::size_t data) { return refusal(file_of(header, data)); }

/// A tensor's entry of a header.
std::string entry(std::string const& name, std::string const& dtype, std::string const& shape,
                  std::string const& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

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

  TEST_CASE("no prefix of a sound file is accepted, and no longer file") {
    std::string const whole = file_of("{" + entry("a", "F32", "[3]", "[0,12]") + "}", 12);
    REQUIRE(refusal(whole) == "accepted");
    for (std::size_t length = 0; length < whole.size(); ++length) CHECK(refusal(whole.substr(0, length)) != "accepted");
    CHECK(refusal(whole + "x") == "data = 13, but the tensors end at 12");
  }

  TEST_CASE("a header length that lies is refused with its value") {
    CHECK(refusal("") == "size = 0, but a header length takes 8 bytes");
    CHECK(refusal("1234") == "size = 4, but a header length takes 8 bytes");
    CHECK(refusal(with_length(std::uint64_t{4} << 30, "{}")) ==
          "header length = 4294967296, but the file has 2 bytes after it");
    CHECK(refusal(with_length(~std::uint64_t{0}, "{}")) ==
          "header length = 18446744073709551615, but the file has 2 bytes after it");
  }

  TEST_CASE("a header of 4 GB that is there is refused before it is read") {
    temporary_folder const folder;
    write_bytes(folder / "large", with_length(std::uint64_t{4} << 30, "{}"));
    std::filesystem::resize_file(folder / "large", 8 + (std::uint64_t{4} << 30));  // a hole: it takes no room
    CHECK(error_of([&] { kv::safetensors_reader const read(folder / "large"); }) ==
          "safetensors: large: header length = 4294967296, but a header has at most 100 MB");
  }

  TEST_CASE("a header that is not what it should be is refused") {
    CHECK(refusal_of("{\"a\":", 0) == "header = 5 bytes, but they are not a JSON object");
    CHECK(refusal_of("[1, 2]", 0) == "header = 6 bytes, but they are not a JSON object");
    CHECK(refusal_of("\xff\xfe", 0) == "header = 2 bytes, but they are not a JSON object");
    CHECK(refusal_of(std::string(100'000, '['), 0) == "header = 100000 bytes, but they are not a JSON object");
    CHECK(refusal_of(R"({"__metadata__":[]})", 0) == "__metadata__ = array, but it is an object");
    CHECK(refusal_of(R"({"__metadata__":{"width":256}})", 0) == "metadata width = number, but it is a string");
    CHECK(refusal_of(R"({"a":[0]})", 0) == "tensor a = array, but it is an object");
    CHECK(refusal_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4) == "tensor a dtype = null, but it is a string");
    CHECK(refusal_of("{" + entry("a", "F8", "[1]", "[0,4]") + "}", 4) ==
          "tensor a dtype = F8, but a tensor holds F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or integers of 8 to 64 "
          "bits");
    std::string const whole = ", but sizes and offsets are whole and not negative";
    CHECK(refusal_of("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", 4) == "tensor a shape = -1" + whole);
    CHECK(refusal_of("{" + entry("a", "F32", "[1.5]", "[0,4]") + "}", 4) == "tensor a shape = 1.5" + whole);
    CHECK(refusal_of("{" + entry("a", "F32", "7", "[0,4]") + "}", 4) == "tensor a shape = number, but it is an array");
    CHECK(refusal_of("{" + entry("a", "F32", "[1]", "[0]") + "}", 4) ==
          "tensor a data_offsets = 1, but they are two numbers");
  }

  TEST_CASE("a header whose brackets nest deeper than 16 is refused, and one of 16 is read") {
    std::string const rule = " levels of brackets, but they nest at most 16 levels deep";
    std::size_t const deep = 200'000;
    std::string const nested = std::string(deep, '[') + std::string(deep, ']');
    CHECK(refusal_of("{" + entry("a", "F32", nested, "[0,4]") + "}", 4) == "header = 200002" + rule);
    CHECK(refusal_of(R"({"a":)" + nested + "}", 0) == "header = 200001" + rule);
    CHECK(refusal_of(R"({"__metadata__":{"a":)" + nested + "}}", 0) == "header = 200002" + rule);
    CHECK(refusal_of(nested, 0) == "header = 400000 bytes, but they are not a JSON object");
    std::string maps;
    for (std::size_t i = 0; i < deep; ++i) maps += R"({"a":)";
    CHECK(refusal_of(maps + "1" + std::string(deep, '}'), 0) == "header = 200000" + rule);
    CHECK(refusal_of(R"({"a":)" + std::string(15, '[') + std::string(15, ']') + "}", 0) ==
          "tensor a = array, but it is an object");
    CHECK(refusal_of(R"({"a":)" + std::string(16, '[') + std::string(16, ']') + "}", 0) == "header = 17" + rule);
  }

  TEST_CASE("brackets inside of names and texts are no nesting") {
    std::string const brackets(100, '[');
    CHECK(refusal_of(R"({"__metadata__":{"\"{)" + brackets + R"(":")" + brackets + R"(\\"},)" +
                         entry(brackets, "U8", "[1]", "[0,1]") + "}",
                     1) == "accepted");
  }

  TEST_CASE("a name that is there twice is refused wherever it stands") {
    CHECK(refusal_of("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("a", "U8", "[1]", "[1,2]") + "}", 2) ==
          "header = a, but this name is there twice");
    CHECK(refusal_of(R"({"__metadata__":{"session.0":"x","session.0":"y"}})", 0) ==
          "header = session.0, but this name is there twice");
    CHECK(refusal_of(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1) ==
          "header = dtype, but this name is there twice");
    CHECK(refusal_of(R"({"__metadata__":{"a":"1"},)" + entry("a", "U8", "[1]", "[0,1]") + "}", 1) == "accepted");
  }

  TEST_CASE("offsets that lie are refused with the tensor and the value") {
    CHECK(refusal_of("{" + entry("a", "F32", "[1]", "[4,0]") + "}", 4) ==
          "tensor a data_offsets = 4, but it ends before, at 0");
    CHECK(refusal_of("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 4) ==
          "tensor a data_offsets = 8, but the file holds 4 bytes of data");
    CHECK(refusal_of("{" + entry("a", "F32", "[2]", "[0,4]") + "}", 4) ==
          "tensor a bytes = 4, but shape and dtype make 8");
    CHECK(refusal_of("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", 4) ==
          "tensor a shape = 4294967296, but so many elements have no size in 64 bits");
    CHECK(refusal_of("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]") + "}", 12) ==
          "tensor b data_offsets = 4, but the tensor before it ends at 8");
    CHECK(refusal_of("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}", 12) ==
          "tensor b data_offsets = 8, but bytes from 4 on belong to no tensor");
  }

  TEST_CASE("what is not there, or is something else, is named") {
    temporary_folder const folder;
    write_bytes(folder / "x",
                file_of("{" + entry("a", "F32", "[2,1]", "[0,8]") + "," + entry("u", "U8", "[1]", "[8,9]") + "," +
                            entry("h", "F16", "[1]", "[9,11]") + "}",
                        11));
    kv::safetensors_reader read(folder / "x");
    CHECK(read.floats("a", {2, 1}) == std::vector(2, std::bit_cast<float>(0x3f3f3f3f)));
    CHECK(error_of([&] { (void)read.floats("b", {2}); }) == "safetensors: x: tensor b = missing, but it is needed");
    CHECK(error_of([&] { (void)read.floats("a", {1, 2}); }) ==
          "safetensors: x: tensor a shape = [2,1], but it must be [1,2]");
    CHECK(error_of([&] { (void)read.floats("u", {1}); }) ==
          "safetensors: x: tensor u dtype = U8, but it is read as F32");
    CHECK(error_of([&] { (void)read.floats("h", {1}); }) ==
          "safetensors: x: tensor h dtype = F16, but it is read as F32");
    CHECK(error_of([&] { (void)read.metadata("width"); }) ==
          "safetensors: x: metadata width = missing, but it is needed");
    for (std::string const path : {"/nowhere/a.safetensors", "/"}) {
      CHECK(error_of([&] { kv::safetensors_reader const none(path); }) ==
            "safetensors: file = " + path + ", but it cannot be opened");
    }
  }

  TEST_CASE("a file that is cut short after it was opened is refused when it is read") {
    temporary_folder const folder;
    write_bytes(folder / "x", file_of("{" + entry("a", "F32", "[4096]", "[0,16384]") + "}", 16384));
    kv::safetensors_reader read(folder / "x");
    std::filesystem::resize_file(folder / "x", 8192);
    CHECK(error_of([&] { (void)read.floats("a", {4096}); }) ==
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
      text = error_of([&] { kv::write_safetensors(folder / "x", {}, next); });
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
      CHECK(error_of([&] { kv::write_safetensors(path, {}, {}); }) ==
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
      CHECK(error_of([&] { kv::write_safetensors(folder / "x", {}, all); }) == "write_safetensors: " + rule);
      CHECK(folder.files() == 0);
    };
    refuses({{"a", {2, 3}, five}}, "tensor a = 5, but its shape makes 6");
    refuses({{"a", {5}, five}, {"a", {5}, five}}, "tensor = a, but this name is there twice");
  }
}

#include "tinylm/safetensors.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace kv = kvpolicy;

/// A file that is gone when the test ends. Its name in messages is "bad.safetensors".
class temporary_file {
 public:
  explicit temporary_file(std::string const& content) {
    folder_ = std::filesystem::temp_directory_path() / ("tinylm_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(path(), std::ios::binary) << content;
  }
  temporary_file(temporary_file const&) = delete;
  temporary_file& operator=(temporary_file const&) = delete;
  ~temporary_file() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::filesystem::path path() const { return folder_ / "bad.safetensors"; }

 private:
  std::filesystem::path folder_;
};

std::string with_length(std::uint64_t length, std::string const& rest) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + rest;
}

std::string file_of(std::string const& header, std::size_t data) {
  return with_length(header.size(), header + std::string(data, '\x3f'));
}

/// The message with which a file is refused, without the part that all have in common.
std::string refusal(std::string const& content) {
  temporary_file const file(content);
  try {
    tinylm::safetensors const read(file.path());
  } catch (kv::invalid_argument const& error) {
    std::string const text = error.what();
    std::string const common = "safetensors: bad.safetensors: ";
    return text.starts_with(common) ? text.substr(common.size()) : text;
  }
  return "accepted";
}

std::string refusal_of(std::string const& header, std::size_t data) { return refusal(file_of(header, data)); }

}  // namespace

TEST_SUITE("tinylm") {
  TEST_CASE("safetensors: a sound file is read, whatever the width of its numbers") {
    temporary_file const file(
        file_of(R"({"__metadata__":{"width":"2"},"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]},)"
                R"("c":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})",
                10));
    tinylm::safetensors const read(file.path());
    CHECK(read.metadata("width") == "2");
    CHECK(read.floats("a", {2}) == std::vector{1.8115234375f, 1.8115234375f});
    CHECK(read.floats("b", {1, 1}) == std::vector{std::bit_cast<float>(0x3f3f3f3f)});
    CHECK(read.floats("c", {}) == std::vector{0.74609375f});
  }

  TEST_CASE("safetensors: no prefix of a sound file is accepted, and no longer file") {
    std::string const whole = file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 12);
    REQUIRE(refusal(whole) == "accepted");
    for (std::size_t length = 0; length < whole.size(); ++length) CHECK(refusal(whole.substr(0, length)) != "accepted");
    CHECK(refusal(whole + "x") == "data = 13, but the tensors end at 12");
  }

  TEST_CASE("safetensors: a header length that lies is refused with its value") {
    CHECK(refusal("1234") == "size = 4, but a header length takes 8 bytes");
    CHECK(refusal("") == "size = 0, but a header length takes 8 bytes");
    CHECK(refusal(with_length(std::uint64_t{4} << 30, "{}")) ==
          "header length = 4294967296, but the file has 2 bytes after it");
    CHECK(refusal(with_length(~std::uint64_t{0}, "{}")) ==
          "header length = 18446744073709551615, but the file has 2 bytes after it");
  }

  TEST_CASE("safetensors: a header that is not what it should be is refused") {
    CHECK(refusal_of("{\"a\":", 0) == "header = 5 bytes, but they are not a JSON object");
    CHECK(refusal_of("[1, 2]", 0) == "header = 6 bytes, but they are not a JSON object");
    CHECK(refusal_of("\xff\xfe", 0) == "header = 2 bytes, but they are not a JSON object");
    CHECK(refusal_of(std::string(100'000, '['), 0) == "header = 100000 bytes, but they are not a JSON object");
    CHECK(
        refusal_of(
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2) == "tensor = a, but this name is there twice");
    CHECK(refusal_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"I8"}})", 1) ==
          "header = dtype, but this name is there twice");
    CHECK(refusal_of(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1) ==
          "header = shape, but this name is there twice");
    CHECK(refusal_of(R"({"__metadata__":{"model":"a","model":"b"}})", 0) ==
          "header = model, but this name is there twice");
    CHECK(refusal_of(R"({"__metadata__":{"model":"a"}})", 0) == "accepted");
    CHECK(refusal_of(R"({"__metadata__":{"width":256}})", 0) == "metadata width = number, but it is a string");
    CHECK(refusal_of(R"({"a":[0]})", 0) == "tensor a = array, but it is an object");
    CHECK(refusal_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4) == "tensor a dtype = null, but it is a string");
    CHECK(refusal_of(R"({"a":{"dtype":"F8","shape":[1],"data_offsets":[0,4]}})", 4) ==
          "tensor a dtype = F8, but a tensor holds F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or integers of 8 to 64 "
          "bits");
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4) ==
          "tensor a shape = -1, but sizes and offsets are whole and not negative");
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4) ==
          "tensor a data_offsets = 1, but they are two numbers");
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":7,"data_offsets":[0,4]}})", 4) ==
          "tensor a shape = number, but it is an array");
  }

  TEST_CASE("safetensors: a header whose brackets nest 200000 deep is refused") {
    std::string const nested = std::string(200'000, '[') + std::string(200'000, ']');
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":)" + nested + R"(,"data_offsets":[0,4]}})", 4) ==
          "header = 200002 levels of brackets, but they nest at most 16 levels deep");
    CHECK(refusal_of(nested, 0) == "header = 400000 bytes, but they are not a JSON object");
  }

  TEST_CASE("safetensors: offsets that lie are refused with the tensor and the value") {
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4) ==
          "tensor a data_offsets = 4, but it ends before, at 0");
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4) ==
          "tensor a data_offsets = 8, but the file holds 4 bytes of data");
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4) ==
          "tensor a bytes = 4, but shape and dtype make 8");
    CHECK(refusal_of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4) ==
          "tensor a shape = 4294967296, but so many elements have no size in 64 bits");
    CHECK(
        refusal_of(
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12) == "tensor b data_offsets = 4, but the tensor before it ends at 8");
    CHECK(
        refusal_of(
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
            12) == "tensor b data_offsets = 8, but bytes from 4 on belong to no tensor");
  }

  TEST_CASE("safetensors: what is not there, or is something else, is named") {
    temporary_file const file(file_of(
        R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"u":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})",
        9));
    tinylm::safetensors const read(file.path());
    std::string const common = "safetensors: bad.safetensors: ";
    CHECK_THROWS_WITH_AS((void)read.floats("b", {2}), (common + "tensor b = missing, but it is needed").c_str(),
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)read.floats("a", {1, 2}),
                         (common + "tensor a shape = [2,1], but it must be [1,2]").c_str(), kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)read.floats("u", {1}),
                         (common + "tensor u dtype = U8, but it is read as numbers with a fraction").c_str(),
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)read.bytes("a", "U8", {2, 1}),
                         (common + "tensor a dtype = F32, but it is read as U8").c_str(), kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)read.metadata("width"), (common + "metadata width = missing, but it is needed").c_str(),
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(tinylm::safetensors("/nowhere/a.safetensors"),
                         "safetensors: file = /nowhere/a.safetensors, but it cannot be opened", kv::invalid_argument);
    CHECK_THROWS_WITH_AS(tinylm::safetensors("/"), "safetensors: file = /, but it cannot be mapped",
                         kv::invalid_argument);
  }
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include "support/test.hpp"

namespace kvpolicy_test {

/// A folder that is gone, with all in it, when the test ends.
class temporary_folder {
 public:
  temporary_folder() {
    static int made = 0;
    std::string const name = "kvpolicy_io_" + std::to_string(::getpid()) + "_" + std::to_string(made++);
    path_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::create_directories(path_);
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::filesystem::path operator/(char const* name) const { return path_ / name; }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(std::filesystem::path const& path, std::string const& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_bytes(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kvpolicy_test

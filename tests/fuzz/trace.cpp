// SPDX-License-Identifier: Apache-2.0
// The safetensors reader and the trace over it: any bytes are refused in one line, or every tensor lies in the file.
#include "kvreplay/trace.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <kvpolicy/kvpolicy.hpp>
#include <map>
#include <string>

#include "fuzz/bytes.hpp"

namespace {

using namespace kvpolicy_fuzz;

/// A file in memory that has a path.
class memory_file {
 public:
  explicit memory_file(std::string const& content) : file_(::memfd_create("fuzz.safetensors", 0)) {
    require(file_ >= 0 && ::write(file_, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
            "there is memory for a file");
  }
  memory_file(memory_file const&) = delete;
  memory_file& operator=(memory_file const&) = delete;
  ~memory_file() { ::close(file_); }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

/// The first byte says whether the rest is a file, or a header that ends at a zero byte, and data: then its length is
/// written here.
std::string file_of(std::uint8_t const* data, std::size_t size) {
  std::string text(reinterpret_cast<char const*>(data), size);
  if (text.empty() || text[0] != '{') return text.empty() ? text : text.substr(1);
  std::size_t const end = std::min(text.find('\0'), text.size());
  std::uint64_t const length = end;
  std::string made(8, '\0');
  std::memcpy(made.data(), &length, 8);
  return made + text.substr(0, end) + (end < text.size() ? text.substr(end + 1) : "");
}

std::size_t width_of(std::string const& dtype) {
  std::map<std::string, std::size_t> const known{{"F64", 8},  {"I64", 8}, {"F32", 4}, {"I32", 4},
                                                 {"BF16", 2}, {"F16", 2}, {"U8", 1}};
  auto const found = known.find(dtype);
  require(found != known.end(), "a tensor has a type that is known");
  return found->second;
}

/// Every byte behind the header belongs to exactly one tensor, and shapes say how many it has.
void check_file(tinylm::safetensors const& file, std::string const& content) {
  std::uint64_t header = 0;
  std::memcpy(&header, content.data(), 8);
  require(header <= content.size() - 8, "a header ends within its file");
  std::vector<int> owners(content.size() - 8 - static_cast<std::size_t>(header), 0);
  for (auto const& [name, tensor] : file.tensors()) {
    require(tensor.begin <= tensor.end && tensor.end <= owners.size(), "a tensor lies within its file");
    std::uint64_t bytes_of_it = width_of(tensor.dtype);
    for (std::uint64_t const extent : tensor.shape) bytes_of_it *= extent;
    require(bytes_of_it == tensor.end - tensor.begin, "a tensor has the bytes of its shape");
    for (std::uint64_t b = tensor.begin; b < tensor.end; ++b) ++owners[static_cast<std::size_t>(b)];
    if (tensor.begin < tensor.end) {
      require(std::memcmp(file.at(tensor), content.data() + 8 + header + tensor.begin, bytes_of_it) == 0,
              "a tensor's bytes are the file's");
    }
  }
  for (int const each : owners) require(each == 1, "a byte belongs to one tensor");
}

void check_trace(kvreplay::trace const& made) {
  require(made.entries() > 0 && made.positions.size() == static_cast<std::size_t>(made.entries()),
          "every entry has a position");
  for (std::size_t i = 1; i < made.positions.size(); ++i) {
    require(made.positions[i] > made.positions[i - 1], "positions ascend");
  }
  require(made.shape().query_heads % made.shape().kv_heads == 0, "query heads are shared out evenly");
  if (made.keys) {
    std::int64_t count = 1;
    for (std::int64_t const extent : made.keys.shape) count *= extent;
    require(made.keys.shape.size() == 4 && made.keys.shape[2] == made.entries(), "keys have a row an entry");
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(made.keys.value(i));
    require(sum == sum || sum != sum, "every key can be read");
  }
}

/// True if the reader took the file; else it said why in one line.
template <class Read>
void reads_or_refuses(Read const& read) {
  try {
    read();
  } catch (kv::invalid_argument const& refused) {
    std::string const why = refused.what();
    require(why.find(": ") != std::string::npos && why.find(" = ") != std::string::npos, "an error says what is wrong");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string const content = file_of(data, size);
  memory_file const file(content);
  reads_or_refuses([&] { check_file(tinylm::safetensors(file.path()), content); });
  reads_or_refuses([&] { check_trace(kvreplay::trace(file.path())); });
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Prints which appliers each engine supports, computed from the engines' capabilities. docs/engines.md shows the
// output.
#include <algorithm>
#include <cstdio>
#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/flashinfer.hpp>
#include <kvpolicy/engines/llama_cpp.hpp>
#include <kvpolicy/engines/openvino.hpp>
#include <kvpolicy/engines/sglang.hpp>
#include <kvpolicy/engines/tensorrt_llm.hpp>
#include <kvpolicy/engines/vllm.hpp>
#include <map>
#include <string>

namespace kv = kvpolicy;
namespace engines = kvpolicy::engines;

namespace {

constexpr engines::capabilities all[] = {
    engines::llama_cpp::can,    engines::llama_cpp_flash::can, engines::sglang::can,           engines::vllm::can,
    engines::tensorrt_llm::can, engines::flashinfer::can,      engines::flashinfer_heads::can, engines::openvino::can};

/// The finest granularity of decisions that the engine can apply; with "=" if separately deciding lanes must keep
/// equally many entries.
std::string cell(engines::capabilities const& can, engines::applier by) {
  if (!engines::supports(can, by)) return "-";
  kv::granularity const finest = engines::finest(can, by);
  bool const alone = engines::may_be_ragged(can, by, finest);
  return kv::names(finest)[static_cast<std::size_t>(finest)] + std::string(alone ? "" : " =");
}

template <class Cell>
void line(char const* name, Cell const& text) {
  std::string printed = name;
  std::size_t width = 19;
  for (auto const& can : all) {
    printed.resize(width, ' ');
    printed += text(can);
    width += std::max(std::string(can.name).size(), std::string("layer =").size()) + 2;
  }
  std::printf("%s\n", printed.c_str());
}

}  // namespace

int main() {
  auto const appliers = engines::names(engines::applier{});
  line("", [](engines::capabilities const& can) { return std::string(can.name); });
  for (std::size_t i = 0; i < appliers.size(); ++i) {
    line(appliers[i], [&](auto const& can) { return cell(can, static_cast<engines::applier>(i)); });
  }
  std::printf("\n");
  for (std::size_t i = 0; i < appliers.size(); ++i) {
    std::map<std::string, std::string> engines_of;
    for (auto const& can : all) {
      char const* const why = engines::refusal(can, static_cast<engines::applier>(i));
      if (why == nullptr) continue;
      std::string& names = engines_of[why];
      names += (names.empty() ? "" : ", ") + std::string(can.name);
    }
    for (auto const& [why, names] : engines_of)
      std::printf("no %s in %s:\n    %s\n", appliers[i], names.c_str(), why.c_str());
  }
  std::printf("\nopaque rows, moved and listed but neither scored nor turned:\n");
  for (auto const& can : all) std::printf("    %s: %s\n", can.name, can.opaque);
}

// SPDX-License-Identifier: Apache-2.0
// Any text is a policy of up to three sections that reads back as itself, or an error that names its column.
#include <cstdint>
#include <cstdlib>
#include <kvpolicy/kvpolicy.hpp>

namespace {

/// What the library ships, and tables of the names that the corpus has.
kvpolicy::registry with_tables() {
  static int const numbers[64] = {};
  static float const weights[64] = {};
  kvpolicy::registry known = kvpolicy::shipped();
  known.table("prompt_end", kvpolicy::by_lane<int const>{numbers})
      .table("token_class", kvpolicy::by_lane<int const>{numbers});
  known.table("t", kvpolicy::by_lane<int const>{numbers}).table("t", kvpolicy::by_lane<float const>{weights});
  return known;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static kvpolicy::registry const known = with_tables();
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  try {
    kvpolicy::any_cache_policy const policy = kvpolicy::parse_cache_policy(text, known);
    std::string const printed = kvpolicy::to_string(policy);
    if (!(kvpolicy::parse_cache_policy(printed, known) == policy)) std::abort();
  } catch (kvpolicy::invalid_argument const& wrong) {
    if (std::string_view(wrong.what()).substr(0, 14) != "parse: column ") std::abort();
  }
  return 0;
}

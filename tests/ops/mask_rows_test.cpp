// SPDX-License-Identifier: Apache-2.0
// One element of a mask, in every form: the others keep their bits.

#include "support/test.hpp"

namespace {

namespace kv = kvpolicy;

/// The bits of one element, least significant byte first; `bits` elements are one bit.
std::uint32_t element(kv::mask_form form, std::vector<std::byte> const& row, int unit) {
  int const bytes = form == kv::mask_form::additive_f32 ? 4 : form == kv::mask_form::boolean ? 1 : 2;
  if (form == kv::mask_form::bits) {
    return (std::to_integer<std::uint32_t>(row[static_cast<std::size_t>(unit / 8)]) >> (unit % 8)) & 1u;
  }
  std::uint32_t all = 0;
  for (int b = bytes - 1; b >= 0; --b) {
    all = all << 8 | std::to_integer<std::uint32_t>(row[static_cast<std::size_t>(unit * bytes + b)]);
  }
  return all;
}

}  // namespace

TEST_SUITE("ops/mask_rows") {
  TEST_CASE("an element says 0 or minus infinity, 1 or 0, and its neighbours say what they did") {
    struct meaning {
      kv::mask_form form;
      std::uint32_t shown, hidden;
    };
    for (meaning const& one :
         {meaning{kv::mask_form::additive_f32, 0, 0xFF800000u}, meaning{kv::mask_form::additive_f16, 0, 0xFC00u},
          meaning{kv::mask_form::additive_bf16, 0, 0xFF80u}, meaning{kv::mask_form::boolean, 1, 0},
          meaning{kv::mask_form::bits, 1, 0}}) {
      for (int const filler : {0x00, 0xFF, 0xA5}) {
        for (int unit = 0; unit < 19; ++unit) {
          for (bool const readable : {true, false}) {
            std::vector<std::byte> row(19 * 4, static_cast<std::byte>(filler));
            std::vector<std::byte> const before = row;
            kv::mask_rows const mask{{row.data(), 0, 0, 0}, one.form, 19};
            mask.set({}, unit, readable);
            for (int other = 0; other < 19; ++other) {
              std::uint32_t const expected = other != unit ? element(one.form, before, other)
                                             : readable    ? one.shown
                                                           : one.hidden;
              REQUIRE(element(one.form, row, other) == expected);
            }
          }
        }
      }
    }
  }
}

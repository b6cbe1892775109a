// SPDX-License-Identifier: Apache-2.0
// A program built with -fno-exceptions and -fno-rtti.
#include <cstdio>
#include <cstring>

#include "evict.hpp"

int main() {
  char why_not[200] = "";
  int const left = evict(4, why_not, sizeof why_not);
  int const refused = evict(-1, why_not, sizeof why_not);
  std::printf("%d entries are left; %s\n", left, why_not);
  return left == 4 && refused == -1 && std::strstr(why_not, "budget.tokens = -1, but ") != nullptr ? 0 : 1;
}

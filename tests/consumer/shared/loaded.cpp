// SPDX-License-Identifier: Apache-2.0
// The two libraries, opened at run time beside the program, each blind to the other's symbols, as plugins are.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

struct library;

namespace {

library const* open(char const* file, char const* symbol) {
  void* const opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  void* const found = opened != nullptr ? dlsym(opened, symbol) : nullptr;
  if (found == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<library const* (*)()>(found)();
}

}  // namespace

library const* first_library() { return open("liba.so", "library_a"); }
library const* second_library() { return open("libb.so", "library_b"); }

// SPDX-License-Identifier: Apache-2.0
// Plugins: a shared library that adds parts of its own to the registry of a program, such as kvreplay.
//
// This header is not part of the umbrella, because it needs <dlfcn.h>, which POSIX has.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <exception>
#include <kvpolicy/by_name/registry.hpp>
#include <kvpolicy/version.hpp>
#include <string>
#include <string_view>

/// Defines the one function that a plugin exports. Its body adds parts to `known`, which is a `kvpolicy::registry`:
///
///     #include <kvpolicy/plugin.hpp>
///     KVPOLICY_PLUGIN(known) { known.add(mine{}); }
///
/// The library is built with the headers of the program that loads it, and for the same standard library:
/// `g++ -std=c++20 -O2 -fPIC -shared mine.cpp -I include -o libmine.so`. The program exports its symbols (`-rdynamic`,
/// CMake's ENABLE_EXPORTS), so that both know a thread by one number.
#define KVPOLICY_PLUGIN(known)                                                                    \
  static void kvpolicy_plugin_parts(::kvpolicy::registry& known);                                 \
  extern "C" __attribute__((visibility("default"))) ::kvpolicy::plugin const* kvpolicy_plugin() { \
    static constexpr ::kvpolicy::plugin mine{kvpolicy_plugin_parts};                              \
    return &mine;                                                                                 \
  }                                                                                               \
  static void kvpolicy_plugin_parts(::kvpolicy::registry& known)

namespace KVPOLICY_NAMESPACE {

/// What a plugin exports: the version of its headers, what its compiler made of them, and the function of its parts.
struct plugin {
  char const* version = kvpolicy::version;
  std::size_t registry_bytes = sizeof(registry);
  int abi = __GXX_ABI_VERSION;
  void (*add)(registry& known) = nullptr;
  detail::thread_role& (*this_thread)() = detail::this_thread_role;

  explicit constexpr plugin(void (*parts)(registry&)) : add(parts) {}
};

/// Loads a plugin and adds its parts to a registry. The library stays loaded until the process ends.
///
/// - throws: `invalid_argument` that names the file, if it cannot be loaded, exports no `kvpolicy_plugin`, was built
///   with headers of another version, or throws while it adds its parts. Then the registry has not changed.
inline void load_plugin(std::string const& file, registry& into) {
  auto const expect = [&](bool holds, std::string const& rule) { expects(holds, "load_plugin", "file", file, rule); };
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  char const* const said = library == nullptr ? ::dlerror() : nullptr;
  expect(library != nullptr, std::string("it cannot be loaded: ") + (said != nullptr ? said : "no reason is given"));
  void* const found = ::dlsym(library, "kvpolicy_plugin");
  expect(found != nullptr, "it exports no kvpolicy_plugin, which KVPOLICY_PLUGIN defines");
  plugin const& mine = *reinterpret_cast<plugin const* (*)()>(found)();
  expect(std::string_view(mine.version) == version,
         std::string("it was built with kvpolicy ") + mine.version + ", and this program with " + version);
  expect(mine.registry_bytes == sizeof(registry) && mine.abi == __GXX_ABI_VERSION,
         "it was built by another compiler or with another standard library than this program");
  expect(&mine.this_thread() == &detail::this_thread_role(),
         "its symbols are not this program's: neither may hide them, and the program exports its own (-rdynamic)");
  registry made = into;
  try {
    mine.add(made);
  } catch (std::exception const& thrown) {
    expect(false, std::string("it adds nothing: ") + thrown.what());
  } catch (...) {
    expect(false, "it adds nothing, and throws what is no exception");
  }
  into = made;
}

}  // namespace KVPOLICY_NAMESPACE

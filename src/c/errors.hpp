// SPDX-License-Identifier: Apache-2.0
// Exceptions as the codes and texts of C.
#pragma once

#include <kvpolicy/c/kvpolicy.h>

#include <kvpolicy/core/contract/error.hpp>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace kvpolicy_c {

namespace kv = kvpolicy;

/// The text of this thread's last error.
inline thread_local std::string last_error;

/// The members and functions of C for those of C++ that errors name: whole names, beginnings and ends of names, and
/// pieces of the text behind the name.
using words = std::pair<std::string_view, std::string_view>;
inline constexpr words whole_names[] = {{"k", "cache.keys"},
                                        {"v", "cache.values"},
                                        {"k.channels", "cache.keys.channels"},
                                        {"v.channels", "cache.values.channels"},
                                        {"k and v", "cache.keys and cache.values"},
                                        {"keys", "cache.keys"},
                                        {"values", "cache.values"},
                                        {"count", "cache.counts"},
                                        {"lanes.count", "cache.counts"},
                                        {"lanes.position", "cache.positions"},
                                        {"lanes.capacity", "cache.capacity"},
                                        {"lanes.heads", "cache.kv_heads"},
                                        {"lanes.layer_end", "cache.layers"},
                                        {"where.units", "cache.slot_count"},
                                        {"where.table", "cache.slots or cache.blocks"},
                                        {"cache.where.table", "cache.blocks"},
                                        {"list", "cache.slots"},
                                        {"exec", "state"}};
inline constexpr words beginnings[] = {{"shape.", "cache."},
                                       {"lanes", "cache"},
                                       {"plan", "state"},
                                       {"queries", "signals.queries"},
                                       {"attention_mass", "signals.attention_mass"},
                                       {"external", "signals.external"}};
inline constexpr words ends[] = {{".position", ".positions"},
                                 {".sequence", ".sequence_stride"},
                                 {".layer", ".layer_stride"},
                                 {".head", ".head_stride"},
                                 {".row", ".row_stride"}};
inline constexpr words pieces[] = {
    {"the shape says", "the cache says"},
    {"decide comes before apply", "kvpolicy_decide comes before kvpolicy_apply"},
    {"but decide comes before", "but kvpolicy_decide comes before"},
    {"that decide was given", "that kvpolicy_decide was given"},
    {"make_state makes", "kvpolicy_make makes"},
    {"make_plan makes", "kvpolicy_make makes"},
    {"the plan", "the decision"},
    {"a plan", "a decision"},
    {" in slot ", " in sequence "},
    {"the slot holds the state", "the sequence holds the state"},
    {"reset it before the next one, or truncate to position 0",
     "kvpolicy_reset comes before the next one, or kvpolicy_truncate to position 0"},
    {"an executor serves one thread at a time: give each its own", "a state serves one thread at a time"},
    {": say their number where the tensor is described", ""},
    {": copy_on_write gives a slot its own", ""}};

inline std::string name_in_c(std::string name) {
  for (auto const& [of_cpp, of_c] : whole_names) {
    if (name == of_cpp) return std::string(of_c);
  }
  for (auto const& [of_cpp, of_c] : beginnings) {
    if (!name.starts_with(of_cpp)) continue;
    name.replace(0, of_cpp.size(), of_c);
    for (auto const& [end, end_of_c] : ends) {
      if (name.ends_with(end)) return name.replace(name.size() - end.size(), end.size(), end_of_c);
    }
    return name;
  }
  return name;
}

/// The function of C for the call that an error names. A device may report an error of an earlier call.
inline std::string call_in_c(char const* call, std::string_view said) {
  for (char const* each : {"append", "truncate", "reset", "observe", "decide", "apply"}) {
    if (said == each) return std::string("kvpolicy_") + each;
  }
  return call;
}

/// The text of an error, "call: name = value, but rule", in the names of C.
inline std::string in_c(char const* call, std::string const& said) {
  std::size_t const begin = said.find(": ");
  std::size_t const end = begin == std::string::npos ? begin : said.find(" = ", begin);
  if (end == std::string::npos) return std::string(call) + ": " + said;
  std::string rest = said.substr(end);
  for (auto const& [of_cpp, of_c] : pieces) {
    std::size_t const at = rest.find(of_cpp);
    if (at != std::string::npos) rest.replace(at, of_cpp.size(), of_c);
  }
  return call_in_c(call, said.substr(0, begin)) + ": " + name_in_c(said.substr(begin + 2, end - begin - 2)) + rest;
}

inline kvpolicy_status fails(kvpolicy_status with, char const* call, char const* text) noexcept {
  try {
    last_error = with == KVPOLICY_INVALID_ARGUMENT ? in_c(call, text) : std::string(text);
  } catch (std::bad_alloc const&) {
    last_error = "no memory";  // short enough to need none
  }
  return with;
}

/// Runs a call. No exception passes this function.
template <class Call>
kvpolicy_status guarded(char const* name, Call const& call) noexcept {
  try {
    call();
    return KVPOLICY_OK;
  } catch (kv::invalid_argument const& refused) {
    return fails(KVPOLICY_INVALID_ARGUMENT, name, refused.what());
  } catch (std::bad_alloc const&) {
    return fails(KVPOLICY_OUT_OF_MEMORY, name, "no memory");
  } catch (std::exception const& other) {
    return fails(KVPOLICY_FAILED, name, other.what());
  } catch (...) {
    return fails(KVPOLICY_FAILED, name, "an unknown exception");
  }
}

inline void given(void const* pointer, char const* call, char const* name) {
  kv::expects(pointer != nullptr, call, name, "null", "it points to an object");
}

}  // namespace kvpolicy_c

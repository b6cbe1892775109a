// SPDX-License-Identifier: Apache-2.0
// Whether a test runs under the address sanitizer, where it takes many times as long, or under the thread sanitizer.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define KVPOLICY_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVPOLICY_TEST_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define KVPOLICY_TEST_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define KVPOLICY_TEST_TSAN 1
#endif

namespace kvpolicy_test {

#if defined(KVPOLICY_TEST_ASAN)
inline constexpr bool under_address_sanitizer = true;
#else
inline constexpr bool under_address_sanitizer = false;
#endif

#if defined(KVPOLICY_TEST_TSAN)
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif

}  // namespace kvpolicy_test

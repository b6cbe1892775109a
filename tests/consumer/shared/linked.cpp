// SPDX-License-Identifier: Apache-2.0
// The two libraries, linked to the program.
struct library;
extern "C" library const* library_a();
extern "C" library const* library_b();

library const* first_library() { return library_a(); }
library const* second_library() { return library_b(); }

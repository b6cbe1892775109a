#include <cstdio>
#include <kvpolicy/kvpolicy.hpp>

int main() { return std::puts(kvpolicy::version) < 0 ? 1 : 0; }

// Two translation units include the umbrella. They link only if everything in it is inline, and they must see one and
// the same object behind an inline variable.
char const* version_seen_by_a();
char const* version_seen_by_b();

int main() { return version_seen_by_a() == version_seen_by_b() ? 0 : 1; }

// SPDX-License-Identifier: Apache-2.0
// Files that take the place of others: whole or not at all, and never of what is no regular file.

#include <sys/stat.h>

#include <kvpolicy/io/atomic_file.hpp>

#include "io/bad_headers.hpp"
#include "io/small_disk.hpp"

namespace {

namespace fs = std::filesystem;
using namespace kvpolicy_test;

void append(kv::atomic_file& to, std::string_view text) { to.append(text.data(), text.size()); }

unsigned mode_of(fs::path const& path) {
  struct stat about{};
  return ::lstat(path.c_str(), &about) == 0 ? about.st_mode & 07777U : ~0U;
}

/// The umask of this process until it is gone.
class umask_of {
 public:
  explicit umask_of(mode_t mask) : before_(::umask(mask)) {}
  umask_of(umask_of const&) = delete;
  umask_of& operator=(umask_of const&) = delete;
  ~umask_of() { ::umask(before_); }

 private:
  mode_t before_;
};

}  // namespace

TEST_SUITE("io/atomic_file") {
  TEST_CASE("a file has its name when it is committed, and not before") {
    temporary_folder const folder;
    write_bytes(folder / "x", "old");
    {
      kv::atomic_file file(folder / "x");
      CHECK(folder.files() == 2);
      CHECK(file.temporary().parent_path() == (folder / "x").parent_path());
      CHECK(file.temporary().filename().string().starts_with("x."));
      append(file, "ab");
      file.write_at(4, "ef", 2);
      file.write_at(1, "B", 1);
      append(file, "g");
      CHECK(read_bytes(folder / "x") == "old");
      file.finish();
      CHECK(read_bytes(folder / "x") == "old");
      file.commit();
      CHECK(read_bytes(folder / "x") == std::string("aB\0\0efg", 7));
      CHECK(folder.files() == 1);
    }
    CHECK(folder.files() == 1);
    CHECK(read_bytes(folder / "x").size() == 7);
  }

  TEST_CASE("a file that is not committed leaves nothing, and what was there") {
    temporary_folder const folder;
    {
      kv::atomic_file const file(folder / "x");
    }
    CHECK(folder.files() == 0);
    write_bytes(folder / "x", "old");
    {
      kv::atomic_file file(folder / "x");
      append(file, "new");
      file.finish();
    }
    CHECK(folder.files() == 1);
    CHECK(read_bytes(folder / "x") == "old");
  }

  TEST_CASE("a file keeps the mode of the one that it replaces, and a new one has what the umask leaves") {
    temporary_folder const folder;
    for (unsigned const mode : {0600U, 0640U, 0604U, 0444U, 0777U, 04755U}) {
      umask_of const mask(0027);
      write_bytes(folder / "x", "old");
      REQUIRE(::chmod((folder / "x").c_str(), static_cast<mode_t>(mode)) == 0);
      kv::atomic_file file(folder / "x");
      append(file, "new");
      file.commit();
      CHECK(mode_of(folder / "x") == mode);
      CHECK(read_bytes(folder / "x") == "new");
      fs::remove(folder / "x");
    }
    for (unsigned const mask : {0022U, 0077U, 0006U}) {
      umask_of const now(static_cast<mode_t>(mask));
      kv::atomic_file file(folder / "x");
      file.commit();
      CHECK(mode_of(folder / "x") == (0666U & ~mask));
      fs::remove(folder / "x");
    }
  }

  TEST_CASE("the mode is that of the file which is there in the end") {
    temporary_folder const folder;
    umask_of const mask(0022);
    kv::atomic_file file(folder / "x");
    append(file, "secret");
    write_bytes(folder / "x", "old");
    REQUIRE(::chmod((folder / "x").c_str(), 0600) == 0);
    file.commit();
    CHECK(mode_of(folder / "x") == 0600U);
  }

  TEST_CASE("what is no regular file is refused, and stays") {
    temporary_folder const folder;
    fs::create_directory(folder / "inner");
    fs::create_symlink("x", folder / "link");
    REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
    write_bytes(folder / "x", "old");
    auto const refuses = [&](fs::path const& path, std::string const& why) {
      std::string const expected = "save: file = " + path.string() + ", but it cannot be written: " + why;
      CHECK(file_error_of([&] { kv::expect_replaceable(path, "save", "file"); }) == expected);
    };
    auto const opens_nothing = [&](fs::path const& path, std::string const& why) {
      refuses(path, why);
      CHECK(file_error_of([&] { kv::atomic_file const file(path); }) ==
            "atomic_file: path = " + path.string() + ", but it cannot be written: " + why);
      CHECK(folder.files() == 4);
    };
    opens_nothing("", "a file has a name");
    opens_nothing(folder / "inner", "it is a directory");
    opens_nothing(folder / "inner/", "it is a directory");
    opens_nothing(folder / "link", "it is a symbolic link");
    opens_nothing(folder / "fifo", "it is a FIFO");
    opens_nothing(folder / "x" / "y", "Not a directory");
    refuses("/dev/null", "it is a device");  // asked only: nothing can happen to it
    CHECK(file_error_of([&] { kv::expect_replaceable(folder / "none" / "x", "save", "file"); }) == "accepted");
    CHECK(file_error_of([&] { kv::atomic_file const file(folder / "none" / "x"); }) ==
          "atomic_file: path = " + (folder / "none" / "x").string() +
              ", but it cannot be written: No such file or directory");
    CHECK(read_bytes(folder / "x") == "old");
  }

  TEST_CASE("what has become a link or a directory meanwhile is not replaced") {
    temporary_folder const folder;
    write_bytes(folder / "other", "other");
    for (bool const link : {true, false}) {
      {
        kv::atomic_file file(folder / "x");
        append(file, "new");
        link ? fs::create_symlink("other", folder / "x") : void(fs::create_directory(folder / "x"));
        CHECK(file_error_of([&] { file.commit(); }) == "atomic_file: path = " + (folder / "x").string() +
                                                           ", but it cannot be written: it is a " +
                                                           (link ? "symbolic link" : "directory"));
      }
      CHECK(fs::is_symlink(folder / "x") == link);
      CHECK(folder.files() == 2);
      fs::remove(folder / "x");
    }
    CHECK(read_bytes(folder / "other") == "other");
  }

  TEST_CASE("of several writers the file is wholly one's, and the last to commit has it") {
    temporary_folder const folder;
    kv::atomic_file first(folder / "x"), second(folder / "x");
    CHECK(first.temporary() != second.temporary());
    append(first, "first");
    append(second, "the second");
    second.commit();
    CHECK(read_bytes(folder / "x") == "the second");
    first.commit();
    CHECK(read_bytes(folder / "x") == "first");
    std::vector<std::thread> writers;
    for (char const digit : {'0', '1', '2', '3'}) {
      writers.emplace_back([&folder, digit] {
        for (std::size_t i = 0; i < 20; ++i) {
          kv::atomic_file file(folder / "x");
          append(file, std::string(1000 + i, digit));
          append(file, std::string(70'000, digit));
          file.commit();
        }
      });
    }
    for (std::thread& each : writers) each.join();
    std::string const last = read_bytes(folder / "x");
    CHECK(last == std::string(71'019, last.front()));
    CHECK(folder.files() == 1);
  }

  TEST_CASE("a disk that is full is an error of the system, and leaves what was there") {
    temporary_folder const folder;
    write_bytes(folder / "x", "old");
    std::error_code code;
    {
      kv::atomic_file file(folder / "x", "save", "file");
      small_disk const full(100);
      append(file, std::string(60, 'a'));
      try {
        append(file, std::string(60, 'b'));
      } catch (std::system_error const& error) {
        code = error.code();
        CHECK(error.what() ==
              "save: file = " + (folder / "x").string() + ", but it cannot be written to its end: File too large");
      }
    }
    CHECK(code == std::errc::file_too_large);
    CHECK(read_bytes(folder / "x") == "old");
    CHECK(folder.files() == 1);
  }

  TEST_CASE("a temporary file that somebody else has removed cannot be committed") {
    temporary_folder const folder;
    write_bytes(folder / "x", "old");
    kv::atomic_file file(folder / "x");
    fs::remove(file.temporary());
    CHECK(file_error_of([&] { file.commit(); }) == "system_error atomic_file: path = " + (folder / "x").string() +
                                                       ", but it cannot be replaced: No such file or directory");
    CHECK(read_bytes(folder / "x") == "old");
  }

  TEST_CASE("two names are one file over links of both kinds, and what is not there is no file") {
    temporary_folder const folder;
    write_bytes(folder / "a", "same");
    write_bytes(folder / "b", "same");
    fs::create_hard_link(folder / "a", folder / "hard");
    fs::create_symlink("a", folder / "soft");
    CHECK(kv::same_file(folder / "a", folder / "a"));
    CHECK(kv::same_file(folder / "a", folder / "hard"));
    CHECK(kv::same_file(folder / "soft", folder / "hard"));
    CHECK_FALSE(kv::same_file(folder / "a", folder / "b"));
    CHECK_FALSE(kv::same_file(folder / "a", folder / "none"));
    CHECK_FALSE(kv::same_file(folder / "none", folder / "none"));
  }
}

// SPDX-License-Identifier: Apache-2.0
// A file that replaces another one only when it is complete. This header needs POSIX, so the umbrella header does not
// include it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <kvpolicy/core/contract/error.hpp>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Names the kind of a file that may not be replaced; null for a regular file.
[[nodiscard]] inline char const* irreplaceable_kind(mode_t mode) {
  if (S_ISREG(mode)) return nullptr;
  if (S_ISDIR(mode)) return "it is a directory";
  if (S_ISLNK(mode)) return "it is a symbolic link";
  if (S_ISFIFO(mode)) return "it is a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "it is a device";
  return "it is not a regular file";
}

}  // namespace detail

/// True if both paths lead to the same file, that is to one device and inode, also through symbolic and hard links.
/// False if one of the files does not exist.
[[nodiscard]] inline bool same_file(std::filesystem::path const& one, std::filesystem::path const& other) {
  struct stat a{};
  struct stat b{};
  return ::stat(one.c_str(), &a) == 0 && ::stat(other.c_str(), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// Checks that a file may be written at this path: nothing exists there, or a regular file. It changes nothing.
///
/// - in: an error names `call` and `argument`, for example "kvreplay" and "--out".
/// - throws: `invalid_argument` if the path is empty, cannot be looked up, or is a directory, device, FIFO, socket or
///   symbolic link.
inline void expect_replaceable(std::filesystem::path const& path, std::string_view call, std::string_view argument) {
  expects(!path.empty(), call, argument, "", "it cannot be written: a file has a name");
  struct stat there{};
  bool const known = ::lstat(path.c_str(), &there) == 0;
  int const reason = known ? 0 : errno;
  if (reason == ENOENT) return;
  char const* const kind = known ? detail::irreplaceable_kind(there.st_mode) : std::strerror(reason);
  expects(
      kind == nullptr, call, argument, [&] { return path.string(); },
      [&] { return std::string("it cannot be written: ").append(kind); });
}

/// Writes a file under a temporary name in the folder of `path`: `path`.0123456789abcdef.unfinished, with 16
/// random digits. `commit` renames it to `path` in one step, so a reader of `path` sees either the old file or the
/// complete new one. Of several writers the last one to commit wins. Without a commit the destructor removes the
/// temporary file, and `path` is unchanged. A process that is killed leaves the temporary file behind; it can be
/// deleted.
///
/// The new file takes the mode of the file that it replaces, and its owner and group if the system allows that. If
/// there is no old file, the umask decides the mode. Other hard links to the old file keep the old content. Only one
/// thread may use it at a time.
///
/// - throws: `invalid_argument` in the cases of `expect_replaceable`, and if no file can be created in the folder of
///   `path`; `std::system_error` with the system's reason if writing fails, as on a full disk. At a limit of file sizes
///   a process only gets this error if it ignores SIGXFSZ.
class atomic_file {
 public:
  explicit atomic_file(std::filesystem::path path, std::string_view call = "atomic_file",
                       std::string_view argument = "path")
      : path_(std::move(path)), call_(call), argument_(argument) {
    struct stat old{};
    bool const replaces = find_old(old);
    create(replaces ? mode_t{0600} : mode_t{0666});
    if (!replaces || take_over(old)) return;
    int const reason = errno;
    discard();
    fail("it cannot be given the mode of the old file", reason);
  }
  atomic_file(atomic_file const&) = delete;
  atomic_file& operator=(atomic_file const&) = delete;
  ~atomic_file() { discard(); }

  /// The temporary name, which the file has until it is committed.
  [[nodiscard]] std::filesystem::path const& temporary() const { return temporary_; }

  /// Writes `bytes` bytes at an offset.
  void write_at(std::uint64_t offset, void const* from, std::size_t bytes) {
    auto const* next = static_cast<char const*>(from);
    while (bytes > 0) {
      ssize_t const done = ::pwrite(file_, next, bytes, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail("it cannot be written to its end", done < 0 ? errno : ENOSPC);
      next += done;
      offset += static_cast<std::uint64_t>(done);
      bytes -= static_cast<std::size_t>(done);
    }
    end_ = std::max(end_, offset);
  }

  /// Writes `bytes` bytes after the last byte that was written so far.
  void append(void const* from, std::size_t bytes) { write_at(end_, from, bytes); }

  /// Waits until all that was written is on the disk, and closes the file. Nothing can be written after it.
  void finish() {
    if (file_ < 0) return;
    struct stat old{};
    if (find_old(old) && !take_over(old)) fail("it cannot be given the mode of the old file", errno);
    bool const synchronised = ::fsync(file_) == 0 || errno == EINVAL || errno == ENOTSUP;  // some file systems cannot
    int const reason = synchronised ? 0 : errno;
    bool const closed = ::close(std::exchange(file_, -1)) == 0 || errno == EINTR;
    if (!synchronised || !closed) fail("it cannot be written to its end", synchronised ? errno : reason);
  }

  /// Calls `finish`, then renames the file to `path`. It refuses a path that has become a directory or a link
  /// meanwhile.
  void commit() {
    finish();
    expect_replaceable(path_, call_, argument_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("it cannot be replaced", errno);
    temporary_.clear();
  }

 private:
  /// True if there is an old file, which will be replaced.
  [[nodiscard]] bool find_old(struct stat& old) const {
    expect_replaceable(path_, call_, argument_);
    return ::lstat(path_.c_str(), &old) == 0;
  }

  /// Creates the temporary file. If the file's name is long, the temporary name does not contain it, because file
  /// systems limit the length of a name.
  void create(mode_t mode) {
    constexpr std::size_t longest = 200;
    std::string name = path_.filename().string();
    if (name.size() > longest) name = "kvpolicy";
    std::random_device random;
    do {
      std::string digits;
      for (int i = 0; i < 16; ++i) digits += "0123456789abcdef"[random() % 16];
      temporary_ = path_.parent_path() / std::string(name).append(".").append(digits).append(".unfinished");
      file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    } while (file_ < 0 && (errno == EEXIST || errno == EINTR));
    if (file_ >= 0) return;
    int const reason = errno;
    temporary_.clear();
    bool const disk = reason == ENOSPC || reason == EDQUOT || reason == EIO || reason == EMFILE || reason == ENFILE;
    if (disk) fail("it cannot be written", reason);
    expects(
        false, call_, argument_, [&] { return path_.string(); },
        [&] { return std::string("it cannot be written: ").append(std::generic_category().message(reason)); });
  }

  /// Gives the file the owner, group and mode of the old one. Returns false if the mode cannot be set; `errno` then has
  /// the reason.
  [[nodiscard]] bool take_over(struct stat const& old) const {
    struct stat now{};
    if (::fstat(file_, &now) != 0) return false;
    bool const same_owner = now.st_uid == old.st_uid && now.st_gid == old.st_gid;
    [[maybe_unused]] bool const owned =
        same_owner || ::fchown(file_, old.st_uid, old.st_gid) == 0;  // often only root may
    constexpr mode_t bits = 07777;
    return (now.st_mode & bits) == (old.st_mode & bits) || ::fchmod(file_, old.st_mode & bits) == 0;
  }

  [[noreturn]] void fail(char const* what, int reason) const {
    std::string text = std::string(call_).append(": ").append(argument_).append(" = ").append(path_.string());
#if defined(__cpp_exceptions)  // without exceptions, config.hpp is a compile error already
    throw std::system_error(reason, std::generic_category(), text.append(", but ").append(what));
#endif
  }

  void discard() {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }

  std::filesystem::path path_;
  std::string call_;
  std::string argument_;
  std::filesystem::path temporary_;  ///< empty: not created, or renamed already
  int file_ = -1;
  std::uint64_t end_ = 0;
};

}  // namespace KVPOLICY_NAMESPACE

// SPDX-License-Identifier: Apache-2.0
// The common parts of programs that write a file: the file, which a signal does not leave unfinished, error messages,
// and the exit status.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <kvpolicy/io/atomic_file.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace examples {

/// The signals that end a program. Their handler first removes the temporary file.
inline constexpr std::array<int, 4> ending_signals = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};

[[nodiscard]] inline sigset_t ending_set() {
  sigset_t all;
  ::sigemptyset(&all);
  for (int const one : ending_signals) ::sigaddset(&all, one);
  return all;
}

/// A temporary file that the signal handler removes.
struct temporary_file {
  enum state : int { none, being_created, there };
  std::atomic<int> now{none};
  char name[4096] = {};
};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler reads it");

/// The temporary files of a program: its results and a page.
inline std::array<temporary_file, 2> temporary_files;

/// Removes the temporary files, then lets the signal end the program, so that its exit status names the signal. It
/// calls only functions that a signal handler may call. The thread that creates a file has blocked these signals, so
/// this handler runs in another thread and can wait for it.
extern "C" inline void remove_temporary_files(int signal) {
  for (temporary_file& one : temporary_files) {
    while (one.now == temporary_file::being_created) {
    }
    if (one.now == temporary_file::there) ::unlink(one.name);
  }
  ::raise(signal);  // SA_RESETHAND has restored its default action
}

/// Prepares the process before it opens a file: signals remove an unfinished file, a limit of file sizes causes an
/// error instead of a signal, and no file that is opened later becomes standard input, output or error.
inline void prepare_process() {
  for (int const standard : {0, 1, 2}) {
    if (::fcntl(standard, F_GETFD) < 0) (void)::open("/dev/null", standard == 0 ? O_WRONLY : O_RDONLY);
  }
  (void)std::signal(SIGXFSZ, SIG_IGN);
  struct sigaction ends{};
  ends.sa_handler = remove_temporary_files;
  ends.sa_mask = ending_set();
  ends.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int const one : ending_signals) {
    struct sigaction before{};
    if (::sigaction(one, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) ::sigaction(one, &ends, nullptr);
  }
}

/// A file that a program writes. It gets its name when it is committed; until then the signals that end the program
/// remove it. There can be two at a time.
class output_file {
 public:
  output_file(std::string const& path, char const* program, char const* option) : noted_(free_place()) {
    sigset_t const ending = ending_set();
    sigset_t before;
    ::pthread_sigmask(SIG_BLOCK, &ending, &before);
    noted_.now = temporary_file::being_created;
    try {
      file_.emplace(path, program, option);
      std::string const& name = file_->temporary().native();
      bool const fits = name.size() < sizeof noted_.name;
      std::memcpy(noted_.name, name.c_str(), fits ? name.size() + 1 : 0);
      noted_.now = fits ? temporary_file::there : temporary_file::none;
    } catch (...) {
      noted_.now = temporary_file::none;
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  output_file(output_file const&) = delete;
  output_file& operator=(output_file const&) = delete;
  ~output_file() {
    file_.reset();
    noted_.now = temporary_file::none;
  }

  [[nodiscard]] kvpolicy::atomic_file& operator*() { return *file_; }
  [[nodiscard]] kvpolicy::atomic_file* operator->() { return &*file_; }

 private:
  static temporary_file& free_place() {
    for (temporary_file& one : temporary_files) {
      if (one.now == temporary_file::none) return one;
    }
    throw std::logic_error("a program writes at most two files at a time");
  }

  temporary_file& noted_;
  std::optional<kvpolicy::atomic_file> file_;
};

/// Adds an option that names a file to be written. It refuses an empty name, and a path that may not be replaced.
inline void add_output_option(CLI::App& app, std::string const& option, std::string& to, std::string const& about) {
  app.add_option(option, to, about)->each([&app, option](std::string const& path) {
    kvpolicy::expect_replaceable(path, app.get_name(), option);
  });
}

/// Refuses to write into a file that the same run reads, also under another name.
inline void expect_no_input(char const* program, char const* option, std::string const& path,
                            std::vector<std::string> const& inputs) {
  for (std::string const& one : inputs) {
    kvpolicy::expects(!kvpolicy::same_file(path, one), program, option, path,
                      [&] { return "it cannot be written: this run reads it, as " + one; });
  }
}

/// Flushes standard output, and throws if not all of it could be written.
inline void flush_standard_output() {
  errno = 0;
  bool const arrived = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!arrived) throw std::system_error(errno, std::generic_category(), "standard output cannot be written");
}

/// Prints an error on one line, whatever names it contains, and returns the exit status.
inline int fail(std::string text, int status) {
  for (char& each : text) {
    if (static_cast<unsigned char>(each) < 0x20 || each == 0x7F) each = ' ';
  }
  (void)std::fputs((text + '\n').c_str(), stderr);
  return status;
}

/// Parses the command line and calls `work`. The exit status is the one that `work` returns, 2 if an argument was
/// refused, or 1 if something failed, for example if standard output could not be written.
template <class Work>
int run_program(CLI::App& app, int count, char** arguments, Work const& work) {
  std::string const prefix = app.get_name() + ": ";
  prepare_process();
  try {
    int status = 0;
    try {
      app.parse(count, arguments);
      status = work();
    } catch (CLI::CallForHelp const& help) {
      status = app.exit(help);
    }
    flush_standard_output();
    return status;
  } catch (CLI::ParseError const& wrong) {
    return fail(prefix + wrong.what(), 2);
  } catch (kvpolicy::invalid_argument const& wrong) {
    return fail(wrong.what(), 2);
  } catch (std::exception const& failed) {
    std::string_view const what = failed.what();
    return fail((what.starts_with(prefix) ? "" : prefix) + std::string(what), 1);
  } catch (...) {  // a part of a plugin may throw anything
    return fail(prefix + "something was thrown that is no exception", 1);
  }
}

}  // namespace examples

// SPDX-License-Identifier: Apache-2.0
// A host executor that is one of the ranks of a tensor-parallel engine, and reaches the others by MPI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <kvpolicy/ops/host/executor.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// Something that the ranks of a group must agree on differs, or a call threw on another rank. Every rank throws it.
class ranks_disagree : public kvpolicy::invalid_argument {
 public:
  using kvpolicy::invalid_argument::invalid_argument;
};

/// Runs verbs on the host as one of the processes of a group. Every process has an equal part of the heads, in the
/// order of the ranks. `kv::decide` finds `ranks`, `all_reduce` and `all_reduce_max`, and calls them where scores are
/// sums or maxima over all heads.
///
/// Every rank makes the same calls of this executor in the same order. A reduction first compares the counts of the
/// ranks. Therefore ranks that do not fit together all throw the same line, and none of them waits for the others.
class mpi_executor : public kvpolicy::host_executor {
 public:
  /// Joins the processes of `group`, all of which make an executor. `threads` and `most` are as for `host_executor`.
  /// The executor sends its messages in a communicator of its own.
  ///
  /// - throws: `invalid_argument` if MPI is not initialised, or does not allow the threads that are asked for.
  explicit mpi_executor(MPI_Comm group, int threads = 1, kvpolicy::isa most = kvpolicy::best_isa())
      : host_executor(threads, most) {
    check_initialised(threads);
    succeed("MPI_Comm_dup", MPI_Comm_dup(group, &group_));
    MPI_Comm_set_errhandler(group_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group_, &rank_);
    MPI_Comm_size(group_, &ranks_);
    announced_.resize(static_cast<std::size_t>(ranks_));
    parts_.resize(static_cast<std::size_t>(ranks_) * floats_of_a_piece);
  }
  ~mpi_executor() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&group_);
  }

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int rank() const { return rank_; }

  /// Writes the sum over all ranks to every rank. Each rank gathers the numbers of all ranks and adds them in the order
  /// of the ranks. So all ranks have the same bits, whichever way an implementation of MPI reduces. It allocates
  /// nothing. The numbers travel in pieces, because a count of MPI is an int.
  ///
  /// - cost: each rank receives (ranks - 1) x count floats, and one number of each rank before.
  /// - throws: `ranks_disagree` on every rank, and `data` is unchanged, if the counts differ, or if another rank has
  ///   left its call with an exception (see `together`). `std::runtime_error` if MPI fails.
  void all_reduce(float* data, std::size_t count) {
    announce("all_reduce", static_cast<std::int64_t>(count));
    reduce(data, count, [](float sum, float part) { return sum + part; });
  }

  /// Writes the maximum over all ranks to every rank, as `all_reduce` does the sum. NaN on any rank is NaN on all,
  /// which MPI does not promise of MPI_MAX.
  void all_reduce_max(float* data, std::size_t count) {
    announce("all_reduce_max", static_cast<std::int64_t>(count));
    reduce(data, count, [](float most, float part) { return most >= part || std::isnan(most) ? most : part; });
  }

  /// Gathers `bytes` bytes of every rank: `all` holds those of rank 0, then those of rank 1, and so on. Every rank
  /// gives equally many bytes, and otherwise every rank throws `ranks_disagree`.
  void all_gather(void const* mine, int bytes, void* all) {
    announce("all_gather", bytes);
    succeed("MPI_Allgather", MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, group_));
  }

  /// Makes a call, such as a `decide`, on all ranks or on none: it returns on every rank, or throws on every rank.
  /// Where the call itself has thrown, its exception passes through. The other ranks throw `ranks_disagree` with its
  /// text. Without `together` the other ranks would wait for ever in their next `all_reduce`.
  ///
  /// - cost: one number of each rank.
  template <class Call>
  void together(Call const& call) {
    if (inside_) return call();  // the outermost call compares the ranks
    inside_ = true;
    disagreed_ = false;
    std::exception_ptr thrown;
    std::string text;
    try {
      call();
    } catch (std::exception const& error) {
      thrown = std::current_exception();
      text = error.what();
    } catch (...) {
      thrown = std::current_exception();
      text = "an exception that is no std::exception";
    }
    inside_ = false;
    if (thrown && disagreed_) std::rethrow_exception(thrown);  // the other ranks have thrown it, too
    announce("together", thrown ? has_thrown : has_returned, text);
    if (thrown) std::rethrow_exception(thrown);
  }

 private:
  static constexpr std::size_t floats_of_a_piece = 65536;
  static constexpr std::int64_t has_thrown = -1;  ///< what a rank announces instead of a count
  static constexpr std::int64_t has_returned = -2;

  static void check_initialised(int threads) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    kvpolicy::expects(initialized != 0, "mpi_executor", "group", "unknown", "MPI_Init_thread comes first");
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    kvpolicy::expects(threads == 1 || provided >= MPI_THREAD_FUNNELED, "mpi_executor", "threads", threads,
                      "MPI was initialised for one thread: call MPI_Init_thread with MPI_THREAD_FUNNELED");
  }

  static void succeed(char const* call, int code) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING + 1] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(call) + ": " + text);
  }

  /// Reduces the numbers of all ranks in the order of the ranks, piece by piece.
  template <class Combine>
  void reduce(float* data, std::size_t count, Combine const& combine) {
    if (ranks_ == 1) return;
    for (std::size_t done = 0; done < count; done += floats_of_a_piece) {
      reduce_piece(data + done, std::min(floats_of_a_piece, count - done), combine);
    }
  }

  template <class Combine>
  void reduce_piece(float* data, std::size_t count, Combine const& combine) {
    int const floats = static_cast<int>(count);
    succeed("MPI_Allgather", MPI_Allgather(data, floats, MPI_FLOAT, parts_.data(), floats, MPI_FLOAT, group_));
    std::copy_n(parts_.data(), count, data);
    for (int rank = 1; rank < ranks_; ++rank) {
      float const* const part = parts_.data() + static_cast<std::size_t>(rank) * count;
      for (std::size_t i = 0; i < count; ++i) data[i] = combine(data[i], part[i]);
    }
  }

  /// Tells the other ranks what this one is about to do: to exchange a count of numbers, or to leave a call. If they do
  /// different things, every rank throws, except those that have thrown already.
  void announce(char const* call, std::int64_t mine, std::string const& text = {}) {
    succeed("MPI_Allgather", MPI_Allgather(&mine, 1, MPI_INT64_T, announced_.data(), 1, MPI_INT64_T, group_));
    auto const thrower = std::find(announced_.begin(), announced_.end(), has_thrown);
    if (thrower != announced_.end()) {
      int const rank = static_cast<int>(thrower - announced_.begin());
      std::string const reason = text_of(rank, text);
      if (mine != has_thrown) refuse("together: rank " + std::to_string(rank) + " threw: " + reason);
      return;
    }
    std::int64_t const first = announced_.front();
    auto const other = std::find_if(announced_.begin(), announced_.end(), [&](auto each) { return each != first; });
    if (other == announced_.end()) return;
    refuse(std::string(call) + ": count = " + spell(first) + " on rank 0 and " + spell(*other) + " on rank " +
           std::to_string(other - announced_.begin()) + ", but all ranks exchange equally many numbers");
  }

  [[noreturn]] void refuse(std::string const& line) {
    disagreed_ = true;
    throw ranks_disagree(line);
  }

  static std::string spell(std::int64_t announced) {
    return announced == has_returned ? "none" : std::to_string(announced);
  }

  /// The text of one rank, on every rank.
  std::string text_of(int rank, std::string text) {
    text.resize(1000);
    succeed("MPI_Bcast", MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, rank, group_));
    return text.c_str();
  }

  MPI_Comm group_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 1;
  bool inside_ = false;                  ///< in a call of `together`
  bool disagreed_ = false;               ///< this executor has thrown `ranks_disagree`, as those of the other ranks
  std::vector<std::int64_t> announced_;  ///< of each rank
  std::vector<float> parts_;             ///< [rank, float]: one piece of the numbers of every rank
};

}  // namespace examples

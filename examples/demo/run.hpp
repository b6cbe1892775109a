// SPDX-License-Identifier: Apache-2.0
// Runs every case under every policy and budget. Cases run side by side, each on an engine of one thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "contender.hpp"
#include "keep_map.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "table.hpp"
#include "tasks.hpp"

namespace demo {

/// Measures every row of the table.
class run {
 public:
  static constexpr int mapped = 6;  ///< the number of recall prompts with keep maps: one about each fact
  static constexpr int mapped_stretches = 1;

  run(options const& with, std::vector<contender> const& contenders, bytes const& text);

  /// Runs all cases. The figures but for the times depend neither on the number of threads nor on their order.
  void measure(std::shared_ptr<model_files const> const& files);

  [[nodiscard]] std::vector<row> const& rows() const { return rows_; }
  [[nodiscard]] std::vector<mapped_text> const& maps() const { return maps_; }
  /// The text of a row's policy.
  [[nodiscard]] std::string spell(std::size_t e) const { return entrants_[e].spell(rows_[e].budget, with_.context); }
  [[nodiscard]] double prefill_seconds() const { return row::per(prefill_seconds_, prefills_); }

 private:
  /// What one case adds to the table.
  struct outcome {
    std::vector<row> rows;  ///< one for each row of the table
    std::vector<mapped_text> maps{};
    double prefill_seconds = 0;
    int prefills = 0;
  };

  [[nodiscard]] outcome run_case(engine& on, std::size_t which, progress& shown) const;
  void recall(engine& on, recall_case const& one, bool with_map, outcome& to, progress& shown,
              std::string const& what) const;
  void continuation(engine& on, text_case const& one, bool with_map, outcome& to, progress& shown,
                    std::string const& what) const;
  [[nodiscard]] std::shared_ptr<reading> read(engine& on, bytes const& text, outcome& to) const;
  void work(std::shared_ptr<model_files const> const& files, std::vector<outcome>& outcomes,
            std::atomic<std::size_t>& next, progress& shown) const;

  options const& with_;
  std::vector<contender> entrants_;  ///< one for each row
  std::vector<row> rows_;
  std::vector<std::variant<recall_case, text_case>> cases_;
  std::vector<mapped_text> maps_;
  double prefill_seconds_ = 0;
  int prefills_ = 0;
};

}  // namespace demo

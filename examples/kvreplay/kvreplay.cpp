// Runs a policy on a recorded trace and writes what it decided.
#include <unistd.h>

#include "options.hpp"
#include "replay.hpp"
#include "trace.hpp"
#include "write.hpp"

namespace kvreplay {
namespace {

void show_progress(int done, int of) {
  static int shown = -1;
  int const percent = static_cast<int>(100LL * done / std::max(1, of));
  if (isatty(2) == 0 || percent == shown) return;
  shown = percent;
  fmt::print(stderr, "\r[{:=<{}}{:{}}] {:3}%{}", "", percent / 4, "", 25 - percent / 4, percent,
             done == of ? "\n" : "");
  std::fflush(stderr);
}

void print_table(nlohmann::json const& of) {
  fmt::print("{}\n", of["spec"].get<std::string>());
  for (char const* const name : {"mode", "layout", "granularity", "segments", "entries", "logical_kept",
                                 "physical_freed", "attended_length", "nan_scores", "forced_over_budget"}) {
    fmt::print("{:<20} {}\n", name, of[name].is_string() ? of[name].get<std::string>() : of[name].dump());
  }
  fmt::print("{:<20} {:.3f}\n{:<20} {:.3f}\n", "ms.decide", of["ms"]["decide"].get<double>(), "ms.apply",
             of["ms"]["apply"].get<double>());
}

int work(options const& with) {
  if (with.list) {
    auto const all = listing();
    with.json ? fmt::print("{}\n", all.dump(1)) : print_listing(all);
    return 0;
  }
  trace of(with.trace);
  if (with.describe) {
    fmt::print("{}\n", description(of).dump(with.json ? -1 : 1));
    return 0;
  }
  kv::any_policy const policy = kv::parse(spec_of(with));
  replay by(with, of, policy);
  results const found = by.run(show_progress);
  auto const told = summary(with, of, policy, found);
  if (!with.out.empty()) write_results(with, of, by, found);
  with.json ? fmt::print("{}\n", told.dump(1)) : print_table(told);
  return 0;
}

}  // namespace
}  // namespace kvreplay

int main(int count, char** arguments) {
  kvreplay::options with;
  CLI::App app("Runs a KV-cache policy on a recorded trace", "kvreplay");
  kvreplay::add_to(app, with);
  try {
    app.parse(count, arguments);
    kvreplay::settle(with);
    return kvreplay::work(with);
  } catch (CLI::CallForHelp const& help) {
    return app.exit(help);
  } catch (CLI::ParseError const& wrong) {
    fmt::print(stderr, "kvreplay: {}\n", wrong.what());
    return 2;
  } catch (kvpolicy::invalid_argument const& wrong) {
    fmt::print(stderr, "{}\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    fmt::print(stderr, "kvreplay: {}\n", failed.what());
    return 1;
  }
}

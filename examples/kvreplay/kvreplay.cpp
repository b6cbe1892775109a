// Runs a policy on a recorded trace and writes what it decided.
#include <unistd.h>

#include <optional>

#include "options.hpp"
#include "replay.hpp"
#include "report.hpp"
#include "trace.hpp"
#include "write.hpp"

namespace kvreplay {
namespace {

/// A bar on a terminal.
void show_progress(int done, int of) {
  static int shown = -1;
  int const percent = static_cast<int>(100LL * done / std::max(1, of));
  if (isatty(2) == 0 || percent == shown) return;
  shown = percent;
  fmt::print(stderr, "\r[{:=<{}}{:{}}] {:3}%{}", "", percent / 4, "", 25 - percent / 4, percent,
             done == of ? "\n" : "");
  std::fflush(stderr);
}

/// A prefill is one decision, which does not wait for a buffer to fill.
kv::any_policy without_buffer(kv::any_policy const& policy, kv::registry const& known) {
  std::string spelt = kv::to_string(policy);
  std::size_t const at = spelt.find("buffer=");
  if (at == std::string::npos) return policy;
  spelt.replace(at, spelt.find_first_of(",)", at) - at, "buffer=1");
  return kv::parse(spelt, known);
}

int work(options const& with) {
  stopwatch whole;
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
  kv::registry known = kv::shipped();
  known.set(kv::intent_kv{.residual = of.residual()});  // weights are no field: the trace has them
  kv::any_policy const policy = kv::parse(spec_of(with), known);
  kv::any_policy const run = with.how == mode::prefill ? without_buffer(policy, known) : policy;
  replay by(with, of, run);
  std::optional<result_writer> out;
  if (!with.out.empty()) out.emplace(with, of);
  results& found = by.run(show_progress);
  stopwatch watch;
  if (out) out->begin(found);
  double writing = watch.lap();
  by.carry_out(
      [&](int layer) {
        if (out) out->layer(by, layer);
      },
      show_progress);
  watch.lap();
  if (out) out->finish(found);
  found.ms.write += writing + watch.lap();
  found.ms.total = whole.lap();
  auto const told = summary(with, of, policy, found);
  with.json ? fmt::print("{}\n", told.dump(1)) : print_summary(told);
  return 0;
}

/// Names come from files: whatever they hold, an error is one line.
std::string one_line(std::string text) {
  for (char& each : text) {
    if (static_cast<unsigned char>(each) < 0x20 || each == 0x7F) each = ' ';
  }
  return text;
}

int fail(std::string const& why, int status) {
  fmt::print(stderr, "{}\n", one_line(why));
  return status;
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
    return kvreplay::fail(std::string("kvreplay: ") + wrong.what(), 2);
  } catch (kvpolicy::invalid_argument const& wrong) {
    return kvreplay::fail(wrong.what(), 2);
  } catch (std::exception const& failed) {
    return kvreplay::fail(std::string("kvreplay: ") + failed.what(), 1);
  }
}

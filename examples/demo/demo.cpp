// The main job: every policy at three budgets on a real decoder, on text that it never saw; what it costs and what it
// loses.
#include <fmt/core.h>

#include "checks.hpp"
#include "options.hpp"
#include "report.hpp"
#include "run.hpp"

namespace demo {
namespace {

int work(options const& with) {
  auto const least = static_cast<std::size_t>(with.context + with.length);
  bytes const text = read_text(with.text.empty() ? with.weights + "/held_out.txt" : with.text, least);
  kv::host_executor exec(with.threads);
  tinylm::model model(tinylm::read_weights(with.weights + "/weights.safetensors"));
  int const bound = with.context + with.length + 64;
  int const lanes = model.about().layers * model.about().kv_heads;
  tinylm::pool_options const cut = tinylm::pool_for(with.lay);
  tinylm::kv_pool pool(model.about().shape(), 4 * lanes * (bound / cut.unit_tokens + 1), cut);
  stage const on{model, exec, pool, bound, with.lay};
  run all(with, on, text);
  {
    progress_bar bar(static_cast<int>(all.rows().size()) * (with.cases + with.windows));
    all.recall(bar);
    all.continuations(bar);
  }
  fmt::print(
      "tinylm, prompts of {} bytes, {} recall questions, {} stretches of {} bytes, {} threads; a prefill takes {:.0f} "
      "ms\n\n",
      with.context, with.cases, with.windows, with.length, with.threads, 1e3 * all.prefill_seconds());
  print_table(all.rows(), lanes);
  fmt::print("\n");
  for (contender const& one : chosen_contenders(with.policies, with.specs)) {
    fmt::print("{:<14} {}\n", one.name, one.spell(with.context / with.shares.front()));
  }
  if (with.report) write_report(*with.report, with, model.about().shape(), all);
  return with.check && !checks_pass(all.rows(), on, text, with.context, with.weights) ? 1 : 0;
}

}  // namespace
}  // namespace demo

int main(int count, char** arguments) {
  demo::options with;
  CLI::App app("kvpolicy's demo: what each policy keeps, costs and loses on a small decoder", "demo");
  demo::add_to(app, with);
  try {
    app.parse(count, arguments);
    demo::settle(with);
    return demo::work(with);
  } catch (CLI::CallForHelp const& help) {
    return app.exit(help);
  } catch (CLI::ParseError const& wrong) {
    fmt::print(stderr, "demo: {}\n", wrong.what());
    return 2;
  } catch (kvpolicy::invalid_argument const& wrong) {
    fmt::print(stderr, "{}\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    fmt::print(stderr, "demo: {}\n", failed.what());
    return 1;
  }
}

// Compares all policies at three budgets on a real decoder, with text that it was not trained on: the memory and time
// that each policy costs, and the quality that it loses.
#include <fmt/core.h>

#include <kvpolicy/io/gate_files.hpp>

#include "checks.hpp"
#include "options.hpp"
#include "report.hpp"
#include "run.hpp"

namespace demo {
namespace {

/// Gates from the folder of the weights, if a contender needs them.
class trained_gates {
 public:
  explicit trained_gates(options const& with) {
    auto const all = chosen_contenders(with.policies, with.specs);
    if (!std::any_of(all.begin(), all.end(), [](contender const& one) { return one.gated; })) return;
    write_.emplace(kv::safetensors_reader(with.weights + "/write_gate.safetensors"));
    retention_.emplace(kv::safetensors_reader(with.weights + "/retention_gate.safetensors"));
  }
  [[nodiscard]] tinylm::gate_weights weights() const {
    return write_ ? tinylm::gate_weights{write_->weights(), retention_->weights()} : tinylm::gate_weights{};
  }

 private:
  std::optional<kv::write_gate_file> write_;
  std::optional<kv::retention_gate_file> retention_;
};

int work(options const& with) {
  auto const least = static_cast<std::size_t>(with.context + with.length);
  bytes const text = read_text(with.text.empty() ? with.weights + "/held_out.txt" : with.text, least);
  std::optional<examples::output_file> report;  // created first, so that a bad path is refused before the work
  if (!with.report.empty()) report.emplace(with.report, "demo", "--report");
  kv::host_executor exec(with.threads);
  tinylm::model model(tinylm::read_weights(with.weights + "/weights.safetensors"));
  int const bound = with.context + with.length + 64;
  int const lanes = model.about().layers * model.about().kv_heads;
  tinylm::pool_options const cut = tinylm::pool_for(with.lay);
  tinylm::kv_pool pool(model.about().shape(), 4 * lanes * (bound / cut.unit_tokens + 1), cut);
  trained_gates const trained(with);
  stage const on{model, exec, pool, bound, with.context, with.lay, trained.weights()};
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
    fmt::print("{:<20} {}\n", one.name, one.spell(with.context / with.shares.front(), with.context));
  }
  if (report) {
    write_report(**report, with, model.about().shape(), all);
    examples::flush_standard_output();
    (*report)->commit();
  }
  return with.check && !checks_pass(all.rows(), on, text, with.context, with.weights) ? 1 : 0;
}

}  // namespace
}  // namespace demo

int main(int count, char** arguments) {
  demo::options with;
  CLI::App app("kvpolicy's demo: what each policy keeps, costs and loses on a small decoder", "demo");
  demo::add_to(app, with);
  return examples::run_program(app, count, arguments, [&] {
    demo::settle(with);
    return demo::work(with);
  });
}

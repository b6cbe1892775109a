// SPDX-License-Identifier: Apache-2.0
// What tinylm's own decoder keeps of the demo's recall questions, in the format of `recall.py --keep`: policy, case,
// layer, KV head and the kept ordinals, separated by tabs. TRIM-KV and WG-KV read tinylm's trained gates.
#include <fstream>
#include <iostream>
#include <iterator>
#include <kvpolicy/io/gate_files.hpp>

#include "demo/tasks.hpp"
#include "tinylm/cache_session.hpp"
#include "tinylm/session.hpp"

namespace kv = kvpolicy;

namespace {

/// Prints what the lanes keep in all parts of a cache, pages before the window.
void print(char const* policy, int number, std::vector<kv::lanes> const& parts) {
  for (int l = 0; l < parts.front().size(); ++l) {
    kv::lane const first = parts.front().at(l);
    std::cout << policy << '\t' << number << '\t' << first.layer << '\t' << first.head << '\t';
    char const* between = "";
    for (kv::lanes const& lanes : parts) {
      kv::lane const lane = lanes.at(l);
      for (int e = 0; e < lanes.committed(lane); ++e, between = " ") {
        std::cout << between << lanes.position.row(lane)[e];
      }
    }
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "tinylm_keep POLICY CASES\n";
    return 2;
  }
  std::string const folder = TINYLM_WEIGHTS_DIR;
  std::ifstream file(folder + "/held_out.txt", std::ios::binary);
  demo::bytes const text((std::istreambuf_iterator<char>(file)), {});
  tinylm::model model(tinylm::read_weights(folder + "/weights.safetensors"));
  kv::write_gate_file const write(kv::safetensors_reader(folder + "/write_gate.safetensors"));
  kv::retention_gate_file const gate(kv::safetensors_reader(folder + "/retention_gate.safetensors"));
  kv::host_executor exec;
  tinylm::kv_pool pool(model.about().shape(), 4096, tinylm::pool_for(tinylm::layout::compact));
  kv::any_cache_policy const whole = kv::parse_cache_policy(argv[1]);
  constexpr int chunk = 1100;  // a prompt is read in one forward, as transformers does: IntentKV takes it for one turn
  demo::task_maker tasks(text, 1024, 7);
  for (int i = 0; i < std::stoi(argv[2]); ++i) {
    demo::recall_case const one = tasks.recall(i % 6);
    demo::bytes asked = one.prompt;
    asked.insert(asked.end(), one.question.begin(), one.question.end());
    if (whole.admit) {
      kv::cache_policy const admits{.admit = *whole.admit};
      tinylm::cache_session session(model, exec, admits, {.bound = 1100, .chunk = chunk, .gates = {write.weights()}});
      session.prefill(asked);
      print(argv[1], i, session.lanes());
    } else if (std::string_view(argv[1]).starts_with("trim_kv")) {
      kv::cache_policy const evicts{.evict = *whole.evict};
      tinylm::cache_session session(model, exec, evicts,
                                    {.bound = 1100, .chunk = chunk, .gates = {.retention = gate.weights()}});
      session.prefill(asked);
      print(argv[1], i, session.lanes());
    } else {
      tinylm::session<kv::any_policy> session(model, exec, pool, *whole.evict, {.bound = 1100, .chunk = chunk});
      session.prefill(asked);
      print(argv[1], i, {session.view().lanes});
    }
  }
}

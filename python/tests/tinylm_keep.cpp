// What tinylm's own decoder keeps of the demo's recall questions, in the format of `recall.py --keep`: policy, case,
// layer, KV head and the kept ordinals, separated by tabs.
#include <fstream>
#include <iostream>
#include <iterator>

#include "demo/tasks.hpp"
#include "tinylm/session.hpp"

namespace kv = kvpolicy;

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "tinylm_keep POLICY CASES\n";
    return 2;
  }
  std::string const folder = TINYLM_WEIGHTS_DIR;
  std::ifstream file(folder + "/held_out.txt", std::ios::binary);
  demo::bytes const text((std::istreambuf_iterator<char>(file)), {});
  tinylm::model model(tinylm::read_weights(folder + "/weights.safetensors"));
  kv::host_executor exec;
  tinylm::kv_pool pool(model.about().shape(), 4096, tinylm::pool_for(tinylm::layout::compact));
  demo::task_maker tasks(text, 1024, 7);
  for (int i = 0; i < std::stoi(argv[2]); ++i) {
    demo::recall_case const one = tasks.recall(i % 6);
    demo::bytes asked = one.prompt;
    asked.insert(asked.end(), one.question.begin(), one.question.end());
    tinylm::session<kv::any_policy> session(model, exec, pool, kv::parse(argv[1]), {.bound = 1100});
    session.prefill(asked);
    kv::lanes const lanes = session.view().lanes;
    for (int l = 0; l < lanes.size(); ++l) {
      kv::lane const lane = lanes.at(l);
      std::cout << argv[1] << '\t' << i << '\t' << lane.layer << '\t' << lane.head << '\t';
      for (int e = 0; e < lanes.committed(lane); ++e) {
        std::cout << (e == 0 ? "" : " ") << lanes.position.row(lane)[e];
      }
      std::cout << '\n';
    }
  }
}

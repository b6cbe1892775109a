// SPDX-License-Identifier: Apache-2.0
// A whole generation whose policy runs on a device, beside the same one on the host: equal caches, equal text.

#include "support/device.hpp"
#include "support/test.hpp"
#include "tinylm/cache_session.hpp"
#include "tinylm/fixture.hpp"

namespace {

using namespace tinylm_test;
using kvpolicy_test::device_executor;

std::span<std::uint8_t const> text() {
  static golden const from("text");
  return std::span(from.text).first(96);
}

/// What a session wrote and what it holds, after a prefill and 12 bytes.
template <class Session>
std::pair<std::string, std::vector<std::vector<int>>> run(Session& one) {
  one.prefill(text());
  std::string const wrote = one.generate(12);
  return {wrote, positions_of(one.view())};
}

/// Entries that one of two caches holds and the other does not.
int differing(std::vector<std::vector<int>> const& a, std::vector<std::vector<int>> const& b) {
  std::vector<int> only;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::set_symmetric_difference(a[i].begin(), a[i].end(), b[i].begin(), b[i].end(), std::back_inserter(only));
  }
  return static_cast<int>(only.size());
}

/// `apart`: entries that the two may keep differently, for masses below 1e-38, which the host takes for 0.
template <class Policy>
void writes_the_same(Policy const& policy, tinylm::session_options options, tinylm::layout lay, int apart = 0) {
  fixture& with = fixture::get();
  options.lay = lay;
  options.bound = 192;
  options.chunk = 48;
  int const units = lay == tinylm::layout::compact ? 512 : 8 * 400;
  tinylm::kv_pool pool(with.lm.about().shape(), units, tinylm::pool_for(lay));
  device_executor device;
  tinylm::session<Policy> on_host(with.lm, with.exec, pool, policy, options);
  // Kernels read numbers of a session, and cannot reach the stack.
  auto const on_device =
      std::make_unique<tinylm::session<Policy, device_executor>>(with.lm, device, pool, policy, options);
  auto const expected = run(on_host);
  auto const found = run(*on_device);
  CHECK(found.first == expected.first);
  CHECK(differing(found.second, expected.second) <= apart);
  CHECK(on_device->told() == on_host.told());
  CHECK(found.second.front().size() < 90);
}

TEST_SUITE("tinylm/on_device") {
  TEST_CASE("an eviction after the prefill, by moving rows") {
    writes_the_same(kv::policies::snapkv({.budget = 40, .score = {.window = 8}}),
                    {.decide = tinylm::when::after_prefill}, tinylm::layout::compact);
  }

  TEST_CASE("an eviction after every forward, by lists, holes and a dead slot") {
    tinylm::session_options const always{.decide = tinylm::when::every_forward};
    writes_the_same(kv::policies::h2o({.budget = 40}), always, tinylm::layout::list_rewrite, 2);
    writes_the_same(kv::policies::knorm({.budget = 50}), always, tinylm::layout::overwrite);
    writes_the_same(kv::policies::streaming_llm({.budget = 44}), always, tinylm::layout::dead_slot);
  }

  TEST_CASE("admission, selection and eviction in each step") {
    fixture& with = fixture::get();
    kv::cache_policy const policy{.admit = kv::policies::local_attention({.window = 16, .sinks = 24}),
                                  .select = kv::policies::quest({.budget = 16, .dense_layers = 0}),
                                  .evict = kv::policies::knorm({.budget = 20})};
    using policy_type = std::remove_const_t<decltype(policy)>;
    device_executor device;
    tinylm::cache_options const options{.bound = 128, .chunk = 84};
    tinylm::cache_session<policy_type> on_host(with.lm, with.exec, policy, options);
    auto const on_device =
        std::make_unique<tinylm::cache_session<policy_type, device_executor>>(with.lm, device, policy, options);
    auto const held = [&](auto& one) {
      std::vector<std::vector<int>> all;
      for (kv::lanes const& part : one.lanes()) {
        for (auto& each : positions_of({.lanes = part})) all.push_back(std::move(each));
      }
      return all;
    };
    auto const alike = [&] {
      CHECK(held(*on_device) == held(on_host));
      CHECK(positions_of({.lanes = on_device->seen()}) == positions_of({.lanes = on_host.seen()}));
      CHECK(furthest(on_device->logits(), on_host.logits()) < 1e-3);
    };
    on_device->prefill(text().first(84));
    on_host.prefill(text().first(84));
    alike();
    for (std::uint8_t const byte : text().subspan(84)) {
      CAPTURE(on_host.length());
      on_device->step(byte);
      on_host.step(byte);
      alike();
    }
  }
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// The Python module kvpolicy._native.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "evictor.hpp"
#include "facts.hpp"

namespace kvpolicy_python {
namespace {

using namespace nanobind::literals;

/// A NumPy array of the given sizes that owns the numbers.
template <class T, class... Sizes>
nb::ndarray<nb::numpy, T, nb::ndim<sizeof...(Sizes)>, nb::c_contig> as_array(std::vector<T> from, Sizes... sizes) {
  auto held = std::make_unique<std::vector<T>>(std::move(from));
  std::vector<T>* const memory = held.get();
  nb::capsule owner(memory, [](void* at) noexcept { delete static_cast<std::vector<T>*>(at); });
  static_cast<void>(held.release());
  return {memory->data(), {static_cast<std::size_t>(sizes)...}, owner};
}

std::vector<rows> rows_of_layers(char const* call, char const* name, std::vector<array> const& from) {
  std::vector<rows> made;
  for (std::size_t l = 0; l < from.size(); ++l) {
    made.push_back(rows_of(call, from.size() == 1 ? name : name + (" of layer " + std::to_string(l)), from[l]));
  }
  return made;
}

/// The kept entries as an array in the memory of their device, which owns them: NumPy's, or an object with
/// `__dlpack__`.
nb::object listed(decision const& made, std::string const& device) {
  auto held = std::make_unique<std::shared_ptr<std::int32_t>>(made.indices);
  nb::capsule const owner(held.get(),
                          [](void* at) noexcept { delete static_cast<std::shared_ptr<std::int32_t>*>(at); });
  std::shared_ptr<std::int32_t> const& memory = *held.release();
  auto const count = static_cast<std::size_t>(made.indptr.back());
  std::size_t const colon = device.find(':');
  if (colon == std::string::npos) {
    return nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>(memory.get(), {count}, owner).cast();
  }
  int const index = std::stoi(device.substr(colon + 1));
  return nb::ndarray<nb::array_api, std::int32_t, nb::ndim<1>>(
             memory.get(), {count}, owner, {}, nb::dtype<std::int32_t>(), nb::device::cuda::value, index)
      .cast();
}

nb::dict report_of(kv::report const& from) {
  nb::dict made;
  made["nan_scores"] = from.nan_scores;
  made["forced_over_budget"] = from.forced_over_budget;
  made["triggered"] = from.triggered;
  made["unobserved"] = from.unobserved;
  made["over_budget"] = from.over_budget;
  made["emptied"] = from.emptied;
  return made;
}

nb::tuple as_tuple(decision made, std::string const& device) {
  std::size_t const lanes = made.indptr.size();
  nb::object const kept = listed(made, device);
  return nb::make_tuple(as_array(std::move(made.indptr), lanes), kept, report_of(made.report));
}

void observe(evictor& self, int layer, std::optional<array> const& queries, std::optional<array> const& keys,
             std::optional<array> const& values, std::optional<array> const& turn_queries,
             std::optional<array> const& log_beta, std::optional<array> const& birth_score) {
  given_rows given;
  if (keys) given.keys = {rows_of("observe", "keys", *keys)};
  if (values) given.values = {rows_of("observe", "values", *values)};
  shown_tokens shown;
  if (queries) shown.queries = rows_of("observe", "queries", *queries);
  if (turn_queries) shown.turn = rows_of("observe", "turn_queries", *turn_queries);
  if (log_beta) shown.log_beta = numbers_of("observe", "log_beta", *log_beta);
  if (birth_score) shown.birth_score = numbers_of("observe", "birth_score", *birth_score);
  nb::gil_scoped_release const released;
  self.observe(layer, shown, given);
}

/// The rows of tokens that are no entries, if they are given.
std::optional<external_rows> external_of(std::optional<array> const& queries, std::optional<array> const& keys,
                                         std::vector<std::pair<int, int>> const& spans,
                                         std::optional<array> const& hidden_norms,
                                         std::optional<array> const& log_sum_exps) {
  bool const more = keys || !spans.empty() || hidden_norms || log_sum_exps;
  kv::expects(queries || !more, "decide", "external_queries", "none", "the rest of what is external is of its rows");
  if (!queries) return {};
  external_rows made{.queries = tensor_of("decide", "external_queries", *queries), .spans = spans};
  if (keys) made.keys = tensor_of("decide", "external_keys", *keys);
  if (hidden_norms) made.hidden_norms = numbers_of("decide", "external_hidden_norms", *hidden_norms);
  if (log_sum_exps) made.log_sum_exps = numbers_of("decide", "external_log_sum_exps", *log_sum_exps);
  return made;
}

nb::tuple decide(evictor& self, std::vector<array> const& keys, std::vector<array> const& values,
                 std::optional<array> const& scores, std::vector<array> const& turn_queries,
                 std::optional<array> const& blocks, std::optional<array> const& value_norms,
                 std::optional<array> const& query_mean, std::optional<array> const& query_square,
                 std::vector<double> const& frequencies, std::vector<array> const& queries,
                 std::vector<array> const& pre_rope_keys, std::optional<array> const& output_projection,
                 std::optional<array> const& external_queries, std::optional<array> const& external_keys,
                 std::vector<std::pair<int, int>> const& external_spans,
                 std::optional<array> const& external_hidden_norms, std::optional<array> const& external_log_sum_exps) {
  given_rows given{rows_of_layers("decide", "keys", keys), rows_of_layers("decide", "values", values), {}};
  if (blocks) given.blocks = blocks_of("decide", *blocks);
  if (scores) given.scores = numbers_of("decide", "scores", *scores);
  given.turn = rows_of_layers("decide", "turn_queries", turn_queries);
  if (value_norms) given.value_norms = numbers_of("decide", "value_norms", *value_norms);
  kv::expects(
      query_mean || !query_square, "decide", "query_square", [&] { return "an array " + shape_text(*query_square); },
      "it is read with query_mean, and none is given");
  kv::expects(
      query_mean || frequencies.empty(), "decide", "frequencies",
      [&] { return "of " + std::to_string(frequencies.size()) + " pairs of channels"; },
      "they are read with query_mean, and none is given");
  if (query_mean) given.moments = {numbers_of("decide", "query_mean", *query_mean), {}, frequencies};
  if (query_mean && query_square) given.moments->square = numbers_of("decide", "query_square", *query_square);
  given.queries = rows_of_layers("decide", "queries", queries);
  given.pre_rope_keys = rows_of_layers("decide", "pre_rope_keys", pre_rope_keys);
  if (output_projection) given.projection = tensor_of("decide", "output_projection", *output_projection);
  given.external =
      external_of(external_queries, external_keys, external_spans, external_hidden_norms, external_log_sum_exps);
  decision made;
  {
    nb::gil_scoped_release const released;
    made = self.decide(given);
  }
  return as_tuple(std::move(made), self.device());
}

/// Which pages each lane reads: as `decide`.
nb::tuple select(evictor& self, std::string const& policy, std::vector<array> const& keys,
                 std::vector<array> const& queries) {
  given_rows const given{.keys = rows_of_layers("select", "keys", keys), .values = {}, .scores = {}};
  std::vector<rows> const asked = rows_of_layers("select", "queries", queries);
  decision made;
  {
    nb::gil_scoped_release const released;
    made = self.select(policy, given, asked);
  }
  return as_tuple(std::move(made), self.device());
}

void add_evictor(nb::module_& to) {
  using released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<evictor>(
      to, "Evictor",
      "An eviction by name about a batch of sequences, with its recorded signals. The caller keeps keys "
      "and values: it appends tokens, shows query rows, asks for a decision and moves its rows.")
      .def(nb::new_([](std::string const& policy, int layers, int query_heads, int kv_heads, int head_dim,
                       int sequences, int capacity, int value_dim, std::optional<float> scale, float soft_cap,
                       int threads, std::optional<int> device, std::uintptr_t stream) {
             evictor_options const from{
                 policy, {{layers, query_heads, kv_heads, head_dim, value_dim}, scale, soft_cap}, sequences, capacity};
             return device ? make_device_evictor(from, *device, stream) : make_host_evictor(from, threads);
           }),
           "policy"_a, nb::kw_only(), "layers"_a, "query_heads"_a, "kv_heads"_a, "head_dim"_a, "sequences"_a = 1,
           "capacity"_a = 1024, "value_dim"_a = 0, "scale"_a = nb::none(), "soft_cap"_a = 0.0f, "threads"_a = 1,
           "device"_a = nb::none(), "stream"_a = 0,
           "`capacity` is the number of tokens of a sequence for which there is room at first; it grows. `device` is "
           "the index of a CUDA device whose arrays it reads, and `stream` the number of the stream of its calls "
           "(`torch.cuda.current_stream().cuda_stream`); without `device` it reads host memory with `threads` "
           "threads.\n\n"
           "Raises ValueError if the policy or a size is not sound, or if there is no such device.")
      .def("append", &evictor::append, "tokens"_a, released(),
           "Adds `tokens[s]` new tokens to sequence s. Raises ValueError for a wrong number.")
      .def("remove_last", &evictor::remove_last, "tokens"_a, released(),
           "Takes the last `tokens[s]` tokens of sequence s back.")
      .def(
          "observe", &observe, "layer"_a, "queries"_a = nb::none(), "keys"_a = nb::none(), "values"_a = nb::none(),
          nb::kw_only(), "turn_queries"_a = nb::none(), "log_beta"_a = nb::none(), "birth_score"_a = nb::none(),
          "Shows query rows [sequence, query head, row, channel], after RoPE, of one layer to the policy: those of the "
          "latest `append`, or the last of them. Keys [sequence, KV head, row, channel] are needed by policies that "
          "read every row. `turn_queries` are the rows of a turn, shown once for each turn; `log_beta` and "
          "`birth_score`, float32 [sequence, KV head, token], are the numbers of new tokens.")
      .def(
          "decide", &decide, "keys"_a = std::vector<array>{}, "values"_a = std::vector<array>{},
          "scores"_a = nb::none(), "turn_queries"_a = std::vector<array>{}, nb::kw_only(), "blocks"_a = nb::none(),
          "value_norms"_a = nb::none(), "query_mean"_a = nb::none(), "query_square"_a = nb::none(),
          "frequencies"_a = std::vector<double>{}, "queries"_a = std::vector<array>{},
          "pre_rope_keys"_a = std::vector<array>{}, "output_projection"_a = nb::none(),
          "external_queries"_a = nb::none(), "external_keys"_a = nb::none(),
          "external_spans"_a = std::vector<std::pair<int, int>>{}, "external_hidden_norms"_a = nb::none(),
          "external_log_sum_exps"_a = nb::none(),
          "Decides what each lane keeps, from the keys and values of every layer, each an array [sequence, KV head, "
          "row, channel] whose last rows are the entries of a sequence. Where heads of a layer hold unequal numbers, "
          "all begin where the longest one does. `blocks`, int32 [sequence, block], says that keys and values are the "
          "tensors of a pool, [block, token, KV head, channel] in any strides: a sequence's entries are the tokens of "
          "its blocks, in their order. `scores` [layer, sequence, KV head, entry] are those of the policy "
          "`external`, and `value_norms` likewise the norms of values after the output projection, for policies that "
          "read them. `query_mean`, float32 [layer, sequence, query head, channel], and `query_square`, their "
          "covariance [..., channel, channel], are those of query rows before RoPE, which turns the channels i and "
          "i + half of the first ones by frequencies[i] for each position. `queries` are the query rows [sequence, "
          "query "
          "head, row, channel] of a whole prompt in every layer, after RoPE, for policies that read them when they "
          "decide, and `pre_rope_keys` the keys before RoPE, as `keys`. `output_projection` [layer, channel of the "
          "output, query head, channel of a value] is W_o. `external_queries` [layer, sequence, query head, row, "
          "channel], after RoPE, are those of tokens that the cache does not hold, and `external_keys` their own keys "
          "[layer, sequence, KV head, row, channel]; `external_spans` says for each row the entries [begin, end) that "
          "it is about, `external_hidden_norms`, float32 [layer, sequence, row], the norms of their hidden states, and "
          "`external_log_sum_exps`, float32 [layer, sequence, query head, row], the log-sum-exps of their logits over "
          "all keys that they saw.\n\n"
          "Returns (indptr, indices, report): lane i keeps the entries indices[indptr[i]:indptr[i + 1]], ascending, "
          "and "
          "lanes are in the order of sequence, layer, KV head. On a device, `indices` are an array of that device with "
          "`__dlpack__`. Nothing is changed until `apply`.")
      .def(
          "select", &select, "policy"_a, "keys"_a, "queries"_a,
          "Chooses the pages that each lane reads, by a selection such as \"select: quest(page=16) | budget(512)\" and "
          "the query rows of the newest tokens. Arrays, and what it returns, are as in `decide`. Page bounds are "
          "computed anew from the keys.")
      .def("apply", &evictor::apply, released(),
           "Moves counts, positions and recorded signals as the latest decision says.")
      .def_prop_ro("counts", &evictor::counts, "The number of entries that each sequence holds in its longest lane.")
      .def_prop_ro(
          "lane_counts",
          [](evictor const& self) {
            kv::shape const& sizes = self.model().sizes;
            return as_array(self.lane_counts(), self.sequences(), sizes.layers, sizes.kv_heads).cast();
          },
          "The number of entries that every lane holds, int32 [sequence, layer, KV head].")
      .def(
          "positions",
          [](evictor const& self, int layer) {
            int most = 0;
            std::vector<int> made = self.positions(layer, most);
            return as_array(std::move(made), self.sequences(), self.model().sizes.kv_heads, most);
          },
          "layer"_a,
          "The positions of the entries of a layer, int32 [sequence, KV head, entry of the longest lane]; -1 after the "
          "last entry of a lane.")
      .def_prop_ro("tokens", &evictor::tokens,
                   "The number of tokens that each sequence has received, dropped ones included.")
      .def_prop_ro("policy", &evictor::policy, "The policy as text.")
      .def_prop_ro("device", &evictor::device, "Whose memory it reads: cpu, or cuda and an index.");
}

void add_facts(nb::module_& to) {
  nb::class_<policy_facts>(to, "PolicyFacts", "What a policy reads.")
      .def_ro("text", &policy_facts::text, "The policy with every parameter, as the library prints it.")
      .def_ro("scorer", &policy_facts::scorer, "The name of its scorer.")
      .def_prop_ro(
          "decides", [](policy_facts const& of) { return to_string(of.decides); },
          "Which lanes decide together: lane, layer or token.")
      .def_prop_ro(
          "scope", [](policy_facts const& of) { return to_string(of.scope); },
          "Which lanes share a budget: lane (each has its own), layer or global. Lanes that share one may keep unequal "
          "numbers of entries.")
      .def_ro("needs", &policy_facts::needs, "The names of the signals that its scorer reads.")
      .def_ro("window_rows", &policy_facts::window_rows, "How many of the last query rows it records.")
      .def_ro("every_row", &policy_facts::every_row, "Whether it reads the query rows of every forward.")
      .def_ro("session", &policy_facts::session, "Whether it keeps something between turns.")
      .def_ro("turn_rows", &policy_facts::turn_rows, "How many of a turn's last query rows it reads.");
  to.def("policy_facts", &facts_of, "policy"_a,
         "Parses a policy and says what it reads. Raises ValueError that names the column of a mistake.");
  to.def("cache_policy_text", &cache_policy_text, "policy"_a,
         "A policy of the sections admit:, select: and evict:, with every parameter, as the library prints it. Raises "
         "ValueError that names the column of a mistake.");
}

}  // namespace
}  // namespace kvpolicy_python

NB_MODULE(_native, m) {
  namespace py = kvpolicy_python;
  m.doc() = "kvpolicy's C++ library.";
  m.attr("__version__") = kvpolicy::version;
  py::add_facts(m);
  py::add_evictor(m);
  m.attr("has_device") = py::has_device;
  m.def("scorers", &py::scorer_names, "The names of the scorers with which a policy can begin.");
}

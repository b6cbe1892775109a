// SPDX-License-Identifier: Apache-2.0
// Tables of a model: what is read is what policies see, and those of another model are refused by name.

#include <kvpolicy/io/tables.hpp>
#include <kvpolicy/io/write_safetensors.hpp>

#include "io/temporary_folder.hpp"

namespace {

using namespace kvpolicy_test;

constexpr kv::shape two_by_three{.layers = 2, .query_heads = 6, .kv_heads = 3, .head_dim = 4};

/// A file of tables, and what reading it says.
struct table_file {
  temporary_folder folder;
  std::map<std::string, std::string> metadata{{"model", "small"}};
  std::vector<float> heads{0, 1, 0.5f, 0.25f, 1, 0};
  std::vector<float> shares{7, 1, 3, 4, 5, 6};
  std::vector<std::uint64_t> shape{2, 3};

  kv::model_tables read() {
    auto const path = folder / "tables.safetensors";
    std::vector<kv::tensor_to_write> const all{
        {"heads.retrieval", shape, heads}, {"shares.profile", shape, shares}, {"other", {6}, heads}};
    kv::write_safetensors(path, metadata, all);
    return kv::read_tables(kv::safetensors_reader(path), two_by_three);
  }
  std::string refused() {
    return error_of([&] { (void)read(); });
  }
};

}  // namespace

TEST_SUITE("parts/model_tables") {
  TEST_CASE("numbers of query heads are a row of each KV head") {
    kv::shape const model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
    temporary_folder const folder;
    auto const path = folder / "tables.safetensors";
    std::vector<float> const numbers{0, 1, 2, 3, 4, 5, 6, 7};
    kv::write_safetensors(path, {{"model", "small"}},
                          std::vector<kv::tensor_to_write>{{"query_heads.thresholds", {2, 4}, numbers}});
    kv::model_tables const tables = kv::read_tables(kv::safetensors_reader(path), model);
    kv::rows_of_heads const rows = tables.rows().at("thresholds");
    CHECK(rows.dims == 2);
    CHECK(rows.rows.row({0, 1, 0})[1] == 5);
    kv::registry known = kv::shipped();
    known.table(tables, "small", model);
    auto const admits = kv::parse_cache_policy("admit: ada_ea", known);
    CHECK(*admits.admit == kv::any_admission(kv::ada_ea{.thresholds = rows}.admission()));
  }

  TEST_CASE("a policy by name reads the tables of its model") {
    table_file file;
    kv::model_tables const tables = file.read();
    CHECK(tables.model() == "small");
    kv::registry known = kv::shipped();
    known.table(tables, "small", two_by_three);
    auto const by_table = known.parse("knorm | budget(4, by=table, table=profile)");
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 3; ++head) {
        CHECK(by_table.budget({0, layer, head}, 100) == static_cast<int>(file.shares[as_size(layer * 3 + head)]));
      }
    }
    auto const admits = kv::parse_cache_policy("admit: head_table(table=retrieval) | window(8)", known);
    CHECK(admits.admit->score == kv::any_scorer(kv::head_table{tables.heads().at("retrieval"), {"retrieval"}}));
    CHECK(*tables.heads().at("retrieval").row({0, 1, 1}) == 1);
  }

  TEST_CASE("tables of another model are refused in one line") {
    table_file file;
    kv::model_tables const tables = file.read();
    kv::registry known = kv::shipped();
    auto const refused = [&](char const* model, kv::shape about) {
      return error_of([&] { known.table(tables, model, about); });
    };
    CHECK(refused("large", two_by_three) == "registry: tables.model = small, but the model that decides is large");
    kv::shape other = two_by_three;
    other.layers = 4;
    CHECK(refused("small", other) == "registry: tables.layers = 2, but the model has 4");
    other = two_by_three;
    other.kv_heads = 1;
    CHECK(refused("small", other) == "registry: tables.kv_heads = 3, but the model has 1");
    CHECK(error_of([&] { (void)known.parse("knorm | budget(4, by=table, table=profile)"); }) ==
          "parse: column 35 = profile, but a table is given to the registry by its name");
  }

  TEST_CASE("a table that does not fit is refused with its file and tensor") {
    table_file short_one;
    short_one.shape = {6};
    CHECK(short_one.refused().find("tensor heads.retrieval") != std::string::npos);
    table_file part;
    part.shares[2] = 2.5f;
    CHECK(part.refused().ends_with("tensor shares.profile = 2.5, but a share is a count"));
    table_file negative;
    negative.shares[0] = -1;
    CHECK(negative.refused().ends_with("tensor shares.profile = -1, but a share is a count"));
    table_file endless;
    endless.heads[1] = std::numeric_limits<float>::infinity();
    CHECK(endless.refused().ends_with("tensor heads.retrieval = inf, but its numbers are finite"));
    table_file nameless;
    nameless.metadata.clear();
    kv::registry known = kv::shipped();
    CHECK(error_of([&] { known.table(nameless.read(), "small", two_by_three); }) ==
          "registry: tables.model = no name, but the model that decides is small");
    kv::model_tables mine("small", two_by_three);
    CHECK(error_of([&] { mine.add_heads("x", {1, 2}); }) ==
          "model_tables: x = 2, but there are 6 lanes: one number for each");
    CHECK(error_of([&] { mine.add_shares("x", {1, 2, 3, 4, 5, -6}); }) ==
          "model_tables: x = -6, but a count cannot be negative");
  }
}

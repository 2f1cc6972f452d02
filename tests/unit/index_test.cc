// index.json: reading returns the written values. Files of formats 1 and 2 by earlier versions of prun
// (tests/checkpoint/formats) are read as far as their contents go.
#include "checkpoint/index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/field_json.h"
#include "checkpoint/folder.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

std::string stored(int format) { return std::string(PRUN_FORMATS) + "/" + std::to_string(format); }

class IndexTest : public testing::Test {
 protected:
  void SetUp() override { make_folder(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Index read(const std::string& text) const {
    write_file(folder + "/index.json", text);
    return read_index(folder);
  }

  const std::string folder = testing::TempDir() + "/prun_index_" + std::to_string(getpid());
};

TEST_F(IndexTest, ReadsFormat1) {
  const Index index = read_index(stored(1));
  EXPECT_EQ(index.position.step, 2);
  EXPECT_EQ(index.position.samples, 8);
  EXPECT_EQ(index.position.tokens, -1) << "not known";
  EXPECT_EQ(index.position.skipped_steps, 0);
  EXPECT_EQ(index.position.left_out.runs, (std::vector<int64_t>{4, 8})) << "batch 1 of four samples";
  EXPECT_EQ(index.mesh, "dp=2");
  EXPECT_EQ(index.numerics.implementation.substr(0, 11), "cpu: oneDNN");
  EXPECT_EQ(index.numerics.kernels, "");
  EXPECT_EQ(index.numerics.arithmetic, 0);
  EXPECT_FALSE(index.numerics.algorithms);
  EXPECT_FALSE(index.lineage.known());
  EXPECT_FALSE(index.data.identity.known());
  EXPECT_EQ(index.data.path, "tiny.txt");
  EXPECT_EQ(index.model.arguments.integer("width"), 8);
  EXPECT_EQ(index.tensors.at("block0.ln1.bias").shape, Shape{8});
}

TEST_F(IndexTest, ReadsFormat2) {
  const Index index = read_index(stored(2));
  EXPECT_EQ(index.position.step, 5);
  EXPECT_EQ(index.position.samples, 20);
  EXPECT_EQ(index.position.tokens, 80);
  EXPECT_EQ(index.position.skipped_steps, 1);
  EXPECT_EQ(index.position.left_out.runs, (std::vector<int64_t>{8, 12}));
  EXPECT_EQ(index.mesh, "dp=2 x tp=2");
  EXPECT_EQ(index.numerics.implementation, "cpu: oneDNN 2.6.3");
  EXPECT_EQ(index.numerics.kernels, "avx512+pairs");
  EXPECT_EQ(index.numerics.arithmetic, 7);
  EXPECT_EQ(index.numerics.algorithms, "socket all_reduce ring 1e-05 1000:1e+09\n");
  EXPECT_EQ(index.lineage.branch, 1);
  EXPECT_EQ(index.lineage.parent.checkpoint, "step_00000004");
  EXPECT_EQ(index.data.identity.contents.at(0).elements, 316);
}

TEST_F(IndexTest, ReadsWhatItWrites) {
  for (const int format : {1, 2}) {
    const Index before = read_index(stored(format)), after = read(index_text(before));
    EXPECT_EQ(index_text(before), index_text(after)) << format;
  }
}

// run.json, `prun ckpt show --json` and index.json take these keys from the same lists.
TEST_F(IndexTest, HasTheKeysOfItsParts) {
  const Index index = read_index(stored(2));
  const Json json = Json::parse(index_text(index));
  for (const Json& part : {fields_json(index.position), fields_json(index.numerics), fields_json(index.lineage)})
    for (const auto& [key, value] : part.items()) EXPECT_EQ(json.at(key), value) << key;
}

TEST_F(IndexTest, RefusesWhatIsDamaged) {
  const Json whole = Json::parse(index_text(read_index(stored(2))));
  const auto refused = [&](const char* key, Json value) {
    Json json = whole;
    value.is_null() ? json.erase(key), void() : void(json[key] = std::move(value));
    try {
      read(json.dump());
    } catch (const Error& error) {
      return error.message().substr(error.message().find(": ") + 2);
    }
    return std::string("read");
  };
  EXPECT_EQ(refused("samples", -1), "the index is damaged (data)");
  EXPECT_EQ(refused("left_out_samples", {8, 4}), "the index is damaged (left_out_samples)");
  EXPECT_NE(refused("samples", nullptr).find("key 'samples' not found"), std::string::npos);
  EXPECT_NE(refused("step", 1.5).find("incompatible"), std::string::npos);
  EXPECT_EQ(refused("version", 4), "format 4 was written by a newer prun; this one reads up to 3");
  EXPECT_EQ(refused("algorithms", nullptr), "read");
}

}  // namespace
}  // namespace prun::checkpoint

// Which commit the hosts hold together, and which of its parts a host must receive.
#include "checkpoint/kept_commits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/folder.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

class KeptCommitsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = testing::TempDir() + "/prun_kept_" + std::to_string(getpid());
    fs::remove_all(folder);
    make_folder(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  // Adds a commit by `ranks` ranks, of which this host holds `held`.
  void add(int64_t step, const std::string& run, int64_t ranks, const std::vector<int>& held) const {
    const std::string commit = folder + "/" + kept_name(step, run);
    make_folder(commit);
    Index index;
    index.position.step = step;
    index.ranks = ranks;
    write_file(commit + "/index.json", index_text(index));
    for (const int rank : held) write_file(commit + "/" + manifest_name(rank), "{}");
  }

  std::string folder;
};

TEST_F(KeptCommitsTest, FindsWhichRanksPartsAreThere) {
  add(40, "a", 4, {0, 3});
  make_folder(folder + "/step_00000060.a");  // begun, not complete
  write_file(folder + "/step_00000060.a/rank_00001.json", "{}");
  write_file(folder + "/step_00000040.a/rank_00002.json.part", "{}");
  const std::vector<KeptCommit> found = kept_commits(folder);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "step_00000040.a");
  EXPECT_EQ(found[0].position.step, 40);
  std::vector<int> held = found[0].held;
  std::sort(held.begin(), held.end());
  EXPECT_EQ(held, (std::vector<int>{0, 3}));
}

TEST_F(KeptCommitsTest, APartIsItsManifestAndItsFiles) {
  const std::string commit = folder + "/" + kept_name(40, "a");
  add(40, "a", 2, {});
  for (const int rank : {0, 1}) {
    const std::string file = "rank_" + std::to_string(rank);
    const SavedTensor tensor{"F32", {4}, {{file, {2 * rank}, {2}, std::string(64, '0')}}, ""};
    write_file(commit + "/" + manifest_name(rank), manifest_text({{"w", tensor}}));
  }
  write_file(commit + "/rank_1", "data");
  EXPECT_EQ(kept_commits(folder).at(0).held, std::vector<int>{1})
      << "the node has the manifest of rank 0 without its file";
}

TEST(NewestWholeTest, IsOfOneRunAndHasAllParts) {
  const KeptCommit first{.name = "step_00000020.a", .ranks = 3, .position = {.step = 20}, .held = {0, 1, 2}},
      half{.name = "step_00000040.a", .ranks = 3, .position = {.step = 40}, .held = {0, 1}},
      other{.name = "step_00000040.b", .ranks = 3, .position = {.step = 40}, .held = {2}},
      rest{.name = "step_00000040.a", .ranks = 3, .position = {.step = 40}, .held = {1, 2}};
  EXPECT_FALSE(newest_whole({}));
  EXPECT_FALSE(newest_whole({{half}}));
  EXPECT_EQ(newest_whole({{first, half}, {}})->position.step, 20);
  EXPECT_EQ(newest_whole({{first, half}, {other}})->position.step, 20)
      << "another attempt's part is none of this commit";
  EXPECT_EQ(newest_whole({{first, half}, {rest}})->name, "step_00000040.a");
}

TEST_F(KeptCommitsTest, RemovesWhatIsSuperseded) {
  add(20, "a", 1, {0});
  add(40, "a", 1, {0});
  add(20, "b", 1, {0});
  add(40, "b", 1, {0});
  add(60, "b", 1, {});
  remove_kept_before(folder, kept_name(40, "b"), "b");
  std::vector<std::string> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"step_00000040.b", "step_00000060.b"}));
}

TEST_F(KeptCommitsTest, TheIndexIsOfThePiecesThatAreThere) {
  const std::string commit = folder + "/" + kept_name(40, "a");
  add(40, "a", 2, {});
  for (const int rank : {0, 1}) {
    SavedTensor tensor{"F32", {4}, {{"rank_" + std::to_string(rank), {2 * rank}, {2}, std::string(64, '0')}}, ""};
    write_file(commit + "/" + manifest_name(rank), manifest_text({{"w", tensor}}));
  }
  write_file(commit + "/rank_1", "data");
  const Index whole = whole_index(commit);
  EXPECT_EQ(whole.tensors.at("w").pieces.size(), 2u);
  write_index_of_present(commit, whole);
  const Index here = read_index(commit);
  EXPECT_EQ(here.position.step, 40);
  ASSERT_EQ(here.tensors.at("w").pieces.size(), 1u);
  EXPECT_EQ(here.tensors.at("w").pieces[0].file, "rank_1");
}

}  // namespace
}  // namespace prun::checkpoint

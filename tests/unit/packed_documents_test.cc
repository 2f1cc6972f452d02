// Packing of documents into streams, and the order of a batch that balances ranks and microbatches.
#include "data/packed_documents.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"

namespace prun {
namespace {

constexpr uint16_t kEnd = 7;

// Files of documents of these lengths, each ending with kEnd unless `ends` is false for the last; `cut`: the token at
// which a second file begins.
class PackedDocumentsTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& path : paths_) unlink(path.c_str());
  }

  void write(const std::vector<int64_t>& lengths, bool last_ends = true, size_t cut = 0) {
    std::vector<uint16_t> ids;
    for (const int64_t length : lengths) {
      ids.insert(ids.end(), length - 1, 1);
      ids.push_back(kEnd);
    }
    if (!last_ends) ids.back() = 1;
    source_.kind = "tokens", source_.document_end = kEnd;
    source_.count = std::ssize(ids);
    add({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut == 0 ? ids.size() : cut)});
    if (cut > 0) add({ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end()});
  }

  void add(const std::vector<uint16_t>& ids) {
    char path[] = "/tmp/prun_documents_XXXXXX";
    close(mkstemp(path));
    paths_.emplace_back(path);
    const int64_t bytes = std::ssize(ids) * 2;
    std::ofstream(path).write(reinterpret_cast<const char*>(ids.data()), bytes);
    source_.files.push_back({path, bytes, 0, "u16", ""});
  }

  PackedDocuments pack(int64_t capacity, const std::string& rule = "error", uint64_t seed = 1) {
    source_.capacity = capacity, source_.long_documents = rule;
    return {DataFiles(source_, ""), source_, seed};
  }

  // Returns the runs of all streams in the order of the files.
  static std::vector<std::pair<int64_t, int64_t>> runs(const PackedDocuments& packed) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (int64_t s = 0; s < packed.streams(); ++s)
      for (const DocumentRun& run : packed.stream(s)) all.emplace_back(run.first, run.length);
    std::sort(all.begin(), all.end());
    return all;
  }

  DataSource source_;
  std::vector<std::string> paths_;
};

TEST_F(PackedDocumentsTest, EachDocumentIsWholeInOneStream) {
  write({3, 5, 1, 4, 2, 8, 6, 1}, false, 10);  // the fourth continues in the second file, the last has no end token
  const PackedDocuments packed = pack(10);
  EXPECT_EQ(runs(packed), (std::vector<std::pair<int64_t, int64_t>>{
                              {0, 3}, {3, 5}, {8, 1}, {9, 4}, {13, 2}, {15, 8}, {23, 6}, {29, 1}}));
  EXPECT_EQ(packed.streams(), 3);
  EXPECT_EQ(packed.padding(), 0);
  for (int64_t s = 0; s < packed.streams(); ++s) {
    int64_t tokens = 0, before = -1;
    for (const DocumentRun& run : packed.stream(s)) {
      EXPECT_GT(run.first, before);
      before = run.first;
      tokens += run.length;
    }
    EXPECT_LE(tokens, 10);
  }
}

TEST_F(PackedDocumentsTest, APartOfTheFilesIsPacked) {
  write({3, 5, 1, 4, 2});
  source_.first = 4, source_.count = 8;  // the end of the second document to the middle of the fourth
  EXPECT_EQ(runs(pack(10)), (std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {8, 1}, {9, 3}}));
}

TEST_F(PackedDocumentsTest, LongDocumentsFollowTheRule) {
  write({3, 11, 2}, true, 5);
  EXPECT_EQ(runs(pack(4, "truncate")), (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 4}, {14, 2}}));
  EXPECT_EQ(runs(pack(4, "split")),
            (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 4}, {7, 4}, {11, 3}, {14, 2}}));
  try {
    pack(4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              paths_[0] +
                  ": document 1, which begins at position 3 (byte 6), has 11 tokens, and a stream has a "
                  "capacity of 4: make capacity larger, or write long = \"split\" or long = \"truncate\"");
  }
}

// Lengths of a log-normal distribution, as documents of the web have.
std::vector<int64_t> long_tailed(int64_t count, int64_t most) {
  std::mt19937_64 draw(3);
  std::lognormal_distribution<double> length(6, 1.2);
  std::vector<int64_t> lengths(count);
  for (int64_t& one : lengths) one = std::clamp<int64_t>(std::llround(length(draw)), 1, most);
  return lengths;
}

TEST_F(PackedDocumentsTest, PaddingIsBelowTwoPercentOnALongTailedSet) {
  write(long_tailed(3000, 8192));
  const PackedDocuments packed = pack(8192);
  EXPECT_GT(packed.streams(), 200);
  EXPECT_LT(packed.padding(), 0.02);
  EXPECT_EQ(packed.longest(), 8192);
}

TEST_F(PackedDocumentsTest, TheSeedDecides) {
  write(long_tailed(500, 512));
  const auto streams = [&](uint64_t seed) {
    const PackedDocuments packed = pack(512, "error", seed);
    std::vector<int64_t> firsts;
    for (int64_t s = 0; s < packed.streams(); ++s)
      for (const DocumentRun& run : packed.stream(s)) firsts.push_back(run.first);
    return firsts;
  };
  EXPECT_EQ(streams(1), streams(1));
  EXPECT_NE(streams(1), streams(2));
}

TEST(BalancedOrder, EveryDivisionIsBalanced) {
  std::mt19937_64 draw(5);
  std::lognormal_distribution<double> cost(0, 0.5);
  for (const int64_t count : {1, 2, 12, 48, 96}) {
    std::vector<double> costs(count);
    for (double& one : costs) one = cost(draw);
    const std::vector<int64_t> order = balanced_order(costs);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), costs.size());
    for (const int64_t parts : {2, 3, 4, 6}) {
      const int64_t size = count / parts;
      if (size < 8) continue;
      std::vector<double> sums(parts), unsorted(parts);
      for (int64_t i = 0; i < count; ++i) sums[i / size] += costs[order[i]], unsorted[i / size] += costs[i];
      const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(parts);
      EXPECT_LT(*std::max_element(sums.begin(), sums.end()), 1.06 * mean) << count << " in " << parts;
      EXPECT_GT(*std::max_element(unsorted.begin(), unsorted.end()), *std::max_element(sums.begin(), sums.end()));
    }
  }
}

}  // namespace
}  // namespace prun

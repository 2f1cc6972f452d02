// Long expected texts are stored in the file PRUN_EXPECTED: a line [Suite.Test], then one paragraph for each call of
// expected() in that test, in order.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace prun {

class ExpectedTexts final : public testing::Environment {
 public:
  ExpectedTexts() {
    std::ifstream file(PRUN_EXPECTED);
    std::vector<std::string>* test = nullptr;
    bool fresh = true;  // true after an empty line or a test's name
    for (std::string line; std::getline(file, line); fresh = line.empty() || line[0] == '[') {
      if (line.empty()) continue;
      if (line[0] == '[')
        test = &texts_[line.substr(1, line.size() - 2)];
      else if (fresh)
        test->push_back(line);
      else
        test->back() += "\n" + line;
    }
  }
  const std::string& next(const std::string& test) {
    static const std::string kNone = "(no more texts of this test in " PRUN_EXPECTED ")";
    const size_t index = used_[test]++;
    return index < texts_[test].size() ? texts_[test][index] : kNone;
  }
  void TearDown() override {
    for (const auto& [test, count] : used_) EXPECT_EQ(texts_[test].size(), count) << "texts of " << test;
  }

 private:
  std::map<std::string, std::vector<std::string>> texts_;
  std::map<std::string, size_t> used_;
};

inline ExpectedTexts* const expected_texts =
    static_cast<ExpectedTexts*>(testing::AddGlobalTestEnvironment(new ExpectedTexts));

inline const std::string& expected() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  return expected_texts->next(std::string(test->test_suite_name()) + "." + test->name());
}

}  // namespace prun

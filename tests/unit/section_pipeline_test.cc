// Checkpoint files on their way to the disk: bytes, checksums, failures, and file systems without O_DIRECT.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

class Files : public testing::TestWithParam<std::string> {
 protected:
  Files() : folder_(GetParam() + "/prun_pipeline_" + std::to_string(getpid())) { fs::create_directories(folder_); }
  ~Files() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

std::byte element(size_t piece, int64_t at) { return static_cast<std::byte>(at * 31 + at / 4096 + 7 * piece); }

PieceToWrite piece_of(size_t number, Dtype dtype, Shape shape) {
  const int64_t size = dtype_bytes(dtype);
  return {"piece" + std::to_string(number), dtype, shape, Shape(shape.size(), 0),
          [=](std::byte* to, int64_t first, int64_t count) {
            for (int64_t i = 0; i < count * size; ++i) to[i] = element(number, first * size + i);
          }};
}

void expect_whole(const std::string& path, const std::vector<PieceToWrite>& pieces,
                  const std::vector<std::string>& sums) {
  const std::string bytes = read_file(path);
  const SafetensorsFile file(path);
  ASSERT_EQ(sums.size(), pieces.size());
  int64_t end = 0;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const SafetensorsFile::Tensor* tensor = file.find(pieces[p].name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, pieces[p].shape);
    EXPECT_EQ(tensor->at % dtype_bytes(pieces[p].dtype), 0);
    std::string expected(static_cast<size_t>(tensor->bytes), '\0');
    for (int64_t i = 0; i < tensor->bytes; ++i) expected[static_cast<size_t>(i)] = static_cast<char>(element(p, i));
    EXPECT_TRUE(bytes.compare(static_cast<size_t>(tensor->at), expected.size(), expected) == 0) << pieces[p].name;
    Sha256 sum;
    sum.add(expected.data(), expected.size());
    EXPECT_EQ(sums[p], sum.hex());
    end = std::max(end, tensor->at + tensor->bytes);
  }
  EXPECT_EQ(end, std::ssize(bytes));
}

TEST_P(Files, OfManySectionsAndOfOneHaveTheirBytesAndSums) {
  const std::vector<PieceToWrite> large = {piece_of(0, Dtype::bf16, {3}),   piece_of(1, Dtype::f32, {1500, 2001}),
                                           piece_of(2, Dtype::f32, {}),     piece_of(3, Dtype::f64, {700'001}),
                                           piece_of(4, Dtype::f32, {0, 4}), piece_of(5, Dtype::u8, {9'000'003})};
  expect_whole(path("large"), large, write_safetensors(path("large"), large, [] { return false; }));
  const std::vector<PieceToWrite> small = {piece_of(0, Dtype::f32, {5}), piece_of(1, Dtype::f64, {2})};
  expect_whole(path("small"), small, write_safetensors(path("small"), small, [] { return false; }));
}

TEST_P(Files, AreGivenUpWhereTheJobEnds) {
  const std::vector<PieceToWrite> pieces = {piece_of(0, Dtype::f32, {9'000'000})};
  int asked = 0;
  EXPECT_THROW(write_safetensors(path("ended"), pieces, [&] { return ++asked > 3; }), Error);
}

INSTANTIATE_TEST_SUITE_P(Folders, Files, testing::Values("/tmp", "/dev/shm"),
                         [](const auto& of) { return of.param == "/tmp" ? "tmp" : "memory"; });

// A device that is always full and rejects O_DIRECT.
TEST(FullDisk, IsToldByTheThreadThatFills) {
  for (const int64_t elements : {int64_t{1000}, int64_t{9'000'000}}) {
    try {
      write_safetensors("/dev/full", {piece_of(0, Dtype::f32, {elements})}, [] { return false; });
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::checkpoint_write);
      EXPECT_NE(error.message().find("No space left on device"), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace prun::checkpoint

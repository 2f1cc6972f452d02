// Weights are read as boxes: slices of any layout into any strides, differing values of ranks as their mean, and errors
// for truncated files.
#include "checkpoint/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

class WeightFiles : public testing::Test {
 protected:
  WeightFiles() : folder_("/tmp/prun_weights_" + std::to_string(getpid())) { fs::create_directories(folder_); }
  ~WeightFiles() override { fs::remove_all(folder_); }

  // Writes a file with the piece's elements of `whole`, in the order of the piece's dims.
  template <class T>
  WeightPiece piece(const Shape& shape, const Shape& offset, const Shape& count, const std::vector<int>& order,
                    const std::vector<T>& whole, Dtype dtype) {
    std::vector<T> data;
    Shape at(count.size(), 0);
    for (int64_t n = element_count(count), i = 0; i < n; ++i) {
      int64_t place = 0;
      for (size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + offset[d] + at[d];
      data.push_back(whole[static_cast<size_t>(place)]);
      for (size_t k = order.size(); k-- > 0;) {
        if (++at[order[k]] < count[order[k]]) break;
        at[order[k]] = 0;
      }
    }
    const std::string path = folder_ + "/" + std::to_string(files_++);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(T)));
    return {std::make_shared<DataFile>(path), 0, dtype, offset, count, order};
  }

  std::string path(int file) const { return folder_ + "/" + std::to_string(file); }

 private:
  std::string folder_;
  int files_ = 0;
};

std::vector<float> counted(int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(i));
  return values;
}

TEST_F(WeightFiles, AnyBoxOfPiecesInAnyOrderToAnyStrides) {
  const Shape shape = {37, 3, 1200};  // rows exceed the limit for reading in place, boxes do not
  const std::vector<float> whole = counted(element_count(shape));
  Weights weights;
  Weight& w = weights.tensors["w"];
  w.shape = shape;
  w.pieces = {piece(shape, {0, 0, 0}, {20, 3, 700}, {0, 1, 2}, whole, Dtype::f32),
              piece(shape, {0, 0, 700}, {20, 3, 500}, {2, 0, 1}, whole, Dtype::f32),
              piece(shape, {20, 0, 0}, {17, 3, 1200}, {1, 2, 0}, whole, Dtype::f32)};
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    Box box{{}, {}, 5, Shape(3, 1)};
    for (const int64_t length : shape) {
      const int64_t begin = random() % length;
      box.offset.push_back(begin);
      box.shape.push_back(1 + random() % (length - begin));
    }
    std::vector<int> order = {0, 1, 2};
    if (round % 2 == 1) std::shuffle(order.begin(), order.end(), random);
    for (size_t k = 2; k-- > 0;) box.strides[order[k]] = box.strides[order[k + 1]] * box.shape[order[k + 1]];
    std::vector<float> to(static_cast<size_t>(5 + box.elements()), -1);
    std::vector<double> wide(to.size(), -1);
    weights.read("w", box, Dtype::f32, reinterpret_cast<std::byte*>(to.data()));
    weights.read("w", box, Dtype::f64, reinterpret_cast<std::byte*>(wide.data()));
    int64_t wrong = 0;
    for (int64_t i = 0; i < box.elements(); ++i) {
      const int64_t a = i / (box.shape[1] * box.shape[2]), b = i / box.shape[2] % box.shape[1], c = i % box.shape[2];
      const float expected = whole[static_cast<size_t>(((box.offset[0] + a) * shape[1] + box.offset[1] + b) * shape[2] +
                                                       box.offset[2] + c)];
      const auto place = static_cast<size_t>(5 + a * box.strides[0] + b * box.strides[1] + c * box.strides[2]);
      wrong += to[place] != expected || wide[place] != expected;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(to[4], -1);
  }
}

TEST_F(WeightFiles, AWindowGivesElementsFromAnywhere) {
  const Shape shape = {50, 7, 11};
  const std::vector<float> whole = counted(element_count(shape));
  for (const std::vector<int>& stored : {std::vector<int>{0, 1, 2}, std::vector<int>{2, 0, 1}}) {
    Weights weights;
    weights.tensors["w"] = {Dtype::f32, shape, {piece(shape, {0, 0, 0}, shape, stored, whole, Dtype::f32)}};
    Window window(weights, "w", {10, 0, 1}, {40, 7, 9}, {0, 1, 2}, Dtype::f32);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 100}, {100, 1}, {101, 2000}, {2519, 1}}) {
      std::vector<float> got(static_cast<size_t>(count));
      window.read(reinterpret_cast<std::byte*>(got.data()), first, count);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i, row = at / 63, middle = at / 9 % 7, last = at % 9;
        EXPECT_EQ(got[static_cast<size_t>(i)], whole[static_cast<size_t>(((row + 10) * 7 + middle) * 11 + last + 1)]);
      }
    }
  }
}

TEST_F(WeightFiles, RanksOwnValuesAreReadAsTheirMean) {
  const Shape shape = {3, 4, 5};  // three ranks
  std::vector<float> whole = counted(60);
  for (size_t i = 0; i < 20; ++i) whole[i] = whole[20 + i] = whole[40 + i] = 0.1f + static_cast<float>(i);
  whole[47] = 100;
  Weights weights;
  weights.tensors["w"] = {Dtype::f32, {4, 5}, {piece(shape, {0, 0, 0}, shape, {0, 1, 2}, whole, Dtype::f32)}, 3};
  std::vector<float> to(20, -1);
  weights.read("w", {{0, 0}, {4, 5}, 0, {1, 4}}, Dtype::f32, reinterpret_cast<std::byte*>(to.data()));
  for (size_t i = 0; i < 20; ++i) {
    const double mean = i == 7 ? (2.0 * whole[7] + 100) / 3 : whole[i];  // equal copies are read bitwise
    EXPECT_EQ(to[i / 5 + i % 5 * 4], static_cast<float>(mean)) << i;
  }
}

TEST_F(WeightFiles, AFileThatIsCutMeanwhileIsAnError) {
  const std::vector<float> whole = counted(100'000);
  Weights weights;
  weights.tensors["w"] = {Dtype::f32, {100'000}, {piece({100'000}, {0}, {100'000}, {0}, whole, Dtype::f32)}};
  fs::resize_file(path(0), 5000);
  std::vector<float> to(100'000);
  try {
    weights.read("w", {{0}, {100'000}, 0, {1}}, Dtype::f32, reinterpret_cast<std::byte*>(to.data()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::checkpoint_invalid);
    EXPECT_NE(error.message().find("the file ends at byte 5000, and data should follow: it is cut"), std::string::npos);
  }
}

TEST_F(WeightFiles, PiecesThatLeaveHolesAreAnError) {
  const std::vector<float> whole = counted(100);
  Weights weights;
  weights.tensors["w"] = {Dtype::f32, {10, 10}, {piece({10, 10}, {0, 0}, {9, 10}, {0, 1}, whole, Dtype::f32)}};
  std::vector<float> to(100);
  EXPECT_THROW(weights.read("w", {{0, 0}, {10, 10}, 0, {10, 1}}, Dtype::f32, reinterpret_cast<std::byte*>(to.data())),
               Error);
}

}  // namespace
}  // namespace prun::checkpoint

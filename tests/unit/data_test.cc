// Headers of data files, the order of samples, and the check that a model's tables have a row for each id.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "base/error.h"
#include "data/data_files.h"
#include "data/sample_order.h"
#include "ir/graph.h"
#include "ir/ops.h"
#include "prun/philox.h"

namespace prun {
namespace {

TEST(SampleOrder, IsAPermutation) {
  for (const int64_t count : {1, 2, 3, 5, 16, 17, 1000, 4097})
    for (const uint64_t round : {0, 1, 7}) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = shuffled(i, count, 3, 99, round);
        ASSERT_GE(place, 0);
        ASSERT_LT(place, count);
        seen.insert(place);
      }
      EXPECT_EQ(std::ssize(seen), count) << round;
    }
}

// Neighbours are moved apart: of 10,000 pairs about 100 are within 0.5 % of each other by chance.
TEST(SampleOrder, Mixes) {
  constexpr int64_t kCount = 10000;
  int64_t near = 0, same = 0;
  for (int64_t i = 0; i + 1 < kCount; ++i) {
    near += std::abs(shuffled(i, kCount, 1, 2, 0) - shuffled(i + 1, kCount, 1, 2, 0)) < kCount / 200;
    same += shuffled(i, kCount, 1, 2, 0) == shuffled(i, kCount, 1, 2, 1);
  }
  EXPECT_LT(near, 200);
  EXPECT_LT(same, 20);
}

TEST(SampleOrder, IsAFunctionOfSeedUseAndEpoch) {
  const auto order = [](uint64_t seed, SampleUse use, int64_t epoch) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < 100; ++i) places.push_back(epoch_place(epoch * 100 + i, 100, seed, use));
    return places;
  };
  EXPECT_EQ(order(1, SampleUse::training, 0), order(1, SampleUse::training, 0));
  EXPECT_NE(order(1, SampleUse::training, 0), order(2, SampleUse::training, 0));
  EXPECT_NE(order(1, SampleUse::training, 0), order(1, SampleUse::evaluation, 0));
  EXPECT_NE(order(1, SampleUse::training, 0), order(1, SampleUse::training, 1));
}

std::string token_file(std::vector<int32_t> words) {
  words.resize(256);
  return {reinterpret_cast<const char*>(words.data()), 1024};
}

// Generating several blocks at once gives the numbers of single blocks, also when the block count passes 2^32.
TEST(RandomNormals, AreThoseOfSingleBlocks) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 9}) {
    for (const int64_t count : {1, 32, 37, 96}) {
      std::vector<float> found(static_cast<size_t>(count)), wanted;
      random_normals(11, 3, first, count, found.data());
      for (int64_t i = 0; i < count; ++i) {
        const philox::Words words = philox::block(11, 3, first + static_cast<uint64_t>(i));
        wanted.push_back(philox::normals(words[0], words[1]).first);
      }
      EXPECT_EQ(found, wanted) << first << " " << count;
    }
  }
}

TEST(TokenFile, HeadersOfLlmC) {
  EXPECT_FALSE(parse_token_header("text").has_value());
  EXPECT_FALSE(parse_token_header(token_file({20240521, 1, 5})).has_value());
  const auto gpt2 = parse_token_header(token_file({20240520, 1, 5})),
             llama = parse_token_header(token_file({20240801, 7, 6}));
  EXPECT_EQ(gpt2.value().element, Element::u16);
  EXPECT_EQ(gpt2.value().tokens, 5);
  EXPECT_EQ(llama.value().element, Element::u32);
  EXPECT_EQ(llama.value().tokens, 6);
  EXPECT_THROW(parse_token_header(token_file({20240520, 2, 5})), Error);
  EXPECT_THROW(parse_token_header("\x93NUMPY"), Error);
}

TEST(TokenFile, OtherKindsAreKnownByTheirBegin) {
  EXPECT_EQ(kind_without_ids("A text,\twith a caf\xc3\xa9 \xe2\x80\x94 and\r\na line. \xf0\x9f"), "text");
  EXPECT_EQ(kind_without_ids("PAR1\x15\x04"), "a Parquet file");
  EXPECT_EQ(kind_without_ids("\x1f\x8b\x08\x08"), "compressed by gzip");
  EXPECT_EQ(kind_without_ids(""), "");
  EXPECT_EQ(kind_without_ids(std::string_view("a\0b\0c\0", 6)), "");  // ids below 256
  EXPECT_EQ(kind_without_ids("caf\xe9 au lait"), "");                 // no UTF-8, so it may be ids
  EXPECT_EQ(kind_without_ids("\xc3\x28 and so on"), "");
  EXPECT_EQ(kind_without_ids(token_file({20240520, 1, 5})), "");
}

std::string array_file(const std::string& dictionary, int version = 1) {
  std::string begin = "\x93NUMPY";
  begin += {static_cast<char>(version), 0};
  const size_t size = dictionary.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) begin += static_cast<char>(size >> 8 * i);
  return begin + dictionary;
}

TEST(ArrayFile, HeadersOfNumpy) {
  const ArrayHeader one =
      parse_array_header(array_file("{'descr': '<f4', 'fortran_order': False, 'shape': (60, 28, 28), }  \n"));
  EXPECT_EQ(one.element, Element::f32);
  EXPECT_EQ(one.shape, (std::vector<int64_t>{60, 28, 28}));
  EXPECT_EQ(one.skip_bytes, 10 + 68);
  const ArrayHeader two =
      parse_array_header(array_file("{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", 2));
  EXPECT_EQ(two.element, Element::u8);
  EXPECT_EQ(two.shape, std::vector<int64_t>{7});
}

TEST(ArrayFile, SaysWhatMendsIt) {
  const auto message = [](const std::string& begin) -> std::string {
    try {
      parse_array_header(begin);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const auto with = [&](const std::string& descr, const std::string& fortran = "False") {
    return message(array_file("{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': (7,), }"));
  };
  EXPECT_EQ(with("'>f4'"), "its numbers are in big-endian order ('>f4'): save a.astype('<f4')");
  EXPECT_EQ(with("'<f4'", "True"), "its elements are stored column by column; save numpy.ascontiguousarray(a)");
  EXPECT_NE(with("'<c8'").find("save a.astype('float32')"), std::string::npos);
  EXPECT_NE(with("[('a', '<f4')]").find("array of records"), std::string::npos);
  EXPECT_EQ(message("text, and not an array"), "not a .npy file; numpy.save(file, array) writes one");
  EXPECT_NE(message(array_file("{}", 9)).find("version 9"), std::string::npos);
  EXPECT_NE(message(array_file("{'descr': '<f4'}")).find("has no 'fortran_order'"), std::string::npos);
  std::string cut = array_file("{}");
  cut[8] = 100;
  EXPECT_NE(message(cut).find("does not end"), std::string::npos);
}

TEST(IdLimits, AreRowsOfTablesAndLogits) {
  Graph graph;
  const auto value = [&](const char* name, ValueKind kind, Dtype dtype, Shape shape) {
    Value v;
    v.name = name, v.kind = kind, v.type = {dtype, std::move(shape)};
    graph.values.push_back(v);
  };
  value("tokens", ValueKind::input, Dtype::i32, {2, 4});
  value("table", ValueKind::parameter, Dtype::f32, {10, 3});
  value("x", ValueKind::activation, Dtype::f32, {2, 4, 3});
  value("y", ValueKind::input, Dtype::i32, {2, 4});
  Node embedding, loss;
  embedding.op = &ops::embedding, embedding.inputs = {0, 1}, embedding.outputs = {2};
  loss.op = &ops::cross_entropy, loss.inputs = {2, 3};
  graph.nodes = {embedding, loss};
  const std::vector<IdLimit> limits = id_limits(graph);
  ASSERT_EQ(limits.size(), 2u);
  EXPECT_EQ(limits[0].input, "tokens");
  EXPECT_EQ(limits[0].table, "the table 'table' has 10 rows");
  EXPECT_EQ(limits[1].input, "y");
  EXPECT_EQ(limits[1].size, 3);
}

}  // namespace
}  // namespace prun

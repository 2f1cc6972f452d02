// The mesh: rank numbering and groups; and the small types of text and attributes next to it.
#include "ir/mesh.h"

#include <gtest/gtest.h>

#include "ir/attrs.h"
#include "ir/types.h"

namespace prun {
namespace {

TEST(Mesh, TheLastAxisIsARunOfNeighbours) {
  Mesh mesh({{"dp", 2}, {"pp", 3}, {"tp", 2}});
  EXPECT_EQ(mesh.ranks(), 12);
  EXPECT_EQ(mesh.text(), "dp=2 x pp=3 x tp=2");
  EXPECT_EQ(mesh.group("tp", 7), (std::vector<int>{6, 7}));
  EXPECT_EQ(mesh.group("pp", 7), (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(mesh.group("dp", 7), (std::vector<int>{1, 7}));
  EXPECT_EQ(mesh.group(kWorld, 7).size(), 12u);
  EXPECT_EQ(mesh.size(kWorld), 12);
  EXPECT_FALSE(mesh.has(kWorld));
}

TEST(Mesh, ARankIsInItsGroupAtItsIndex) {
  Mesh mesh({{"dp", 2}, {"pp", 3}, {"tp", 4}});
  for (const std::string axis : {"dp", "pp", "tp", kWorld})
    for (int rank = 0; rank < mesh.ranks(); ++rank)
      EXPECT_EQ(mesh.group(axis, rank).at(static_cast<size_t>(mesh.index(axis, rank))), rank) << axis;
}

TEST(Mesh, OfOneRank) {
  EXPECT_EQ(Mesh().ranks(), 1);
  EXPECT_EQ(Mesh().text(), "1 rank");
  EXPECT_EQ(Mesh().group(kWorld, 0), std::vector<int>{0});
}

TEST(Attrs, AWholeNumberServesAsADouble) {
  Attrs attrs;
  attrs.set("n", int64_t{3});
  attrs.set("list", std::vector<int64_t>{1, 2});
  EXPECT_EQ(attrs.number("n"), 3.0);
  EXPECT_EQ(attrs.numbers("list"), (std::vector<double>{1, 2}));
  EXPECT_EQ(attrs.integer("absent", 5), 5);
  EXPECT_EQ(attrs.text("absent", "none"), "none");
}

TEST(Attrs, Text) {
  EXPECT_EQ(attr_text(int64_t{-3}), "-3");
  EXPECT_EQ(attr_text(0.1), "0.1");
  EXPECT_EQ(attr_text(std::string("tanh")), "\"tanh\"");
  EXPECT_EQ(attr_text(std::vector<int64_t>{}), "[]");
  EXPECT_EQ(attr_text(std::vector<double>{1, 2.5}), "[1, 2.5]");
}

TEST(AttrsDeathTest, AnotherTypeIsABug) {
  Attrs attrs;
  attrs.set("n", std::string("three"));
  EXPECT_DEATH(attrs.integer("n"), "attribute n has variant 2");
}

TEST(Types, NamesReadBack) {
  for (Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::i64, Dtype::i32, Dtype::i8, Dtype::u8})
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  for (RedOp op : {RedOp::sum, RedOp::prod, RedOp::min, RedOp::max, RedOp::avg})
    EXPECT_EQ(parse_redop(redop_name(op)), op);
  EXPECT_EQ(parse_dtype("f33"), std::nullopt);
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 0}), 0);
  EXPECT_EQ(shape_text({2, 3}), "[2, 3]");
  EXPECT_EQ(byte_count(Dtype::f32, {2, 3}), 24);
  EXPECT_EQ(byte_count(Dtype::f32, {int64_t{1} << 58}), int64_t{1} << 60);
  EXPECT_EQ(byte_count(Dtype::f32, {int64_t{1} << 59}), std::nullopt);
  EXPECT_EQ(byte_count(Dtype::u8, {int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);  // 0 modulo 2^64
}

}  // namespace
}  // namespace prun

// One-sided messages: regions that are offered, filled and waited for, and mistakes with them.
#include <gtest/gtest.h>

#include "tests/unit/expected_text.h"
#include "tests/unit/verify_builder.h"

namespace prun {
namespace {

Op& one_sided(Builder& b, const OpDef& def, int tensor, int peer, int64_t tag, std::vector<Edge> waits = {}) {
  const bool puts = def.name == "put", offers = def.name == "signal";
  Op& op = b.op(def, offers ? std::vector<TensorId>{} : std::vector<TensorId>{tensor},
                puts ? std::vector<TensorId>{} : std::vector<TensorId>{tensor}, 1, std::move(waits));
  op.axis = "dp";
  op.attrs.set("peer", int64_t{peer});
  op.attrs.set("tag", tag);
  return op;
}

constexpr int64_t kPlace = 256;  // offset of y in the receiver's arena

Builder sender(int count = 1) {
  Builder b;
  const int x = b.buffer("x", 16);
  b.op(kCompute, {}, {x});
  for (int i = 0; i < count; i++) one_sided(b, kPut, x, 1, i, {{0, 0, 0}}).attrs.set("offset", kPlace);
  return b;
}

// Offers y, waits and uses it, `count` times.
Builder receiver(int count = 1) {
  Builder b;
  b.buffer("other", kPlace / 4);
  const int y = b.buffer("y", 16);
  b.op(kCompute, {}, {});
  for (int i = 0; i < count; i++) {
    one_sided(b, kSignal, y, -1, i, i == 0 ? std::vector<Edge>{} : std::vector<Edge>{{0, i, 0}});
    one_sided(b, kWaitSignal, y, -1, i);
    b.op(kCompute, {y}, {}, 0, {{1, 2 * i + 1, 0}});
  }
  return b;
}

std::vector<Op>& messages(Builder& b) { return b.program.step().streams[1].ops; }

TEST(VerifyOffers, RightOnesPass) {
  EXPECT_EQ(check(sender(), receiver()), "");
  EXPECT_EQ(check(sender(3), receiver(3)), "");
}

TEST(VerifyOffers, APlaceThatIsNotOffered) {
  Builder b = receiver();
  messages(b).erase(messages(b).begin());
  b.program.step().streams[0].ops[1].waits = {{1, 0, 0}};
  const std::string found = check(sender(), b);
  EXPECT_EQ(found.find("offers differ: rank 1: wait_signal f32[16] (program, comm#0, plan.lua:3) has no signal that "
                       "offers its place"),
            0u)
      << found;
}

TEST(VerifyOffers, AnOfferThatNobodyWaitsFor) {
  Builder b = receiver();
  one_sided(b, kSignal, 1, -1, 1, {{0, 1, 0}});
  const std::string found = check(sender(), b);
  EXPECT_EQ(found.find("offers differ: rank 1: signal f32[16] (program, comm#2, plan.lua:5) has no wait_signal"), 0u)
      << found;
}

TEST(VerifyOffers, AnotherTensorIsAwaited) {
  Builder b = receiver();
  messages(b)[1].reads = messages(b)[1].writes = {0};
  b.program.tensors[0].shape = {16};
  b.program.step().streams[0].ops[1].reads = {0};
  EXPECT_EQ(check(sender(), b)
                .find("offers differ: rank 1: signal f32[16] (program, comm#0, plan.lua:2) offers 't1', and "
                      "wait_signal f32[16] (program, comm#1, plan.lua:3) waits for 't0'"),
            0u);
}

TEST(VerifyOffers, AReadBetweenOfferAndWait) {
  Builder b = receiver();
  b.op(kCompute, {1}, {}, 2, {{1, 0, 0}});
  EXPECT_NE(check(sender(), b)
                .find("used while offered: rank 1: add (program, other#0, plan.lua:5) reads buffer 'y' between "
                      "signal f32[16] (program, comm#0, plan.lua:2), which lets another rank write it, and "
                      "wait_signal f32[16] (program, comm#1, plan.lua:3)"),
            std::string::npos);
}

TEST(VerifyOffers, APutToAnotherPlace) {
  Builder a = sender();
  messages(a)[0].attrs.set("offset", int64_t{0});
  EXPECT_EQ(check(a, receiver()), expected());
}

TEST(VerifyOffers, ASendIsNoPut) {
  Builder a = sender();
  messages(a)[0].def = &kSend;
  const std::string found = check(a, receiver());
  EXPECT_EQ(
      found.find(
          "messages differ: message 0 from rank 0 to rank 1 along world (lane 1): send and receive differ in kind"),
      0u)
      << found;
}

// Both ranks put before they offer, so each waits for an offer that the other makes only afterwards.
TEST(VerifyOffers, PutsThatWaitForEachOthersOffers) {
  const auto stage = [](bool offers_first) {
    Builder b;
    const int x = b.buffer("x", 16), y = b.buffer("y", 16, kPlace);
    b.op(kCompute, {}, {x});
    if (offers_first) one_sided(b, kSignal, y, 1, 0);
    one_sided(b, kPut, x, 1, 0, {{0, 0, 0}}).attrs.set("offset", kPlace);
    if (!offers_first) one_sided(b, kSignal, y, 1, 0);
    one_sided(b, kWaitSignal, y, 1, 0);
    b.op(kCompute, {y}, {}, 0, {{1, 2, 0}});
    return b;
  };
  EXPECT_EQ(check(stage(true), stage(true)), "");
  EXPECT_EQ(check(stage(true), stage(false)), "");
  EXPECT_EQ(check(stage(false), stage(false)).find("wait cycle across ranks"), 0u);
}

}  // namespace
}  // namespace prun

// Placements and parameters during a step: each communication or ordering mistake in a small training step is rejected
// with both sites.
#include <gtest/gtest.h>

#include "ir/ops.h"
#include "tests/unit/expected_text.h"
#include "tests/unit/verify_builder.h"

namespace prun {
namespace {

// One linear layer on a batch that is split over dp; op(i) is the i-th op of the step.
//   0 next_batch x   1 linear y   2 mean_square loss   3 its gradient   4 linear_dw g   5, 6 averages   7 sgd
struct Step : Builder {
  int w, g, loss, x, y, dy;
  explicit Step(std::vector<Axis> axes = {{"dp", 2}}) : Builder(std::move(axes)) {
    w = shaped(persistent("w", 16), {8, 2}, Role::param);
    g = shaped(persistent("g", 16), {8, 2}, Role::grad);
    loss = shaped(persistent("loss", 1), {}, Role::data);
    program.step().loss = loss;
    x = shaped(buffer("x", 16), {2, 8}, Role::data);
    y = shaped(buffer("y", 4), {2, 2}, Role::activation);
    dy = shaped(buffer("dy", 4), {2, 2}, Role::activation);
    program.step().data.global_batch = 4;
    Op& init = op(ops::init_params, {}, {w}, 0, {}, true);
    init.attrs.set("starts", std::vector<int64_t>{0});
    init.attrs.set("counts", std::vector<int64_t>{16});
    op(ops::fill, {}, {g}, 0, {}, true);
    op(ops::next_batch, {}, {x}).attrs.set("axis", "dp");
    add("linear", {x, w}, {y}, Phase::forward);
    add("mean_square", {y}, {loss}, Phase::forward).attrs.set("scale", 0.25);
    add("mean_square_grad", {y}, {dy}, Phase::backward).attrs.set("scale", 0.25);
    add("linear_dw", {x, dy}, {g}, Phase::backward);
    reduce(loss, "avg");
    reduce(g, "avg");
    add("sgd", {g, w}, {w}, Phase::step);
  }
  int shaped(int tensor, Shape shape, Role role) {
    program.tensors[tensor].shape = std::move(shape);
    program.buffers.back().role = role;
    return tensor;
  }
  Op& add(const char* kind, std::vector<TensorId> reads, std::vector<TensorId> writes, Phase phase) {
    Op& made = op(op_def(kind), std::move(reads), std::move(writes));
    made.phase = phase;
    return made;
  }
  Op& reduce(int tensor, const char* how, const char* axis = "dp") {
    Op& made = add("all_reduce", {tensor}, {tensor}, Phase::backward);
    made.axis = axis;
    made.attrs.set("op", how);
    return made;
  }
  std::vector<Op>& ops() { return program.step().streams[0].ops; }
  void drop(size_t i) { ops().erase(ops().begin() + static_cast<std::ptrdiff_t>(i)); }
  void move(size_t from, size_t to) {
    Op moved = ops()[from];
    drop(from);
    ops().insert(ops().begin() + static_cast<std::ptrdiff_t>(to), std::move(moved));
  }
};

// Returns the first finding without the sites of its ops.
std::string found(const Step& step) {
  const std::vector<Finding> findings = verify_job(step.job(), 0);
  if (findings.empty()) return "";
  std::string text = findings.front().rule + ": " + findings.front().message;
  for (size_t open = text.find(" ("); open != std::string::npos; open = text.find(" (", open))
    text.erase(open, text.find(')', open) + 1 - open);
  return text;
}

// Step with a copy of w in a pool slot. A step finds the copy of the previous step and makes one for the next step. In
// between, the weight gradient uses the slot.
//   1 linear reads the copy   4 linear_dw other   5 copy to g   8 sgd   9 the copy
struct Ahead : Step {
  int kept, other;
  Ahead() {
    program.schedule.steps = 2;
    program.pools.push_back({"gathered", Role::gathered, 1, 64});
    kept = shaped(persistent("kept", 16), {8, 2}, Role::gathered);
    const int64_t offset = program.buffers.back().offset;
    program.buffers.back().pool = program.buffers.back().slot = 0;
    other = shaped(buffer("other", 16, offset), {8, 2}, Role::gathered);
    program.buffers.back().pool = program.buffers.back().slot = 0;
    op(ops::copy, {w}, {kept}, 0, {}, true);
    ops()[1].reads = {x, kept};
    ops()[4].writes = {other};
    add("copy", {other}, {g}, Phase::backward);
    move(8, 5);
    add("copy", {w}, {kept}, Phase::step);
  }
  std::string rule() const {
    const std::string all = check(*this);
    return all.substr(0, all.find(':'));
  }
};

// Along an axis that splits the tokens of inputs, ranks have equal gradients of what reads an input whole.
TEST(VerifyValues, ResultsOfWholeInputsAreAveragedAndNotAdded) {
  const auto found_if = [](bool whole, const char* how) {
    Step step;
    step.program.step().data.global_batch = 2;
    Attrs& batch = step.ops()[0].attrs;
    batch = {};
    batch.set("tokens_axis", std::string("dp"));
    batch.set("chunks", int64_t{2});
    if (whole) batch.set("whole", std::vector<int64_t>{1});
    for (const size_t i : {5, 6}) step.ops()[i].attrs.set("op", std::string(how));
    return found(step);
  };
  EXPECT_EQ(found_if(true, "avg"), "");
  EXPECT_EQ(
      found_if(true, "sum"),
      "placement: all_reduce f32[1] sum reduces over dp what is the same on all its ranks: it was reduced before, "
      "or never was partial; mean_square wrote it");
  EXPECT_NE(found_if(false, "avg"), "");
}

TEST(VerifyValues, ACopyOfParametersIsLeftForTheNextStep) {
  EXPECT_EQ(Ahead().rule(), "");
  Ahead ahead;
  ahead.move(9, 8);
  EXPECT_EQ(ahead.rule(), "stale weights");
  ahead = Ahead();
  ahead.drop(9);
  EXPECT_EQ(ahead.rule(), "overlapping live buffers");
  ahead = Ahead();
  ahead.move(9, 4);
  EXPECT_EQ(ahead.rule(), "overlapping live buffers");
  ahead = Ahead();
  ahead.ops()[9].reads = {ahead.tensor(0, 0, 8)};
  ahead.ops()[9].writes = {ahead.tensor(ahead.program.tensors[ahead.kept].buffer, 0, 8)};
  EXPECT_EQ(ahead.rule(), "overlapping live buffers");
  ahead = Ahead();
  ahead.program.init().streams[0].ops.pop_back();
  EXPECT_EQ(ahead.rule(), "read before any write");
}

TEST(VerifyValues, AnEvaluationLeavesTheCopyAsItWas) {
  Ahead ahead;
  const int loss = ahead.shaped(ahead.persistent("eval_loss", 1), {}, Role::data);
  Body evaluation{"evaluation", {1, 1}, {}, ahead.program.step().data, loss};
  std::vector<Op> ops = {ahead.ops()[0], ahead.ops()[9], ahead.ops()[1],
                         ahead.ops()[2], ahead.ops()[7], ahead.ops()[9]};
  ops[1].writes = {ahead.other};
  ops[2].reads = {ahead.x, ahead.other};
  ops[3].writes = {loss};
  ops[4].reads = ops[4].writes = {loss};
  evaluation.streams.push_back({"compute", ops});
  ahead.program.bodies.push_back(evaluation);
  EXPECT_EQ(check(ahead), "");
  ahead.program.bodies[2].streams[0].ops.pop_back();
  EXPECT_EQ(ahead.rule(), "overlapping live buffers");
  ahead.program.bodies[2].streams[0].ops[1].writes = {ahead.kept};
  ahead.program.bodies[2].streams[0].ops[1].reads = {ahead.g};
  ahead.program.bodies[2].streams[0].ops[2].reads = {ahead.x, ahead.w};
  EXPECT_NE(ahead.rule(), "");
}

TEST(VerifyValues, AStepWaitsForTheCopyThatTheStepBeforeLeaves) {
  Ahead ahead;
  ahead.drop(9);
  ahead.op(ops::copy, {ahead.w}, {ahead.kept}, 1, {{0, 8, 0}, {0, 9, 1}}).phase = Phase::step;
  ahead.op(ops::fill, {}, {ahead.shaped(ahead.buffer("end", 1), {}, Role::workspace)}, 0, {{1, 0, 0}}).phase =
      Phase::step;
  EXPECT_EQ(check(ahead), "");
  ahead.ops()[9].waits.clear();
  EXPECT_EQ(ahead.rule(), "steps overlap");
  ahead.ops()[9].waits = {{1, 0, 0}};
  ahead.program.step().streams[1].ops[0].waits = {{0, 9, 1}};
  EXPECT_EQ(ahead.rule(), "unordered conflicting accesses");
}

// Ahead, but the copy is made by a concurrent broadcast that is carried over, and linear waits for it in the next step.
struct GoesOn : Ahead {
  GoesOn() {
    drop(9);
    op(kBroadcast, {w}, {kept}, 1, {{0, 8, 0}, {0, 8, 1}}).phase = Phase::step;
    ops()[1].waits = {{1, 0, 1}};
  }
  std::vector<Op>& beside() { return program.step().streams[1].ops; }
};

// A carried-over copy that no op reads.
struct Unread : GoesOn {
  Unread() {
    ops()[1].waits.clear();
    ops()[1].reads = {x, w};
    ops()[4].writes = {g};
    drop(5);
    for (Edge& edge : beside()[0].waits) edge.index = 7;
  }
};

TEST(VerifyValues, ACopyGoesOnOverTheEndOfAStep) {
  EXPECT_EQ(check(GoesOn()), "");
  GoesOn step;
  step.ops()[1].waits.clear();
  EXPECT_EQ(found(step),
            "steps overlap: linear may read buffer 'kept' before broadcast f32[16] root 0 has ended, which goes on "
            "since the step before");
  // Too late: the op that waits is the one after the reading op.
  step.ops()[2].waits = {{1, 0, 1}};
  EXPECT_EQ(step.rule(), "steps overlap");
  // No op reads the copy, but another op writes its bytes.
  step = GoesOn();
  step.ops()[1].waits.clear();
  step.ops()[1].reads = {step.x, step.w};
  EXPECT_EQ(
      found(step),
      "steps overlap: linear_dw may write buffer 'other' before broadcast f32[16] root 0 has ended, which goes on "
      "since the step before");
  step.ops()[4].waits = {{1, 0, 1}};
  EXPECT_EQ(check(step).find("steps overlap"), std::string::npos) << check(step);
  EXPECT_EQ(found(Unread()),
            "steps overlap: sgd may write buffer 'w' before broadcast f32[16] root 0 has ended, which goes on since "
            "the step before");
}

TEST(VerifyValues, OnlyWhatLooksAtItsOperandsAloneGoesOnOverTheEndOfAStep) {
  GoesOn step;
  step.beside()[0].def = &ops::copy;
  EXPECT_EQ(found(step), "steps overlap: sgd ends the step without waiting for copy");
  // The loss is read at the end of the step.
  step = GoesOn();
  step.op(kAllReduce, {step.loss}, {step.loss}, 1).phase = Phase::step;
  EXPECT_NE(check(step).find("ends the step without waiting for all_reduce"), std::string::npos) << check(step);
  // A lane has one order, across steps too.
  Unread other;
  for (Op& op : other.ops()) op.lane = op.communicates() ? 1 : 0;
  EXPECT_EQ(found(other),
            "steps overlap: all_reduce f32[1] avg may begin before broadcast f32[16] root 0 has ended, which goes on "
            "since the step before");
}

TEST(VerifyValues, ARightStepPasses) { EXPECT_EQ(check(Step()), ""); }

TEST(VerifyValues, AMeanOverOtherElements) {
  Step step;
  step.ops()[2].attrs.set("scale", 0.5);
  EXPECT_EQ(found(step),
            "wrong factor: mean_square multiplies a sum over 4 elements by 0.5, and for the mean over 1 microbatch "
            "0.25 is due");
}

// A step whose loss is a cross_entropy over two targets, with shares.
struct Shared : Step {
  int targets, shares, lse;
  Shared() {
    targets = shaped(buffer("t", 2), {2}, Role::data), shares = shaped(buffer("t.shares", 2), {2}, Role::data);
    lse = shaped(buffer("lse", 2), {2}, Role::activation);
    program.tensors[targets].dtype = Dtype::i32;
    ops()[0].writes = {x, targets, shares};
    ops()[0].attrs.set("names", "x,t,t.shares");
    ops()[0].attrs.set("share_of", ",,t");
    ops()[2].def = &ops::cross_entropy, ops()[3].def = &ops::cross_entropy_grad;
    ops()[2].reads = {y, targets, shares}, ops()[2].writes = {loss, lse};
    ops()[3].reads = {y, targets, lse, shares};
    for (const size_t i : {2, 3}) ops()[i].attrs.set("scale", 0.5);
  }
};

TEST(VerifyValues, ALossThatCountsIgnoredTargets) {
  EXPECT_EQ(check(Shared()), "");
  for (const size_t i : {2, 3}) {
    Shared all;
    all.ops()[i].reads.pop_back();
    EXPECT_NE(check(all).find("counts all of 't', some of which are ignored"), std::string::npos) << check(all);
    Shared other;
    other.ops()[i].reads.back() = other.lse;
    EXPECT_NE(check(other).find("for the shares of 't'"), std::string::npos) << check(other);
  }
  Shared unknown;
  unknown.ops()[0].attrs.set("share_of", ",,z");
  EXPECT_EQ(found(unknown), "wrong shares: next_batch writes shares of no target 'z'");
}

TEST(VerifyValues, AGradientThatIsNeverReduced) {
  Step step;
  step.drop(6);
  EXPECT_EQ(check(step), expected());
}

TEST(VerifyValues, AGradientThatIsReducedTwice) {
  Step step;
  step.reduce(step.g, "avg").lane = 0;
  step.move(8, 7);
  EXPECT_EQ(found(step), expected());
}

TEST(VerifyValues, AGradientThatIsReducedOverTheWrongAxis) {
  Step step({{"dp", 2}, {"tp", 2}});
  EXPECT_EQ(check(step), "");
  step.ops()[6].axis = "tp";
  EXPECT_EQ(found(step), expected());
}

TEST(VerifyValues, ASumWhereAnAverageIsDue) {
  Step step;
  step.ops()[6].attrs.set("op", "sum");
  EXPECT_EQ(found(step), expected());
}

TEST(VerifyValues, ALossOfOneRank) {
  Step step;
  step.drop(5);
  EXPECT_EQ(found(step), "placement: the loss ends a step as terms of an average over dp; mean_square wrote it");
}

TEST(VerifyValues, WeightsThatPartTheirWays) {
  // Every rank updates with different random numbers.
  Step step;
  step.op(ops::random_int, {}, {step.g});
  step.move(8, 7);
  step.drop(6);
  step.drop(4);
  step.drop(3);
  EXPECT_EQ(found(step), expected());
}

TEST(VerifyValues, ParametersAreUpdatedOnce) {
  Step step;
  step.add("sgd", {step.g, step.w}, {step.w}, Phase::step);
  EXPECT_EQ(found(step), expected());
  step.drop(8);
  step.drop(7);
  EXPECT_EQ(found(step).substr(0, 10), "lost value");  // the gradient's value
}

TEST(VerifyValues, ForwardReadsParametersBeforeTheirUpdate) {
  Step step;
  const int z = step.shaped(step.buffer("z", 4), {2, 2}, Role::activation);
  step.add("linear", {step.x, step.w}, {z}, Phase::forward);
  step.add("print", {z}, {}, Phase::forward);
  EXPECT_EQ(found(step), expected());
}

// Forward reads a copy of the weights, which is made again after the update.
Step with_copy() {
  Step step;
  const int copy = step.shaped(step.persistent("copy", 16), {8, 2}, Role::param);
  step.op(ops::copy, {step.w}, {copy}, 0, {}, true);
  step.ops()[1].reads[1] = copy;
  step.add("copy", {step.w}, {copy}, Phase::step);
  return step;
}

TEST(VerifyValues, CopiesOfParametersFollowThem) {
  EXPECT_EQ(check(with_copy()), "");
  Step stale = with_copy();
  stale.move(8, 7);
  EXPECT_EQ(found(stale), expected());
  Step forgotten = with_copy();
  forgotten.drop(8);
  EXPECT_EQ(found(forgotten), expected());
  // A copy that is made before each read need not be made again at the end.
  Step early = with_copy();
  early.move(8, 1);
  EXPECT_EQ(check(early), "");
}

// A copy that the update itself writes is as recent as the parameters.
TEST(VerifyValues, UpdatesThatCopyParameters) {
  Step step = with_copy();
  const TensorId copy = step.ops()[8].writes[0];
  step.drop(8);
  step.ops()[7].def = &ops::sgd_cast;
  step.ops()[7].writes.push_back(copy);
  EXPECT_EQ(check(step), "");
  const int z = step.shaped(step.buffer("z", 4), {2, 2}, Role::activation);
  step.add("linear", {step.x, copy}, {z}, Phase::forward);
  step.add("print", {z}, {}, Phase::forward);
  EXPECT_EQ(found(step), expected());
}

TEST(VerifyValues, AContributionIsAddedOnce) {
  Step step;
  const int more = step.shaped(step.buffer("more", 16), {8, 2}, Role::grad);
  step.add("linear_dw", {step.x, step.dy}, {more}, Phase::backward);
  step.move(8, 5);
  step.add("add", {step.g, more}, {step.g}, Phase::backward);
  step.move(9, 6);
  EXPECT_EQ(check(step), "");
  step.add("add", {step.g, more}, {step.g}, Phase::backward);
  step.move(10, 7);
  EXPECT_EQ(found(step), "applied twice: add does to 'g' what add has done to it already");
}

TEST(VerifyValues, AGradientAddsToTheOneOfItsStepOnce) {
  Step step;
  step.add("linear_dw_add", {step.x, step.dy, step.g}, {step.g}, Phase::backward);
  step.move(8, 5);
  EXPECT_EQ(check(step), "");
  step.add("linear_dw_add", {step.x, step.dy, step.g}, {step.g}, Phase::backward);
  step.move(9, 6);
  EXPECT_EQ(found(step), "applied twice: linear_dw_add does to 'g' what linear_dw_add has done to it already");
  Step first;
  first.ops()[4].def = &ops::linear_dw_add;
  first.ops()[4].reads.push_back(first.g);
  EXPECT_EQ(found(first),
            "read before any write: linear_dw_add reads bytes 0..64 of buffer 'g' before anything in the step writes "
            "them; the first write is by linear_dw_add");
}

TEST(VerifyValues, ATableIsReadAsAWhole) {
  Step step;
  const int y = step.shaped(step.buffer("y2", 32), {2, 8, 2}, Role::activation);
  const int dy = step.shaped(step.buffer("dy2", 32), {2, 8, 2}, Role::activation);
  step.program.tensors[static_cast<size_t>(step.x)].dtype = Dtype::i32;
  step.ops()[1].def = &ops::embedding;
  step.ops()[1].writes = step.ops()[2].reads = step.ops()[3].reads = {y};
  step.ops()[3].writes = {dy};
  step.ops()[4].def = &ops::embedding_grad;
  step.ops()[4].reads = {step.x, dy};
  step.ops()[4].attrs.set("vocab", 8);
  for (const size_t loss : {2u, 3u}) step.ops()[loss].attrs.set("scale", 1.0 / 32);
  EXPECT_EQ(check(step), "");
  Tensor rows = step.program.tensors[static_cast<size_t>(step.w)];
  rows.shape = {4, 2};
  step.program.tensors.push_back(rows);
  step.ops()[1].reads[1] = static_cast<int>(step.program.tensors.size()) - 1;
  EXPECT_EQ(found(step), expected());
}

TEST(VerifyValues, AResultIsReadAsItWasMade) {
  Step step;
  Tensor columns = step.program.tensors[static_cast<size_t>(step.y)];
  columns.shape = {2, 1};
  step.program.tensors.push_back(columns);
  const int id = static_cast<int>(step.program.tensors.size()) - 1;
  step.add("mean_square", {id}, {step.shaped(step.buffer("other", 1), {}, Role::activation)}, Phase::forward)
      .attrs.set("scale", 0.5);
  step.add("print", {id + 1}, {}, Phase::forward);
  EXPECT_EQ(found(step), "part of a tensor: mean_square reads [2, 1] of what is [2, 2]; linear wrote it");
}

// Backward recomputes y, the logits, and the loss overwrites them with their gradient dy.
TEST(VerifyValues, LogitsAreNotTheirGradient) {
  Step step;
  const auto tensor = [&](TensorId id) -> Tensor& { return step.program.tensors[id]; };
  const int targets = step.shaped(step.buffer("targets", 2), {2}, Role::data);
  const int lse = step.shaped(step.buffer("lse", 2), {2}, Role::activation);
  const int again = step.shaped(step.buffer("again", 1), {}, Role::activation);
  tensor(targets).dtype = Dtype::i32;
  tensor(step.y).name = "y";
  tensor(step.dy).name = "dy";
  tensor(step.dy).buffer = tensor(step.y).buffer;
  step.ops()[0].writes.push_back(targets);
  step.ops()[2].def = &ops::cross_entropy;
  step.ops()[2].reads = {step.y, targets};
  step.ops()[2].writes = {step.loss, lse};
  step.ops()[3].def = &ops::cross_entropy_and_grad;
  step.ops()[3].reads = {step.y, targets};
  step.ops()[3].writes = {again, lse, step.dy};
  for (const size_t loss : {2u, 3u}) step.ops()[loss].attrs.set("scale", 0.5);
  step.add("linear", {step.x, step.w}, {step.y}, Phase::backward);
  step.move(8, 3);
  EXPECT_EQ(check(step), "");
  step.drop(4);
  EXPECT_EQ(found(step), "another value: linear_dw reads 'dy' at the place of 'y'; linear wrote it");
}

// Clipping: the norm of a gradient, then an update scaled by the coefficient.
Step clipped(std::vector<Axis> axes) {
  Step step(std::move(axes));
  const int norm = step.shaped(step.buffer("norm", 1), {}, Role::activation);
  const int clip = step.shaped(step.buffer("clip", 1), {}, Role::activation);
  const int seen = step.shaped(step.buffer("seen", 1), {}, Role::activation);
  step.ops()[7].reads.push_back(clip);
  step.add("norm2", {step.g}, {norm}, Phase::step);
  step.move(8, 7);
  step.add("clip_coefficient", {norm}, {clip, seen}, Phase::step);
  step.move(9, 8);
  return step;
}

TEST(VerifyValues, TheNormHasEveryElementOnce) {
  Step step = clipped({{"dp", 2}});
  EXPECT_EQ(check(step), "");
  Step half = step;
  half.ops()[7].reads = {half.tensor(1, 0, 8)};
  EXPECT_EQ(found(half), expected());
  Step both = step;
  both.ops()[7].reads.push_back(both.g);
  EXPECT_EQ(found(both), expected());
}

// With --non-finite each update reads the norm of all gradients to decide whether to skip.
TEST(VerifyValues, EachUpdateIsToldWhetherToSkip) {
  const std::string why = "updates parameters also where gradients are not finite";
  Step unclipped;
  unclipped.program.schedule.most_skips = 10;
  EXPECT_NE(check(unclipped).find(why), std::string::npos) << check(unclipped);
  Step step = clipped({{"dp", 2}});
  step.program.schedule.most_skips = 10;
  EXPECT_NE(check(step).find(why), std::string::npos) << check(step);
  step.ops()[8].attrs.set("skip", int64_t{1});
  EXPECT_EQ(check(step), "");
}

TEST(VerifyValues, TheNormIsOverAllStages) {
  // Two stages with their own parameters, here as programs that differ only in a name.
  const auto job_of = [](const Step& step) {
    Job job;
    job.classes = {step.program, step.program};
    job.classes[1].name = "other";
    job.class_of_rank = {0, 0, 1, 1};
    return job;
  };
  Step one_stage = clipped({{"pp", 2}, {"dp", 2}});
  EXPECT_NE(only(verify_job(job_of(one_stage), 0))
                .find("clips by the norm of one rank's part over pp: a sum over pp is missing; norm2"),
            std::string::npos);
  Step all = one_stage;
  all.reduce(all.ops()[7].writes[0].index(), "sum", "pp");
  all.move(10, 8);
  EXPECT_EQ(only(verify_job(job_of(all), 0)), "");
}

// Weights and their gradients are shards of a flat vector.
TEST(VerifyValues, ShardsAreGatheredAndScattered) {
  Step step;
  const int full = step.buffer("full", 16), grads = step.buffer("grads", 16);
  Attrs& init = step.program.init().streams[0].ops[0].attrs;
  init.set("axis", "dp");
  step.shaped(step.w, {8}, Role::activation);
  step.shaped(step.g, {8}, Role::activation);
  const int weight = step.tensor(step.program.tensors[full].buffer, 0, 16);
  const int gradient = step.tensor(step.program.tensors[grads].buffer, 0, 16);
  for (const int id : {weight, gradient}) step.program.tensors[id].shape = {8, 2};
  step.ops()[1].reads[1] = weight;
  step.ops()[4].writes = {gradient};
  step.ops()[6] = step.ops()[5];
  step.ops()[6].def = &ops::reduce_scatter;
  step.ops()[6].reads = {grads};
  step.ops()[6].writes = {step.g};
  Op& gather = step.add("all_gather", {step.w}, {full}, Phase::forward);
  gather.axis = "dp";
  step.move(8, 1);
  EXPECT_EQ(check(step), "");

  Step shorter = step;
  const int part = shorter.tensor(0, 0, 4), partly = shorter.tensor(shorter.program.tensors[full].buffer, 0, 8);
  shorter.ops()[1].reads = {part};
  shorter.ops()[1].writes = {partly};
  shorter.op(ops::fill, {}, {shorter.tensor(shorter.program.tensors[full].buffer, 8, 8)});
  shorter.move(9, 1);
  EXPECT_EQ(found(shorter), expected());
}

// The axis dp cuts the vector, and node its shards: gathers join them in the opposite order.
TEST(VerifyValues, ShardsOfShardsJoinInTheOrderOfTheirCuts) {
  Step step({{"node", 2}, {"dp", 2}});
  step.program.step().data.global_batch = 8;
  step.ops()[0].attrs.set("axis", std::string("node,dp"));
  step.program.init().streams[0].ops[0].attrs.set("axis", std::string("dp,node"));
  const int full = step.buffer("full", 16), grads = step.buffer("grads", 16), piece = step.buffer("piece", 8),
            part = step.buffer("part", 8);
  for (const int id : {step.w, step.g}) step.program.tensors[id].shape = {4};
  const int weight = step.tensor(step.program.tensors[full].buffer, 0, 16);
  const int gradient = step.tensor(step.program.tensors[grads].buffer, 0, 16);
  for (const int id : {weight, gradient}) step.program.tensors[id].shape = {8, 2};
  step.ops()[1].reads[1] = weight;
  step.ops()[4].writes = {gradient};
  const auto scatter = [&](size_t at, int from, int to, const char* axis) {
    Op& made = step.add("reduce_scatter", {from}, {to}, Phase::backward);
    made.axis = axis;
    made.attrs.set("op", std::string("avg"));
    step.move(step.ops().size() - 1, at);
  };
  const auto gather = [&](size_t at, int from, int to, const char* axis) {
    step.add("all_gather", {from}, {to}, Phase::forward).axis = axis;
    step.move(step.ops().size() - 1, at);
  };
  step.reduce(step.loss, "avg", "node");
  step.move(8, 5);
  step.drop(7);  // the average of the gradient
  scatter(7, grads, part, "dp");
  scatter(8, part, step.g, "node");
  gather(1, step.w, piece, "node");
  gather(2, piece, full, "dp");
  EXPECT_EQ(check(step), "");

  Step other = step;
  std::swap(other.ops()[1].axis, other.ops()[2].axis);
  EXPECT_NE(found(other).find("gathers over dp a shard cut over dp,node: the last of these joins its parts first"),
            std::string::npos)
      << found(other);
  other = step;
  std::swap(other.ops()[9].axis, other.ops()[10].axis);
  EXPECT_NE(check(other).find("takes shards cut over node,dp together with shards cut over dp,node"), std::string::npos)
      << check(other);
  other = step;
  other.ops()[10].axis = "dp";
  EXPECT_NE(check(other).find("reduces over dp what are different things there"), std::string::npos) << check(other);
}

}  // namespace
}  // namespace prun

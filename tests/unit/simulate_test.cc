// Costs that the clock charges: collectives by the formulas of the simulation's design, GEMMs by tiles and waves, and
// quantities with units.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "ir/op_cost.h"
#include "ir/ops.h"
#include "simulate/cluster.h"
#include "simulate/collective_cost.h"
#include "simulate/op_cost.h"

namespace prun::simulate {
namespace {

Cluster a100() {
  Cluster cluster;
  cluster.device.peak[static_cast<size_t>(Dtype::bf16)] = 312e12;
  cluster.device.sustained = 0.79;
  cluster.device.half_k = 128;
  cluster.device.multiprocessors = 108;
  cluster.device.memory_bandwidth = 2.04e12;
  cluster.device.launch_s = 4e-6;
  cluster.bus = {.name = "bus", .bandwidth = 180e9, .step_s = 3.4e-6, .tree_step_s = 4e-6, .message_s = 15e-6};
  cluster.network = {{.name = "net", .bandwidth = 24e9, .step_s = 14e-6, .tree_step_s = 14e-6, .message_s = 15e-6}};
  cluster.collective_s = 8.4e-6;
  return cluster;
}

TensorId add(Program& program, Dtype dtype, Shape shape) {
  const int64_t bytes = element_count(shape) * dtype_bytes(dtype);
  program.buffers.push_back({"", Role::activation, bytes});
  program.tensors.push_back({"", program.buffers.last(), 0, dtype, std::move(shape)});
  return program.tensors.last();
}

TEST(Collectives, RingInsideANode) {
  const Cluster cluster = a100();
  const GroupShape group{.ranks = 8, .nodes = 1, .per_node = 8, .bus = 180e9};
  for (const double bytes : {1e3, 4e6, 1e9}) {
    EXPECT_DOUBLE_EQ(collective_seconds(cluster, CollKind::all_reduce, group, bytes),
                     8.4e-6 + 14 * 3.4e-6 + 2 * 7.0 / 8 * bytes / 180e9);
    EXPECT_DOUBLE_EQ(collective_seconds(cluster, CollKind::all_gather, group, bytes),
                     8.4e-6 + 7 * 3.4e-6 + 7.0 / 8 * bytes / 180e9);
    EXPECT_DOUBLE_EQ(collective_seconds(cluster, CollKind::reduce_scatter, group, bytes),
                     collective_seconds(cluster, CollKind::all_gather, group, bytes));
  }
}

TEST(Collectives, RingOverNodesOrTree) {
  const Cluster cluster = a100();
  const GroupShape group{.ranks = 64, .nodes = 8, .per_node = 8, .level = 1, .bus = 180e9, .network = 8 * 24e9};
  const auto ring = [](double bytes) {
    return 8.4e-6 + (126 - 14) * 3.4e-6 + 14 * 14e-6 + 2 * 63.0 / 64 * bytes / 180e9;
  };
  const auto tree = [](double bytes) {
    return 8.4e-6 + 2 * (7 * 4e-6 + 3 * 14e-6) + 2 * 63.0 / 64 * bytes / (0.83 * 180e9);
  };
  for (const double bytes : {1e3, 1e8, 1e10})
    EXPECT_NEAR(collective_seconds(cluster, CollKind::all_reduce, group, bytes), std::min(ring(bytes), tree(bytes)),
                1e-15 * bytes + 1e-15);
  EXPECT_LT(tree(1e3), ring(1e3));
  EXPECT_LT(ring(1e10), tree(1e10));
}

// Two channels per NIC between nodes, at most as many as inside a node.
TEST(Collectives, ChannelsOccupyMultiprocessors) {
  Cluster cluster = a100();
  cluster.bus.channels = 24;
  cluster.network[0].channels = 2;
  GroupShape group{.ranks = 8, .nodes = 1, .per_node = 8, .bus = 180e9};
  EXPECT_EQ(occupied_multiprocessors(cluster, group), 24);
  group = {.ranks = 16, .nodes = 16, .per_node = 1, .level = 1, .bus = 180e9, .network = 24e9};
  EXPECT_EQ(occupied_multiprocessors(cluster, group), 2);
  group = {.ranks = 128, .nodes = 16, .per_node = 8, .level = 1, .bus = 180e9, .network = 8 * 24e9};
  EXPECT_EQ(occupied_multiprocessors(cluster, group), 16);
  group.network *= 2;
  EXPECT_EQ(occupied_multiprocessors(cluster, group), 24);
  EXPECT_EQ(occupied_multiprocessors(cluster, GroupShape{}), 0);
}

TEST(Collectives, OneRankTakesNothing) {
  EXPECT_EQ(collective_seconds(a100(), CollKind::all_reduce, GroupShape{}, 1e9), 0);
}

// Measured parameters replace those of the formula, not the formula.
TEST(Collectives, MeasuredOnThisLink) {
  Cluster cluster = a100();
  cluster.bus.collectives[CollKind::all_reduce] = {2e-6, {{{1e6, 10e9}, {4e6, 5e9}}}};
  const GroupShape group{.ranks = 4, .nodes = 1, .per_node = 4, .bus = 180e9};
  const auto seconds = [&](double sent) {  // 2 · 3 / 4 of the buffer
    return collective_seconds(cluster, CollKind::all_reduce, group, sent * 4 / 6);
  };
  EXPECT_DOUBLE_EQ(seconds(1e3), 8.4e-6 + 6 * 2e-6 + 1e3 / 10e9);
  EXPECT_DOUBLE_EQ(seconds(1e6), 8.4e-6 + 6 * 2e-6 + 1e6 / 10e9);
  EXPECT_DOUBLE_EQ(seconds(2e6), 8.4e-6 + 6 * 2e-6 + 2e6 / std::sqrt(10e9 * 5e9));
  EXPECT_DOUBLE_EQ(seconds(1e9), 8.4e-6 + 6 * 2e-6 + 1e9 / 5e9);
  GroupShape degraded = group;
  degraded.bus = 90e9;
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, CollKind::all_reduce, degraded, 4e6), 8.4e-6 + 12e-6 + 6e6 / 2.5e9);
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, CollKind::all_gather, group, 4e6), 8.4e-6 + 3 * 3.4e-6 + 3e6 / 180e9);
}

// Calibrations measure no collectives with blocks of individual sizes.
TEST(Collectives, OfUnequalBlocksTakeTheTimeOfEqualOnes) {
  Cluster cluster = a100();
  const GroupShape group{.ranks = 4, .nodes = 1, .per_node = 4, .bus = 180e9};
  for (const bool measured : {false, true}) {
    if (measured) cluster.bus.collectives[CollKind::all_to_all] = {2e-6, {{{1e6, 10e9}}}};
    EXPECT_DOUBLE_EQ(collective_seconds(cluster, CollKind::all_to_all_v, group, 4e6),
                     measured ? 8.4e-6 + 3 * 2e-6 + 3e6 / 10e9 : 8.4e-6 + 3 * 3.4e-6 + 3e6 / 180e9);
  }
  Program program;
  program.mesh = Mesh({{"ep", 4}});
  const OpDef exchange{.name = "exchange", .role = OpRole::collective, .coll = CollKind::all_to_all_v};
  Op op;
  op.def = &exchange;
  op.reads = op.writes = {add(program, Dtype::bf16, {4096})};
  op.axis = "ep";
  EXPECT_EQ(wire_bytes(program, op), 3.0 / 4 * 8192);
  EXPECT_EQ(full_bytes(program, op), 8192);
}

TEST(ClusterFiles, WhatIsWrittenIsRead) {
  Cluster cluster = a100();
  cluster.name = "here";
  cluster.network.clear();
  cluster.device.memory_bytes = 1024.0 * (1 << 20);
  cluster.device.wake_s = 2e-5;
  cluster.device.shared_cores = true;
  cluster.device.ops[{"linear", Dtype::f32}] = {1e-6, {{{0, 100e9}}}, {}};
  cluster.device.ops[{"linear", Dtype::bf16}] = {1e-6, {{{65536, 200e9}, {1 << 20, 900e9}}}, {}};
  cluster.device.ops[{"add", Dtype::f32}] = {0, {}, {{{1000, 20e9}, {1 << 24, 125e6}}}};
  cluster.bus.collectives[CollKind::all_gather] = {3e-6, {{{32768, 8e9}, {1 << 22, 4e9}}}};
  cluster.bus.algorithms[CollKind::all_reduce]["ring"] = {4e-6, {{{0, 1e9}}}};
  cluster.transports["socket"] = cluster.bus;
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "prun_written_cluster.yaml";
  std::ofstream(path) << cluster_text(cluster, "one line\nanother");
  const Cluster read = read_cluster(path.string());
  std::filesystem::remove(path);
  EXPECT_EQ(read.device.ops, cluster.device.ops);
  EXPECT_DOUBLE_EQ(read.device.wake_s, cluster.device.wake_s);
  EXPECT_DOUBLE_EQ(read.device.memory_bytes, cluster.device.memory_bytes);
  EXPECT_EQ(read.device.peak, cluster.device.peak);
  EXPECT_TRUE(read.device.shared_cores);
  EXPECT_EQ(read.bus.collectives, cluster.bus.collectives);
  EXPECT_EQ(read.bus.algorithms, cluster.bus.algorithms);
  EXPECT_EQ(read.transports.at("socket").collectives, cluster.bus.collectives);
  EXPECT_DOUBLE_EQ(read.bus.step_s, cluster.bus.step_s);
  EXPECT_EQ(read.nodes.size(), 1u);
}

TEST(Messages, LatencyAndMostOfTheLink) {
  EXPECT_DOUBLE_EQ(message_seconds(a100(), 1, 24e9, 1e9), 15e-6 + 1e9 / (0.95 * 24e9));
}

TEST(Products, WavesOfTiles) {
  const DeviceModel device = a100().device;
  // 4096x4096x4096: 16 x 32 tiles of 256x128 are 512, in 5 waves of 108; 1,024 of 128x128 in 10 waves are as many.
  const double bytes = 3 * 2 * 4096.0 * 4096;
  const OpTime time = product_time(device, {1, 4096, 4096, 4096, bytes, Dtype::bf16});
  EXPECT_NEAR(time.seconds, 5.0 * 108 * 2 * 256 * 128 * 4096 / (312e12 * 0.79 * 4096 / (4096 + 128)) + 4e-6, 1e-12);
  EXPECT_EQ(time.bound, Bound::compute);
  // A matrix-vector product is bound by the memory bandwidth of its matrix.
  const OpTime thin = product_time(device, {1, 1, 8192, 8192, 2 * 8192.0 * 8192, Dtype::bf16});
  EXPECT_NEAR(thin.seconds, 2 * 8192.0 * 8192 / (0.8 * 2.04e12) + 4e-6, 1e-12);
  EXPECT_EQ(thin.bound, Bound::memory);
}

// Four experts of 1,024 slots, a quarter of which hold a token: GEMMs of 256 rows, and of dw over 256.
TEST(Products, OfExpertsSkipEmptySlots) {
  const DeviceModel device = a100().device;
  Program program;
  const auto tensor = [&](Dtype dtype, Shape shape) { return add(program, dtype, std::move(shape)); };
  const TensorId x = tensor(Dtype::bf16, {4, 1024, 512}), w = tensor(Dtype::bf16, {4, 512, 2048});
  const TensorId y = tensor(Dtype::bf16, {4, 1024, 2048}), dw = tensor(Dtype::f32, {4, 512, 2048});
  const TensorId filled = tensor(Dtype::i32, {4, 8});
  const double x_bytes = 4.0 * 1024 * 512 * 2, w_bytes = 4.0 * 512 * 2048 * 2, y_bytes = 4.0 * 1024 * 2048 * 2;
  const auto seconds = [&](const OpDef& def, std::vector<TensorId> reads, TensorId result, double routed) {
    Op op;
    op.def = &def;
    op.reads = std::move(reads);
    op.writes = {result};
    op.attrs.set("routed", routed);
    return op_time(device, program, op).seconds;
  };
  const auto product = [&](double m, double n, double k, double bytes) {
    return product_time(device, {4, m, n, k, bytes + 4 * 8 * 4, Dtype::bf16}).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(ops::expert_linear, {x, w, filled}, y, 0.25),
                   product(256, 2048, 512, x_bytes / 4 + w_bytes + y_bytes));
  EXPECT_DOUBLE_EQ(seconds(ops::expert_linear_dx, {y, w, filled}, x, 0.25),
                   product(256, 512, 2048, y_bytes / 4 + w_bytes + x_bytes));
  EXPECT_DOUBLE_EQ(seconds(ops::expert_linear_dw, {x, y, filled}, dw, 0.25),
                   product(512, 2048, 256, (x_bytes + y_bytes) / 4 + 2 * w_bytes));
  EXPECT_DOUBLE_EQ(seconds(ops::expert_linear, {x, w, filled}, y, 1),
                   product(1024, 2048, 512, x_bytes + w_bytes + y_bytes));
}

TEST(Quantities, UnitsAndMistakes) {
  EXPECT_DOUBLE_EQ(read_quantity("312 TFLOP/s", Unit::flops), 312e12);
  EXPECT_DOUBLE_EQ(read_quantity("100 Gbit/s", Unit::bandwidth), 12.5e9);
  EXPECT_DOUBLE_EQ(read_quantity("4us", Unit::seconds), 4e-6);
  EXPECT_DOUBLE_EQ(read_quantity("0.79", Unit::none), 0.79);
  for (const char* text : {"", "fast", "nan s", "inf s", "-1 s", "1 sec", "1", "1e999 s"})
    EXPECT_THROW(read_quantity(text, Unit::seconds), Error) << text;
  EXPECT_THROW(read_quantity("3 s", Unit::none), Error);
}

}  // namespace
}  // namespace prun::simulate

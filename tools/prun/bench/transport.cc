// Opens a measured transport. Both buffers are touched before the first measurement.
#include "bench/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/transport/interfaces.h"
#include "comm/transport/plugin.h"
#include "plugin_path.h"

namespace prun {
namespace {

// Distance between the two buffers. Powers of two conflict in the caches, and a load whose low 12 address bits are
// slightly above a store's waits for that store (4K aliasing).
constexpr int64_t kApart = 8192 - 5 * kAlignBytes;

WorldOptions world_options(const BenchOptions& options, int number, const RankStart& start) {
  WorldOptions world = options.bench.sides[number];
  static_cast<RankPlace&>(world) = start;
  const NamedPlugin plugin = name_plugin(world.transport, world.plugin_dirs);
  world.transport = plugin.name;
  world.plugin_dirs = plugin.dirs;
  if (number > 0) world.job_id += "b";  // both sides may be of one kind
  // The options are node 0's; each node resolves its own interface.
  settle_network(world, options.job.launch.nnodes, options.job.launch.rendezvous);
  if (!options.bench.memory.empty()) {
    world.memory = static_cast<prun_mem_kind>(bench_device(options.bench.memory).mem_kind);
    world.device = options.job.device_of(start.local_rank);
  }
  return world;
}

}  // namespace

BenchTransport::BenchTransport(const BenchOptions& options, int number, const RankStart& start, Bootstrap& bootstrap)
    : side_(world_options(options, number, start)), world_(World::open(side_, bootstrap)) {
  room_ = round_up(std::max<int64_t>(options.bench.most_bytes(), 8 * start.ranks), 4096) + kApart;
  buffers_ = std::make_unique<BenchBuffers>(*world_, options.bench, options.job.device_of(start.local_rank), 2 * room_);
  ranks_.resize(static_cast<size_t>(start.ranks));
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

void BenchTransport::connect() {
  world_->connect();
  group_ = &world_->communicator(ranks_, 0);
}

CollCall BenchTransport::placed(CollCall call, bool in_place) const {
  call.queue = buffers_->queue();
  return placed_at(buffers_->data(), call, in_place);
}

CollCall BenchTransport::placed_on_host(CollCall call, bool in_place) const {
  return placed_at(buffers_->host(), call, in_place);
}

CollCall BenchTransport::placed_at(char* send, CollCall call, bool in_place) const {
  const int64_t mine = group_->index() * call.count * dtype_bytes(call.dtype);
  char* recv = send + room_;
  call.send = in_place ? recv : send;
  call.recv = recv;
  if (in_place && call.kind == CollKind::all_gather) call.send = recv + mine;
  if (in_place && call.kind == CollKind::reduce_scatter) call.recv = recv + mine;
  return call;
}

void BenchTransport::run(const BenchOp& op, const CollCall& call) const {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const int me = group_->index(), n = group_->size();
  switch (op.what) {
    case BenchOp::What::collective:
      group_->run(call);
      break;
    case BenchOp::What::send_recv:
      group_->send_recv((me + 1) % n, call.send, bytes, (me + n - 1) % n, call.recv, bytes);
      break;
    case BenchOp::What::ping_pong:  // ping, then pong
      if (me == 0) group_->send_recv(1, call.send, bytes, -1, nullptr, 0);
      if (me < 2) group_->send_recv(-1, nullptr, 0, 1 - me, call.recv, bytes);
      if (me == 1) group_->send_recv(0, call.send, bytes, -1, nullptr, 0);
      break;
    case BenchOp::What::idle:
      break;
  }
}

std::string BenchTransport::plugin_file() const {
  for (const PluginFile& file : find_plugins(side_.plugin_dirs)) {
    if (file.name == name()) return file.path;
  }
  return "";
}

}  // namespace prun

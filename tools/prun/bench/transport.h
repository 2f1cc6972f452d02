// A measured transport: its world, the group of all ranks, and two buffers in one arena, where a program's tensors lie
// too.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/buffers.h"
#include "bench/ops.h"
#include "bench/settings.h"
#include "comm/comm.h"

namespace prun {

class BenchTransport {
 public:
  // `number`: 0 or 1, which of the sides.
  BenchTransport(const BenchOptions& options, int number, const RankStart& start, Bootstrap& bootstrap);
  void connect();

  // `call` with the buffers of this transport.
  CollCall placed(CollCall call, bool in_place) const;
  // The same with the host's copy of the buffers, which `put` and `fetch` transfer.
  CollCall placed_on_host(CollCall call, bool in_place) const;
  const BenchBuffers& buffers() const { return *buffers_; }
  void run(const BenchOp& op, const CollCall& call) const;  // a collective or a message

  Communicator& group() const { return *group_; }
  const std::string& transport_options() const { return side_.transport_options; }
  std::string name() const { return world_->transport_name(); }
  std::string plugin_file() const;  // the loaded file; "" where the transport is not one plugin

 private:
  CollCall placed_at(char* send, CollCall call, bool in_place) const;

  WorldOptions side_;
  std::unique_ptr<BenchBuffers> buffers_;  // outlives the world that was told of it
  std::unique_ptr<World> world_;
  int64_t room_ = 0;  // of each of the two
  std::vector<int> ranks_;
  Communicator* group_ = nullptr;
};

}  // namespace prun

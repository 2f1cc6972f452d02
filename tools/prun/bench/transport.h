// A measured transport: its world, the group of all ranks, and two buffers in one arena, like a program's tensors.
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
  // `number`: index of the side, 0 or 1.
  BenchTransport(const BenchOptions& options, int number, const RankStart& start, Bootstrap& bootstrap);
  void connect();

  // Returns `call` with the buffers of this transport.
  CollCall placed(CollCall call, bool in_place) const;
  // Returns `call` with the host's copy of the buffers; `put` and `fetch` transfer the copy.
  CollCall placed_on_host(CollCall call, bool in_place) const;
  const BenchBuffers& buffers() const { return *buffers_; }
  void run(const BenchOp& op, const CollCall& call) const;  // a collective or a message

  Communicator& group() const { return *group_; }
  const std::string& transport_options() const { return side_.transport_options; }
  std::string name() const { return world_->transport_name(); }
  std::string plugin_file() const;  // the loaded file; "" if the transport is not a single plugin

 private:
  CollCall placed_at(char* send, CollCall call, bool in_place) const;

  WorldOptions side_;
  std::unique_ptr<BenchBuffers> buffers_;  // outlives the world that refers to it
  std::unique_ptr<World> world_;
  int64_t room_ = 0;  // bytes per buffer
  std::vector<int> ranks_;
  Communicator* group_ = nullptr;
};

}  // namespace prun

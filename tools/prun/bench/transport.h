// A transport that is measured: its world, the group of all ranks, and two buffers in one arena, as a program's tensors
// lie in one.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/ops.h"
#include "bench/settings.h"
#include "comm/comm.h"
#include "launch/launch.h"

namespace prun {

class BenchTransport {
 public:
  // `number`: 0 or 1, which of the sides.
  BenchTransport(const BenchSide& side, int number, const BenchSettings& settings, const RankStart& start,
                 Bootstrap& bootstrap, const std::vector<std::string>& plugin_dirs);
  void connect();

  // `call` with the buffers of this transport.
  CollCall placed(CollCall call, bool in_place) const;
  void run(const BenchOp& op, const CollCall& call) const;  // a collective or a message

  Communicator& group() const { return *group_; }
  const BenchSide& side() const { return side_; }
  std::string name() const { return world_->transport_name(); }
  std::string plugin_file() const;  // that was loaded; "" where it is not one plugin

 private:
  BenchSide side_;
  std::unique_ptr<World> world_;
  std::vector<char> foreign_;  // --foreign
  char *send_ = nullptr, *recv_ = nullptr;
  std::vector<std::string> plugin_dirs_;
  std::vector<int> ranks_;
  Communicator* group_ = nullptr;
};

}  // namespace prun

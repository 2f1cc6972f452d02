// Resolves each put to an offset in the receiver's arena. Memory is laid out at compile time, so that offsets are known
// as soon as all programs have theirs, and no rank ever sends an address.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

// The k-th put from one rank to another on a lane writes to the tensor of the receiver's k-th offer.
using Channel = std::pair<std::vector<int>, int>;  // sender and receiver, lane

std::map<Channel, std::vector<Op*>> ops_of(Body& body, const Mesh& mesh, int rank, bool offers) {
  std::map<Channel, std::vector<Op*>> ops;
  for (Stream& stream : body.streams)
    for (Op& op : stream.ops)
      if (offers ? op.offers() : op.is(ops::put)) ops[{members_of(mesh, op, rank), op.lane}].push_back(&op);
  return ops;
}

void address(Job& job, int rank) {
  Program& program = job.classes[job.class_of_rank[rank]];
  for (BodyId id : program.bodies.ids()) {
    for (auto& [channel, puts] : ops_of(program.bodies[id], program.mesh, rank, false)) {
      const int receiver = channel.first[1];
      Program& theirs = job.classes[job.class_of_rank[receiver]];
      const std::vector<Op*> offers = ops_of(theirs.bodies[id], theirs.mesh, receiver, true)[channel];
      for (size_t k = 0; k < puts.size() && k < offers.size(); ++k) {  // verify reports unmatched puts
        const Tensor& tensor = theirs.tensors[offers[k]->writes.front()];
        puts[k]->attrs.set("offset", theirs.buffers[tensor.buffer].offset + tensor.byte_offset);
      }
    }
  }
}

}  // namespace

void resolve_put_offsets(Job& job) {
  std::vector<bool> known(job.classes.size(), false);
  for (int rank = 0; rank < std::ssize(job.class_of_rank); ++rank) {
    const size_t id = job.class_of_rank[rank];
    if (!known[id]) address(job, rank);
    known[id] = true;
  }
}

}  // namespace prun

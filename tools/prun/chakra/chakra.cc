// Field numbers and types are from et_def.proto (github.com/mlcommons/chakra, schema 1.0), attribute names from
// ASTRA-sim.
//
// Sizes of collectives are those of a rank's input, as ASTRA-sim expects: a shard for all_gather, the whole for the
// others. A rank's collectives and sends on different streams are chained in one order that is consistent over all
// ranks.
#include "chakra/chakra.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "chakra/protobuf_message.h"
#include "ir/op_cost.h"
#include "ir/ops.h"

namespace prun {
namespace chakra {
namespace {

enum NodeType { kMemLoad = 2, kMemStore = 3, kCompute = 4, kSend = 5, kReceive = 6, kCollective = 7 };

// Indexed by CollKind.
constexpr int kCommTypes[kCollKinds] = {0, 2, 7, 5, 1, 3, 4, 6, 9, 2, 6};

// A collective of one rank is a compute node, because ASTRA-sim would wait for its end.
NodeType type_of(const Mesh& mesh, const Op& op) {
  if (op.is(ops::load)) return kMemLoad;
  if (op.is(ops::store)) return kMemStore;
  if (!op.communicates() || op.offers() || mesh.size(op.axis) == 1) return kCompute;
  return op.sends() ? kSend : op.receives() ? kReceive : kCollective;
}

Message attribute(const char* name, int field, uint64_t value) {
  Message attr;
  attr.text(1, name);
  attr.number(field, value);
  return attr;
}
Message attribute(const char* name, std::string_view value) {
  Message attr;
  attr.text(1, name);
  attr.text(29, value);
  return attr;
}
constexpr int kInt32 = 7, kInt64 = 9, kUint64 = 13, kBool = 27;

class Writer {
 public:
  Writer(const Job& job, const std::string& prefix) : job_(job), prefix_(prefix), mesh_(job.classes.front().mesh) {}

  void write() {
    const std::vector<std::vector<Place>> order = op_order(job_);
    for (size_t r = 0; r < order.size(); ++r) write_rank(static_cast<int>(r), order[r]);
    nlohmann::ordered_json groups = nlohmann::ordered_json::object();
    for (const auto& [members, number] : in_order()) groups[std::to_string(number)] = members;
    save(prefix_ + ".groups.json", groups.dump() + "\n");
  }

 private:
  using Group = std::pair<std::string, std::vector<int>>;  // key of a group: lane of an axis, members

  // Returns the number of a group, from 1, because ASTRA-sim's 0 means all ranks.
  int number_of(const Op& op, std::vector<int> members) {
    const Group group{fmt::format("{}/{}", op.axis, op.lane), std::move(members)};
    return groups_.try_emplace(group, static_cast<int>(groups_.size()) + 1).first->second;
  }

  std::vector<std::pair<std::vector<int>, int>> in_order() const {
    std::vector<std::pair<std::vector<int>, int>> all;
    for (const auto& [group, number] : groups_) all.emplace_back(group.second, number);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return all;
  }

  void write_rank(int rank, const std::vector<Place>& order) {
    const Program& program = job_.program(rank);
    std::vector<uint64_t> first;  // id of each stream's first op
    uint64_t next = 1;
    for (const Stream& stream : program.step().streams) {
      first.push_back(next);
      next += stream.ops.size();
    }
    const auto id_of = [&](int stream, int op) {
      return first[static_cast<size_t>(stream)] + static_cast<uint64_t>(op);
    };
    Message file, metadata;
    metadata.text(1, "1.0.0");
    file.delimited(metadata);
    std::map<std::pair<std::string, std::vector<int>>, int> messages;  // count of messages by lane and pair
    const Place* last = nullptr;                                       // the last collective or send
    for (const Place& place : order) {
      const Op& op = program.step().streams[place.stream].ops[static_cast<size_t>(place.op)];
      Message node;
      node.number(1, id_of(place.stream, place.op));
      node.text(2, op.unit.empty() ? std::string(op.def->name) : fmt::format("{} {}", op.def->name, op.unit));
      const NodeType type = type_of(mesh_, op);
      node.number(3, static_cast<uint64_t>(type));
      const bool chained = type == kCollective || type == kSend;
      if (chained && last != nullptr && last->stream != place.stream) node.number(4, id_of(last->stream, last->op));
      if (chained) last = &place;
      if (place.op > 0) node.number(5, id_of(place.stream, place.op - 1));
      for (const Edge& edge : op.waits)
        if (edge.back == 0) node.number(5, id_of(edge.stream.index(), edge.index));
      node.message(10, attribute("is_cpu_op", kBool, op.def->op_class == OpClass::host ? 1 : 0));
      if (type >= kSend)
        communication(node, program, op, rank, messages);
      else
        work(node, program, op);
      if (op.site.known()) node.message(10, attribute("site", op.site.text()));
      if (op.microbatch >= 0) node.message(10, attribute("microbatch", kInt64, static_cast<uint64_t>(op.microbatch)));
      file.delimited(node);
    }
    save(fmt::format("{}.{}.et", prefix_, rank), file.bytes());
  }

  // Writes at least one operation, so that a roofline has no 0/0; the time then follows from the bytes.
  static void work(Message& node, const Program& program, const Op& op) {
    const Cost cost = op_cost(program, op);
    node.message(10, attribute("num_ops", kInt64, static_cast<uint64_t>(std::max(1.0, cost.flops))));
    node.message(10, attribute("tensor_size", kUint64, static_cast<uint64_t>(cost.bytes)));
  }

  void communication(Message& node, const Program& program, const Op& op, int rank,
                     std::map<std::pair<std::string, std::vector<int>>, int>& messages) {
    const std::vector<int> members = members_of(mesh_, op, rank);
    const auto& tensors = op.reads.empty() || op.receives() ? op.writes : op.reads;
    const int64_t bytes = tensors.empty() ? 0 : program.tensors[tensors.front()].bytes();
    node.message(10, attribute("comm_size", kInt64, static_cast<uint64_t>(bytes)));
    if (!op.point_to_point()) {
      node.message(10,
                   attribute("comm_type", kInt64, static_cast<uint64_t>(kCommTypes[static_cast<int>(*op.def->coll)])));
      node.message(10, attribute("pg_name", std::to_string(number_of(op, members))));
      return;
    }
    // Messages of a pair on one lane arrive in sending order; a program has few lanes.
    const std::string lane = fmt::format("{}/{}", op.axis, op.lane);
    const int tag =
        lanes_.try_emplace(lane, static_cast<int>(lanes_.size())).first->second << 20 | messages[{lane, members}]++;
    node.message(10, attribute("comm_src", kInt32, static_cast<uint64_t>(members[0])));
    node.message(10, attribute("comm_dst", kInt32, static_cast<uint64_t>(members[1])));
    node.message(10, attribute("comm_tag", kInt32, static_cast<uint64_t>(tag)));
  }

  static void save(const std::string& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
    file.close();
    if (!file) throw usage_error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }

  const Job& job_;
  const std::string prefix_;
  const Mesh& mesh_;
  std::map<Group, int> groups_;
  std::map<std::string, int> lanes_;
};

}  // namespace
}  // namespace chakra

void write_chakra(const Job& job, const std::string& prefix) { chakra::Writer(job, prefix).write(); }

}  // namespace prun

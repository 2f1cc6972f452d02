#include "exec/regions.h"

#include <algorithm>
#include <map>

#include "ir/ops.h"

namespace prun {
namespace {

using HostSet = std::vector<bool>;

std::vector<int> members(const HostSet& set) {
  std::vector<int> ids;
  for (size_t i = 0; i < set.size(); ++i)
    if (set[i]) ids.push_back(i);
  return ids;
}

// The end of an op: its item on the device (-1 = none), and the host ops that precede it.
struct End {
  int item = -1;
  HostSet hosts;
};

class Builder {
 public:
  Builder(const Body& body, const Table<StreamId, std::vector<How>>& how, Regions& out)
      : body_(body), how_(how), out_(out) {
    for (const Stream& stream : body.streams) ends_.emplace_back(stream.ops.size());
    for (const std::vector<How>& of_stream : how) count_ += std::count(of_stream.begin(), of_stream.end(), How::host);
  }

  void build() {
    const Order order(body_);
    find_awaiting(order.sequence());
    for (const OpRef ref : order.sequence()) {
      const How how = how_[ref.stream][ref.index];
      if (how == How::first) {
        out_.first.push_back(ref);
        if (ref.index > 0) end(ref) = end({ref.stream, ref.index - 1});
      } else if (how == How::device) {
        end(ref) = add(Item::Kind::op, ref, -1, before(ref), ends_before(ref));
      } else {
        end(ref) = host(ref);
      }
    }
    for (size_t i = 0; i < out_.items.size(); ++i)
      for (const int source : out_.items[i].waits) out_.items[source].awaited = true;
  }

 private:
  End& end(OpRef ref) { return ends_[ref.stream][ref.index]; }
  const Op& op(OpRef ref) const { return body_.streams[ref.stream].ops[ref.index]; }

  // Computes which host ops wait for each op. Host ops are numbered in the order of the sequence.
  void find_awaiting(const std::vector<OpRef>& sequence) {
    for (const Stream& stream : body_.streams) awaiting_.emplace_back(stream.ops.size(), HostSet(count_));
    size_t host = count_;
    for (auto ref = sequence.rbegin(); ref != sequence.rend(); ++ref) {
      HostSet set = awaiting(*ref);
      if (how_[ref->stream][ref->index] == How::host) set[--host] = true;
      for (const OpRef source : before(*ref)) join(awaiting(source), set);
    }
  }
  HostSet& awaiting(OpRef ref) { return awaiting_[ref.stream][ref.index]; }
  static void join(HostSet& into, const HostSet& other) {
    for (size_t i = 0; i < other.size(); ++i) into[i] = into[i] || other[i];
  }

  // Returns the ops that `ref` follows: on its stream, and by its edges.
  std::vector<OpRef> before(OpRef ref) const {
    std::vector<OpRef> refs;
    if (ref.index > 0) refs.push_back({ref.stream, ref.index - 1});
    for (const Edge& edge : op(ref).waits)
      if (edge.back == 0) refs.push_back({edge.stream, edge.index});
    return refs;
  }
  HostSet ends_before(OpRef ref) {
    HostSet all(count_);
    for (const OpRef source : before(ref)) join(all, end(source).hosts);
    return all;
  }

  End add(Item::Kind kind, OpRef ref, int host, const std::vector<OpRef>& sources, const HostSet& hosts) {
    const int id = std::ssize(out_.items), region = region_of(ref, hosts);
    Item item{kind, ref, host, {}, false};
    for (const OpRef source : sources) {
      const int other = end(source).item;
      if (other < 0) continue;
      if (kind != Item::Kind::land) follow(region, other);
      if (out_.items[other].op.stream != ref.stream) item.waits.push_back(other);
    }
    out_.items.push_back(std::move(item));
    out_.region_of.push_back(region);
    out_.regions[region].items.push_back(id);
    return {id, hosts};
  }

  End host(OpRef ref) {
    const int id = std::ssize(out_.hosts);
    HostSet hosts = ends_before(ref);
    End armed = add(Item::Kind::arm, ref, id, before(ref), hosts);
    out_.hosts.push_back({ref, members(hosts), armed.item, !op(ref).writes.empty()});
    hosts[id] = true;
    if (op(ref).writes.empty()) return {armed.item, hosts};
    end(ref) = armed;
    return add(Item::Kind::land, ref, id, {ref}, hosts);
  }

  int region_of(OpRef ref, const HostSet& hosts) {
    const auto [at, fresh] = regions_.try_emplace({hosts, awaiting(ref)}, out_.regions.size());
    if (fresh) out_.regions.push_back({{}, ref.stream, {}, members(hosts)});
    StreamId& origin = out_.regions[at->second].origin;
    origin = std::min(origin, ref.stream);
    return at->second;
  }
  void follow(int region, int item) {
    const int other = out_.region_of[item];
    std::vector<int>& after = out_.regions[region].after;
    if (other != region && std::find(after.begin(), after.end(), other) == after.end()) after.push_back(other);
  }

  const Body& body_;
  const Table<StreamId, std::vector<How>>& how_;
  Regions& out_;
  Table<StreamId, std::vector<End>> ends_;
  Table<StreamId, std::vector<HostSet>> awaiting_;      // by op: the host ops that wait for it
  std::map<std::pair<HostSet, HostSet>, int> regions_;  // by preceding and by waiting host ops
  size_t count_ = 0;                                    // number of host ops
};

}  // namespace

Regions::Regions(const Body& body, const Table<StreamId, std::vector<How>>& how) { Builder(body, how, *this).build(); }

bool can_come_first(const Op& op) {
  return op.is(ops::next_batch) && op.reads.empty() &&
         std::all_of(op.waits.begin(), op.waits.end(), [](const Edge& edge) { return edge.back > 0; });
}

}  // namespace prun

#include "exec/regions.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "ir/ops.h"

namespace prun {
namespace {

// A set of cuts: places where a region ends or begins. Host ops, count reads and counted ops are cuts, numbered in the
// order of the sequence.
class Cuts {
 public:
  explicit Cuts(size_t count = 0) : words_((count + 63) / 64) {}
  void add(size_t cut) { words_[cut / 64] |= uint64_t{1} << cut % 64; }
  void add(const Cuts& others) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= others.words_[i];
  }
  bool has(size_t cut) const { return (words_[cut / 64] >> cut % 64 & 1) != 0; }
  bool operator<(const Cuts& other) const { return words_ < other.words_; }

 private:
  std::vector<uint64_t> words_;
};

// The end of an op: its item on the device (-1 = none), and the cuts that precede whatever follows it.
struct End {
  int item = -1;
  Cuts cuts;
};

constexpr int kNoCut = -1;

class Builder {
 public:
  Builder(const Body& body, const Table<StreamId, std::vector<How>>& how, Regions& out)
      : body_(body), how_(how), out_(out) {}

  void build() {
    const Order order(body_);
    number_cuts(order.sequence());
    find_awaiting(order.sequence());
    for (const OpRef ref : order.sequence()) {
      const How how = way(ref);
      if (how == How::first) {
        out_.first.push_back(ref);
        if (ref.index > 0) end(ref) = end({ref.stream, ref.index - 1});
        continue;
      }
      end(ref) = how == How::device ? add(Item::Kind::op, ref, -1, before(ref), ends_before(ref))
                 : how == How::host ? host(ref)
                                    : counted(ref);
      for (const auto& [counts, cut] : reads_of(ref)) read(ref, counts, cut);
    }
    for (size_t i = 0; i < out_.items.size(); ++i)
      for (const int source : out_.items[i].waits) out_.items[source].awaited = true;
  }

 private:
  using Read = std::pair<TensorId, int>;  // counts, and the cut of their read

  End& end(OpRef ref) { return ends_[ref.stream][ref.index]; }
  Cuts& awaiting(OpRef ref) { return awaiting_[ref.stream][ref.index]; }
  const Op& op(OpRef ref) const { return body_.streams[ref.stream].ops[ref.index]; }
  How way(OpRef ref) const { return how_[ref.stream][ref.index]; }

  void number_cuts(const std::vector<OpRef>& sequence) {
    std::set<TensorId> counts;
    for (const OpRef ref : sequence)
      if (way(ref) == How::counted) counts.insert(counts_of(op(ref)));
    for (const OpRef ref : sequence) {
      if (way(ref) == How::host || way(ref) == How::counted) own_cut_[ref] = count_++;
      for (const TensorId id : op(ref).writes)
        if (counts.count(id) > 0) PRUN_CHECK(cut_of_read_.try_emplace(id, count_++).second, "counts are written twice");
    }
    host_of_cut_.assign(count_, -1);
    for (const Stream& stream : body_.streams) {
      ends_.emplace_back(stream.ops.size(), End{-1, Cuts(count_)});
      awaiting_.emplace_back(stream.ops.size(), Cuts(count_));
    }
  }
  int own_cut(OpRef ref) const {
    const auto found = own_cut_.find(ref);
    return found == own_cut_.end() ? kNoCut : found->second;
  }
  std::vector<Read> reads_of(OpRef ref) const {
    std::vector<Read> reads;
    if (cut_of_read_.empty()) return reads;
    for (const TensorId id : op(ref).writes)
      if (const auto found = cut_of_read_.find(id); found != cut_of_read_.end()) reads.push_back(*found);
    return reads;
  }

  // Computes which cuts wait for each op.
  void find_awaiting(const std::vector<OpRef>& sequence) {
    for (auto ref = sequence.rbegin(); ref != sequence.rend(); ++ref) {
      for (const auto& [counts, cut] : reads_of(*ref)) awaiting(*ref).add(cut);
      Cuts cuts = awaiting(*ref);
      if (const int own = own_cut(*ref); own != kNoCut) cuts.add(own);
      for (const OpRef source : before(*ref)) awaiting(source).add(cuts);
    }
  }

  // Returns the ops that `ref` follows: on its stream, and by its edges.
  std::vector<OpRef> before(OpRef ref) const {
    std::vector<OpRef> refs;
    if (ref.index > 0) refs.push_back({ref.stream, ref.index - 1});
    for (const Edge& edge : op(ref).waits)
      if (edge.back == 0) refs.push_back({edge.stream, edge.index});
    return refs;
  }
  Cuts ends_before(OpRef ref) {
    Cuts all(count_);
    for (const OpRef source : before(ref)) all.add(end(source).cuts);
    return all;
  }
  std::vector<int> hosts_in(const Cuts& cuts) const {
    std::vector<int> hosts;
    for (size_t cut = 0; cut < count_; ++cut)
      if (host_of_cut_[cut] >= 0 && cuts.has(cut)) hosts.push_back(host_of_cut_[cut]);
    return hosts;
  }

  // `alone`: the cut of a counted op, whose region has no other item.
  End add(Item::Kind kind, OpRef ref, int host, const std::vector<OpRef>& sources, const Cuts& cuts,
          int alone = kNoCut) {
    const int id = std::ssize(out_.items), region = region_of(ref, cuts, alone);
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
    return {id, cuts};
  }

  End host(OpRef ref) {
    const int id = std::ssize(out_.hosts), cut = own_cut(ref);
    Cuts cuts = ends_before(ref);
    End armed = add(Item::Kind::arm, ref, id, before(ref), cuts);
    out_.hosts.push_back({ref, hosts_in(cuts), armed.item, !op(ref).writes.empty()});
    host_of_cut_[cut] = id;
    cuts.add(cut);
    if (op(ref).writes.empty()) return {armed.item, cuts};
    end(ref) = armed;
    return add(Item::Kind::land, ref, id, {ref}, cuts);
  }

  void read(OpRef ref, TensorId counts, int cut) {
    const Cuts& cuts = end(ref).cuts;
    const int id = std::ssize(out_.hosts);
    const End armed = add(Item::Kind::arm, ref, id, {ref}, cuts);
    out_.hosts.push_back({ref, hosts_in(cuts), armed.item, false, counts});
    host_of_cut_[cut] = id;
  }

  End counted(OpRef ref) {
    const auto read = cut_of_read_.find(counts_of(op(ref)));
    PRUN_CHECK(read != cut_of_read_.end(), "the counts are computed in another body");
    Cuts cuts = ends_before(ref);
    cuts.add(read->second);
    End ended = add(Item::Kind::op, ref, -1, before(ref), cuts, own_cut(ref));
    out_.regions.back().counted = true;
    ended.cuts.add(own_cut(ref));
    return ended;
  }

  int region_of(OpRef ref, const Cuts& cuts, int alone) {
    const auto [at, fresh] = regions_.try_emplace({cuts, awaiting(ref), alone}, out_.regions.size());
    if (fresh) out_.regions.push_back({{}, ref.stream, {}, hosts_in(cuts)});
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
  size_t count_ = 0;  // number of cuts
  std::map<OpRef, int> own_cut_;
  std::map<TensorId, int> cut_of_read_;
  std::vector<int> host_of_cut_;  // -1: of a counted op
  Table<StreamId, std::vector<End>> ends_;
  Table<StreamId, std::vector<Cuts>> awaiting_;         // by op: the cuts that wait for it
  std::map<std::tuple<Cuts, Cuts, int>, int> regions_;  // by preceding and by waiting cuts
};

}  // namespace

Regions::Regions(const Body& body, const Table<StreamId, std::vector<How>>& how) { Builder(body, how, *this).build(); }

TensorId counts_of(const Op& op) {
  PRUN_CHECK(op.is(ops::exchange_rows), std::string(op.def->name));
  return op.reads[1];
}

bool can_come_first(const Op& op) {
  return op.is(ops::next_batch) && op.reads.empty() &&
         std::all_of(op.waits.begin(), op.waits.end(), [](const Edge& edge) { return edge.back > 0; });
}

}  // namespace prun

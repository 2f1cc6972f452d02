// The communicator of a group over several hosts: which steps a call is made of, and what is left to do when one
// throws.
#include "comm/hierarchical/hierarchical_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "comm/collectives/communicator.h"

namespace prun {
namespace {

using Steps = bool (*)(Span&, const CollCall&);
// null: the core's algorithms, member to member.
Steps steps_of(CollKind kind) {
  switch (kind) {
    case CollKind::all_reduce:
      return spanning_all_reduce;
    case CollKind::reduce_scatter:
      return spanning_reduce_scatter;
    case CollKind::reduce:
      return spanning_reduce;
    case CollKind::all_gather:
    case CollKind::all_gather_v:
      return spanning_all_gather;
    case CollKind::broadcast:
      return spanning_broadcast;
    case CollKind::barrier:
      return spanning_barrier;
    default:
      return nullptr;
  }
}

// Where the members are, by index in the group.
struct Places {
  std::vector<std::vector<int>> hosts;
  int host = 0, place = 0;
  size_t least = 0;  // members of a host
  bool in_order = true, even = true;

  Places(const Hosts& all, const std::vector<int>& ranks, int index) {
    std::vector<std::string> names;
    for (int rank : ranks) names.push_back(std::to_string(all.host_of[rank]));
    hosts = group_by_host(names).ranks_of;
    least = hosts.front().size();
    int next = 0;
    for (size_t h = 0; h < hosts.size(); ++h) {
      even = even && hosts[h].size() == hosts[0].size();
      least = std::min(least, hosts[h].size());
      for (size_t p = 0; p < hosts[h].size(); ++p) {
        in_order = in_order && hosts[h][p] == next++;
        if (hosts[h][p] == index) host = static_cast<int>(h), place = static_cast<int>(p);
      }
    }
  }
};

class MixedCommunicator : public Communicator {
 public:
  MixedCommunicator(Link* inside, Link& between, Places places, const std::vector<int>& ranks, int index, int lane,
                    std::string algorithm)
      : places_(std::move(places)), algorithm_(std::move(algorithm)) {
    const std::vector<int>& here = places_.hosts[places_.host];
    // Lanes first, hosts apart: then all members between hosts.
    int inside_lane = 0;
    if (here.size() > 1) {
      const std::vector<int> near = ranks_at(ranks, here);
      inside_lane = agree_on_lanes(*inside, near, places_.place, lane, 2);
      inside_ = make_communicator(*inside, near, places_.place, inside_lane + 1, "");
    } else {
      inside_ = make_lone_communicator();
    }
    const int between_lane = agree_on_lanes(between, ranks, index, lane, 2);
    Route route = here.size() > 1 ? Route(*inside, inside_lane, between, between_lane) : Route(between, between_lane);
    wire_.emplace(std::move(route), ranks, index, group_hash(ranks, between_lane));
    if (places_.place >= static_cast<int>(places_.least)) return;
    std::vector<int> peers;
    for (const std::vector<int>& host : places_.hosts) peers.push_back(host[places_.place]);
    across_.emplace(Route(between, between_lane + 1), ranks_at(ranks, peers), places_.host,
                    group_hash(ranks, between_lane + 1));
  }

  int index() const override { return wire_->index(); }
  int size() const override { return wire_->size(); }
  int64_t bytes_sent() const override {
    return wire_->bytes_sent() + inside_->bytes_sent() + (across_ ? across_->bytes_sent() : 0);
  }

  // Sums inside hosts and between them take turns by the place of a slice.
  bool divides(const CollCall& whole, const CollCall&) const override {
    return !is_reduction(whole.kind) || whole.rank_order;
  }

  CollPath path_of(const CollCall& call) const override {
    if (ran_in_steps_)
      return {"by host", fmt::format("in steps, inside {} hosts and between them", places_.hosts.size())};
    return {choose_algorithm(call, size(), algorithm_).name,
            "member to member, over several hosts; " + explain_algorithm(call, size(), algorithm_)};
  }

  void run(const CollCall& call) override {
    check_call(call, size());
    try {
      const FrameHeader header = header_of(call, size(), sequence_);
      wire_->begin(header, Wire::Ring::apart);
      Steps steps = algorithm_.empty() ? steps_of(call.kind) : nullptr;
      ran_in_steps_ = steps != nullptr && run_steps(steps, call, header);
      if (!ran_in_steps_) {
        Group group{*wire_, scratch_, index(), size()};
        choose_algorithm(call, size(), algorithm_).run(group, call);
      }
      wire_->finish();
      ++sequence_;
    } catch (...) {
      wire_->give_up();
      if (across_) across_->give_up();
      throw;
    }
  }

  void send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv, int64_t recv_bytes) override {
    if (to == index() && from == index()) {
      PRUN_CHECK(send_bytes == recv_bytes, fmt::format("{} bytes to itself, {} back", send_bytes, recv_bytes));
      if (send_bytes > 0 && send != recv) std::memmove(recv, send, static_cast<size_t>(send_bytes));
      return;
    }
    FrameHeader header{};
    header.fingerprint = kSendRecvKind;
    wire_->begin(header, Wire::Ring::none);
    try {
      if (from >= 0) wire_->recv(from, recv, recv_bytes);
      if (to >= 0) wire_->send(to, send, send_bytes);
      wire_->finish();
    } catch (...) {
      wire_->give_up();
      throw;
    }
  }

 private:
  static std::vector<int> ranks_at(const std::vector<int>& ranks, const std::vector<int>& indices) {
    std::vector<int> out;
    for (int i : indices) out.push_back(ranks[i]);
    return out;
  }

  bool run_steps(Steps steps, const CollCall& call, const FrameHeader& header) {
    Wire* across = across_ ? &*across_ : nullptr;
    Span span{*wire_,       across,        *inside_,         scratch_,     sums_,      places_.hosts,
              places_.host, places_.place, places_.in_order, places_.even, algorithm_, header};
    return steps(span, call);
  }

  Places places_;
  std::string algorithm_;
  std::unique_ptr<Communicator> inside_;
  std::optional<Wire> wire_, across_;
  Scratch scratch_, sums_;
  uint64_t sequence_ = 0;
  bool ran_in_steps_ = false;  // the last run
};

}  // namespace

void Span::run_inside(const CollCall& step) {
  try {
    inside.run(step);
  } catch (Aborted&) {
    throw;
  } catch (Error& error) {
    error.prefix("step of " + wire.doing());
    throw;
  }
}

void Span::run_across(const CollCall& step) {
  const Algorithm& chosen = choose_algorithm(step, across->size(), algorithm);
  across->begin(header, chosen.ring);
  Group group{*across, scratch, across->index(), across->size()};
  chosen.run(group, step);
  across->finish();
}

bool spanning_barrier(Span& span, const CollCall& call) {
  span.start();
  span.run_inside(call);
  if (span.place == 0) span.run_across(call);
  span.run_inside(call);
  return true;
}

std::unique_ptr<Communicator> make_mixed_communicator(Link* inside, Link& between, const Hosts& hosts,
                                                      const std::vector<int>& ranks, int index, int lane,
                                                      const std::string& algorithm) {
  return std::make_unique<MixedCommunicator>(inside, between, Places(hosts, ranks, index), ranks, index, lane,
                                             algorithm);
}

}  // namespace prun

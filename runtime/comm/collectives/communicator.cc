// Running a call: native or not, and what is left to do when it throws.
#include "comm/collectives/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/text.h"
#include "comm/transport/watchdog.h"
#include "prun/alarm.h"

namespace prun {
namespace {

class LoneCommunicator : public Communicator {
 public:
  int index() const override { return 0; }
  int size() const override { return 1; }
  void run(const CollCall& call) override {
    check_call(call, 1);
    run_alone(call);
  }
  void send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv, int64_t recv_bytes) override {
    PRUN_CHECK(to == from && send_bytes == recv_bytes,
               fmt::format("{} bytes to {}, {} from {}", send_bytes, to, recv_bytes, from));
    if (to == 0 && send != recv && send_bytes > 0) std::memmove(recv, send, static_cast<size_t>(send_bytes));
  }
  bool divides(const CollCall&, const CollCall&) const override { return true; }
  CollPath path_of(const CollCall&) const override { return {"copy", "one rank"}; }
  int64_t bytes_sent() const override { return 0; }
};

class TransportCommunicator : public Communicator {
 public:
  TransportCommunicator(Link& link, const std::vector<int>& ranks, int index, int lane, std::string algorithm)
      : link_(link), wire_(Route(link, lane), ranks, index, group_hash(ranks, lane)), algorithm_(std::move(algorithm)) {
    if (link.table().coll != nullptr && link.table().comm_create != nullptr) create_native(lane);
    if (link.table().ext != nullptr) alarm_ = static_cast<const prun_alarm*>(link.table().ext(PRUN_ALARM));
  }
  ~TransportCommunicator() override {
    if (native_ != nullptr && link_.table().comm_free != nullptr) link_.table().comm_free(link_.ctx(), native_);
  }
  int index() const override { return wire_.index(); }
  int size() const override { return wire_.size(); }
  int64_t bytes_sent() const override { return wire_.bytes_sent(); }

  bool divides(const CollCall& whole, const CollCall& part) const override {
    if (native_ == nullptr || !algorithm_.empty()) return prun::divides(whole, part, size(), algorithm_);
    if (!is_reduction(whole.kind) || whole.rank_order) return true;
    return link_.table().ext != nullptr && link_.table().ext("sums_in_rank_order") != nullptr;
  }

  CollPath path_of(const CollCall& call) const override {
    if (ran_native_) return {"native", fmt::format("{} has its own{}", link_.plugin().name, native_path())};
    std::string why = native_ == nullptr   ? fmt::format("{} has no collectives", link_.plugin().name)
                      : algorithm_.empty() ? fmt::format("{} leaves it to the core", link_.plugin().name)
                                           : "not the plugin's";
    return {choose_algorithm(call, size(), algorithm_).name, why + "; " + explain_algorithm(call, size(), algorithm_)};
  }

  // An abort is never the news: whatever caused it is told elsewhere.
  int check(double waited_s) override {
    if (native_ == nullptr || alarm_ == nullptr) return -1;
    prun_result result = empty_result();
    InPlugin inside("alarm");
    const int waited_ms = static_cast<int>(std::min(waited_s, 1e6) * 1e3);
    const prun_status status = link_.told(alarm_->comm(link_.ctx(), native_, waited_ms, &result), result, "alarm");
    if (status == PRUN_AGAIN) return result.culprit;
    if (status != PRUN_OK && status != PRUN_EABORTED)
      link_.fail(status, result, fmt::format("collectives of ranks {}", fmt::join(wire_.ranks(), ", ")));
    return -1;
  }

  void run(const CollCall& call) override {
    check_call(call, size());
    ran_native_ = false;
    if (native_ != nullptr && algorithm_.empty()) {
      wire_.begin(header_of(call, size(), native_sequence_), Wire::Ring::none);  // so that errors know the call
      if (!is_vector(call.kind) && run_native(call, call.kind)) {
        wire_.add_bytes_sent(native_bytes_sent(call, index(), size()));
        ran_native_ = true;
        return;
      }
      refuse_queue(call);
      // The core does it. A member that is in a native call would never see our frames, nor we its: meet there first.
      run_native(call, CollKind::barrier);
    }
    refuse_queue(call);
    try {
      run_core(call);
    } catch (...) {
      wire_.give_up();
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
    wire_.begin(header, Wire::Ring::none);
    try {
      if (from >= 0) wire_.recv(from, recv, recv_bytes);
      if (to >= 0) wire_.send(to, send, send_bytes);
      wire_.finish();
    } catch (...) {
      wire_.give_up();
      throw;
    }
  }

 private:
  // What the plugin says of its last collective, with a semicolon before it.
  std::string native_path() const {
    const void* found = link_.table().ext != nullptr ? link_.table().ext("coll_path") : nullptr;
    if (found == nullptr) return "";
    return fmt::format("; {}", reinterpret_cast<prun_coll_path>(const_cast<void*>(found))(link_.ctx(), native_));
  }

  void create_native(int lane) {
    prun_result result = empty_result();
    const std::vector<int>& ranks = wire_.ranks();
    std::vector<int> own;
    for (int rank : ranks) own.push_back(link_.own_rank(rank));
    InPlugin inside("comm_create");
    prun_status status =
        link_.told(link_.table().comm_create(link_.ctx(), own.data(), size(), lane, &native_, &result), result);
    if (status == PRUN_ENOTSUP) {
      native_ = nullptr;
      return;
    }
    auto start = std::chrono::steady_clock::now();
    auto limit = std::chrono::duration<double>(link_.deadline_s());
    while (status == PRUN_OK && link_.table().comm_test != nullptr) {
      result = empty_result();
      prun_status ready = link_.told(link_.table().comm_test(link_.ctx(), native_, &result), result);
      if (ready == PRUN_OK) return;
      if (ready != PRUN_AGAIN || std::chrono::steady_clock::now() - start > limit) status = ready;
      std::this_thread::yield();
    }
    if (status != PRUN_OK)
      link_.fail(status, result, fmt::format("making the communicator of ranks {}", fmt::join(ranks, ", ")));
  }

  // Device memory reaches the core's algorithms once it is staged; until then only the plugin's own can work on it.
  void refuse_queue(const CollCall& call) const {
    if (call.queue.kind == PRUN_MEM_HOST) return;
    throw Error(Exit::transport, fmt::format("{} on a CUDA stream: {} has no collective of its own for that",
                                             describe(call), link_.plugin().name));
  }

  // As `kind`, but under the fingerprint of the call. False: the plugin leaves it to the core, on every member alike.
  bool run_native(const CollCall& call, CollKind kind) {
    prun_coll_params params{};
    params.size = sizeof params;
    params.kind = static_cast<int>(kind);
    params.sequence = native_sequence_;
    params.fingerprint = pack_fingerprint(call);
    if (kind == call.kind) {
      params.dtype = static_cast<int>(call.dtype);
      params.redop = static_cast<int>(call.redop);
      params.root = call.root;
      params.send = call.send;
      params.recv = call.recv;
      params.count = agreed_count(call, size());
      params.rank_order = call.rank_order ? 1 : 0;
    } else {
      params.fingerprint |= kCountlessBit;  // a barrier has none
    }
    prun_req* req = nullptr;
    prun_result result = empty_result();
    prun_status status = [&] {
      InPlugin inside("coll");
      return link_.table().coll(link_.ctx(), native_, &params, call.queue, &req, &result);
    }();
    if (link_.told(status, result, "coll") == PRUN_ENOTSUP) return false;
    ++native_sequence_;
    if (status == PRUN_EABORTED && call.queue.kind != PRUN_MEM_HOST) link_.enqueued().explain();
    if (status == PRUN_OK && call.queue.kind != PRUN_MEM_HOST) {
      link_.enqueued().add(req, wire_.doing());
      return true;
    }
    if (status == PRUN_OK) {
      status = link_.wait(req, call_bytes(call, size()), result);
      if (status == PRUN_AGAIN) link_.drain({req});
    }
    if (status != PRUN_OK) native_failed(status, result);
    return true;
  }

  [[noreturn]] void native_failed(prun_status status, const prun_result& result) {
    if (status == PRUN_EMISMATCH && link_.table().coll_seen != nullptr) {
      prun_coll_seen seen{.size = sizeof(prun_coll_seen)};
      const std::vector<int>& ranks = wire_.ranks();
      for (int member = 0; member < size(); ++member) {
        if (ranks[member] != result.culprit) continue;
        if (link_.table().coll_seen(link_.ctx(), native_, &seen) != PRUN_OK) break;
        wire_.throw_mismatch(member, seen.fingerprint, seen.count, seen.sequence, "");
      }
    }
    if (status == PRUN_AGAIN) {
      std::string whom = result.culprit >= 0 ? fmt::format("rank {}", result.culprit) : "its members";
      throw Error(Exit::hang, fmt::format("{}: no progress for {}, waiting for {}", wire_.doing(),
                                          human_seconds(link_.deadline_s()), whom));
    }
    link_.fail(status, result, wire_.doing());
  }

  void run_core(const CollCall& call) {
    const Algorithm& algorithm = choose_algorithm(call, size(), algorithm_);
    wire_.begin(header_of(call, size(), sequence_), algorithm.ring);
    Group group{wire_, scratch_, index(), size()};
    algorithm.run(group, call);
    wire_.finish();
    ++sequence_;
  }

  Link& link_;
  Wire wire_;
  Scratch scratch_;
  std::string algorithm_;
  prun_comm* native_ = nullptr;
  const prun_alarm* alarm_ = nullptr;  // where the transport has it
  uint64_t sequence_ = 0, native_sequence_ = 0;
  bool ran_native_ = false;  // the last run
};

}  // namespace

// FNV-1a over the members and the lane.
uint64_t group_hash(const std::vector<int>& ranks, int lane) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3u;
  return (hash ^ static_cast<uint64_t>(lane)) * 0x100000001b3u;
}

FrameHeader header_of(const CollCall& call, int size, uint64_t sequence) {
  FrameHeader header{};
  header.fingerprint = pack_fingerprint(call);
  header.count = agreed_count(call, size);
  header.counts_hash = counts_hash(call, size);
  header.sequence = sequence;
  return header;
}

std::unique_ptr<Communicator> make_communicator(Link& link, const std::vector<int>& ranks, int index, int lane,
                                                const std::string& algorithm) {
  return std::make_unique<TransportCommunicator>(link, ranks, index, lane, algorithm);
}

std::unique_ptr<Communicator> make_lone_communicator() { return std::make_unique<LoneCommunicator>(); }

int agree_on_lanes(Link& link, const std::vector<int>& ranks, int index, int user_lane, int count) {
  // An all-reduce like any other, on lane 0, which nothing else uses; the frames tell if members make other groups.
  int32_t mine = link.next_lane, agreed = 0;
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.dtype = Dtype::i32;
  call.redop = RedOp::max;
  call.send = &mine;
  call.recv = &agreed;
  call.count = 1;
  int size = std::ssize(ranks);
  Wire wire(Route(link, 0), ranks, index, group_hash(ranks, user_lane));
  Scratch scratch;
  Group group{wire, scratch, index, size};
  try {
    wire.begin(header_of(call, size, 0), Wire::Ring::within);
    all_reduce_gather(group, call);
    wire.finish();
  } catch (Aborted&) {
    wire.give_up();
    throw;
  } catch (Error& error) {
    wire.give_up();
    error.prefix(
        fmt::format("making the communicator of ranks {} on lane {} (do all ranks make theirs in the same order?)",
                    fmt::join(ranks, ", "), user_lane));
    throw;
  }
  link.next_lane = agreed + count;
  if (link.next_lane > PRUN_MAX_LANE + 1) {
    throw Error(Exit::transport, fmt::format("more than {} communicators in one job", PRUN_MAX_LANE));
  }
  return agreed;
}

}  // namespace prun

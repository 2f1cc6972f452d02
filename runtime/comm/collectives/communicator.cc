// Running a call, natively or by the core, and the cleanup when it throws.
#include "comm/collectives/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "base/text.h"
#include "comm/transport/watchdog.h"
#include "prun/alarm.h"

namespace prun {
namespace {

void copy_to_itself(const void* send, int64_t send_bytes, void* recv, int64_t recv_bytes) {
  PRUN_CHECK(send_bytes == recv_bytes, fmt::format("{} bytes to itself, {} back", send_bytes, recv_bytes));
  copy_block(recv, send, send_bytes);
}

class LoneCommunicator : public Communicator {
 public:
  int index() const override { return 0; }
  int size() const override { return 1; }
  PreparedCall prepare(const CollCall& call) const override { return prepare_call(call, 1); }
  void run(const PreparedCall& call) override { run_alone(call); }
  void send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv, int64_t recv_bytes) override {
    PRUN_CHECK(to == from, fmt::format("one rank sends to {} and receives from {}", to, from));
    if (to == 0) copy_to_itself(send, send_bytes, recv, recv_bytes);
  }
  bool divides(const CollCall&, const CollCall&) const override { return true; }
  CollPath path_of(const CollCall&) const override { return {"copy", "one rank"}; }
  int64_t bytes_sent() const override { return 0; }
};

class TransportCommunicator : public MessageCommunicator {
 public:
  TransportCommunicator(TransportSession& session, const std::vector<int>& ranks, int index, int tag,
                        const std::string& algorithm, const AlgorithmCosts& costs, bool several_hosts)
      : MessageCommunicator(Wire(Route(session, tag), ranks, index, group_hash(ranks, tag), several_hosts), algorithm,
                            costs),
        session_(session),
        tag_(tag) {
    if (session.table().coll != nullptr && session.table().comm_create != nullptr) create_native(tag);
    alarm_ = static_cast<const prun_alarm*>(extension(PRUN_ALARM));
  }
  ~TransportCommunicator() override {
    close_wire();
    if (native_ != nullptr && session_.table().comm_free != nullptr)
      session_.table().comm_free(session_.ctx(), native_);
  }

  bool divides(const CollCall& whole, const CollCall& part) const override {
    if (!prefers_native()) return prun::divides(whole, part, size(), algorithm_, costs_);
    return !traits(whole.kind).reduces || whole.rank_order || extension("sums_in_rank_order") != nullptr;
  }

  CollPath path_of(const CollCall& call) const override {
    const std::string& name = session_.plugin().name;
    if (ran_native_) return {"native", fmt::format("{} has its own{}", name, native_path())};
    return core_path(call, native_ == nullptr ? name + " has no collectives"
                           : prefers_native() ? name + " leaves it to the core"
                                              : "not the plugin's");
  }

  // Ignores aborts, because the cause of an abort is reported elsewhere.
  int check(double waited_s) override {
    if (native_ == nullptr || alarm_ == nullptr) return -1;
    prun_result result = empty_result();
    PluginCall guard("alarm");
    const int waited_ms = static_cast<int>(std::min(waited_s, 1e6) * 1e3);
    const prun_status status =
        session_.checked(alarm_->comm(session_.ctx(), native_, waited_ms, &result), result, "alarm");
    if (status == PRUN_AGAIN) return result.culprit;
    if (status != PRUN_OK && status != PRUN_EABORTED)
      session_.fail(status, result, fmt::format("collectives of ranks {}", fmt::join(wire_.ranks(), ", ")));
    return -1;
  }

  PreparedCall prepare(const CollCall& call) const override {
    PreparedCall prepared = prepare_call(call, size());
    if (!prefers_native()) prepared.algorithm = &choose_algorithm(call, size(), algorithm_, costs_);
    return prepared;
  }

  void run(const PreparedCall& call) override {
    ran_native_ = false;
    if (call.kind == CollKind::all_to_all_v && call.queue.kind != PRUN_MEM_HOST) return enqueue_messages(call);
    if (prefers_native()) {
      wire_.begin(call, native_sequence_, Wire::Ring::none);  // so that errors name the call
      if (!traits(call.kind).vector && run_native(call, call.kind)) {
        wire_.add_bytes_sent(native_bytes_sent(call, index(), size()));
        ran_native_ = true;
        return;
      }
      refuse_queue(call);
      // The core runs the call. Members in a native call and members in this one would never see each other's messages,
      // so all enter a native barrier first, which compares the calls.
      run_native(call, CollKind::barrier);
    }
    refuse_queue(call);
    guarded([&] {
      const Algorithm& algorithm = algorithm_of(call);
      wire_.begin(call, sequence_, algorithm.ring);
      Group group{wire_, scratch_, index(), size()};
      algorithm.run(group, call);
      wire_.finish();
      ++sequence_;
    });
  }

 private:
  bool prefers_native() const { return native_ != nullptr && algorithm_.empty(); }
  const void* extension(const char* id) const {
    return session_.table().ext != nullptr ? session_.table().ext(id) : nullptr;
  }

  // Skips the comparison if this rank leaves because of an error.
  void close_wire() {
    if (!wire_.compares_later()) return;
    try {
      if (std::uncaught_exceptions() == 0) wire_.close();
    } catch (const Error&) {  // the calls themselves have succeeded
    }
    wire_.give_up();
  }

  // Returns the plugin's description of its last collective, after a semicolon.
  std::string native_path() const {
    const void* found = extension("coll_path");
    if (found == nullptr) return "";
    return fmt::format("; {}", reinterpret_cast<prun_coll_path>(const_cast<void*>(found))(session_.ctx(), native_));
  }

  void create_native(int tag) {
    const std::vector<int>& ranks = wire_.ranks();
    std::vector<int> own;
    for (int rank : ranks) own.push_back(session_.plugin_rank(rank));
    prun_result result;
    prun_status status =
        session_.call("comm_create", &prun_transport::comm_create, result, own.data(), size(), tag, &native_);
    if (status == PRUN_ENOTSUP) {
      native_ = nullptr;
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    const std::chrono::duration<double> limit(session_.deadline_s());
    while (status == PRUN_OK && session_.table().comm_test != nullptr) {
      const prun_status ready = session_.call("comm_test", &prun_transport::comm_test, result, native_);
      if (ready == PRUN_OK) return;
      if (ready != PRUN_AGAIN || std::chrono::steady_clock::now() - start > limit) status = ready;
      std::this_thread::yield();
    }
    if (status != PRUN_OK)
      session_.fail(status, result, fmt::format("making the communicator of ranks {}", fmt::join(ranks, ", ")));
  }

  // Enqueues an all_to_all_v as one batch of messages. Both sides of a message know its size, so empty ones are
  // omitted.
  void enqueue_messages(const PreparedCall& call) {
    wire_.begin(call, native_sequence_, Wire::Ring::none);  // so that errors name the call
    const int64_t item = dtype_bytes(call.dtype);
    std::vector<prun_p2p> ops;
    const auto add = [&](bool is_recv, const void* base, const int64_t* counts) {
      auto* at = static_cast<std::byte*>(const_cast<void*>(base));
      for (int member = 0; member < size(); at += counts[member++] * item) {
        if (counts[member] == 0) continue;
        ops.push_back({is_recv, wire_.ranks()[member], static_cast<uint64_t>(tag_), at,
                       static_cast<size_t>(counts[member] * item), call.queue.kind, nullptr});
        if (!is_recv && member != index()) wire_.add_bytes_sent(counts[member] * item);
      }
    };
    add(false, call.send, call.counts);
    add(true, call.recv, call.recv_counts);
    if (ops.empty()) return;
    prun_req* req = nullptr;
    prun_result result;
    const prun_status status = session_.batch(ops, &req, result, call.queue);
    if (status == PRUN_EABORTED) session_.enqueued().explain();
    if (status != PRUN_OK) session_.fail(status, result, wire_.doing());
    session_.enqueued().add(req, wire_.doing());
  }

  // The core's algorithms do not stage device memory, so only the plugin's own collectives can run on a queue.
  void refuse_queue(const CollCall& call) const {
    if (call.queue.kind == PRUN_MEM_HOST) return;
    throw Error(Exit::transport, fmt::format("{} on a CUDA stream: {} has no collective of its own for that",
                                             describe(call), session_.plugin().name));
  }

  // Runs the call as `kind`, but under its own fingerprint. Returns false if the plugin leaves it to the core, which it
  // does on every member alike.
  bool run_native(const PreparedCall& call, CollKind kind) {
    prun_coll_params params{};
    params.size = sizeof params;
    params.kind = static_cast<int>(kind);
    params.sequence = native_sequence_;
    params.fingerprint = call.fingerprint;
    if (kind == call.kind) {
      params.dtype = static_cast<int>(call.dtype);
      params.redop = static_cast<int>(call.redop);
      params.root = call.root;
      params.send = call.send;
      params.recv = call.recv;
      params.count = call.agreed_count;
      params.rank_order = call.rank_order ? 1 : 0;
    } else {
      params.fingerprint |= kCountlessBit;  // a barrier has no count
    }
    const bool queued = call.queue.kind != PRUN_MEM_HOST;
    prun_req* req = nullptr;
    prun_result result;
    prun_status status = session_.call("coll", &prun_transport::coll, result, native_,
                                       static_cast<const prun_coll_params*>(&params), call.queue, &req);
    if (status == PRUN_ENOTSUP) return false;
    ++native_sequence_;
    if (status == PRUN_EABORTED && queued) session_.enqueued().explain();
    if (status == PRUN_OK && queued) {
      session_.enqueued().add(req, wire_.doing());
      return true;
    }
    if (status == PRUN_OK) status = session_.finish(req, call.bytes, result);
    if (status != PRUN_OK) native_failed(status, result);
    return true;
  }

  [[noreturn]] void native_failed(prun_status status, const prun_result& result) {
    if (status == PRUN_EMISMATCH && session_.table().coll_seen != nullptr) {
      prun_coll_seen seen{.size = sizeof(prun_coll_seen)};
      const std::vector<int>& ranks = wire_.ranks();
      for (int member = 0; member < size(); ++member) {
        if (ranks[member] != result.culprit) continue;
        if (session_.table().coll_seen(session_.ctx(), native_, &seen) != PRUN_OK) break;
        wire_.throw_mismatch(member, seen.fingerprint, seen.count, seen.sequence, "");
      }
    }
    if (status == PRUN_AGAIN)
      session_.fail_late(wire_.doing(), result.culprit >= 0 ? fmt::format("rank {}", result.culprit) : "its members");
    session_.fail(status, result, wire_.doing());
  }

  TransportSession& session_;
  const int tag_;
  prun_comm* native_ = nullptr;
  const prun_alarm* alarm_ = nullptr;  // null if the transport lacks the extension
  uint64_t native_sequence_ = 0;
  bool ran_native_ = false;  // whether the last run was native
};

}  // namespace

void MessageCommunicator::send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv,
                                    int64_t recv_bytes) {
  if (to == index() && from == index()) return copy_to_itself(send, send_bytes, recv, recv_bytes);
  guarded([&] {
    PreparedCall message;
    message.fingerprint = kSendRecvKind;
    wire_.begin(message, 0, Wire::Ring::none);
    if (from >= 0) wire_.recv(from, recv, recv_bytes);
    if (to >= 0) wire_.send(to, send, send_bytes);
    wire_.finish();
  });
}

CollPath MessageCommunicator::core_path(const CollCall& call, const std::string& why) const {
  return {choose_algorithm(call, size(), algorithm_, costs_).name,
          why + "; " + explain_algorithm(call, size(), algorithm_, costs_)};
}

// FNV-1a over the members and the number.
uint64_t group_hash(const std::vector<int>& ranks, int number) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3u;
  return (hash ^ static_cast<uint64_t>(number)) * 0x100000001b3u;
}

std::unique_ptr<Communicator> make_communicator(TransportSession& session, const std::vector<int>& ranks, int index,
                                                int tag, const std::string& algorithm, const AlgorithmCosts& costs,
                                                bool several_hosts) {
  return std::make_unique<TransportCommunicator>(session, ranks, index, tag, algorithm, costs, several_hosts);
}

std::unique_ptr<Communicator> make_lone_communicator() { return std::make_unique<LoneCommunicator>(); }

int agree_on_tags(TransportSession& session, const std::vector<int>& ranks, int index, int lane, int count) {
  // An ordinary all-reduce on tag 0, which has no other user; its frames detect members that make other groups.
  int32_t mine = session.next_tag, agreed = 0;
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.dtype = Dtype::i32;
  call.redop = RedOp::max;
  call.send = &mine;
  call.recv = &agreed;
  call.count = 1;
  const int size = std::ssize(ranks);
  Wire wire(Route(session, 0), ranks, index, group_hash(ranks, lane));
  Scratch scratch;
  Group group{wire, scratch, index, size};
  try {
    wire.begin(prepare_call(call, size), 0, Wire::Ring::within);
    all_reduce_gather(group, call);
    wire.finish();
  } catch (Error& error) {
    wire.give_up();
    if (dynamic_cast<Aborted*>(&error) == nullptr)
      error.prefix(
          fmt::format("making the communicator of ranks {} on lane {} (do all ranks make theirs in the same order?)",
                      fmt::join(ranks, ", "), lane));
    throw;
  }
  session.next_tag = agreed + count;
  if (session.next_tag > PRUN_MAX_LANE + 1) {
    throw Error(Exit::transport, fmt::format("more than {} communicators in one job", PRUN_MAX_LANE));
  }
  return agreed;
}

}  // namespace prun

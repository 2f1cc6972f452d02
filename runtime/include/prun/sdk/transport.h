// A transport as a class: its members implement the functions of prun_transport, and their exceptions become statuses.
//
//     class Mail : public prun::sdk::Transport {
//      public:
//       struct Request { ... };
//       explicit Mail(const prun_open_params& params);
//       std::string address();                                        // what peers need to reach this rank
//       Failure connect(const Blobs& blobs);                          // PRUN_AGAIN until all are connected
//       Request* batch(std::span<const prun_p2p> ops, prun_queue queue);
//       Failure test(Request* request);                               // PRUN_AGAIN; else the request is freed
//       void abort();
//     };
//     const prun_transport* prun_transport_v1(const prun_host* host) {
//       return prun::sdk::transport_table<Mail>(host, {.name = "mail", .version = "1.0.0", .summary = "..."});
//     }
//
// Optional members have the names of the table: wait_fd, mem_alloc, mem_reg, mem_free, comm_create, comm_test,
// comm_free, coll, put, get, signal, wait_signal, and the static close, score, ext and check_options (const char*;
// throws what the constructor would throw for these options).
//
// The table rejects calls with ranks, lanes, signals or memory kinds that do not exist, calls before connect, and calls
// once the job is ending, before they reach the members.
#pragma once
#include <prun/transport.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "prun/sdk/failure.h"

namespace prun::sdk {

inline const prun_host* host_of_process = nullptr;  // set by prun_transport_v1

using Blobs = std::vector<std::string_view>;  // addresses, by rank

// Returns the object representation of a value.
template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// The base of every transport: its parameters, its abort flag, its checks.
class Transport {
 public:
  explicit Transport(const prun_open_params& params)
      : host(*host_of_process),
        rank(params.rank),
        ranks(params.ranks),
        local_rank(params.local_rank),
        local_ranks(params.local_ranks) {
    if (ranks < 1 || rank < 0 || rank >= ranks) throw Failure(PRUN_EINVAL, "the rank is outside the world");
  }
  Transport(const Transport&) = delete;

  void abort() { aborted.store(true, std::memory_order_seq_cst); }
  bool stopped() const { return aborted.load(std::memory_order_relaxed) || (host.aborted && host.aborted() != 0); }
  void check_running() const {
    if (stopped()) throw Failure(PRUN_EABORTED, "aborted");
  }
  void check_rank(int peer) const {
    if (peer < 0 || peer >= ranks) throw Failure(PRUN_EINVAL, -1, "rank #", peer, " of ", ranks, " is no peer");
  }
  void log(int level, const std::string& text) const {
    if (host.log != nullptr) host.log(level, text.c_str());
  }

  const prun_host& host;
  const int rank, ranks, local_rank, local_ranks;
  std::atomic<bool> aborted{false}, connected{false};
};

struct About {
  const char *name, *version, *summary;
  uint32_t mem_kinds = 1u << PRUN_MEM_HOST;
  bool local_only = false, queue_ordered = false;
};

template <class T>
T& context_of(prun_ctx* ctx) {
  return *reinterpret_cast<T*>(ctx);
}

// The functions of the table.
template <class T>
struct TransportCalls {
  inline static prun_transport table{};

  static prun_req* opaque(auto* request) { return reinterpret_cast<prun_req*>(request); }
  static auto& comm_of(prun_comm* comm) { return *reinterpret_cast<typename T::Comm*>(comm); }

  // Returns the request that body(context) makes; null becomes PRUN_ENOTSUP, so that the core runs the call itself.
  template <class Body>
  static prun_status start(const char* call, prun_ctx* ctx, prun_req** req, prun_result* result, const Body& body) {
    return guarded(result, [&]() -> prun_status {
      T& context = context_of<T>(ctx);
      if (!context.connected) throw Failure(PRUN_EINVAL, -1, call, " before connect");
      context.check_running();
      *req = opaque(body(context));
      return *req != nullptr ? PRUN_OK : PRUN_ENOTSUP;
    });
  }
  template <class Body>
  static prun_status one_sided(const char* call, prun_ctx* ctx, int peer, uint64_t number, prun_req** req,
                               prun_result* result, const Body& body) {
    return start(call, ctx, req, result, [&](T& context) {
      context.check_rank(peer);
      if (number > PRUN_MAX_SIGNAL)
        throw Failure(PRUN_EINVAL, -1, "signal ", number, "; there are 1 to ", PRUN_MAX_SIGNAL);
      return body(context);
    });
  }
  static void check_kind(int kind, prun_status refusal) {
    if (kind < 0 || kind > 31 || (table.mem_kinds >> kind & 1u) == 0)
      throw Failure(refusal, -1, table.name, " has no memory of kind ", kind);
  }

  static prun_status open(const prun_open_params* params, prun_ctx** ctx, prun_result* result) {
    return guarded(result, [&] { *ctx = reinterpret_cast<prun_ctx*>(new T(*params)); });
  }
  static prun_status address(prun_ctx* ctx, void* blob, size_t* bytes, prun_result* result) {
    return guarded(result, [&] {
      const std::string text = context_of<T>(ctx).address();
      if (text.size() > *bytes)
        throw Failure(PRUN_EINVAL, -1, "the address has ", text.size(), " bytes, ", *bytes, " are possible");
      *bytes = text.copy(static_cast<char*>(blob), text.size());
    });
  }
  static prun_status connect(prun_ctx* ctx, const void* const* blobs, const size_t* bytes, prun_result* result) {
    return guarded(result, [&]() -> Failure {
      T& context = context_of<T>(ctx);
      if (context.connected) return {};
      if (context.stopped()) return {PRUN_EABORTED, "aborted while connecting"};
      Blobs all;
      for (int r = 0; r < context.ranks; ++r)
        all.push_back(blobs[r] != nullptr ? std::string_view(static_cast<const char*>(blobs[r]), bytes[r]) : "");
      Failure missing = context.connect(all);
      if (!missing) context.connected = true;
      return missing;
    });
  }
  static void check_message(const T& context, const prun_p2p& op) {
    context.check_rank(op.peer);
    if (op.tag > PRUN_MAX_LANE) throw Failure(PRUN_EINVAL, -1, "tag ", op.tag, " is no lane");
    if (op.ptr == nullptr && op.bytes > 0) throw Failure(PRUN_EINVAL, "a message without memory");
    check_kind(op.mem_kind, PRUN_EINVAL);
  }
  static prun_status batch(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req,
                           prun_result* result) {
    return start("batch", ctx, req, result, [&](T& context) {
      for (size_t i = 0; i < n; ++i) check_message(context, ops[i]);
      return context.batch({ops, n}, queue);
    });
  }
  static prun_status test(prun_ctx* ctx, prun_req* req, prun_result* result) {
    return guarded(result, [&] { return context_of<T>(ctx).test(reinterpret_cast<typename T::Request*>(req)); });
  }
  static void abort(prun_ctx* ctx) { context_of<T>(ctx).abort(); }
  static void close(prun_ctx* ctx) {
    std::unique_ptr<T> context(&context_of<T>(ctx));
    if constexpr (requires { T::close(std::move(context)); }) T::close(std::move(context));
  }
  static int wait_fd(prun_ctx* ctx) { return context_of<T>(ctx).wait_fd(); }

  static prun_status mem_alloc(prun_ctx* ctx, size_t bytes, int kind, void** ptr, void** handle, prun_result* result) {
    return guarded(result, [&] {
      check_kind(kind, PRUN_ENOTSUP);
      void* own = nullptr;
      *ptr = context_of<T>(ctx).mem_alloc(bytes, kind, own);
      if (handle != nullptr) *handle = own;
    });
  }
  static prun_status mem_reg(prun_ctx* ctx, void* ptr, size_t bytes, int kind, void** handle, prun_result* result) {
    return guarded(result, [&] {
      check_kind(kind, PRUN_ENOTSUP);
      *handle = context_of<T>(ctx).mem_reg(ptr, bytes, kind);
    });
  }
  static void mem_free(prun_ctx* ctx, void* ptr, void* handle) { context_of<T>(ctx).mem_free(ptr, handle); }

  static prun_status comm_create(prun_ctx* ctx, const int* ranks, int n, int lane, prun_comm** comm,
                                 prun_result* result) {
    return guarded(result, [&] {
      T& context = context_of<T>(ctx);
      if (!context.connected) throw Failure(PRUN_EINVAL, "comm_create before connect");
      const std::span<const int> members(ranks, static_cast<size_t>(n));
      for (int member : members) context.check_rank(member);
      if (std::find(members.begin(), members.end(), context.rank) == members.end())
        throw Failure(PRUN_EINVAL, context.rank, "rank #", context.rank, " is not in the group");
      *comm = reinterpret_cast<prun_comm*>(context.comm_create(members, lane));
    });
  }
  static prun_status comm_test(prun_ctx* ctx, prun_comm* comm, prun_result* result) {
    return guarded(result, [&] {
      context_of<T>(ctx).check_running();
      return context_of<T>(ctx).comm_test(comm_of(comm));
    });
  }
  static void comm_free(prun_ctx* ctx, prun_comm* comm) {
    guarded(nullptr, [&] { context_of<T>(ctx).comm_free(&comm_of(comm)); });
  }
  static prun_status coll(prun_ctx* ctx, prun_comm* comm, const prun_coll_params* params, prun_queue queue,
                          prun_req** req, prun_result* result) {
    return start("coll", ctx, req, result, [&](T& context) { return context.coll(comm_of(comm), *params, queue); });
  }
  static prun_status coll_seen(prun_ctx*, prun_comm* comm, prun_coll_seen* seen) {
    const size_t size = std::min(seen->size, sizeof *seen);
    std::memcpy(seen, &comm_of(comm).seen, size);
    seen->size = size;
    return PRUN_OK;
  }

  static prun_status put(prun_ctx* ctx, int peer, const void* src, void*, size_t offset, size_t bytes, uint64_t number,
                         prun_req** req, prun_result* result) {
    return one_sided("put", ctx, peer, number, req, result,
                     [&](T& context) { return context.put(peer, src, offset, bytes, number); });
  }
  static prun_status get(prun_ctx* ctx, int peer, void* dst, void*, size_t offset, size_t bytes, prun_req** req,
                         prun_result* result) {
    return one_sided("get", ctx, peer, 0, req, result,
                     [&](T& context) { return context.get(peer, dst, offset, bytes); });
  }
  static prun_status signal(prun_ctx* ctx, int peer, uint64_t number, prun_req** req, prun_result* result) {
    return one_sided("signal", ctx, peer, number, req, result,
                     [&](T& context) { return context.signal(peer, number); });
  }
  static prun_status wait_signal(prun_ctx* ctx, int peer, uint64_t number, uint64_t count, prun_req** req,
                                 prun_result* result) {
    return one_sided("wait_signal", ctx, peer, number, req, result,
                     [&](T& context) { return context.wait_signal(peer, number, count); });
  }
  static int score(const prun_open_params* params, const int* ranks, int n) {
    return T::score(*params, std::span<const int>(ranks, static_cast<size_t>(n)));
  }
  static prun_status check_options(const char* options, prun_result* result) {
    return guarded(result, [&] { T::check_options(options); });
  }
  static const void* ext(const char* id) {
    if constexpr (requires { T::check_options(""); })
      if (id == std::string_view("check_options")) return reinterpret_cast<const void*>(&check_options);
    if constexpr (requires { &T::ext; }) return T::ext(std::string_view(id));
    return nullptr;
  }
};

// Returns the table for prun_transport_v1, or logs a line and returns null if the core is older than this header.
template <class T>
const prun_transport* transport_table(const prun_host* host, const About& about) {
  if (host == nullptr || host->abi < PRUN_TRANSPORT_ABI || host->size < sizeof(prun_host)) {
    if (host != nullptr && host->log != nullptr)
      host->log(2, concat(about.name, ": this host is too old for the plugin").c_str());
    return nullptr;
  }
  host_of_process = host;
  using Calls = TransportCalls<T>;
  prun_transport& table = Calls::table;
  table = {};
  table.size = sizeof table;
  table.abi = PRUN_TRANSPORT_ABI;
  table.name = about.name;
  table.version = about.version;
  table.summary = about.summary;
  table.mem_kinds = about.mem_kinds;
  table.local_only = about.local_only;
  table.queue_ordered = about.queue_ordered;
  table.open = Calls::open;
  table.address = Calls::address;
  table.connect = Calls::connect;
  table.batch = Calls::batch;
  table.test = Calls::test;
  table.abort = Calls::abort;
  table.close = Calls::close;
  if constexpr (requires { &T::wait_fd; }) table.wait_fd = Calls::wait_fd;
  if constexpr (requires { &T::mem_alloc; }) table.mem_alloc = Calls::mem_alloc;
  if constexpr (requires { &T::mem_reg; }) table.mem_reg = Calls::mem_reg;
  if constexpr (requires { &T::mem_free; }) table.mem_free = Calls::mem_free;
  if constexpr (requires { &T::coll; }) {
    table.comm_create = Calls::comm_create;
    table.comm_test = Calls::comm_test;
    table.comm_free = Calls::comm_free;
    table.coll = Calls::coll;
    table.coll_seen = Calls::coll_seen;
  }
  if constexpr (requires { &T::put; }) table.put = Calls::put;
  if constexpr (requires { &T::get; }) table.get = Calls::get;
  if constexpr (requires { &T::signal; }) table.signal = Calls::signal;
  if constexpr (requires { &T::wait_signal; }) table.wait_signal = Calls::wait_signal;
  if constexpr (requires { &T::score; }) table.score = Calls::score;
  table.ext = Calls::ext;
  return &table;
}

}  // namespace prun::sdk

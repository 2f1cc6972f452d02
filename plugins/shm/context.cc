// The life of a context, its memory, and the state of its peers.
#include "context.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "comm.h"
#include "connect.h"
#include "prun/sdk/options.h"

namespace prun::shm {
namespace {

Options parse_options(const char* text) {
  Options options;
  const sdk::Option rows[] = {{"chunk", &options.chunk, 4096, kMaxChunk, "bytes"},
                              {"huge", &options.huge},
                              {"small", &options.small, 64, kSlotBytes, "bytes"}};
  sdk::parse_options("shm", text, rows);
  return options;
}

// Returns the leading number of a sysfs entry ("32768K"), or 0 if there is none.
size_t cache_entry(int index, const char* name) {
  size_t number = 0;
  std::ifstream(sdk::concat("/sys/devices/system/cpu/cpu0/cache/index", index, "/", name)) >> number;
  return number;
}

// Returns the bytes of the first core's L3 as sysfs reports it; 32 MiB, a common server's, if it does not. sysconf is
// not used, because on some processors it multiplies the L3 by its number of sharers.
size_t last_cache_bytes() {
  for (int index = 0; index < 8; index++)
    if (const size_t kib = cache_entry(index, "size"); kib > 0 && cache_entry(index, "level") == 3) return kib << 10;
  return 32 << 20;
}

}  // namespace

void Context::check_options(const char* text) { parse_options(text); }

Context::Context(const prun_open_params& params) : Transport(params), options(parse_options(params.options)) {
  // Spinning pays off only with a core per rank. With fewer cores, saving a barrier is worth a copy.
  const bool roomy = host.cores_per_rank >= 1.0;
  if (roomy) wait.spin_ns = 50'000;
  if (options.small == 0) options.small = roomy ? 256 : 8192;
  if (options.chunk == 0) options.chunk = roomy ? 128 << 10 : 256 << 10;
  options.chunk = options.chunk / 64 * 64;
  // Ranks that share a core share its caches: longer rings would only fill them.
  ring = std::max<size_t>(roomy ? kStageBytes : kStageBytes / 2, 4 * options.chunk);
  last_cache = last_cache_bytes();
  connector = std::make_unique<Connector>(*this, params);
}

Context::~Context() {
  if (segment.mapping && !aborted)
    self().header().state.store(static_cast<uint32_t>(RankState::closed), std::memory_order_seq_cst);
}

std::string Context::address() { return connector->address(); }

Failure Context::connect(const sdk::Blobs& blobs) {
  Failure missing = connector->connect(blobs);
  if (!missing) connector.reset();
  return missing;
}

Failure Context::test(Request* request) {
  if (request->kind == Request::Kind::p2p) return test_batch(*this, static_cast<P2pRequest*>(request));
  if (request->kind == Request::Kind::signal) return test_signal(*this, static_cast<SignalRequest*>(request));
  return test_collective(*this, *static_cast<CollRequest*>(request)->comm);
}

// Sets the aborted state, which peers read. Sleeping threads notice it within their nap of 4 ms.
void Context::abort() {
  Transport::abort();
  if (!connected) return;
  self().header().state.store(static_cast<uint32_t>(RankState::aborted), std::memory_order_seq_cst);
  shm::ring(self().header().bell);
}

CommBlock& Peer::block(int slot) {
  const size_t begin = layout.block(slot), start = begin / kPage * kPage;
  sdk::Mapping& mapping = blocks[slot];
  if (!mapping) mapping = map_part(segment_fd, start, begin - start + sizeof(CommBlock));
  if (!mapping)
    throw Failure(errno == ENOMEM ? PRUN_ENOMEM : PRUN_ESYSTEM, -1, "cannot map ", sizeof(CommBlock) >> 20,
                  " MiB of rank #", rank, " for a group: ", strerror(errno),
                  errno == ENOMEM ? " (the limit on addresses, see ulimit -v)" : "");
  return *reinterpret_cast<CommBlock*>(mapping.base() + (begin - start));
}

void* Context::mem_alloc(size_t bytes, int, void*&) {
  const int index = static_cast<int>(arenas.size());
  if (connector == nullptr || connector->listens() || index >= kMaxArenas)
    throw Failure(PRUN_ENOTSUP, -1, "memory for peers is allocated before address, ", kMaxArenas, " pieces at most");
  Arena a;
  const size_t skew = arena_skew(rank, index);
  const size_t whole = (std::max<size_t>(bytes, 1) + skew + kPage - 1) / kPage * kPage;
  a.memory = create_memory("prun-shm-arena", whole, whole, options.huge && whole >= (4 << 20));
  if (!a.memory.mapping)
    throw Failure(errno == ENOMEM ? PRUN_ENOMEM : PRUN_ESYSTEM, -1, bytes, " bytes of shared memory: ", strerror(errno),
                  errno == EFBIG ? " (limited by ulimit -f; use --transport socket)" : "");
  a.start = a.memory.mapping.base() + skew;
  a.bytes = bytes;
  a.shared = true;
  arenas.push_back(std::move(a));
  return arenas.back().start;
}

void Context::mem_free(void* ptr, void*) {
  const auto a = std::find_if(arenas.begin(), arenas.end(), [&](const Arena& x) { return x.start == ptr; });
  if (a == arenas.end()) return;
  *a = {};
  if (connector != nullptr && !connector->listens())
    arenas.erase(a);  // later, peers refer to arenas by index, so a gap remains
}

int Context::score(const prun_open_params& params, std::span<const int> ranks) {
  return std::ssize(ranks) <= params.local_ranks ? 90 : 0;
}

// "sums_in_rank_order" is a yes/no query; all paths reduce in rank order (plugins/README.md).
const void* Context::ext(std::string_view id) {
  static const prun_coll_path coll_path = [](prun_ctx*, prun_comm* comm) {
    return reinterpret_cast<const shm::Comm*>(comm)->path;
  };
  const bool known = id == "coll_path" || id == "sums_in_rank_order";
  return known ? reinterpret_cast<const void*>(coll_path) : nullptr;
}

Place Context::place_of(const void* ptr, size_t bytes) const {
  const auto* p = static_cast<const std::byte*>(ptr);
  for (size_t i = 0; i < arenas.size(); i++) {
    const Arena& a = arenas[i];
    if (a.shared && p >= a.start && p < a.start + a.bytes && bytes <= static_cast<size_t>(a.start + a.bytes - p))
      return {static_cast<int32_t>(i), 0, static_cast<uint64_t>(p - a.memory.mapping.base())};
  }
  return {-1, 0, 0};
}

std::byte* Context::address_of(const Peer& peer, const Place& place) const {
  return peer.arenas[place.arena].base + place.offset;
}

int Context::local_index(int peer) const {
  const int local = local_of[peer];
  if (local < 0) throw Failure(PRUN_EPEER, peer, "rank #", peer, " is not on this host");
  return local;
}

int Context::lost_peer(const std::vector<int>& among, RankState& how) {
  std::vector<pollfd> polls;
  for (int i : among) polls.push_back({i == me ? -1 : peers[i].socket.get(), POLLIN | POLLRDHUP, 0});
  poll(polls.data(), polls.size(), 0);
  for (size_t i = 0; i < among.size(); i++) {
    if (among[i] == me) continue;
    how = static_cast<RankState>(peers[among[i]].header().state.load(std::memory_order_acquire));
    if (polls[i].revents != 0 || how != RankState::running) return among[i];
  }
  return -1;
}

Failure Context::loss(int local, RankState how) const {
  const int who = peers[local].rank;
  // A rank aborts because of another failure, so it is not named as the culprit.
  if (how == RankState::aborted) return {PRUN_EABORTED, -1, "rank #", who, " aborted"};
  if (how == RankState::closed) return {PRUN_EPEER, who, "rank #", who, " has closed its transport"};
  return {PRUN_EPEER, who, "the process of rank #", who, " is gone"};
}

}  // namespace prun::shm

const prun_transport* prun_transport_v1(const prun_host* host) {
  return prun::sdk::transport_table<prun::shm::Context>(host, {.name = "shm",
                                                               .version = "1.0.0",
                                                               .summary = "shared memory between the ranks of one host",
                                                               .local_only = true});
}

// Texts, sizes and fingerprints of calls. Fingerprint bits: kind 0-3, dtype 4-7, redop 8-11, rank_order 12, no count
// 13, root 16-47.
#include "comm/collectives/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace prun {
namespace {

constexpr std::array<std::string_view, 11> kNames = {"all_reduce", "all_gather",   "reduce_scatter", "broadcast",
                                                     "reduce",     "gather",       "scatter",        "all_to_all",
                                                     "barrier",    "all_gather_v", "all_to_all_v"};
static_assert(static_cast<int>(CollKind::barrier) == PRUN_BARRIER &&
              static_cast<int>(CollKind::scatter) == PRUN_SCATTER);
static_assert(static_cast<int>(Dtype::u8) == PRUN_U8 && static_cast<int>(RedOp::avg) == PRUN_AVG);

std::string text_of(const CollCall& call, bool with_count) {
  std::string text(coll_name(call.kind));
  if (call.kind == CollKind::barrier) return text;
  text += fmt::format(" {}", dtype_name(call.dtype));
  if (with_count) text += fmt::format("[{}]", call.count);
  if (is_reduction(call.kind))
    text += fmt::format(" {}{}", redop_name(call.redop), call.rank_order ? " rank_order" : "");
  if (is_rooted(call.kind)) text += fmt::format(" root {}", call.root);
  return text;
}

}  // namespace

std::string_view coll_name(CollKind kind) { return kNames[static_cast<size_t>(kind)]; }

bool is_vector(CollKind kind) { return kind == CollKind::all_gather_v || kind == CollKind::all_to_all_v; }
bool is_reduction(CollKind kind) {
  return kind == CollKind::all_reduce || kind == CollKind::reduce_scatter || kind == CollKind::reduce;
}
bool is_rooted(CollKind kind) {
  return kind == CollKind::broadcast || kind == CollKind::reduce || kind == CollKind::gather ||
         kind == CollKind::scatter;
}

uint64_t pack_fingerprint(const CollCall& call) {
  uint64_t bits = static_cast<uint64_t>(call.kind);
  if (call.kind == CollKind::barrier) return bits;
  bits |= static_cast<uint64_t>(call.dtype) << 4;
  if (is_reduction(call.kind)) bits |= static_cast<uint64_t>(call.redop) << 8 | (call.rank_order ? 1u : 0u) << 12;
  if (is_rooted(call.kind)) bits |= static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 16;
  return bits;
}

std::string describe_packed(uint64_t fingerprint, uint64_t count) {
  unsigned kind = fingerprint & 15, dtype = fingerprint >> 4 & 15, redop = fingerprint >> 8 & 15;
  if (kind == kSendRecvKind) return "send and receive";
  if (kind >= kNames.size() || dtype > 7 || redop > 4) return fmt::format("an unknown operation ({:#x})", fingerprint);
  CollCall call;
  call.kind = static_cast<CollKind>(kind);
  call.dtype = static_cast<Dtype>(dtype);
  call.redop = static_cast<RedOp>(redop);
  call.root = static_cast<int>(fingerprint >> 16 & 0xffffffffu);
  call.rank_order = (fingerprint >> 12 & 1) != 0;
  call.count = static_cast<int64_t>(count);
  return text_of(call, call.kind != CollKind::all_to_all_v && (fingerprint & kCountlessBit) == 0);
}

std::string describe(const CollCall& call) { return text_of(call, call.kind != CollKind::all_to_all_v); }

uint64_t agreed_count(const CollCall& call, int size) {
  if (call.kind == CollKind::all_gather_v) {
    return static_cast<uint64_t>(std::accumulate(call.counts, call.counts + size, int64_t{0}));
  }
  return call.kind == CollKind::all_to_all_v || call.kind == CollKind::barrier ? 0 : static_cast<uint64_t>(call.count);
}

uint64_t counts_hash(const CollCall& call, int size) {
  if (call.kind != CollKind::all_gather_v) return 0;
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the counts
  for (int i = 0; i < size; ++i) hash = (hash ^ static_cast<uint64_t>(call.counts[i])) * 0x100000001b3u;
  return hash;
}

int64_t call_bytes(const CollCall& call, int size) {
  int64_t item = dtype_bytes(call.dtype);
  switch (call.kind) {
    case CollKind::all_reduce:
    case CollKind::broadcast:
    case CollKind::reduce:
      return call.count * item;
    case CollKind::all_gather:
    case CollKind::reduce_scatter:
    case CollKind::gather:
    case CollKind::scatter:
    case CollKind::all_to_all:
      return call.count * size * item;
    case CollKind::barrier:
      return 0;
    case CollKind::all_gather_v:
      return static_cast<int64_t>(agreed_count(call, size)) * item;
    case CollKind::all_to_all_v:
      return std::max(std::accumulate(call.counts, call.counts + size, int64_t{0}),
                      std::accumulate(call.recv_counts, call.recv_counts + size, int64_t{0})) *
             item;
  }
  return 0;
}

int64_t native_bytes_sent(const CollCall& call, int index, int size) {
  int64_t bytes = call.count * dtype_bytes(call.dtype), others = size - 1;
  bool root = index == call.root;
  switch (call.kind) {
    case CollKind::all_reduce:
      return 2 * others * bytes / size;
    case CollKind::all_gather:
    case CollKind::reduce_scatter:
    case CollKind::all_to_all:
      return others * bytes;
    case CollKind::broadcast:
      return root ? bytes * others : 0;
    case CollKind::scatter:
      return root ? bytes * others : 0;
    case CollKind::reduce:
    case CollKind::gather:
      return root ? 0 : bytes;
    default:
      return 0;
  }
}

void check_call(const CollCall& call, int size) {
  PRUN_CHECK(call.count >= 0, fmt::format("count {}", call.count));
  if (is_rooted(call.kind))
    PRUN_CHECK(call.root >= 0 && call.root < size, fmt::format("root {} of {}", call.root, size));
  if (is_vector(call.kind)) PRUN_CHECK(call.counts != nullptr, "no counts");
  if (call.kind == CollKind::all_to_all_v) PRUN_CHECK(call.recv_counts != nullptr, "no recv_counts");
}

}  // namespace prun

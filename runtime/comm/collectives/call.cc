// Texts, sizes and fingerprints of calls. Fingerprint bits: 0-3 kind, 4-7 dtype, 8-11 redop, 12 rank_order, 13 no
// count, 16-47 root.
#include "comm/collectives/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace prun {
namespace {

static_assert(static_cast<int>(CollKind::barrier) == PRUN_BARRIER &&
              static_cast<int>(CollKind::scatter) == PRUN_SCATTER);
static_assert(static_cast<int>(Dtype::u8) == PRUN_U8 && static_cast<int>(RedOp::avg) == PRUN_AVG);

std::string text_of(const CollCall& call, bool with_count) {
  std::string text(traits(call.kind).name);
  if (call.kind == CollKind::barrier) return text;
  text += fmt::format(" {}", dtype_name(call.dtype));
  if (with_count) text += fmt::format("[{}]", call.count);
  if (traits(call.kind).reduces)
    text += fmt::format(" {}{}", redop_name(call.redop), call.rank_order ? " rank_order" : "");
  if (traits(call.kind).rooted) text += fmt::format(" root {}", call.root);
  return text;
}

}  // namespace

uint64_t pack_fingerprint(const CollCall& call) {
  uint64_t bits = static_cast<uint64_t>(call.kind);
  if (call.kind == CollKind::barrier) return bits;
  bits |= static_cast<uint64_t>(call.dtype) << 4;
  if (traits(call.kind).reduces) bits |= static_cast<uint64_t>(call.redop) << 8 | (call.rank_order ? 1u : 0u) << 12;
  if (traits(call.kind).rooted) bits |= static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 16;
  return bits;
}

std::string describe_packed(uint64_t fingerprint, uint64_t count) {
  unsigned kind = fingerprint & 15, dtype = fingerprint >> 4 & 15, redop = fingerprint >> 8 & 15;
  if (kind == kSendRecvKind) return "send and receive";
  if (kind >= kCollKinds || dtype > 7 || redop > 4) return fmt::format("an unknown operation ({:#x})", fingerprint);
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

int64_t call_bytes(const CollCall& call, int size) {
  const auto sum = [size](const int64_t* counts) { return std::accumulate(counts, counts + size, int64_t{0}); };
  const CollTraits& kind = traits(call.kind);
  int64_t elements = call.kind == CollKind::barrier ? 0 : call.count;
  if (kind.vector)
    elements = std::max(sum(call.counts), kind.whole_input ? sum(call.recv_counts) : 0);
  else if (kind.whole_input || kind.whole_output)
    elements *= size;
  return elements * dtype_bytes(call.dtype);
}

PreparedCall prepare_call(const CollCall& call, int size) {
  PRUN_CHECK(call.count >= 0, fmt::format("count {}", call.count));
  if (traits(call.kind).rooted)
    PRUN_CHECK(call.root >= 0 && call.root < size, fmt::format("root {} of {}", call.root, size));
  if (traits(call.kind).vector) PRUN_CHECK(call.counts != nullptr, "no counts");
  if (call.kind == CollKind::all_to_all_v) PRUN_CHECK(call.recv_counts != nullptr, "no recv_counts");

  PreparedCall prepared{call};
  prepared.fingerprint = pack_fingerprint(call);
  prepared.bytes = call_bytes(call, size);
  if (call.kind == CollKind::all_gather_v) {
    prepared.agreed_count = static_cast<uint64_t>(prepared.bytes / dtype_bytes(call.dtype));
    prepared.counts_hash = 0xcbf29ce484222325u;  // FNV-1a over the counts
    for (int i = 0; i < size; ++i)
      prepared.counts_hash = (prepared.counts_hash ^ static_cast<uint64_t>(call.counts[i])) * 0x100000001b3u;
  } else if (call.kind != CollKind::all_to_all_v && call.kind != CollKind::barrier) {
    prepared.agreed_count = static_cast<uint64_t>(call.count);
  }
  return prepared;
}

int64_t native_bytes_sent(const CollCall& call, int index, int size) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype), others = size - 1;
  const CollTraits& kind = traits(call.kind);
  if (kind.vector || call.kind == CollKind::barrier) return 0;
  if (call.kind == CollKind::all_reduce) return 2 * others * bytes / size;
  if (!kind.rooted) return others * bytes;
  const bool root = index == call.root, root_sends = !kind.reduces && !kind.whole_output;
  return root_sends != root ? 0 : root ? bytes * others : bytes;
}

}  // namespace prun

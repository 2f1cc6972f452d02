// Guards of a known pattern surround buffers; a byte written there is an error.
#include "tests/conformance/case.h"

#include <fmt/format.h>

#include <cstring>

namespace prun::testing {
namespace {

constexpr int64_t kGuard = 128;
constexpr char kGuardByte = 0x5a;

// Memory of `bytes` with guards, in the arena or owned.
class Guarded {
 public:
  Guarded(char* place, int64_t bytes, int64_t offset) : bytes_(bytes) {
    if (place == nullptr) {
      own_.resize(static_cast<size_t>(bytes + offset + 2 * kGuard + 64));
      place = own_.data() + (64 - reinterpret_cast<uintptr_t>(own_.data()) % 64) % 64;
    }
    data_ = place + kGuard + offset;
    std::memset(data_ - kGuard, kGuardByte, static_cast<size_t>(kGuard));
    std::memset(data_ + bytes, kGuardByte, static_cast<size_t>(kGuard));
  }
  char* data() { return data_; }
  bool whole() const {
    for (int64_t i = 0; i < kGuard; ++i) {
      if (data_[i - kGuard] != kGuardByte || data_[bytes_ + i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  std::vector<char> own_;
  char* data_;
  int64_t bytes_;
};

}  // namespace

std::string describe_case(const Case& c, int size) {
  return fmt::format("{} on {} ranks{}{}{}", describe(c.call), size, c.in_place ? " in place" : "",
                     c.in_arena ? " in the arena" : "", c.misaligned != 0 ? " misaligned" : "");
}

bool has_in_place(CollKind kind) {
  return kind == CollKind::all_reduce || kind == CollKind::broadcast || kind == CollKind::reduce ||
         kind == CollKind::all_gather || kind == CollKind::reduce_scatter;
}

std::string run_case(Rank& rank, Communicator& communicator, Case c) {
  const int me = communicator.index(), size = communicator.size();
  const int64_t item = dtype_bytes(c.call.dtype), block = c.call.count * item;
  const auto inputs = [&](int r, int64_t begin, int64_t count) {
    return make_input(c.call.dtype, c.pattern, r, count, static_cast<uint64_t>(c.call.kind) * 31 + 7, begin);
  };
  const int64_t send_items = send_count(c.call, me, size), recv_items = recv_count(c.call, me, size);
  const Bytes input = inputs(me, 0, std::max<int64_t>(0, send_items));
  const int64_t send_bytes = std::max<int64_t>(0, send_items) * item,
                recv_bytes = std::max<int64_t>(0, recv_items) * item;
  const int64_t room = std::max(send_bytes, recv_bytes);
  Guarded first(c.in_arena ? rank.arena : nullptr, c.in_place ? room : send_bytes, c.misaligned * item);
  Guarded second(c.in_arena ? rank.arena + kArenaBytes / 2 : nullptr, recv_bytes, c.misaligned * item);
  char* send = send_items < 0 ? nullptr : first.data();
  char* recv = recv_items < 0 ? nullptr : second.data();
  if (c.in_place) {
    // One buffer of the larger size; the smaller side is this rank's part of it.
    bool part_is_sent = c.call.kind == CollKind::all_gather, part_is_received = c.call.kind == CollKind::reduce_scatter;
    send = first.data() + (part_is_sent ? me * block : 0);
    recv = first.data() + (part_is_received ? me * block : 0);
    if (recv_items < 0) recv = nullptr;
  } else if (recv_bytes > 0) {
    std::memset(recv, 0x77, static_cast<size_t>(recv_bytes));
  }
  if (send != nullptr && !input.empty()) std::memcpy(send, input.data(), input.size());
  c.call.send = send;
  c.call.recv = recv;
  communicator.run(c.call);
  std::string what;
  if (recv_items >= 0 && c.call.kind != CollKind::barrier) {
    what = compare(c.call.dtype, expected(c.call, me, size, inputs), recv, c.tolerance);
  }
  if (what.empty() && !(first.whole() && second.whole())) what = "something was written outside the buffers";
  if (what.empty() && !c.in_place && !input.empty() && std::memcmp(send, input.data(), input.size()) != 0)
    what = "the input was changed";
  return what.empty() ? "" : fmt::format("{}, member {}: {}\n", describe_case(c, size), me, what);
}

}  // namespace prun::testing

// Inputs are bytes that differ between ranks; inputs of reductions are small integers, exact in every dtype.
#include "bench/data.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "comm/collectives/call.h"
#include "exec/plain_collectives.h"

namespace prun {
namespace {

constexpr int64_t kPeriod = 4099;  // prime, so that offsets wrong by a power of two are detected

// Writes an integer from 0 to 3 as an element.
void put_small(Dtype dtype, int value, std::byte* to) {
  constexpr uint16_t kBf16[] = {0, 0x3f80, 0x4000, 0x4040}, kF16[] = {0, 0x3c00, 0x4000, 0x4200};
  auto put = [to](auto element) { std::memcpy(to, &element, sizeof element); };
  switch (dtype) {
    case Dtype::f64:
      return put(static_cast<double>(value));
    case Dtype::f32:
      return put(static_cast<float>(value));
    case Dtype::bf16:
      return put(kBf16[value]);
    case Dtype::f16:
      return put(kF16[value]);
    case Dtype::i64:
      return put(static_cast<int64_t>(value));
    case Dtype::i32:
      return put(static_cast<int32_t>(value));
    case Dtype::i8:
      return put(static_cast<int8_t>(value));
    case Dtype::u8:
      return put(static_cast<uint8_t>(value));
  }
}

// Keeps results of RedOp::prod small: at most about four members have a 2 in the same element, the others a 1.
int small_value(RedOp redop, int member, int ranks, int64_t i, uint32_t random) {
  const int classes = std::max(1, ranks / 4);
  if (redop == RedOp::prod) return member % classes == i % classes ? 2 : 1;
  return static_cast<int>(random & 3);
}

}  // namespace

BenchData::BenchData(const BenchOp& op, const CollCall& call, int ranks)
    : op_(op), call_(call), ranks_(ranks), item_(dtype_bytes(call.dtype)) {
  const bool reduces = op.what == BenchOp::What::collective && traits(call.kind).reduces;
  const size_t bytes = static_cast<size_t>(kPeriod * item_);
  for (int member = 0; member < ranks; ++member) {
    Period& values = inputs_.emplace_back(bytes);
    std::minstd_rand random(static_cast<uint32_t>(member + 1));
    for (int64_t i = 0; i < kPeriod; ++i) {
      std::byte* element = values.data() + i * item_;
      const uint32_t word = static_cast<uint32_t>(random() >> 8);
      if (reduces)
        put_small(call.dtype, small_value(call.redop, member, ranks, i, word), element);
      else
        for (int64_t b = 0; b < item_; ++b)
          element[b] = static_cast<std::byte>(word >> 8 * (b & 1) ^ static_cast<uint32_t>(b));
    }
  }
  if (!reduces) return;
  std::vector<Period> results(static_cast<size_t>(ranks), Period(bytes));
  std::vector<PlainMember> members;
  for (size_t m = 0; m < results.size(); ++m)
    members.push_back({inputs_[m].data(), results[m].data(), kPeriod, kPeriod, nullptr, nullptr});
  run_plain_collective(CollKind::all_reduce, call.dtype, call.redop, 0, members);
  reduced_ = std::move(results[0]);
}

int64_t BenchData::input_count(int me) const {
  switch (call_.kind) {
    case CollKind::barrier:
      return op_.sized ? call_.count : 0;  // the count of a message
    case CollKind::broadcast:
      return me == call_.root ? call_.count : 0;
    case CollKind::scatter:
      return me == call_.root ? call_.count * ranks_ : 0;
    case CollKind::reduce_scatter:
    case CollKind::all_to_all:
      return call_.count * ranks_;
    default:
      return call_.count;
  }
}

int64_t BenchData::output_count(int me) const {
  int64_t end = 0;
  for (const Expected& part : expected(me)) end = std::max(end, part.at + part.count);
  return end;
}

std::vector<BenchData::Expected> BenchData::expected(int me) const {
  const int64_t n = call_.count;
  auto input = [&](int member) { return &inputs_[static_cast<size_t>(member)]; };
  std::vector<Expected> parts;
  switch (op_.what) {
    case BenchOp::What::send_recv:
      return {{0, n, input((me + ranks_ - 1) % ranks_), 0}};
    case BenchOp::What::ping_pong:
      return me < 2 ? std::vector<Expected>{{0, n, input(1 - me), 0}} : parts;
    case BenchOp::What::idle:
      return parts;
    case BenchOp::What::collective:
      break;
  }
  switch (call_.kind) {
    case CollKind::all_reduce:
      return {{0, n, &reduced_, 0}};
    case CollKind::reduce:
      return me == call_.root ? std::vector<Expected>{{0, n, &reduced_, 0}} : parts;
    case CollKind::reduce_scatter:
      return {{0, n, &reduced_, me * n}};
    case CollKind::broadcast:
      return {{0, n, input(call_.root), 0}};
    case CollKind::scatter:
      return {{0, n, input(call_.root), me * n}};
    case CollKind::gather:
      if (me != call_.root) return parts;
      [[fallthrough]];
    case CollKind::all_gather:
      for (int m = 0; m < ranks_; ++m) parts.push_back({m * n, n, input(m), 0});
      return parts;
    case CollKind::all_to_all:
      for (int m = 0; m < ranks_; ++m) parts.push_back({m * n, n, input(m), me * n});
      return parts;
    default:
      return parts;
  }
}

// Calls visit(offset in elements, elements, bytes of the period there) for runs that do not wrap around.
template <class Visit>
static void for_runs(int64_t from, int64_t count, Visit visit) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = (from + done) % kPeriod, run = std::min(count - done, kPeriod - at);
    visit(done, run, at);
    done += run;
  }
}

void BenchData::write(const Period& values, int64_t from, int64_t count, std::byte* to) const {
  for_runs(from, count, [&](int64_t done, int64_t run, int64_t at) {
    std::memcpy(to + done * item_, values.data() + at * item_, static_cast<size_t>(run * item_));
  });
}

void BenchData::fill(int me, const CollCall& call) const {
  // The output must not be correct before the call.
  if (call.recv != nullptr) std::memset(call.recv, 0xa5, static_cast<size_t>(output_count(me) * item_));
  auto* input = static_cast<std::byte*>(const_cast<void*>(call.send));
  write(inputs_[static_cast<size_t>(me)], 0, input_count(me), input);
}

int64_t BenchData::differing(const Expected& part, const std::byte* found) const {
  int64_t wrong = 0;
  for_runs(part.from, part.count, [&](int64_t done, int64_t run, int64_t at) {
    const std::byte *is = found + done * item_, *must = part.values->data() + at * item_;
    if (std::memcmp(is, must, static_cast<size_t>(run * item_)) == 0) return;
    for (int64_t i = 0; i < run; ++i)
      wrong += std::memcmp(is + i * item_, must + i * item_, static_cast<size_t>(item_)) != 0;
  });
  return wrong;
}

int64_t BenchData::wrong(int me, const CollCall& call) const {
  int64_t wrong = 0;
  for (const Expected& part : expected(me))
    wrong += differing(part, static_cast<const std::byte*>(call.recv) + part.at * item_);
  return wrong;
}

}  // namespace prun

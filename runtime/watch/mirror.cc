// The bytes are structs in native layout, because all nodes have the same byte order and version (launch/handshake.h).
#include "watch/mirror.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/machine_id.h"
#include "exec/recorder.h"

namespace prun {
namespace {

constexpr uint64_t kMirrorMagic = 0x7072756e6d697232;
constexpr uint64_t kMostSteps = 4 * kStepRing;

struct NewsHead {
  uint64_t magic, now_ns, boot;
  int32_t pid;
  char process;
  uint32_t phase, body, connected, streams, steps;
  uint64_t alive_ns, beat_ns, saving_ns, pss;
  int64_t saving, saved;
  int64_t device_use[6];
  char kernel[160];  // WatchedRank::kernel; the last byte is 0
  char doing[sizeof(RecorderHeader::doing)], transports[sizeof(RecorderHeader::transports)];
};

struct NewsStream {
  uint32_t op, step, run, running;
  uint64_t since_ns, written, events;
};

template <class T>
void append(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Takes values from the front; returns false forever once there are too few bytes.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  bool take(T& value) {
    whole_ = whole_ && bytes_.size() >= sizeof value;
    if (!whole_) return false;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return true;
  }
  template <class T>
  bool take(std::vector<T>& values, uint64_t count) {
    whole_ = whole_ && count <= bytes_.size() / sizeof(T);
    if (!whole_) return false;
    values.resize(count);
    for (T& value : values) take(value);
    return whole_;
  }
  bool ended() const { return whole_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool whole_ = true;
};

template <class Here>
void put_head(RecorderHeader& copy, const NewsHead& head, const Here& here) {
  copy.body.store(head.body);
  copy.alive_ns.store(here(head.alive_ns));
  copy.beat_ns.store(here(head.beat_ns));
  copy.saving_ns.store(here(head.saving_ns));
  copy.saving.store(head.saving);
  copy.saved.store(head.saved);
  copy.pss.store(head.pss);
  for (size_t i = 0; i < std::size(head.device_use); ++i) copy.device_use[i].store(head.device_use[i]);
  std::memcpy(copy.doing, head.doing, sizeof copy.doing - 1);
  std::memcpy(copy.transports, head.transports, sizeof copy.transports - 1);
  copy.connected.store(head.connected);
  copy.phase.store(static_cast<RunPhase>(std::min(head.phase, static_cast<uint32_t>(RunPhase::finished))));
}

// Machines with an equal boot id share their clock, unless one is a clone of the other.
uint64_t boot_hash() {
  static const uint64_t hash = [] {
    const std::string id = machine_id();
    return id.empty() ? 0 : std::hash<std::string>()(id);
  }();
  return hash;
}

}  // namespace

MirrorSource::State MirrorSource::state_of(int stream) const {
  if (frozen_) return states_[static_cast<size_t>(stream)];
  const StreamState& state = recorder_.stream[stream];
  const uint64_t written = state.written.load(std::memory_order_acquire);
  return {state.op.load(), state.step.load(), state.run.load(), state.running.load(), state.since_ns.load(), written};
}

void MirrorSource::freeze() {
  for (int s = 0; s < kMaxStreams; ++s) states_[static_cast<size_t>(s)] = state_of(s);
  frozen_ = true;
}

std::string MirrorSource::take(char process, size_t events, std::string_view kernel) {
  NewsHead head{};
  head.magic = kMirrorMagic;
  head.boot = boot_hash();
  head.pid = pid_;
  head.process = process;
  kernel.copy(head.kernel, sizeof head.kernel - 1);
  head.phase = static_cast<uint32_t>(recorder_.phase.load(std::memory_order_acquire));
  head.body = recorder_.body.load();
  head.connected = recorder_.connected.load();
  head.streams = kMaxStreams;
  head.alive_ns = recorder_.alive_ns.load();
  head.beat_ns = recorder_.beat_ns.load();
  head.saving = recorder_.saving.load(std::memory_order_acquire);
  head.saving_ns = recorder_.saving_ns.load();
  head.saved = recorder_.saved.load();
  head.pss = recorder_.pss.load();
  for (size_t i = 0; i < std::size(head.device_use); ++i) head.device_use[i] = recorder_.device_use[i].load();
  std::memcpy(head.doing, recorder_.doing, sizeof head.doing);
  std::memcpy(head.transports, recorder_.transports, sizeof head.transports);
  const uint64_t steps = recorder_.steps_written.load(std::memory_order_acquire);
  head.steps = static_cast<uint32_t>(std::min(steps - steps_, static_cast<uint64_t>(kStepRing)));
  std::string tail;
  for (; steps_ < steps; ++steps_) append(tail, recorder_steps(&recorder_)[steps_ % static_cast<uint64_t>(kStepRing)]);
  recorder_.steps_read.store(steps_, std::memory_order_release);
  for (int s = 0; s < kMaxStreams; ++s) {
    const State state = state_of(s);
    uint64_t& sent = sent_[static_cast<size_t>(s)];
    const uint64_t count = std::min({state.written - sent, static_cast<uint64_t>(events), recorder_.capacity});
    append(tail, NewsStream{state.op, state.step, state.run, state.running, state.since_ns, state.written, count});
    for (uint64_t at = state.written - count; at < state.written; ++at)
      append(tail, recorder_ring(&recorder_, s)[at & (recorder_.capacity - 1)]);
    if (events > 0) sent = state.written;
  }
  head.now_ns = now_ns();
  std::string bytes;
  append(bytes, head);
  return bytes + tail;
}

void MirrorCopy::Free::operator()(std::byte* memory) const { munmap(memory, bytes); }

MirrorCopy::MirrorCopy(uint64_t capacity) : memory_(nullptr, Free{recorder_bytes(capacity)}) {
  void* at = mmap(nullptr, recorder_bytes(capacity), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw Error(Exit::out_of_memory, "no memory for the recorders of other nodes' ranks");
  memory_.reset(static_cast<std::byte*>(at));
  recorder()->magic = kRecorderMagic;
  recorder()->capacity = capacity;
}

bool MirrorCopy::put(std::string_view bytes, uint64_t now) {
  Reader reader(bytes);
  NewsHead head;
  std::vector<StepRecord> steps;
  if (!reader.take(head) || head.magic != kMirrorMagic || head.streams != kMaxStreams ||
      !reader.take(steps, head.steps))
    return false;
  std::array<NewsStream, kMaxStreams> streams;
  std::array<std::vector<OpEvent>, kMaxStreams> events;
  for (size_t s = 0; s < kMaxStreams; ++s)
    if (!reader.take(streams[s]) || streams[s].events > streams[s].written ||
        !reader.take(events[s], streams[s].events))
      return false;
  if (!reader.ended() || waiting_.size() > kMostSteps) return false;
  set_offset(head.boot == boot_hash() && head.boot != 0, static_cast<int64_t>(now - head.now_ns), now);
  for (int s = 0; s < kMaxStreams; ++s) {
    const NewsStream& news = streams[static_cast<size_t>(s)];
    StreamState& state = recorder()->stream[s];
    if (news.events > 0) put_events(s, news.written, events[static_cast<size_t>(s)]);
    state.op.store(news.op);
    state.step.store(news.step);
    state.run.store(news.run);
    state.running.store(news.running);
    state.since_ns.store(here(news.since_ns));
  }
  for (StepRecord& step : steps) {
    step.begin_ns = here(step.begin_ns);
    step.end_ns = here(step.end_ns);
    waiting_.push_back(step);
  }
  put_steps();
  pid_ = head.pid;
  process_ = head.process;
  head.kernel[sizeof head.kernel - 1] = '\0';
  kernel_ = head.kernel;
  put_head(*recorder(), head, [this](uint64_t ns) { return here(ns); });
  return true;
}

// Uses the smallest difference, which may grow by 20 us/s to follow clock drift. One clock cannot yield a negative
// difference, and yields a large one only while messages are late.
void MirrorCopy::set_offset(bool same_machine, int64_t difference, uint64_t now) {
  constexpr int64_t kLatest = 1'000'000'000;
  const bool first = least_ns_ == INT64_MAX;
  const int64_t drift = first ? 0 : static_cast<int64_t>((now - arrived_ns_) / 50'000);
  least_ns_ = first ? difference : std::min(difference, least_ns_ + drift);
  offset_ns_ = same_machine && least_ns_ >= 0 && least_ns_ < kLatest ? 0 : least_ns_;
  arrived_ns_ = now;
}

uint64_t MirrorCopy::here(uint64_t ns) const { return ns == 0 ? 0 : ns + static_cast<uint64_t>(offset_ns_); }

// Events that were not sent leave gaps with end time 0.
void MirrorCopy::put_events(int stream, uint64_t written, const std::vector<OpEvent>& events) {
  RecorderHeader& copy = *recorder();
  OpEvent* ring = recorder_ring(&copy, stream);
  const uint64_t first = written - events.size(), mask = copy.capacity - 1;
  const uint64_t oldest = written - std::min(written, copy.capacity);
  for (uint64_t at = std::max(copy.stream[stream].written.load(), oldest); at < first; ++at) ring[at & mask].end_ns = 0;
  for (uint64_t at = std::max(first, oldest); at < written; ++at) {
    OpEvent event = events[at - first];
    for (uint64_t* time : {&event.ready_ns, &event.begin_ns, &event.end_ns}) *time = here(*time);
    ring[at & mask] = event;
  }
  copy.stream[stream].written.store(written);
}

void MirrorCopy::put_steps() {
  RecorderHeader& copy = *recorder();
  uint64_t written = copy.steps_written.load();
  for (; !waiting_.empty() && written - copy.steps_read.load() < static_cast<uint64_t>(kStepRing); ++written) {
    recorder_steps(&copy)[written % static_cast<uint64_t>(kStepRing)] = waiting_.front();
    waiting_.pop_front();
  }
  copy.steps_written.store(written);
}

}  // namespace prun

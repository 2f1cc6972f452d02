// Every operation is one exchange of messages: each rank sends its whole input to every rank that needs it.
#include "comm.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "reduce.h"
#include "tests/substitutes/cuda/substitute.h"

namespace substitute {
namespace {

struct Sizes {
  size_t send, recv;
};
Sizes sizes_of(const Operation& o, int rank, int ranks) {
  const size_t piece = o.count * bytes_of(o.type), all = piece * static_cast<size_t>(ranks);
  const bool root = rank == o.root;
  switch (o.what) {
    case What::send_recv:
      return {o.send != nullptr ? piece : 0, o.recv != nullptr ? piece : 0};
    case What::all_gather:
      return {piece, all};
    case What::reduce_scatter:
      return {all, piece};
    case What::broadcast:
      return {root ? piece : 0, piece};
    case What::reduce:
      return {piece, root ? piece : 0};
    case What::gather:
      return {piece, root ? all : 0};
    case What::scatter:
      return {root ? all : 0, piece};
    case What::all_to_all:
      return {all, all};
    default:
      return {piece, piece};
  }
}

// The messages that this rank sends to each rank and receives from each rank, itself included.
class Plan {
 public:
  Plan(const Comm& comm, const Operation& o)
      : o_(o), ranks_(comm.ranks), what_(static_cast<uint64_t>(o.what) << 8 | static_cast<uint64_t>(o.type)) {
    const size_t piece = o.count * bytes_of(o.type), n = static_cast<size_t>(ranks_);
    const bool root = comm.rank == o.root;
    for (size_t peer = 0; peer < n; ++peer) {
      const int who = static_cast<int>(peer);
      switch (o.what) {
        case What::all_reduce:
          send(who, 0, piece), stage(who, piece);
          break;
        case What::reduce_scatter:
          send(who, peer * piece, piece), stage(who, piece);
          break;
        case What::reduce:
          if (who == o.root) send(who, 0, piece);
          if (root) stage(who, piece);
          break;
        case What::all_gather:
          send(who, 0, piece), receive(who, peer * piece, piece);
          break;
        case What::all_to_all:
          send(who, peer * piece, piece), receive(who, peer * piece, piece);
          break;
        case What::broadcast:
          if (root) send(who, 0, piece);
          if (who == o.root) receive(who, 0, piece);
          break;
        case What::scatter:
          if (root) send(who, peer * piece, piece);
          if (who == o.root) receive(who, 0, piece);
          break;
        case What::gather:
          if (who == o.root) send(who, 0, piece);
          if (root) receive(who, peer * piece, piece);
          break;
        case What::send_recv:
          if (who == o.root && o.send != nullptr) send(who, 0, piece);
          if (who == o.root && o.recv != nullptr) receive(who, 0, piece);
          break;
      }
    }
  }
  std::vector<Message> sends, receives;

  void finish() {
    if (staged_.empty()) return;
    std::vector<const char*> inputs;
    for (const auto& data : staged_) inputs.push_back(data->data());
    reduce(o_.type, o_.op, inputs, o_.count, o_.recv);
  }

 private:
  void send(int to, size_t at, size_t bytes) { sends.push_back({to, const_cast<char*>(o_.send) + at, bytes, what_}); }
  void receive(int from, size_t at, size_t bytes) { receives.push_back({from, o_.recv + at, bytes, what_}); }
  void stage(int from, size_t bytes) {
    staged_.push_back(std::make_unique<std::vector<char>>(bytes));
    receives.push_back({from, staged_.back()->data(), bytes, what_});
  }

  const Operation o_;
  const int ranks_;
  const uint64_t what_;
  std::vector<std::unique_ptr<std::vector<char>>> staged_;
};

// Multiprocessors that NCCL's kernels of this process leave free: a thread block occupies one until it ends.
struct Multiprocessors {
  std::mutex mutex;
  std::condition_variable changed;
  int free = static_cast<int>(setting("MULTIPROCESSORS", 4));
};
Multiprocessors& multiprocessors() {
  static auto* instance = new Multiprocessors;
  return *instance;
}

class Resident {
 public:
  explicit Resident(const Comm& comm) : blocks_(std::min(comm.ctas == 0 ? 32 : comm.ctas, all())) {
    Multiprocessors& m = multiprocessors();
    std::unique_lock lock(m.mutex);
    const auto fits = [&] { return m.free >= blocks_ || comm.aborted; };
    while (!m.changed.wait_for(lock, std::chrono::milliseconds(20), fits)) {
    }
    m.free -= blocks_;
  }
  ~Resident() {
    Multiprocessors& m = multiprocessors();
    std::lock_guard lock(m.mutex);
    m.free += blocks_;
    m.changed.notify_all();
  }
  Resident(const Resident&) = delete;

 private:
  static int all() { return static_cast<int>(setting("MULTIPROCESSORS", 4)); }
  const int blocks_;
};

// NCCL_HOSTID replaces the host's name, as in NCCL.
uint64_t host_hash() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  const char* given = std::getenv("NCCL_HOSTID");
  return std::hash<std::string_view>()(given != nullptr ? given : name);
}

}  // namespace

int Comm::rank_on_the_same_device() const {
  const Place& mine = segment->places[rank];
  for (int other = 0; other < ranks; ++other)
    if (other != rank && segment->places[other].host == mine.host && segment->places[other].device == mine.device)
      return other;
  return -1;
}

void Comm::join() {
  segment = map_segment(id);
  segment->places[rank] = {host_hash(), device};
  const uint32_t all = static_cast<uint32_t>(ranks);
  segment->joined.fetch_add(1);
  for (auto& bell : segment->bells) ring(bell);
  while (!stopped()) {
    const uint32_t seen = segment->bells[rank].load();
    if (segment->joined.load() >= all) break;
    wait(segment->bells[rank], seen);
  }
  if (rank == 0 || aborted) unlink_segment(id);
}

bool Comm::link(const std::vector<Operation>& operations) {
  std::vector<const std::atomic<bool>*> awaited;
  const auto call = [&](std::atomic<bool>(&mine)[kMaxRanks], int peer, const std::atomic<bool>& theirs) {
    if (peer == rank) return;
    mine[peer] = true;
    ring(segment->bells[peer]);
    awaited.push_back(&theirs);
  };
  for (const Operation& o : operations) {
    for (int peer = 0; peer < ranks; ++peer) {
      const bool all = o.what == What::all_to_all, message = o.what == What::send_recv && peer == o.root;
      const bool to_root = o.what == What::gather, from_root = o.what == What::scatter, root = rank == o.root;
      if (all || (message && o.send != nullptr) || (to_root && peer == o.root) || (from_root && root))
        call(segment->sends[rank], peer, segment->receives[peer][rank]);
      if (all || (message && o.recv != nullptr) || (from_root && peer == o.root) || (to_root && root))
        call(segment->receives[rank], peer, segment->sends[peer][rank]);
    }
  }
  const auto there = [](const std::atomic<bool>* half) { return half->load(); };
  while (!aborted) {
    const uint32_t seen = segment->bells[rank].load();
    if (std::all_of(awaited.begin(), awaited.end(), there)) return true;
    wait(segment->bells[rank], seen);
  }
  return false;
}

bool Comm::reaches(const std::vector<Operation>& operations) const {
  for (const Operation& o : operations) {
    const Sizes sizes = sizes_of(o, rank, ranks);
    if ((sizes.send > 0 && !reachable(o.send, sizes.send)) || (sizes.recv > 0 && !reachable(o.recv, sizes.recv)))
      return false;
  }
  return true;
}

void Comm::hang() const {
  while (!aborted) wait(segment->bells[rank], segment->bells[rank].load());
}

void Comm::run(const std::vector<Operation>& operations) {
  std::lock_guard lock(one_at_a_time);
  const Resident kernel(*this);
  if (aborted) return;
  std::vector<Message> sends, receives;
  std::vector<std::unique_ptr<Plan>> plans;
  for (const Operation& o : operations) {
    plans.push_back(std::make_unique<Plan>(*this, o));
    sends.insert(sends.end(), plans.back()->sends.begin(), plans.back()->sends.end());
    receives.insert(receives.end(), plans.back()->receives.begin(), plans.back()->receives.end());
  }
  exchange(*segment, rank, sends, receives, [this] { return aborted.load(); });
  if (!aborted)
    for (const auto& plan : plans) plan->finish();
}

}  // namespace substitute

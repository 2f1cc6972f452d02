// What the other ranks have told this one beside NCCL: which call they are in, how large what they send is, that they
// want a communicator, that they are gone. NCCL compares nothing and names nobody; from this board come the errors that
// do.
//
// One lock, for all of it; `wait` sleeps until anything is news.
#pragma once
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace prun::nccl {

using Clock = std::chrono::steady_clock;

// A message between ranks beside NCCL; everything of one size, for simplicity.
struct Note {
  // here: a call, to those who do not compare it; waits: for the device, in a replayed step, and for long.
  enum Kind : uint32_t { call, here, size, want, go, waits };
  uint32_t kind = call;
  int32_t lane = 0;  // size
  uint64_t key = 0;  // call, want, go: of the communicator
  uint64_t sequence = 0, fingerprint = 0,
           count = 0;  // call; size: count is its bytes; go: sequence is the split's number
  int32_t by_id = 0;   // go: from `id`, else by splitting the world's
  int32_t padding = 0;
  ncclUniqueId id{};
};

struct Record {  // of a collective call
  uint64_t sequence, fingerprint, count;
};

class Board {
 public:
  explicit Board(int ranks) : lost_(static_cast<size_t>(ranks)), heard_(static_cast<size_t>(ranks), Clock::now()) {}

  void deliver(int from, const Note& note);
  void lose(int rank);

  // What `rank` calls as its number `sequence` of a communicator, once it has said so.
  std::optional<Record> call(uint64_t key, int rank, uint64_t sequence);
  bool has_called(uint64_t key, int rank, uint64_t sequence);  // that call or a later one
  void forget_call(uint64_t key, int rank, uint64_t sequence);
  void forget(uint64_t key);

  // Messages of a peer and lane are numbered on both sides in the order in which they are given to us.
  uint64_t expect(int peer, int lane);
  std::optional<uint64_t> bytes_of(int peer, int lane, uint64_t number);
  void forget_message(int peer, int lane, uint64_t number);

  bool all_want(uint64_t key, const std::vector<int>& ranks, int& missing);
  std::optional<Note> take_go(uint64_t key);

  // A rank that has been gone for longer than what it still sent needs to arrive; -1 none.
  int lost_among(const std::vector<int>& ranks);
  // A rank other than `me` that is not gone, but has told nothing for so long; of several the first. -1 none.
  int silent_among(const std::vector<int>& ranks, int me, std::chrono::seconds so_long);

  void wait(std::chrono::microseconds at_most);
  void wake();

 private:
  struct Lane {
    uint64_t expected = 0, arrived = 0;
    std::map<uint64_t, uint64_t> bytes;  // by number
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t news_ = 0;
  std::map<std::pair<uint64_t, int>, std::map<uint64_t, Record>> calls_;
  std::map<std::pair<uint64_t, int>, uint64_t> called_;  // sequence of the latest, plus one
  std::map<std::pair<int, int>, Lane> lanes_;
  std::map<uint64_t, std::set<int>> wants_;
  std::map<uint64_t, Note> gos_;
  std::vector<std::optional<Clock::time_point>> lost_;
  std::vector<Clock::time_point> heard_;  // when each last told something
};

}  // namespace prun::nccl

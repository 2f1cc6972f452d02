// Notes from other ranks over the control connection: the call that a rank is in, the sizes of its sends, its request
// for a communicator, its loss. NCCL compares no calls and names no rank; errors that name a mismatched or missing rank
// are derived from this board.
//
// One lock guards it; `wait` sleeps until there is news.
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

// A message between ranks over the control connection; all notes have one size.
struct Note {
  // here: the sequence of a call, for ranks that do not compare it; waits: the rank waits in a replayed step.
  enum Kind : uint32_t { call, here, size, want, go, waits };
  uint32_t kind = call;
  int32_t lane = 0;  // lane of a `size` note
  uint64_t key = 0;  // key of the communicator; unset in size and waits
  // call: all three; size: count is the message's bytes; go: sequence is the split's number.
  uint64_t sequence = 0, fingerprint = 0, count = 0;
  int32_t by_id = 0;  // go: 1 = make the communicator from `id`, 0 = split the world's parent
  int32_t padding = 0;
  ncclUniqueId id{};
};

struct Record {  // a collective call
  uint64_t sequence, fingerprint, count;
};

class Board {
 public:
  explicit Board(int ranks) : lost_(static_cast<size_t>(ranks)), heard_(static_cast<size_t>(ranks), Clock::now()) {}

  void deliver(int from, const Note& note);
  void lose(int rank);

  // Returns the call with number `sequence` of a communicator on `rank`, once its note has arrived.
  std::optional<Record> call(uint64_t key, int rank, uint64_t sequence);
  bool has_called(uint64_t key, int rank, uint64_t sequence);  // counts a later call, too
  void forget_call(uint64_t key, int rank, uint64_t sequence);
  void forget(uint64_t key);

  // Returns the number of the next message to receive. Both sides number the messages of a peer and lane in posting
  // order.
  uint64_t expect(int peer, int lane);
  std::optional<uint64_t> bytes_of(int peer, int lane, uint64_t number);
  void forget_message(int peer, int lane, uint64_t number);

  bool all_want(uint64_t key, const std::vector<int>& ranks, int& missing);
  std::optional<Note> take_go(uint64_t key);

  // Returns a rank that has been gone for longer than its last messages need to arrive; -1 = none.
  int lost_among(const std::vector<int>& ranks);
  // Returns the first rank other than `me` that is not gone but has sent no note for `so_long`; -1 = none.
  int silent_among(const std::vector<int>& ranks, int me, std::chrono::seconds so_long);

  void wait(std::chrono::microseconds at_most);
  void wake();

 private:
  struct Lane {
    uint64_t expected = 0, arrived = 0;
    std::map<uint64_t, uint64_t> bytes;  // bytes by message number
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t news_ = 0;
  std::map<std::pair<uint64_t, int>, std::map<uint64_t, Record>> calls_;
  std::map<std::pair<uint64_t, int>, uint64_t> called_;  // sequence of the latest call, plus one
  std::map<std::pair<int, int>, Lane> lanes_;
  std::map<uint64_t, std::set<int>> wants_;
  std::map<uint64_t, Note> gos_;
  std::vector<std::optional<Clock::time_point>> lost_;
  std::vector<Clock::time_point> heard_;  // time of each rank's last note
};

}  // namespace prun::nccl

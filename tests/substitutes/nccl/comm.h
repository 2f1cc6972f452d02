// A communicator of the substitute, and its operations on a stream.
//
// It behaves as NCCL where the plugin depends on it. With blocking = 0 every call starts a thread and returns
// ncclInProgress, and a second call before its end gets ncclInvalidArgument. With blocking = 1 a call starts no thread.
// The first message between two ranks returns only when the other rank has called its half.
#pragma once
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "network.h"

namespace substitute {

constexpr uint32_t kAlive = 0xa11ce, kFreed = 0xdead;

enum class What : uint32_t {
  send_recv,
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all
};

struct Operation {
  What what;
  const char* send;
  char* recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  // or the peer of a send or receive, one of whose buffers is null
};

struct Comm {
  std::atomic<uint32_t> magic{kAlive};
  uint64_t id = 0;
  int rank = 0, ranks = 1;
  bool blocking = true;
  int ctas = 0;  // thread blocks of its kernels; 0 = NCCL's choice
  Segment* segment = nullptr;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<bool> connected{false};  // has run an operation
  const Comm* parent = nullptr;        // while it is split off: aborting the parent ends the split
  int splits = 0;
  int device = 0;
  void* buffers = nullptr;
  std::atomic<int> queued{0};  // operations in streams
  std::mutex one_at_a_time;    // serializes its operations, as a device does

  void join();                                          // waits for all ranks
  bool link(const std::vector<Operation>& operations);  // connects ranks that exchange messages; false: aborted
  void run(const std::vector<Operation>& operations);   // on a stream's thread
  bool stopped() const { return aborted || (parent != nullptr && parent->aborted); }
  bool reaches(const std::vector<Operation>& operations) const;  // whether the device can access all buffers
  int rank_on_the_same_device() const;                           // once joined; -1 = none
  void hang() const;
};

}  // namespace substitute

// A context: one rank's end of the transport, on one device.
#pragma once
#include <prun/transport.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "board.h"
#include "comm.h"
#include "control.h"
#include "library.h"
#include "memory.h"
#include "options.h"
#include "request.h"
#include "retire.h"

namespace prun_nccl {

class Context {
 public:
  Context(const prun_open_params& params, const prun_host* host);  // throws Failure
  ~Context();
  Context(const Context&) = delete;

  size_t address(void* blob, size_t room);
  prun_status connect(const void* const* blobs, const size_t* bytes, prun_result* result);
  void abort();

  prun_comm* create(const int* ranks, int n, int lane);
  void free(prun_comm* comm);
  // Where messages of this lane go: the communicator that was made for it, else the world's.
  Comm& comm_of(int lane, int peer);

  bool aborted() const { return aborted_ || (host != nullptr && host->aborted != nullptr && host->aborted() != 0); }
  void use_device() const { library->cuda().set_device(device); }  // CUDA's current device is each thread's own
  ncclConfig_t config(const std::string& name) const;
  cudaEvent_t take_event();
  void give_event(cudaEvent_t event);
  void log(int level, const std::string& text) const;
  std::string describe_self() const;  // which libraries, which device
  void deregister(const void* ptr);

  const prun_host* const host;
  const Options options;
  const int rank, ranks;
  const std::shared_ptr<const Library> library;
  int device = 0;
  Board board;
  Control control;
  Memory memory;
  Retirement retirement;
  SelfMessages to_itself;
  std::unique_ptr<prun_comm> world;
  std::atomic<uint64_t> next_split{0};      // whose turn it is
  std::atomic<uint64_t> splits_ordered{0};  // by this rank, where it is the one that orders

 private:
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;  // of what follows
  std::vector<prun_comm*> comms_;
  std::vector<cudaEvent_t> events_;
};

// Throws Failure; also where a request fails at once.
prun_req* start_batch(Context& context, const prun_p2p* ops, size_t n, prun_queue queue);
// nullptr: NCCL does not do that.
prun_req* start_collective(Context& context, Comm& comm, const prun_coll_params& params, prun_queue queue);
// Returns once everything of it is in its queue, which takes long only where NCCL connects ranks for the first time.
void enqueue(Context& context, prun_req& request);
prun_status test_request(Context& context, prun_req* request, prun_result* result);

}  // namespace prun_nccl

struct prun_ctx {
  prun_nccl::Context context;
};

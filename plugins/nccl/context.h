// A context: one rank's end of the transport, on one device.
#pragma once
#include <prun/sdk/transport.h>

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

namespace prun::nccl {

class Context : public sdk::Transport {
 public:
  using Request = nccl::Request;
  using Comm = nccl::Comm;

  explicit Context(const prun_open_params& params);
  ~Context();

  // The functions of the transport table.
  std::string address();
  Failure connect(const sdk::Blobs& blobs);
  Request* batch(std::span<const prun_p2p> ops, prun_queue queue);
  Failure test(Request* request);  // request.cc
  void abort();
  void* mem_alloc(size_t bytes, int kind, void*& handle);
  void* mem_reg(void* ptr, size_t bytes, int kind) { return memory.add(ptr, bytes, kind); }
  void mem_free(void* ptr, void* handle);
  Comm* comm_create(std::span<const int> members, int lane);
  Failure comm_test(Comm& comm);
  void comm_free(Comm* comm);
  Request* coll(Comm& comm, const prun_coll_params& params, prun_queue queue);
  static int score(const prun_open_params& params, std::span<const int> ranks);
  static const void* ext(std::string_view id);
  static void check_options(const char* text) { parse_options(text); }

  // Returns the communicator that was made for this lane and peer; without one, the world's.
  Comm& comm_of(int lane, int peer);

  void use_device() const { library->cuda().set_device(device); }  // CUDA's current device is per thread
  ncclConfig_t config(const Native& native, bool blocking) const;
  int take_ctas();  // reserves thread blocks for the kernels of one more communicator
  void give_ctas(int ctas);
  cudaEvent_t take_event();
  void give_event(cudaEvent_t event);
  std::string describe_self() const;  // libraries and device
  void deregister(const void* ptr);

  const Options options;
  const std::shared_ptr<const Library> library;
  const bool connects_late;  // the user's NCCL_RUNTIME_CONNECT makes NCCL connect in the first collective
  int device = 0;
  Board board;
  Control control;
  Memory memory;
  Retirement retirement;
  SelfMessages to_itself;
  std::unique_ptr<Comm> world;
  std::atomic<uint64_t> next_split{0};      // number of the split that may run next
  std::atomic<uint64_t> splits_ordered{0};  // number of splits that this rank has ordered, if it is the ordering rank

 private:
  void check_not_lost(const Comm& comm);
  Request* submit(std::unique_ptr<Request> request, prun_queue queue);

  std::mutex mutex_;  // guards the members below
  std::vector<Comm*> comms_;
  std::vector<cudaEvent_t> events_;
  int free_ctas_ = 0;
};

// start_batch and start_collective throw Failure, also for a request that fails at once.
std::unique_ptr<Request> start_batch(Context& context, std::span<const prun_p2p> ops, prun_queue queue);
// Returns nullptr for a collective that the core must execute.
std::unique_ptr<Request> start_collective(Context& context, Comm& comm, const prun_coll_params& params,
                                          prun_queue queue);
// Returns once the whole request is in its queue, which takes long only where NCCL connects ranks for the first time.
void enqueue(Context& context, Request& request);

}  // namespace prun::nccl

// The line to the other ranks beside NCCL: the socket transport, which lies beside this plugin, with its proof of the
// job secret, its deadlines while connecting and its news of ranks that are gone. One thread receives notes for the
// board.
#pragma once
#include <prun/progress.h>
#include <prun/sdk/transport.h>

#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "board.h"

namespace prun::nccl {

using sdk::Failure;

class Control {
 public:
  // Throws Failure.
  Control(const prun_open_params& params, Board& board);
  ~Control();
  Control(const Control&) = delete;

  std::string address(size_t room);
  Failure connect(const sdk::Blobs& blobs);
  void start();                         // once connected
  void send(int to, const Note& note);  // any thread; what a lost peer would be told is dropped
  void abort();

 private:
  struct Incoming {
    Note note;
    prun_req* req = nullptr;
  };
  struct Outgoing {
    Note note;
    prun_req* req;
  };
  bool receive(int peer);  // posts the next; false: the peer is gone
  void take(int peer);     // what has come
  void reap();             // notes that have gone out
  void run();

  const prun_transport* table_ = nullptr;
  const prun_progress* progress_ = nullptr;
  prun_ctx* ctx_ = nullptr;
  Board& board_;
  const int rank_;
  std::vector<Incoming> incoming_;
  std::mutex mutex_;  // of outgoing_
  std::list<Outgoing> outgoing_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace prun::nccl

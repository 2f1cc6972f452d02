// The control connection to the other ranks: the socket transport, installed beside this plugin, which authenticates
// with the job secret, applies its deadlines while connecting and detects lost ranks. One thread receives notes for the
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
  void start();                         // called once connected
  void send(int to, const Note& note);  // callable from any thread; drops notes to a lost peer
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
  bool receive(int peer);  // posts the next receive; returns false if the peer is gone
  void take(int peer);     // delivers notes that have arrived
  void reap();             // frees notes that have been sent
  void run();

  const prun_transport* table_ = nullptr;
  const prun_progress* progress_ = nullptr;
  prun_ctx* ctx_ = nullptr;
  Board& board_;
  const int rank_;
  std::vector<Incoming> incoming_;
  std::mutex mutex_;  // guards outgoing_
  std::list<Outgoing> outgoing_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace prun::nccl

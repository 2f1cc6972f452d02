// Encrypted streams between processes of a job, for threads that may block: AES-256-GCM over TCP, in messages of at
// most 1 MiB. Keys come from the job's secret and both ends' nonces, so what was recorded cannot be played again.
//
//     acceptor -> dialler   a nonce
//     dialler -> acceptor   its rank and a nonce; all that follows is sealed
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "base/rank_place.h"
#include "launch/control.h"

namespace prun {

class SealedStream {
 public:
  static constexpr size_t kMost = size_t{1} << 20;  // bytes of a message
  using Cancelled = std::function<bool()>;

  SealedStream(Fd fd, std::string send_key, std::string receive_key, Cancelled cancelled);
  // Both throw Error(corrupt_link): the peer is lost or lies, or `cancelled`.
  void send(std::string_view message);
  bool receive(std::string& message, double limit_s = 0);  // false: the peer has closed; limit 0: none

 private:
  bool move_all(bool sending, char* data, size_t bytes, double limit_s);
  std::string crypt(bool seal, uint64_t number, std::string_view head, std::string_view text) const;

  Fd fd_;
  std::string send_key_, receive_key_;
  Cancelled cancelled_;
  uint64_t sent_ = 0, received_ = 0;
};

// Where ranks of the job reach this one. Each connection that has proved itself is handed to `serve` on a thread of its
// own; what that throws ends the connection.
class SealedListener {
 public:
  using Serve = std::function<void(SealedStream&)>;

  // `host`: an address of this machine. `ports` "" or "A:B". Throws Error(transport).
  SealedListener(const RankPlace& place, const std::string& host, const std::string& ports, Serve serve);
  ~SealedListener();
  SealedListener(const SealedListener&) = delete;
  SealedListener& operator=(const SealedListener&) = delete;
  const std::string& address() const { return address_; }  // for dial

 private:
  void accept_all();
  void admit(Fd fd, bool& stranger);

  const RankPlace place_;
  Serve serve_;
  Fd listener_;
  std::string address_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0}, strangers_{0};  // of detached threads; strangers have not proved themselves yet
  std::thread accepting_;
};

// A stream to rank `to`, which listens at `address`. Throws Error(corrupt_link).
SealedStream dial(const RankPlace& from, int to, const std::string& address, SealedStream::Cancelled cancelled);

}  // namespace prun

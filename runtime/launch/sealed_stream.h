// Encrypted streams between processes of a job, for threads that may block: AES-256-GCM over TCP, messages of at most 1
// MiB. Keys derive from the job's secret and both ends' nonces, so recorded traffic cannot be replayed.
//
//     acceptor -> dialler   a nonce
//     dialler -> acceptor   its rank and a nonce; all later bytes are sealed
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
  // Both throw Error(corrupt_link) if the peer is lost, a message fails authentication, or `cancelled` returns true.
  void send(std::string_view message);
  bool receive(std::string& message, double limit_s = 0);  // false: the peer has closed; limit_s 0 = no limit

 private:
  bool move_all(bool sending, char* data, size_t bytes, double limit_s);
  std::string crypt(bool seal, uint64_t number, std::string_view head, std::string_view text) const;

  Fd fd_;
  std::string send_key_, receive_key_;
  Cancelled cancelled_;
  uint64_t sent_ = 0, received_ = 0;
};

// Accepts streams from ranks of the job. Each authenticated connection is passed to `serve` on its own thread; an
// exception from `serve` ends the connection.
class SealedListener {
 public:
  using Serve = std::function<void(SealedStream&)>;

  // `host`: an address of this machine. `ports`: "" = any, or the range "A:B". Throws Error(transport).
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
  std::atomic<int> connections_{0}, strangers_{0};  // numbers of detached threads; strangers are unauthenticated
  std::thread accepting_;
};

// Opens a stream to rank `to`, which listens at `address`. Throws Error(corrupt_link).
SealedStream dial(const RankPlace& from, int to, const std::string& address, SealedStream::Cancelled cancelled);

}  // namespace prun

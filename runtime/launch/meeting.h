// The rendezvous address of a job, and the proof that a process belongs to the job:
//
//     HOST:PORT, with a secret      the secret
//     HOST:PORT on loopback         same user: node 0 writes a secret of its own into the user's folder
//     unix:NAME                     same user, by the peer credentials from the kernel
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/tcp.h"

namespace prun {

// Returns whether all launchers of the job run on one host.
bool on_one_host(const LaunchOptions& options);

class Meeting {
 public:
  // Throws Error(usage) for an invalid address, or one that requires a missing secret.
  explicit Meeting(const LaunchOptions& options);
  ~Meeting();  // removes the file of `listen` from the user's folder
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Fd listen();                                                    // node 0; nonblocking. Throws Error(transport)
  Fd connect(std::chrono::milliseconds limit, std::string* why);  // other nodes; empty and `why`: retry
  bool admits(int fd) const;                                      // false: a process of another user
  std::optional<std::string> secret(std::string* why) const;      // nullopt and `why`: retry
  bool secret_is_given() const { return !given_.empty(); }

 private:
  Fd listen_locally();
  Fd connect_locally(std::string* why) const;
  std::string secret_file() const;

  const std::string& text_;
  const std::string& given_;
  const int link_timeout_s_;
  std::string folder_, path_;  // unix: the job's subfolder of the user's folder, and the socket in it
  HostPort at_;
  std::string own_;        // node 0's own secret
  std::string to_remove_;  // a file
};

}  // namespace prun

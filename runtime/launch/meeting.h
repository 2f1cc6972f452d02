// Where the launchers of a job meet, and what proves there that somebody belongs to it:
//
//     HOST:PORT, with a secret      whoever knows the secret
//     HOST:PORT on loopback         processes of this user: node 0 leaves a secret of its own in the user's folder
//     unix:NAME                     processes of this user, by the credentials that the kernel tells of the other end
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/tcp.h"

namespace prun {

// All launchers of the job are processes of one host.
bool on_one_host(const LaunchOptions& options);

class Meeting {
 public:
  // Throws Error(usage) for an address that is none, or that needs a secret and has none.
  explicit Meeting(const LaunchOptions& options);
  ~Meeting();  // removes what `listen` left in the user's folder
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Fd listen();                                                    // node 0; nonblocking. Throws Error(transport)
  Fd connect(std::chrono::milliseconds limit, std::string* why);  // another node; empty and `why`: try again
  bool admits(int fd) const;                                      // false: a process of another user
  std::optional<std::string> secret(std::string* why) const;      // nothing and `why`: try again
  bool secret_is_given() const { return !given_.empty(); }

 private:
  Fd listen_locally();
  Fd connect_locally(std::string* why) const;
  std::string secret_file() const;

  const std::string& text_;
  const std::string& given_;
  const int link_timeout_s_;
  std::string folder_, path_;  // unix: of the job in the user's folder, and the socket in it
  HostPort at_;
  std::string own_;        // node 0's own secret
  std::string to_remove_;  // a file
};

}  // namespace prun

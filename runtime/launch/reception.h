// Node 0's listener: admits nodes that prove their identity, before the job begins and, if nodes are missing, while it
// runs. One poll loop serves all connections; each must authenticate within kHandshake. Failed connections are counted
// and dropped.
#pragma once
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/coordination.h"
#include "launch/handshake.h"
#include "launch/meeting.h"
#include "launch/rendezvous.h"

namespace prun {

class Reception {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens from now on. Throws like gather_nodes.
  Reception(const LaunchOptions& options, const std::string& host);

  void serve(Clock::time_point until);  // handles the next events; returns at `until` at the latest
  int joined() const { return 1 + static_cast<int>(std::count_if(members_.begin(), members_.end(), is_in)); }
  int ranks() const;  // ranks of the nodes that have joined
  std::string missing() const;
  std::string turned_away() const;  // "; 3 turned away, the last: ..."
  // Returns why a member cannot take part; "": it can. Its settings must equal node 0's and LaunchOptions::lacks must
  // accept it.
  std::string unfit(size_t member) const;
  void refuse_all(int code, const std::string& why);
  // Returns the joined nodes and stops serving them. The job runs without the others; `serve` admits them when they
  // come.
  JoinedNodes hand_over();

  // While the job runs: returns the number of a node that has joined since, once each. The node has been sent
  // FrameKind::late and waits until `close`.
  std::optional<size_t> take_latecomer();
  const std::string& host_of(size_t node) const { return places_[node].host; }
  // The job has ended: sends this offer to the waiting nodes, which join again or end with it.
  void close(const JobOffer& last_words);
  std::vector<int> descriptors() const;

 private:
  struct Guest {
    Fd fd;
    Clock::time_point deadline;
    Challenge challenge;
    std::string received;
  };
  struct Newcomer {
    Channel channel;
    std::optional<std::vector<NodeSetting>> settings;  // set once it has joined
    std::string inventory;
    bool handed_over = false, told = false;
  };
  static bool is_in(const Newcomer& member) { return member.settings.has_value(); }

  void accept_guests();
  void listen_to(Newcomer& member);
  bool hear(Guest& guest);  // false: the connection is finished
  void admit(Guest& guest, const Hello& hello);
  void stranger(int fd, const char* why);
  std::string secret() const { return *meeting_.secret(nullptr); }

  const LaunchOptions& options_;
  Meeting meeting_;
  Fd listener_;
  std::vector<Guest> guests_;
  std::vector<Newcomer> members_;
  std::vector<NodePlace> places_;
  bool running_ = false;  // hand_over was called
  int strangers_ = 0;
  std::string last_stranger_;
};

}  // namespace prun

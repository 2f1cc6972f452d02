// Node 0's door: admits nodes that prove who they are, before the job begins and, where some have stayed away, while it
// runs. All connections are served in one poll loop; each has kHandshake to prove itself, strangers are counted and
// dropped.
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

  // Listens from now on. Throws as gather_nodes.
  Reception(const LaunchOptions& options, const std::string& host);

  void serve(Clock::time_point until);  // what happens next, at the latest until then
  int joined() const { return 1 + static_cast<int>(std::count_if(members_.begin(), members_.end(), is_in)); }
  int ranks() const;  // of the nodes that have joined
  std::string missing() const;
  std::string turned_away() const;  // "; 3 turned away, the last: ..."
  // Other nodes run what node 0 gives them: what they were told themselves must be the same, and they must be able to.
  // Why it is not so; "": it is.
  std::string unfit(size_t member) const;
  void refuse_all(int code, const std::string& why);
  // Those that have joined, which this no longer serves. A job goes on without the others, and `serve` admits them when
  // they come.
  JoinedNodes hand_over();

  // While the job runs: a node that has joined since, is told so, and waits until `close`.
  std::optional<size_t> take_latecomer();  // once each; its number
  const std::string& host_of(size_t node) const { return places_[node].host; }
  // The job has ended: those that wait are to join again, or get this offer as the last word.
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
    std::optional<std::vector<NodeSetting>> settings;  // it is in once it has sent them
    std::string inventory;
    bool handed_over = false, told = false;
  };
  static bool is_in(const Newcomer& member) { return member.settings.has_value(); }

  void accept_guests();
  void listen_to(Newcomer& member);
  bool hear(Guest& guest);  // false: done with this connection
  void admit(Guest& guest, const Hello& hello);
  void stranger(int fd, const char* why);
  std::string secret() const { return *meeting_.secret(nullptr); }

  const LaunchOptions& options_;
  Meeting meeting_;
  Fd listener_;
  std::vector<Guest> guests_;
  std::vector<Newcomer> members_;
  std::vector<NodePlace> places_;
  bool running_ = false;  // the job has been handed those that had come
  int strangers_ = 0;
  std::string last_stranger_;
};

}  // namespace prun

// Where a running launcher says what its job is at, for `prun status` and `prun explain` of the same user: a folder of
// its own with mode 0700, in $XDG_RUNTIME_DIR/prun, else in /tmp/prun-UID. No port is open, and no rank takes part.
//
// Surprising fact: whether a job runs is told by the lock that its launcher holds, not by its process number, which
// may be another process's by now.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace prun {

// The launcher's side. Its folder ends with it, in the process that made it.
class StatusFolder {
 public:
  StatusFolder() = default;
  ~StatusFolder();
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;
  // Throws Error(usage) where no folder can be made. `program`: the serialized job, for who explains it.
  void open(const std::string& program);
  void publish(const nlohmann::ordered_json& status);
  bool flight_is_wanted() const;
  void give_flight(const std::string& flight);
  // What `prun explain` has when this process is killed, since ranks and recorders end with it.
  void keep_flight(const std::string& flight);
  bool is_open() const { return lock_ >= 0; }

 private:
  std::string path_;
  int lock_ = -1, owner_ = 0;
};

// What a launcher left or keeps there.
struct PublishedJob {
  std::string path;
  bool running = false;           // its launcher holds the lock
  nlohmann::ordered_json status;  // an object, or null where none was published
};
// Of this user on this machine, by process number.
std::vector<PublishedJob> published_jobs();

// The last flight that a launcher which was killed has kept; "": it kept none.
std::string last_flight(const PublishedJob& job);

// The flight of a running job, which its launcher writes on request. Throws Error(hang) where it does not within
// `seconds`.
std::string ask_for_flight(const PublishedJob& job, double seconds);

}  // namespace prun

// The published state of a running job, for `prun status` and `prun explain` of the same user: a folder per launcher
// with mode 0700, in $XDG_RUNTIME_DIR/prun, otherwise /tmp/prun-UID. It needs no port and no rank.
//
// The launcher's lock, not its pid, marks a job as running, because pids are reused.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace prun {

// The launcher's side; removes its folder on destruction, in the process that created it.
class StatusFolder {
 public:
  StatusFolder() = default;
  ~StatusFolder();
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;
  // Throws Error(usage) if the folder cannot be created. `program`: the serialized job, for `prun explain`.
  void open(const std::string& program);
  void publish(const nlohmann::ordered_json& status);
  bool flight_is_wanted() const;
  void give_flight(const std::string& flight);
  // Stores the last flight, for `prun explain` after this process is killed, because ranks and recorders end with it.
  void keep_flight(const std::string& flight);
  bool is_open() const { return lock_ >= 0; }

 private:
  std::string path_;
  int lock_ = -1, owner_ = 0;
};

// A launcher's folder, live or left over.
struct PublishedJob {
  std::string path;
  bool running = false;           // its launcher holds the lock
  nlohmann::ordered_json status;  // an object, or null if none was published
};
// Returns this user's jobs on this machine, by pid.
std::vector<PublishedJob> published_jobs();

// Returns the last flight of a killed launcher; "": none.
std::string last_flight(const PublishedJob& job);

// Requests the flight of a running job from its launcher. Throws Error(hang) if there is no answer within `seconds`.
std::string ask_for_flight(const PublishedJob& job, double seconds);

}  // namespace prun

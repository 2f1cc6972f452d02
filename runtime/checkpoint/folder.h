// The folder that holds a run's checkpoints: step_00000010/ and so on; LATEST, which names the last committed one;
// best, a link to the best one if the run watches a metric; and NAME.RUN.tmp/ while one is written. history.h defines
// the names and their order. All paths in it are relative, so the folder may be moved.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace prun::checkpoint {

// A write that the environment prevents at present, for example because the disk is full.
class WriteError : public Error {
 public:
  WriteError(std::string message, int code) : Error(Exit::checkpoint_write, std::move(message)), errno_value(code) {}
  int errno_value;
};

// Returns a checkpoint_invalid error with the text "PATH: WHAT".
Error invalid(const std::string& path, std::string_view what);
WriteError write_failed(const std::string& path, int code);  // with the text of errno `code` and a remedy
std::string read_file(const std::string& path);              // throws checkpoint_invalid
// Writes and syncs the file. Throws checkpoint_write.
void write_file(const std::string& path, std::string_view text);
void sync_folder(const std::string& path);
void make_folder(const std::string& path);  // with its parents

inline constexpr const char* kLatest = "LATEST";
inline constexpr const char* kBest = "best";  // a link to the best checkpoint by the metric that the run watches

std::string staging_folder(const std::string& folder, const std::string& name,
                           const std::string& run);  // DIR/step_00000010.RUN.tmp

// Removes the staging folders of `run` in `folder` for steps below `end`.
void remove_staged(const std::string& folder, const std::string& run, int64_t end);
int64_t free_bytes(const std::string& folder);  // -1 = unknown
// Returns the capacity for a save into `staging`: the free bytes and those that it has written already; -1 = unknown.
int64_t room_for(const std::string& folder, const std::string& staging);
// Throws WriteError if this capacity is less than `bytes`.
void require_room(const std::string& folder, const std::string& staging, int64_t bytes);

// Makes the staged checkpoint of `run` the newest one under this name: renames it, syncs the folder, replaces LATEST.
// It replaces a checkpoint of the same run under this name. Throws checkpoint_write, also if a checkpoint of another
// run has the name; the previous checkpoint then remains the newest.
void commit(const std::string& folder, const std::string& staging, const std::string& name, const std::string& run);
// Removes the checkpoints of this name's branch except the newest `keep` (0 = unlimited). Checkpoints in `read` and
// those without a recorded run are retained.
void remove_superseded(const std::string& folder, const std::string& name, int keep, const std::set<std::string>& read);
// Makes the link `best` name the best of this checkpoint and those before it, each by its own evaluation. Returns the
// best one's name, or "" if none of them has one. Throws checkpoint_write.
std::string mark_best(const std::string& folder, const std::string& name);
// Removes a checkpoint. The folder is renamed first, so that a signal never leaves half a checkpoint under its name;
// the next run or `prun clean` removes the renamed remainder. Returns the error of the rename: a checkpoint that cannot
// be renamed remains whole.
std::error_code remove_checkpoint(const std::string& path);
// Creates the folder if it is missing and throws checkpoint_write unless files can be created in it.
void require_writable(const std::string& folder);

}  // namespace prun::checkpoint

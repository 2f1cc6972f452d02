// The folder that a run's checkpoints lie in: step_00000010/ and so on, LATEST, which names the newest whole one, and
// step_N.tmp/ while one is written. All names in it are relative, so it may be moved.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace prun::checkpoint {

Error write_failed(const std::string& path, int code);  // checkpoint_write, with what errno says and what helps
std::string read_file(const std::string& path);         // throws checkpoint_invalid
// Writes the file, waits for the disk. Throws checkpoint_write.
void write_file(const std::string& path, std::string_view text);
void sync_folder(const std::string& path);
void make_folder(const std::string& path);  // and those above it

std::string step_folder(const std::string& folder, int64_t step);  // DIR/step_00000010
std::string staging_folder(const std::string& folder, int64_t step,
                           const std::string& run);  // DIR/step_00000010.RUN.tmp

// Makes what was staged the newest checkpoint: renames it, waits for the disk, replaces LATEST, then removes whole
// checkpoints beyond the newest `keep` (0: none). Throws checkpoint_write.
void commit(const std::string& folder, const std::string& staging, int64_t step, int keep);

// Folders of whole checkpoints in `folder`, newest first.
std::vector<std::string> whole_checkpoints(const std::string& folder);
// The checkpoint that `path` means: itself, or the newest in a folder of them. Throws checkpoint_invalid.
std::string resolve(const std::string& path);
// Throws checkpoint_write unless files can be made there; makes the folder.
void require_writable(const std::string& folder);

}  // namespace prun::checkpoint

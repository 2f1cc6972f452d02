#include "checkpoint/writer.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/index.h"
#include "checkpoint/kept_commits.h"
#include "checkpoint/linear_weights.h"
#include "checkpoint/safetensors.h"
#include "ir/state.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kMostFilesOfRank = 4;  // upper bound per round of boxes (Writer::files)

// Lowers the priority of the calling thread and the threads that it starts: it yields to compute threads on the same
// core, and to their I/O, whose priority follows the nice value.
void stand_behind_steps() {
  constexpr int kNice = 10;
  errno = 0;
  const int now = getpriority(PRIO_PROCESS, 0);
  if (errno == 0 && now < kNice) setpriority(PRIO_PROCESS, 0, kNice);
}

void replace_file(const std::string& path, const std::string& text, const std::string& suffix) {
  write_file(path + suffix, text);
  if (std::rename((path + suffix).c_str(), path.c_str()) != 0) throw write_failed(path, errno);
}

// Copies elements first, ..., first + count - 1 of the box, in row-major order, contiguously into `to`. `from`: the
// tensor that contains the box; `size`: bytes of an element.
void gather_elements(const Box& box, int64_t size, const std::byte* from, int64_t first, int64_t count, std::byte* to) {
  const int dims = std::ssize(box.shape);
  // The trailing dims that are contiguous in memory are copied at once.
  int64_t run = 1;
  int outer = dims;
  while (outer > 0 && box.strides[outer - 1] == run) run *= box.shape[--outer];
  while (count > 0) {
    const int64_t within = first % run, n = std::min(count, run - within);
    int64_t row = first / run, at = box.first + within;
    for (int d = outer; d-- > 0; row /= box.shape[d]) at += row % box.shape[d] * box.strides[d];
    std::memcpy(to, from + at * size, n * size);
    to += n * size;
    first += n;
    count -= n;
  }
}

std::string file_of_rank(int rank, size_t k) { return fmt::format("rank_{:05}_{}.safetensors", rank, k); }

}  // namespace

Writer::Writer(WriterOptions options, const Program& program, int rank, std::function<bool()> cancelled)
    : options_(std::move(options)),
      program_(program),
      rank_(rank),
      cancelled_(std::move(cancelled)),
      lineage_(options_.lineage) {
  if (rank_ != 0 || options_.apart) return;
  // Removes incomplete checkpoints of dead runs.
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step_", 0) == 0 && entry.path().extension() == ".tmp" &&
        name.find(options_.attempt) == std::string::npos)
      fs::remove_all(entry.path(), error);
  }
}

Writer::~Writer() {
  if (thread_.joinable()) thread_.join();
  if (rank_ == 0 && !options_.apart)
    remove_staged(options_.folder, options_.attempt, std::numeric_limits<int64_t>::max());
}

void Writer::check() {
  if (failed_.load(std::memory_order_acquire)) wait();
}

void Writer::wait() {
  if (thread_.joinable()) thread_.join();
  failed_.store(false);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Writer::start(const Moment& moment, bool last, std::function<const std::byte*(TensorId)> data) {
  wait();
  moment_ = moment;
  thread_ = std::thread([this, step = moment.step, last, data = std::move(data)] {
    stand_behind_steps();
    const auto tell = [&](WriterOptions::Save save) {
      if (options_.told) options_.told(step, save);
    };
    try {
      tell(WriterOptions::Save::begun);
      options_.apart ? commit_apart(step, data) : save(step, data);
      tell(rank_ == 0 ? WriterOptions::Save::committed : WriterOptions::Save::written);
    } catch (...) {
      failed(step, last);
      tell(WriterOptions::Save::failed);
    }
  });
}

bool Writer::is_there(int64_t step) const {
  const ParentCheckpoint& parent = lineage_.parent;
  return parent.step == step && parent.checkpoint == name_of(step);
}

// Only rank 0 checks the space for the whole checkpoint, because it alone removes earlier ones, which frees space.
void Writer::save(int64_t step, const std::function<const std::byte*(TensorId)>& data) {
  if (is_there(step)) return;
  const std::string staging = staging_folder(options_.folder, name_of(step), options_.attempt);
  if (rank_ == 0) {
    remove_staged(options_.folder, options_.attempt, step);
    require_room(options_.folder, staging, options_.bytes);
  }
  write(staging, step, data);
  if (rank_ == 0) commit_all(step);
}

bool Writer::abandoned(int64_t step) const { return options_.abandoning && options_.abandoning->abandoned(step); }

void Writer::failed(int64_t step, bool last) {
  try {
    try {
      throw;
    } catch (const Error& error) {
      const bool cannot_write = dynamic_cast<const WriteError*>(&error) != nullptr;
      if (options_.abandoning && !last && (abandoned(step) || (cannot_write && !cancelled_())))
        return abandon(step, error);
      throw;
    }
  } catch (Error& error) {
    if (last && !cancelled_()) error.prefix(fmt::format("the last checkpoint, after step {}, cannot be made", step));
    failure_ = std::current_exception();
  } catch (...) {
    failure_ = std::current_exception();
  }
  failed_.store(true, std::memory_order_release);
}

// Returns once the launchers have informed all ranks, so that no rank sees the save end before it is abandoned.
void Writer::abandon(int64_t step, const Error& error) {
  if (const auto* why = dynamic_cast<const WriteError*>(&error); why != nullptr && !abandoned(step)) {
    const int64_t room = room_for(options_.folder, staging_folder(options_.folder, name_of(step), options_.attempt));
    options_.abandoning->abandon(step, {why->message(), why->errno_value, options_.bytes, room});
  }
  while (!abandoned(step) && !cancelled_()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (rank_ == 0) remove_staged(options_.folder, options_.attempt, step + 1);
}

std::string Writer::manifest(const std::string& staging, int rank) const { return staging + "/" + manifest_name(rank); }

// The boxes of a tensor go to different files, because a file holds each name once.
std::vector<FileToWrite> Writer::files(const std::function<const std::byte*(TensorId)>& data) const {
  std::vector<FileToWrite> rounds, files;
  for (const StateTensor& state : program_.state) {
    if (is_of_base(program_, state)) continue;
    const Dtype dtype = program_.tensors[state.tensor].dtype;
    const std::vector<Box> boxes = saved_boxes(program_, state, rank_);
    for (size_t k = 0; k < boxes.size(); ++k) {
      if (rounds.size() <= k) rounds.resize(k + 1);
      const std::byte* from = data(state.staged);
      const Box saved_as = in_saved(program_, state, rank_, boxes[k]);
      rounds[k].pieces.push_back(
          {state.name, dtype, saved_as.shape, saved_as.offset,
           [from, box = boxes[k], size = dtype_bytes(dtype)](std::byte* to, int64_t first, int64_t n) {
             gather_elements(box, size, from, first, n, to);
           }});
    }
  }
  for (FileToWrite& round : rounds)
    for (FileToWrite& file : divided(std::move(round), std::min(options_.threads, kMostFilesOfRank))) {
      file.name = file_of_rank(rank_, files.size());
      files.push_back(std::move(file));
    }
  return files;
}

std::vector<std::string> Writer::write(const std::string& folder, int64_t step,
                                       const std::function<const std::byte*(TensorId)>& data) {
  const auto over = [&] { return cancelled_() || abandoned(step); };
  if (over()) throw Error(Exit::checkpoint_write, "the job ended before a checkpoint was written");
  make_folder(folder);
  std::map<std::string, SavedTensor> saved;
  const std::vector<FileToWrite> all = files(data);
  write_files(folder, all, options_.threads, over, saved);
  const std::set<std::string> linear = linear_weights(program_);
  for (const StateTensor& state : program_.state) {
    const auto found = saved.find(state.name);
    if (found == saved.end()) continue;
    found->second.shape = saved_shape(program_, state);
    found->second.drift = join(state.drift, " ");
    found->second.linear = linear.contains(state.name);
  }
  const std::string path = manifest(folder, rank_);
  replace_file(path, manifest_text(saved), ".part");
  std::vector<std::string> names;
  for (const FileToWrite& file : all) names.push_back(file.name);
  names.push_back(fs::path(path).filename().string());
  return names;
}

// Commits before the last one are superseded, because the last one was awaited.
void Writer::commit_apart(int64_t step, const std::function<const std::byte*(TensorId)>& data) {
  const KeptApart& apart = *options_.apart;
  if (apart.clears && apart.committed() > 0)
    remove_kept_before(options_.folder, kept_name(apart.committed(), options_.attempt), options_.attempt);
  const std::string name = kept_name(step, options_.attempt), folder = options_.folder + "/" + name;
  make_folder(folder);
  replace_file(folder + "/index.json", index_text(index_of(step)), fmt::format(".{}.part", rank_));
  std::vector<std::string> names = write(folder, step, data);
  names.insert(names.begin(), "index.json");  // so that a node with any part can identify the commit
  apart.copy(name, names);
  apart.kept(step);
  while (apart.committed() < step) {
    if (cancelled_()) throw Error(Exit::checkpoint_write, "the job ended while a commit to memory was made");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Index Writer::index_of(int64_t step) const {
  Index index;
  index.lineage = lineage_;
  index.position = position_after(program_, step);
  index.position.skipped_steps = moment_.skipped;
  index.progress = moment_.progress;
  index.steps = program_.schedule.steps;
  index.seed = program_.schedule.seed;
  index.ranks = program_.mesh.ranks();
  index.mesh = program_.mesh.text();
  index.plan = program_.name;
  index.program = options_.program;
  index.rate = program_.schedule.learning_rate.text();
  index.numerics = options_.numerics;
  const DataSource& data = program_.step().data;
  index.data = {data.words(), data.path(), data.file_bytes(), options_.data};
  if (options_.cursor) index.data.identity.cursor = options_.cursor(step);
  index.model = program_.model;
  index.adapters = program_.adapters;
  return index;
}

void Writer::commit_all(int64_t step) {
  const std::string staging = staging_folder(options_.folder, name_of(step), options_.attempt);
  Index index = index_of(step);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(options_.wait_s);
  for (int rank = 0; rank < program_.mesh.ranks(); ++rank) {
    const std::string path = manifest(staging, rank);
    while (!fs::exists(path)) {
      if (std::chrono::steady_clock::now() > until && !fs::exists(fmt::format("{}/{}", staging, file_of_rank(rank, 0))))
        throw Error(Exit::checkpoint_write,
                    fmt::format("{}: rank {} has written nothing there for {} s: the folder of --checkpoint has to be "
                                "one that all nodes share",
                                options_.folder, rank, options_.wait_s));
      if (cancelled_() || abandoned(step))
        throw Error(Exit::checkpoint_write, "the job ended while a checkpoint was written");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    add_manifest(index, parse_manifest(read_file(path), path));
    fs::remove(path);
  }
  const std::string text = index_text(index), name = name_of(step);
  write_file(staging + "/index.json", text);
  commit(options_.folder, staging, name, lineage_.run);
  lineage_.parent = {name, lineage_.run, step, index_id(text)};
  std::set<std::string> kept = options_.read;
  if (options_.marks_best && program_.schedule.watched.keeps) kept.insert(mark_best(options_.folder, name));
  remove_superseded(options_.folder, name, options_.keep, kept);
}

}  // namespace prun::checkpoint

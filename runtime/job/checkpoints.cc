#include "job/checkpoints.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/reader.h"
#include "ir/state.h"
#include "job/adapters.h"
#include "job/job_spec.h"
#include "job/replicas.h"
#include "launch/control.h"

namespace prun {

void check_checkpoint_options(const CheckpointSettings& s) {
  const std::pair<bool, const char*> of_a_folder[] = {
      {s.every > 0, "--checkpoint-every"}, {s.keep > 0, "--checkpoint-keep"}, {s.strict, "--checkpoint-strict"}};
  for (const auto& [given, option] : of_a_folder)
    if (given && s.folder.empty())
      throw usage_error(fmt::format("{} needs --checkpoint DIR, where checkpoints go", option));
  if (s.new_data && s.resume.empty()) throw usage_error("--new-data is for --resume, which is missing");
  if (s.resume == "auto" && s.folder.empty())
    throw usage_error("--resume auto takes the newest checkpoint in --checkpoint DIR, which is missing");
}

namespace {

void begin_with(CheckpointSettings& s, const std::string& checkpoint) {
  checkpoint::Reader reader(checkpoint);
  reader.verify();
  s.resume = checkpoint::is_directly_in(checkpoint, s.folder)
                 ? s.folder + "/" + std::filesystem::path(checkpoint).filename().string()
                 : checkpoint;
  s.resumes = true;
  s.begin = reader.index().position;
  if (s.resume == s.replaced_data_of) s.begin.samples = 0;
  s.numerics = reader.index().numerics;
  s.mesh = reader.index().mesh;
}

// Returns false if none of them is whole.
bool begin_with_first_whole(CheckpointSettings& s, const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    try {
      begin_with(s, candidate);
      return true;
    } catch (const Error& error) {
      fmt::print(stderr, "prun: {}: taking the checkpoint before it\n", error.message());
    }
  }
  return false;
}

// Begins with the newest whole checkpoint of the branch that LATEST names, otherwise of its ancestors.
void begin_with_newest(CheckpointSettings& s) {
  s.resume.clear();
  if (!checkpoint::is_used(s.folder)) return;
  for (std::string each = checkpoint::resolve(s.folder);;) try {
      return begin_with(s, each);
    } catch (const Error& error) {
      const std::optional<std::string> before = checkpoint::before(each);
      if (!before)
        throw Error(Exit::checkpoint_invalid,
                    fmt::format("{}; its branch has no checkpoint before it: name one of another branch, or another "
                                "folder",
                                error.message()));
      fmt::print(stderr, "prun: {}: taking the checkpoint before it\n", error.message());
      each = *before;
    }
}

}  // namespace

void settle_checkpoints(CheckpointSettings& s, bool decides, const std::vector<std::string>& commits) {
  if (!s.folder.empty()) checkpoint::require_writable(s.folder);
  if (!decides && s.resume == "auto") s.resume.clear();  // node 0's note has the resolved one
  if ((decides && begin_with_first_whole(s, commits)) || s.resume.empty()) return;
  s.resume == "auto" ? begin_with_newest(s) : begin_with(s, checkpoint::resolve(s.resume));
}

void take_from_plan(JobSpec& spec, const Plan& plan) {
  CheckpointSettings& s = spec.checkpoint;
  if (plan.report && spec.watch.metrics.path.empty() && spec.watch.runs.empty() && s.folder.empty())
    fmt::print(stderr, "prun: {}: the plan reports norms, but nothing keeps them; add --metrics FILE or --runs DIR\n",
               plan.report->site.text());
  if (!plan.keeping) return;
  if (s.folder.empty() && !keeps_replicas(spec, plan)) {
    fmt::print(stderr, "prun: {}: the plan makes checkpoints, but has no folder for them; add --checkpoint DIR\n",
               plan.keeping->site.text());
    return;
  }
  if (s.every == 0) s.every = static_cast<int>(plan.keeping->every);
  if (s.keep == 0) s.keep = static_cast<int>(plan.keeping->keep);
}

namespace {

struct CheckpointNote {
  std::string resume;
  bool in_folder = false;  // `resume` is a name in the checkpoints' folder
  int every = 0, keep = 0;
  bool to_memory = false;
  std::string kept;
  checkpoint::Lineage lineage;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(resume, in_folder, every, keep, to_memory, kept, lineage);
  }
};

}  // namespace

std::string note_of(const CheckpointSettings& s) {
  CheckpointNote note{s.resume, false, s.every, s.keep, !s.memory.empty(), s.kept, s.lineage};
  if (const std::string folder = s.folder + "/"; !s.folder.empty() && s.resume.starts_with(folder)) {
    note.resume = s.resume.substr(folder.size());
    note.in_folder = true;
  }
  return pack(note);
}

// Applies node 0's note; a path given on node 0's command line applies to node 0 only.
void follow_note(CheckpointSettings& s, const std::string& text) {
  const CheckpointNote note = unpack<CheckpointNote>(text);
  if (note.in_folder && !s.folder.empty())
    s.resume = s.folder + "/" + note.resume;
  else if (note.resume.empty())
    s.resume.clear();
  s.every = note.every;
  s.keep = note.keep;
  s.memory = note.to_memory ? s.memory_here : "";
  s.kept = note.kept;
  s.lineage = note.lineage;
}

namespace {

// Only reports a different learning rate, because it is the user's choice.
void report_other_rate(const CheckpointSettings& s, const checkpoint::Index& index, const Program& program) {
  if (const std::string rate = program.schedule.learning_rate.text(); rate != index.rate)
    fmt::print(stderr, "prun: from step {} on the learning rate follows another curve: {}; before: {}\n",
               s.begin.step + 1, rate, index.rate);
}

}  // namespace

int64_t checkpoint_bytes(const Job& job) {
  std::map<std::string, int64_t> bytes;  // by logical tensor, which several classes may have
  for (const Program& program : job.classes)
    for (const StateTensor& state : program.state)
      if (!is_of_base(program, state))
        bytes[state.name] =
            element_count(saved_shape(program, state)) * dtype_bytes(program.tensors[state.tensor].dtype);
  int64_t all = 0;
  for (const auto& [name, each] : bytes) all += each;
  return all;
}

// Free space may be misreported (quotas, other writers); in that case the write fails.
void require_space(const CheckpointSettings& s, const Job& job) {
  if (s.folder.empty()) return;
  const int64_t all = checkpoint_bytes(job), free = checkpoint::free_bytes(s.folder);
  if (free >= 0 && free < all)
    throw Error(Exit::checkpoint_write,
                fmt::format("{}: a checkpoint of this job takes {}, and {} are free there: free space, or name another "
                            "folder",
                            s.folder, human_bytes(all), human_bytes(free)));
}

void require_checkpoint_fits(const CheckpointSettings& s, const Job& job) {
  if (!s.resumes || !s.kept.empty()) return;  // commits in memory belong to this run
  const checkpoint::Reader reader(s.resume);
  const Program& program = job.classes.front();
  require_adapters_fit(s.resume, reader.index().adapters, program);
  reader.require_fit(job);
  if (s.begin.step > program.schedule.steps)
    throw usage_error(fmt::format("{} is the state after {}, and this plan has {} in all: raise 'steps'", s.resume,
                                  counted(s.begin.step, "step"), program.schedule.steps));
  if (s.begin.step == program.schedule.steps)
    fmt::print(stderr, "prun: {} has all {} of this plan: nothing is left to train; raise 'steps' to go on\n", s.resume,
               counted(s.begin.step, "step"));
  report_other_rate(s, reader.index(), program);
}

}  // namespace prun

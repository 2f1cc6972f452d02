// A row with a count of 1 does not match, because an interactive `srun --pty bash` is a job of one task in which users
// start multi-rank jobs. Such a row cannot conflict with others either.
#include "launch/environments.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "launch/launcher_process.h"

namespace prun {
namespace {

constexpr int kPort = 29400;  // for launchers that name a host without a port

struct Row {
  const char* name;           // --launcher NAME
  const char *index, *count;  // a row matches if both are set, and `present` too
  const char* present;        // null: no other variable is required
  const char *local_index, *local_count;
  std::vector<const char*> job;  // together they identify the job
  const char* mark;              // set by the launcher's own process; null: no process remains while the job runs
  std::string (*rendezvous)(const ReadVariable&);
  int (*count_here)(const ReadVariable&);  // used if local_count is null
};

std::string text_of(const ReadVariable& variable, const char* name) {
  const char* value = name != nullptr ? variable(name) : nullptr;
  return value != nullptr ? value : "";
}

template <class Number = int>
std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

template <class Number = int>
Number number_of(const ReadVariable& variable, const char* name, Number otherwise) {
  const std::string text = text_of(variable, name);
  if (text.empty()) return otherwise;
  const std::optional<Number> value = number_in<Number>(text);
  if (!value) throw usage_error(fmt::format("{}={} in the environment is not a number", name, text));
  return *value;
}

// MASTER_PORT belongs to torchrun's own store if the agent listens on it; the next port is ours.
std::string torchrun_rendezvous(const ReadVariable& variable) {
  const std::string host = text_of(variable, "MASTER_ADDR");
  if (host.empty()) return "";
  const int port = number_of(variable, "MASTER_PORT", kPort);
  const bool taken = text_of(variable, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  return fmt::format(fmt::runtime(host.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}"), host, port + taken);
}

// Returns the first host of a list such as "gpu[003-4,7],login1".
std::string first_host(const std::string& hosts) {
  const size_t open = hosts.find('['), comma = hosts.find(',');
  if (open == std::string::npos || comma < open) return hosts.substr(0, comma);
  const size_t end = hosts.find_first_of("-,]", open), close = hosts.find(']', open);
  if (end == std::string::npos || close == std::string::npos) return "";
  const std::string tail = hosts.substr(close + 1, hosts.find(',', close) - close - 1);
  return hosts.substr(0, open) + hosts.substr(open + 1, end - open - 1) + tail;
}

// Steps of several jobs may share a host, so each gets one of 2,000 ports.
std::string slurm_rendezvous(const ReadVariable& variable) {
  const std::string host = first_host(text_of(variable, "SLURM_STEP_NODELIST"));
  if (host.empty()) return "";
  const int64_t job = number_of<int64_t>(variable, "SLURM_JOB_ID", 0);
  const int64_t step = number_of<int64_t>(variable, "SLURM_STEP_ID", 0);
  return fmt::format("{}:{}", host, kPort + (job * 16 + step) % 2000);
}

// Slurm's step ids of batch scripts, interactive shells (4294967290) and external processes, which are no tasks of
// srun.
bool is_shell_of_slurm(const ReadVariable& variable) {
  constexpr int64_t kFirstSpecial = 0xfffffff0;
  return number_of<int64_t>(variable, "SLURM_STEP_ID", 0) >= kFirstSpecial;
}

// Parses "4(x2),3": four tasks on each of the first two nodes, three on the next.
int slurm_tasks_here(const ReadVariable& variable) {
  int node = number_of(variable, "SLURM_NODEID", 0);
  std::istringstream list(text_of(variable, "SLURM_STEP_TASKS_PER_NODE"));
  for (std::string part; std::getline(list, part, ',');) {
    const std::optional<int> tasks = number_in(part.substr(0, part.find('(')));
    const size_t times = part.find("(x");
    const std::optional<int> nodes =
        times == std::string::npos ? std::optional(1) : number_in(part.substr(times + 2, part.find(')') - times - 2));
    if (!tasks || !nodes) return -1;
    if (node < *nodes) return *tasks;
    node -= *nodes;
  }
  return -1;
}

// The rows are ordered by reliability; the first that matches is used.
const Row kRows[] = {
    {"prun",
     "PRUN_NODE_RANK",
     "PRUN_NNODES",
     nullptr,
     "PRUN_LOCAL_RANK",
     "PRUN_LOCAL_SIZE",
     {"PRUN_JOB"},
     nullptr,
     nullptr,
     nullptr},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     nullptr,
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"},
     "TORCHELASTIC_RUN_ID",  // not RANK, which schedulers set, too
     torchrun_rendezvous,
     nullptr},
    {"openmpi",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR"},
     "OMPI_COMM_WORLD_RANK",
     nullptr,
     nullptr},
    {"mpich",
     "PMI_RANK",
     "PMI_SIZE",
     nullptr,
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"PMI_JOBID"},
     "PMI_RANK",
     nullptr,
     nullptr},
    {"slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_STEP_ID",
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
     "SLURM_PROCID",
     slurm_rendezvous,
     slurm_tasks_here},
    {"kubernetes", "JOB_COMPLETION_INDEX", "PRUN_NNODES", nullptr, nullptr, nullptr, {}, nullptr, nullptr, nullptr},
};

// Identifies the process that started all processes of this job on this host: the parent, or an ancestor if each
// process has a wrapper script of its own.
std::string starter(const std::string& launcher) {
  for (const Row& row : kRows)
    if (row.name == launcher && row.mark != nullptr)
      if (const std::optional<ProcessId> process = setter_of(row.mark)) return process->text();
  return process_id(getppid()).text();
}

std::optional<ForeignPlace> place_of(const Row& row, const ReadVariable& variable) {
  for (const char* name : {row.index, row.count, row.present})
    if (name != nullptr && text_of(variable, name).empty()) return std::nullopt;
  if (row.name == std::string_view("slurm") && is_shell_of_slurm(variable)) return std::nullopt;
  ForeignPlace place;
  place.launcher = row.name;
  place.index = number_of(variable, row.index, 0);
  place.count = number_of(variable, row.count, 1);
  if (place.index >= place.count)
    throw usage_error(fmt::format("{}={} is not below {}={}", row.index, place.index, row.count, place.count));
  place.local_index = number_of(variable, row.local_index, -1);
  place.local_count = row.count_here != nullptr ? row.count_here(variable) : number_of(variable, row.local_count, -1);
  for (const char* name : row.job)
    if (const std::string part = text_of(variable, name); !part.empty())
      place.job += (place.job.empty() ? "" : ".") + part;
  if (row.rendezvous != nullptr) place.rendezvous = row.rendezvous(variable);
  return place;
}

void complete(ForeignPlace& place, const ForeignPlace& other) {
  if (place.local_index < 0) place.local_index = other.local_index;
  if (place.local_count < 0) place.local_count = other.local_count;
  if (place.job.empty()) place.job = other.job;
  if (place.rendezvous.empty()) place.rendezvous = other.rendezvous;
}

// Without this, a process of which one variable is missing would train alone.
void require_both(const ReadVariable& variable) {
  const std::string nodes = text_of(variable, "PRUN_NNODES"), rank = text_of(variable, "PRUN_NODE_RANK");
  if (nodes.empty() == rank.empty() || nodes == "1" || !text_of(variable, "JOB_COMPLETION_INDEX").empty()) return;
  throw usage_error(nodes.empty() ? fmt::format("PRUN_NODE_RANK={} in the environment needs PRUN_NNODES, the number of "
                                                "nodes; unset it, or use --launcher none, for a job of this node",
                                                rank)
                                  : fmt::format("PRUN_NNODES={} in the environment needs PRUN_NODE_RANK, this node's "
                                                "number; unset it, or use --launcher none, for a job of this node",
                                                nodes));
}

}  // namespace

std::vector<std::string> stray_variables(const ReadVariable& variable, const std::string& launcher) {
  for (const Row& row : kRows) {
    if (row.name != launcher || row.mark == nullptr) continue;
    if (variable(row.mark) == nullptr || is_left_over(row.mark)) return {row.index, row.count};
  }
  return {};
}

bool is_described(const ReadVariable& variable) {
  return std::ranges::any_of(kRows, [&](const Row& row) {
    return !text_of(variable, row.index).empty() && !text_of(variable, row.count).empty();
  });
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

std::vector<std::pair<const char*, const char*>> launcher_marks() {
  std::vector<std::pair<const char*, const char*>> marks = {{"Python", "PRUN_PYTHON"}};  // set by the package prun
  for (const Row& row : kRows)
    if (row.mark != nullptr) marks.emplace_back(row.name, row.mark);
  return marks;
}

std::string environments_table(const ReadVariable& variable) {
  std::string text;
  for (const Row& row : kRows) {
    std::vector<std::string> variables;
    for (const char* name : {row.index, row.count, row.present, row.local_index, row.local_count})
      if (name != nullptr && variable(name) != nullptr) variables.push_back(fmt::format("{}={}", name, variable(name)));
    const std::string needed =
        fmt::format("{}, {}{}{}", row.index, row.count, row.present ? ", " : "", row.present ? row.present : "");
    std::string says = fmt::format("silent without {}", needed);
    if (const std::optional<ForeignPlace> place = place_of(row, variable); place && place->count > 1)
      says = fmt::format("process {} of {}", place->index, place->count);
    else if (place)
      says = "one process, so it says nothing";
    text += fmt::format("\n  {:<11} {}{}", row.name, says,
                        variables.empty() ? "" : fmt::format("   ({})", join(variables, " ")));
  }
  return text;
}

std::optional<ForeignPlace> read_environments(const ReadVariable& variable, const std::string& chosen) {
  if (chosen == "none") return std::nullopt;
  std::optional<ForeignPlace> first;
  bool known = chosen.empty();
  for (const Row& row : kRows) {
    if (!chosen.empty() && chosen != row.name) continue;
    known = true;
    std::optional<ForeignPlace> place = place_of(row, variable);
    if (!place || (place->count == 1 && chosen.empty())) continue;
    if (first && (first->index != place->index || first->count != place->count))
      throw usage_error(
          fmt::format("the environment contradicts itself about this process: {} has {} of {}, {} has {} of {}; "
                      "--launcher {} or --launcher {} chooses, --launcher none ignores both{}",
                      first->launcher, first->index, first->count, place->launcher, place->index, place->count,
                      first->launcher, place->launcher, environments_table(variable)));
    if (first)
      complete(*first, *place);
    else
      first = std::move(place);
  }
  if (!known) {
    std::vector<std::string> names = environment_names();
    names.emplace_back("none");
    throw usage_error(fmt::format("--launcher: there is no row '{}'{}", chosen, did_you_mean(chosen, names)));
  }
  if (!chosen.empty() && !first)
    throw usage_error(fmt::format("--launcher {}: its variables are not set{}", chosen, environments_table(variable)));
  if (chosen.empty() && !first) require_both(variable);
  if (first && first->job.empty()) first->job = starter(first->launcher);
  return first;
}

}  // namespace prun

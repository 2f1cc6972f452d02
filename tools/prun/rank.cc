// The same order on every rank: check the program, open the transport, take the arena, connect, make kernels, run.
#include "rank.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/cores.h"
#include "comm/comm.h"
#include "comm/transport/transport_choice.h"
#include "device/device.h"
#include "exec/finite.h"
#include "exec/job_run.h"
#include "exec/queue_memory.h"
#include "heterogeneous_devices.h"
#include "launcher_bootstrap.h"

namespace prun {
namespace {

// Memory of this process, pages that others map too divided among them: peers' arenas are not counted N times. All of
// the arena has been touched by the end of a step, so this is the peak as well.
uint64_t proportional_set_size() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(rollup, line)) {
    unsigned long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "Pss: %llu kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return 0;
}

// Zeroed pages of this process alone.
class HostMemory {
 public:
  explicit HostMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    if (bytes_ == 0) return;
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw Error(Exit::out_of_memory,
                  fmt::format("no {} bytes of host memory for what is offloaded: {}", bytes, strerror(errno)));
    data_ = static_cast<std::byte*>(p);
  }
  ~HostMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

void tell_transports(RecorderHeader& recorder, const std::string& name, const std::string& interface) {
  std::string words = name == "none" ? "" : transport_words(name);
  if (!words.empty() && !interface.empty()) words += fmt::format(" ({})", interface);
  words.copy(recorder.transports, sizeof recorder.transports - 1);
  recorder.connected.store(1);
}

// A device's work may never end, and destructors would wait for it: so this rank tells what it has to tell and is gone.
[[noreturn]] void leave_device(const RankStart& start, JobRun& run) {
  const int code = be_rank(start, [&](std::string& at) {
    at = run.failed_op();
    throw;  // what is under way
  });
  run.settle();
  std::fflush(nullptr);
  _exit(code);
}

// Rank 0 says it, since it is on the node where the user looks.
void compare_devices(const RankStart& start, const Options& options, const DeviceReport& devices) {
  const std::vector<std::string> words =
      start.launcher->all_gather(describe_device(devices, device_of(options, start.local_rank)));
  if (const std::string unlike = heterogeneity_warning(words); start.rank == 0 && !unlike.empty())
    fmt::print(stderr, "prun: {}\n", unlike);
}

void train(const RankStart& start, const Options& options, const DeviceReport& devices, std::string& where) {
  where = "joining";
  // oneDNN's sgemm takes and frees packing buffers in every call: keep them in the heap instead of asking the kernel
  // for fresh pages each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (job_hash(start.job) != start.job_hash)
    throw Error(Exit::mismatch, fmt::format("rank {} has another program than the launcher sent", start.rank));
  Job job = parse_job(start.job);
  const Program& program = job.program(start.rank);
  LauncherBootstrap bootstrap(*start.launcher, static_cast<RecorderHeader*>(start.recorder));
  WorldOptions world_options = options.world;
  static_cast<RankPlace&>(world_options) = start;
  std::unique_ptr<Device> device = open_device(program.device);
  if (device->table() != nullptr) {
    world_options.memory = static_cast<prun_mem_kind>(device->table()->mem_kind);
    world_options.device = device_of(options, start.local_rank);
    if (world_options.memory != PRUN_MEM_HOST) compare_devices(start, options, devices);
  }
  std::unique_ptr<World> world = World::open(world_options, bootstrap);

  ExecutorOptions executor_options;
  executor_options.rank = start.rank;
  executor_options.threads = threads_per_rank(start.local_ranks);
  executor_options.spins = usable_cores() > start.local_ranks ? 2000 : 200;
  executor_options.recorder = static_cast<RecorderHeader*>(start.recorder);
  executor_options.aborted = [&] { return start.launcher->aborted(); };
  executor_options.print = [&](const std::string& line) { start.launcher->print(line); };
  executor_options.deadline_s = options.world.deadline_s;
  executor_options.timed = !options.trace.empty();
  std::unique_ptr<QueueMemory> queue;
  if (device->table() != nullptr) {
    queue = std::make_unique<QueueMemory>(
        program, *device->table(), QueueOptions{device_of(options, start.local_rank), options.device_options}, *world);
    executor_options.queue = queue.get();
  } else if (program.arena_bytes > 0) {
    executor_options.arena = static_cast<std::byte*>(world->allocate(program.arena_bytes));
  }
  HostMemory host_arena(queue == nullptr ? program.host_arena_bytes : 0);
  executor_options.host_arena = host_arena.data();
  std::unique_ptr<JobRun> executor;
  try {
    world->connect();
    tell_transports(*executor_options.recorder, world->transport_name(), options.world.network_interface);
    executor = make_executor(program, *device, *world, executor_options);
  } catch (const Aborted&) {
    throw;
  } catch (const Error& error) {
    if (queue != nullptr) throw queue->explained(error);
    throw;
  }
  where.clear();
  try {
    executor->run();
    executor_options.recorder->pss.store(proportional_set_size());
  } catch (const NonFinite& error) {
    where = error.op();
    throw;
  } catch (...) {
    if (queue != nullptr) leave_device(start, *executor);
    where = executor->failed_op();
    throw;
  }
}

}  // namespace

int be_rank(const RankStart& start, const std::function<void(std::string& where)>& body) {
  std::string where;
  try {
    body(where);
    return 0;
  } catch (const Aborted&) {
    return static_cast<int>(Exit::transport);  // another rank is the cause, and the launcher knows it already
  } catch (const Error& error) {
    start.launcher->fail(error, where);
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    start.launcher->fail(Error(Exit::out_of_memory, "out of memory"), where);
    return static_cast<int>(Exit::out_of_memory);
  } catch (const std::exception& error) {
    start.launcher->fail(Error(Exit::rank_crash, error.what()), where);
    return static_cast<int>(Exit::rank_crash);
  }
}

int run_rank(const RankStart& start, const Options& options, const DeviceReport& devices) {
  return be_rank(start, [&](std::string& where) { train(start, options, devices, where); });
}

}  // namespace prun

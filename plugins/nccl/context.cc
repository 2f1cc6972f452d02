// The life of a context: libraries, device, addresses, the world's communicator, the end.
#include "context.h"

#include <fmt/format.h>
#include <prun/alarm.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace prun::nccl {
namespace {

// The first part of a rank's address blob; the address of the control connection follows.
struct Address {
  uint32_t magic = 0x4c434e50;  // "PNCL"
  int32_t nccl_version = 0;
  ncclUniqueId id{};  // id of the world's communicator; only rank 0's is used
  char library[160] = {};
  int32_t device = 0;
};

// Limits of share=1: ranks per GPU, and thread blocks of each rank's kernels, which wait for each other and must be
// resident at the same time.
constexpr int kMostSharing = 8, kSharedCtas = 4;
// Upper bound of CTAs of one communicator; NCCL chooses fewer on most machines.
constexpr int kMostCtas = 32;

int choose_device(const prun_open_params& params, const Options& options, const Library& library) {
  constexpr size_t kWithDevice = offsetof(prun_open_params, device) + sizeof params.device;
  const bool told = params.size >= kWithDevice && params.mem_kind == PRUN_MEM_CUDA && params.device >= 0;
  const int turn = options.share ? params.local_rank % library.devices() : params.local_rank;
  const int device = options.device >= 0 ? options.device : told ? params.device : turn;
  if (device < library.devices()) return device;
  if (options.device >= 0)
    throw Failure{PRUN_EINVAL, fmt::format("nccl option device={}: there are {} devices", device, library.devices())};
  throw Failure{
      PRUN_ENOTSUP, -1,
      fmt::format(
          "{} local ranks and {} CUDA devices: every rank needs one of its own (share=1 lets them share one, for "
          "tests)",
          params.local_ranks, library.devices())};
}

// Makes NCCL accept several ranks on one device. NCCL compares host and device of its ranks. From 2.30 on a variable
// allows equal ones; before, each rank gets its own host id, so that NCCL connects the ranks by sockets. NCCL reads
// these variables when it makes its first unique id.
void allow_sharing(const prun_open_params& params, const Library& library) {
  if (params.local_ranks != params.ranks)
    throw Failure{PRUN_EINVAL, fmt::format("nccl option share=1 is for ranks of one host: here are {} of {}",
                                           params.local_ranks, params.ranks)};
  if (library.version() >= NCCL_VERSION(2, 30, 0)) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    return;
  }
  setenv("NCCL_HOSTID", fmt::format("{}-rank-{}", params.job_id, params.rank).c_str(), 1);
  setenv("NCCL_NET", "Socket", 0);
}

std::shared_ptr<const Library> load(const Options& options, const prun_open_params& params) {
  // NCCL reads the variable at first use. A value set by the user is retained.
  if (params.interface_name != nullptr) setenv("NCCL_SOCKET_IFNAME", params.interface_name, 0);
  // Makes NCCL connect at init, not in the first collective: there a ring of pairs, in which every rank first calls
  // its next one, would deadlock.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  auto library = std::make_shared<const Library>(options.library, options.cudart);
  if (options.share) allow_sharing(params, *library);
  return library;
}

}  // namespace

Context::Context(const prun_open_params& params)
    : Transport(params),
      options(parse_options(params.options)),
      library(load(options, params)),
      connects_late(std::string_view(std::getenv("NCCL_RUNTIME_CONNECT")) != "0"),  // `load` has set the variable
      device(choose_device(params, options, *library)),
      board(params.ranks),
      control(params, board),
      memory(*library),
      retirement(library) {
  if (!options.cta_policy.empty()) {
    constexpr int kSince = NCCL_VERSION(2, 28, 0);
    if (std::min(library->version(), static_cast<int>(NCCL_VERSION_CODE)) < kSince)
      throw Failure{PRUN_EINVAL, fmt::format("nccl option cta_policy: needs NCCL 2.28, found {} (built with {})",
                                             library->text(), version_text(NCCL_VERSION_CODE))};
  }
  use_device();
  library->check("cudaDeviceGetAttribute",
                 library->cuda().device_attribute(&free_ctas_, cudaDevAttrMultiProcessorCount, device));
  log(rank == 0 ? 1 : 0, describe_self());  // included for later bug reports
}

Context::~Context() {
  world.reset();
  const std::vector<std::string> left = retirement.finish(options.abort_ms);
  if (!left.empty()) {
    memory.leave();
    log(2, fmt::format("after {} ms NCCL has not ended {} of its communicators ({}); they are left behind ({})",
                       options.abort_ms, left.size(), left.front(), library->text()));
  }
  for (cudaEvent_t event : events_) library->cuda().event_destroy(event);
}

std::string Context::describe_self() const {
  return fmt::format("nccl: {}; {}; device {} of {}{}", library->text(), library->cuda_text(), device,
                     library->devices(), options.share ? ", which ranks may share: for tests" : "");
}

// Returns the CTAs of a new communicator. A CTA of NCCL occupies a multiprocessor while it waits for other ranks. Ranks
// that start kernels in different orders would deadlock, unless the kernels of all communicators fit on the device at
// the same time.
int Context::take_ctas() {
  if (options.max_ctas != 0) return options.max_ctas;
  std::lock_guard lock(mutex_);
  const int most = options.share ? kSharedCtas : kMostCtas;
  const int taken = std::max({std::min(most, free_ctas_ / 2), options.min_ctas, 1});
  free_ctas_ -= taken;
  return taken;
}

void Context::give_ctas(int ctas) {
  if (options.max_ctas != 0) return;
  std::lock_guard lock(mutex_);
  free_ctas_ += ctas;
}

ncclConfig_t Context::config(const Native& native, bool blocking) const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  config.splitShare = options.split_share ? 1 : 0;
  if (options.min_ctas != 0) config.minCTAs = options.min_ctas;
  config.maxCTAs = native.ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (library->version() >= NCCL_VERSION(2, 28, 0)) config.commName = native.name.c_str();  // for ncclras
  if (options.cta_policy == "default") config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
  if (options.cta_policy == "efficiency") config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
  if (options.cta_policy == "zero") config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  return config;
}

std::string Context::address() {
  Address mine;
  mine.nccl_version = library->version();
  mine.device = device;
  sdk::copy_text(library->text(), mine.library, sizeof mine.library);
  if (rank == 0) {
    const ncclResult_t result = library->nccl().get_unique_id(&mine.id);
    if (result != ncclSuccess) throw library->failure("ncclGetUniqueId", result);
  }
  return sdk::bytes_of(mine) + control.address(PRUN_MAX_ADDRESS - sizeof mine);
}

Failure Context::connect(const sdk::Blobs& blobs) {
  std::vector<Address> addresses(blobs.size());
  sdk::Blobs lines;
  for (int r = 0; r < ranks; ++r) {
    Address& theirs = addresses[r];
    if (blobs[r].size() >= sizeof theirs) std::memcpy(&theirs, blobs[r].data(), sizeof theirs);
    if (blobs[r].size() < sizeof theirs || theirs.magic != Address().magic)
      throw Failure{PRUN_EPEER, r, fmt::format("rank #{} gave no address of nccl", r)};
    theirs.library[sizeof theirs.library - 1] = '\0';
    if (theirs.nccl_version != library->version())
      throw Failure{PRUN_EMISMATCH, r,
                    fmt::format("rank #{} has loaded {}, rank #{} {}: all need the same version", r, theirs.library,
                                rank, library->text())};
    lines.push_back(blobs[r].substr(sizeof theirs));
  }
  const auto here =
      std::count_if(addresses.begin(), addresses.end(), [&](const Address& a) { return a.device == device; });
  if (options.share && here > kMostSharing)
    throw Failure{PRUN_EINVAL, fmt::format("nccl option share=1: {} ranks share device {}, at most {} can", here,
                                           device, kMostSharing)};
  if (world == nullptr) {
    if (Failure missing = control.connect(lines)) return missing;
    control.start();
    std::vector<int> all(blobs.size());
    std::iota(all.begin(), all.end(), 0);
    world = std::make_unique<Comm>(*this, all, -1);
    world->init(addresses[0].id);
  }
  int missing = -1;
  if (world->ready(missing)) return {};
  check_not_lost(*world);
  return {PRUN_AGAIN, "NCCL makes its first communicator"};
}

// Throws if the control connection has lost a member.
void Context::check_not_lost(const Comm& comm) {
  if (const int lost = board.lost_among(comm.ranks()); lost >= 0)
    throw Failure{PRUN_EPEER, lost, fmt::format("rank #{} is gone", lost)};
}

Request* Context::batch(std::span<const prun_p2p> ops, prun_queue queue) {
  use_device();
  const RelaxedCapture guard(library->cuda());
  return submit(start_batch(*this, ops, queue), queue);
}

Request* Context::coll(Comm& comm, const prun_coll_params& params, prun_queue queue) {
  use_device();
  const RelaxedCapture guard(library->cuda());
  std::unique_ptr<Request> request = start_collective(*this, comm, params, queue);
  return request == nullptr ? nullptr : submit(std::move(request), queue);
}

// A program's own queue must hold the whole request when the call returns, because later work of the program would
// overtake it otherwise. For our own queues `test` continues.
Request* Context::submit(std::unique_ptr<Request> request, prun_queue queue) {
  try {
    if (queue.kind == PRUN_MEM_CUDA)
      enqueue(*this, *request);
    else
      for (Request::Part& part : request->parts) part.comm->pump();
  } catch (const Failure&) {
    for (Request::Part& part : request->parts) part.comm->withdraw(&part.launch);
    throw;
  }
  return request.release();
}

void Context::abort() {
  Transport::abort();
  {
    std::lock_guard lock(mutex_);
    for (Comm* comm : comms_) comm->abort();
    if (world != nullptr) world->abort();
  }
  board.wake();
}

void* Context::mem_alloc(size_t bytes, int kind, void*& handle) {
  use_device();
  Region* region = memory.allocate(bytes, kind);
  handle = region;
  return region->ptr;
}

void Context::mem_free(void* ptr, void* handle) {
  use_device();
  deregister(ptr);
  memory.remove(ptr, handle);
}

Comm* Context::comm_create(std::span<const int> members, int lane) {
  auto comm = std::make_unique<Comm>(*this, std::vector<int>(members.begin(), members.end()), lane);
  const int first = *std::min_element(members.begin(), members.end());
  Note want;
  want.kind = Note::want;
  want.key = comm->key();
  if (first == rank)
    board.deliver(rank, want);
  else
    control.send(first, want);
  std::lock_guard lock(mutex_);
  comms_.push_back(comm.get());
  return comm.release();
}

Failure Context::comm_test(Comm& comm) {
  int missing = -1;
  if (comm.ready(missing)) return {};
  check_not_lost(comm);
  board.wait(std::chrono::milliseconds(1));
  return {PRUN_AGAIN, missing};
}

void Context::comm_free(Comm* comm) {
  {
    std::lock_guard lock(mutex_);
    std::erase(comms_, comm);
  }
  delete comm;
}

// Returns 80 where NCCL can be loaded, also for host memory, where the value does not matter.
int Context::score(const prun_open_params& params, std::span<const int>) {
  try {
    const Options options = parse_options(params.options);
    return missing_here(options.library, options.cudart).empty() ? 80 : 0;
  } catch (const Failure&) {  // opening it reports the error
    return 80;
  }
}

// Returns an extension. The loss of a rank on the control connection is no error here, because that rank may have ended
// successfully while this rank's device still computes.
const void* Context::ext(std::string_view id) {
  static constexpr prun_alarm kAlarm = {
      sizeof(prun_alarm), [](prun_ctx* ctx, prun_comm* comm, int waited_ms, prun_result* result) {
        return sdk::guarded(result, [&]() -> Failure {
          sdk::context_of<Context>(ctx).check_running();
          const int silent = reinterpret_cast<nccl::Comm*>(comm)->check(std::chrono::milliseconds(waited_ms));
          return silent < 0 ? Failure() : Failure(PRUN_AGAIN, silent);
        });
      }};
  return id == PRUN_ALARM ? &kAlarm : nullptr;
}

Comm& Context::comm_of(int lane, int peer) {
  std::lock_guard lock(mutex_);
  for (Comm* comm : comms_)
    if (comm->lane() == lane && comm->index_of(peer) >= 0) return *comm;
  return *world;
}

void Context::deregister(const void* ptr) {
  std::lock_guard lock(mutex_);
  for (Comm* comm : comms_) comm->deregister(ptr);
  if (world != nullptr) world->deregister(ptr);
}

cudaEvent_t Context::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  library->check("cudaEventCreateWithFlags", library->cuda().event_create(&event, cudaEventDisableTiming));
  return event;
}

void Context::give_event(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  events_.push_back(event);
}

}  // namespace prun::nccl

const prun_transport* prun_transport_v1(const prun_host* host) {
  using namespace prun::nccl;
  static const std::string missing = missing_here();
  static const std::string summary = "NVIDIA GPUs, by NCCL 2.18 or newer; " +
                                     (missing.empty() ? "here " + found_here() : "not usable here: " + missing);
  return prun::sdk::transport_table<Context>(host, {.name = "nccl",
                                                    .version = "1.0.0",
                                                    .summary = summary.c_str(),
                                                    .mem_kinds = 1u << PRUN_MEM_HOST | 1u << PRUN_MEM_CUDA,
                                                    .queue_ordered = true});
}

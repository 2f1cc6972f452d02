// The life of a context: libraries, device, addresses, the world's communicator, the end.
#include "context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace prun_nccl {
namespace {

// What every rank tells all others before anything else; the address of the line beside NCCL follows.
struct Address {
  uint32_t magic = 0x4c434e50;  // "PNCL"
  int32_t nccl_version = 0;
  ncclUniqueId id{};  // of the world's communicator; rank 0's counts
  char library[160] = {};
};

int choose_device(const prun_open_params& params, const Options& options, const Library& library) {
  constexpr size_t kWithDevice = offsetof(prun_open_params, device) + sizeof params.device;
  const bool told = params.size >= kWithDevice && params.mem_kind == PRUN_MEM_CUDA && params.device >= 0;
  const int device = options.device >= 0 ? options.device : told ? params.device : params.local_rank;
  if (device < library.devices()) return device;
  if (options.device >= 0)
    throw Failure{PRUN_EINVAL, -1,
                  fmt::format("nccl option device={}: there are {} devices", device, library.devices())};
  throw Failure{
      PRUN_ENOTSUP, -1,
      fmt::format("{} local ranks and {} CUDA devices: every rank needs one of its own (NCCL refuses to share)",
                  params.local_ranks, library.devices())};
}

std::shared_ptr<const Library> load(const Options& options, const prun_open_params& params) {
  // Read by NCCL when it is first used. What the user has set stays.
  if (params.interface_name != nullptr) setenv("NCCL_SOCKET_IFNAME", params.interface_name, 0);
  // Connected when it is made, not in its first collective: there a ring of pairs, in which every rank first calls its
  // next one, would wait for ever.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  return std::make_shared<const Library>(options.library, options.cudart);
}

}  // namespace

Context::Context(const prun_open_params& params, const prun_host* host_of_process)
    : host(host_of_process),
      options(parse_options(params.options != nullptr ? params.options : "")),
      rank(params.rank),
      ranks(params.ranks),
      library(load(options, params)),
      device(choose_device(params, options, *library)),
      board(params.ranks),
      control(params, host_of_process, board),
      memory(*library),
      retirement(library) {
  if (!options.cta_policy.empty()) {
    constexpr int kSince = NCCL_VERSION(2, 28, 0);
    if (std::min(library->version(), static_cast<int>(NCCL_VERSION_CODE)) < kSince)
      throw Failure{PRUN_EINVAL, -1,
                    fmt::format("nccl option cta_policy: wants NCCL 2.28, here is {} (built with {})", library->text(),
                                version_text(NCCL_VERSION_CODE))};
  }
  use_device();
  log(rank == 0 ? 1 : 0, describe_self());  // which library it was is the first question later
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
  return fmt::format("nccl: {}; {}; device {} of {}", library->text(), library->cuda_text(), device,
                     library->devices());
}

void Context::log(int level, const std::string& text) const {
  if (host != nullptr && host->log != nullptr) host->log(level, text.c_str());
}

ncclConfig_t Context::config(const std::string& name) const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = options.split_share ? 1 : 0;
  if (options.min_ctas != 0) config.minCTAs = options.min_ctas;
  if (options.max_ctas != 0) config.maxCTAs = options.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (library->version() >= NCCL_VERSION(2, 28, 0)) config.commName = name.c_str();  // for ncclras
  if (options.cta_policy == "default") config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
  if (options.cta_policy == "efficiency") config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
  if (options.cta_policy == "zero") config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#else
  (void)name;
#endif
  return config;
}

size_t Context::address(void* blob, size_t room) {
  Address mine;
  if (room < sizeof mine) throw Failure{PRUN_EINVAL, -1, "too little room for the address"};
  mine.nccl_version = library->version();
  library->text().copy(mine.library, sizeof mine.library - 1);
  if (rank == 0) {
    const ncclResult_t result = library->nccl().get_unique_id(&mine.id);
    if (result != ncclSuccess) throw library->failure("ncclGetUniqueId", result);
  }
  std::memcpy(blob, &mine, sizeof mine);
  return sizeof mine + control.address(static_cast<char*>(blob) + sizeof mine, room - sizeof mine);
}

prun_status Context::connect(const void* const* blobs, const size_t* bytes, prun_result* result) {
  if (aborted()) throw Failure{PRUN_EABORTED, -1, "aborted while connecting"};
  std::vector<Address> addresses(static_cast<size_t>(ranks));
  std::vector<const void*> lines;
  std::vector<size_t> line_bytes;
  for (size_t r = 0; r < addresses.size(); ++r) {
    const int who = static_cast<int>(r);
    if (bytes[r] < sizeof(Address)) throw Failure{PRUN_EPEER, who, fmt::format("rank #{} gave no address of nccl", r)};
    std::memcpy(&addresses[r], blobs[r], sizeof(Address));
    addresses[r].library[sizeof addresses[r].library - 1] = '\0';
    if (addresses[r].magic != Address().magic)
      throw Failure{PRUN_EPEER, who, fmt::format("rank #{} gave no address of nccl", r)};
    if (addresses[r].nccl_version != library->version())
      throw Failure{PRUN_EMISMATCH, who,
                    fmt::format("rank #{} has loaded {}, rank #{} {}: all need the same version", r,
                                addresses[r].library, rank, library->text())};
    lines.push_back(static_cast<const char*>(blobs[r]) + sizeof(Address));
    line_bytes.push_back(bytes[r] - sizeof(Address));
  }
  if (world == nullptr) {
    const prun_status status = control.connect(lines.data(), line_bytes.data(), result);
    if (status != PRUN_OK) return status;
    control.start();
    std::vector<int> all(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) all[static_cast<size_t>(r)] = r;
    world = std::make_unique<prun_comm>(*this, all, -1);
    world->init(addresses[0].id);
  }
  int missing = -1;
  if (world->ready(missing)) return PRUN_OK;
  if (const int lost = board.lost_among(world->ranks()); lost >= 0)
    throw Failure{PRUN_EPEER, lost, fmt::format("rank #{} is gone", lost)};
  return report({PRUN_AGAIN, -1, "NCCL makes its first communicator"}, result);
}

void Context::abort() {
  aborted_ = true;
  std::vector<prun_comm*> comms;
  {
    std::lock_guard lock(mutex_);
    comms = comms_;
    if (world != nullptr) comms.push_back(world.get());
    for (prun_comm* comm : comms) comm->abort();
  }
  board.wake();
}

prun_comm* Context::create(const int* members, int n, int lane) {
  const std::vector<int> group(members, members + n);
  if (std::find(group.begin(), group.end(), rank) == group.end())
    throw Failure{PRUN_EINVAL, rank, fmt::format("rank #{} is not in the group #{}", rank, fmt::join(group, ", #"))};
  for (int r : group)
    if (r < 0 || r >= ranks) throw Failure{PRUN_EINVAL, -1, fmt::format("rank #{} of {} is no member", r, ranks)};
  auto comm = std::make_unique<prun_comm>(*this, group, lane);
  const int first = *std::min_element(group.begin(), group.end());
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

void Context::free(prun_comm* comm) {
  {
    std::lock_guard lock(mutex_);
    std::erase(comms_, comm);
  }
  delete comm;
}

Comm& Context::comm_of(int lane, int peer) {
  std::lock_guard lock(mutex_);
  for (prun_comm* comm : comms_)
    if (comm->lane() == lane && comm->index_of(peer) >= 0) return *comm;
  return *world;
}

void Context::deregister(const void* ptr) {
  std::lock_guard lock(mutex_);
  for (prun_comm* comm : comms_) comm->deregister(ptr);
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

}  // namespace prun_nccl

// Makes communicators. Members send a request to the lowest rank among them. When all requests are there, that rank
// sends the method: a split of the world's parent for a group of all ranks, because every rank takes part in a split,
// otherwise a unique id.
#include "comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "context.h"

namespace prun::nccl {
namespace {

// Intervals of waits in replayed steps. A member counts as silent after it has missed several `waits` notes.
constexpr auto kLongWait = std::chrono::seconds(2), kTellEvery = std::chrono::seconds(1),
               kSilent = std::chrono::seconds(3);

uint64_t key_of(const std::vector<int>& ranks, int lane) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3u;
  return (hash ^ static_cast<uint64_t>(static_cast<int64_t>(lane))) * 0x100000001b3u;
}

}  // namespace

Comm::Comm(Context& context, std::vector<int> ranks, int lane)
    : context_(context), ranks_(std::move(ranks)), lane_(lane), key_(key_of(ranks_, lane)) {
  me_ = index_of(context.rank);
  native_->device = context.device;
  native_->name = name();
  native_->ctas = context_.take_ctas();
  context_.use_device();
  context_.library->check("cudaStreamCreateWithFlags",
                          context_.library->cuda().stream_create(&native_->stream, cudaStreamNonBlocking));
}

Comm::~Comm() {
  {
    std::lock_guard lock(native_->calls);
    if (stage_ == Stage::ready && !failure_ && issued_ == nullptr && !native_->in_call)
      context_.retirement.destroy(native_);
    else
      context_.retirement.abort(native_);
  }
  context_.board.forget(key_);
  context_.give_ctas(native_->ctas);
  if (scratch != nullptr) context_.memory.give_bounce(scratch, 1);
}

int Comm::index_of(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

std::string Comm::name() const { return fmt::format("prun lane {} of ranks {}", lane_, fmt::join(ranks_, ", ")); }

void Comm::init(const ncclUniqueId& id) {
  std::lock_guard lock(native_->calls);
  init_parent(id);
  stage_ = Stage::parent;
}

// The parent runs only splits, so it gets NCCL's smallest buffers.
void Comm::init_parent(const ncclUniqueId& id) {
  ncclConfig_t config = context_.config(*native_, false);
  config.minCTAs = config.maxCTAs = 1;
  const ncclResult_t result = context_.library->nccl().init(&native_->parent, size(), id, me_, &config);
  if (result != ncclSuccess && result != ncclInProgress)
    throw context_.library->failure("ncclCommInitRankConfig", result);
}

// Locks the world's parent, which may be aborted at any time. Throws if it is.
std::unique_lock<std::timed_mutex> Comm::lock_parent() const {
  if (from_ == native_) return {};
  std::unique_lock lock(from_->calls);
  if (from_->retiring) throw Failure{PRUN_EABORTED, "aborted"};
  return lock;
}

void Comm::split(const std::shared_ptr<Native>& from) {
  from_ = from;
  const auto lock = lock_parent();
  if (from != native_) from->children.push_back(native_);
  ncclConfig_t config = context_.config(*native_, true);
  const ncclResult_t result = context_.library->nccl().split(from->parent, 0, me_, &native_->handle, &config);
  if (result != ncclSuccess && result != ncclInProgress) throw context_.library->failure("ncclCommSplit", result);
  stage_ = Stage::split;
}

bool Comm::settled(ncclComm_t comm) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = context_.library->nccl().async_error(comm, &state);
  if (result != ncclSuccess) state = result;
  if (state != ncclSuccess && state != ncclInProgress) throw context_.library->failure("making a communicator", state);
  return state == ncclSuccess;
}

bool Comm::ready(int& missing) {
  std::lock_guard lock(native_->calls);
  missing = -1;
  check_alive();
  context_.use_device();
  try {
    return advance(missing);
  } catch (const Failure& failure) {
    fail_locked(failure);
    throw;
  }
}

bool Comm::advance(int& missing) {
  const int first = *std::min_element(ranks_.begin(), ranks_.end());
  if (stage_ == Stage::wanted) {
    if (first == context_.rank) {
      if (!context_.board.all_want(key_, ranks_, missing)) return false;
      Note go;
      go.kind = Note::go;
      go.key = key_;
      go.by_id = size() != context_.ranks ? 1 : 0;
      if (go.by_id == 0) go.sequence = context_.splits_ordered++;
      if (go.by_id != 0) {
        const ncclResult_t result = context_.library->nccl().get_unique_id(&go.id);
        if (result != ncclSuccess) throw context_.library->failure("ncclGetUniqueId", result);
      }
      for (int rank : ranks_)
        if (rank != context_.rank) context_.control.send(rank, go);
      go_ = go;
    } else {
      missing = first;
      const auto go = context_.board.take_go(key_);
      if (!go) return false;
      go_ = *go;
    }
    stage_ = Stage::told;
  }
  missing = -1;
  if (stage_ == Stage::told && go_.by_id != 0) {
    init_parent(go_.id);
    stage_ = Stage::parent;
  }
  if (stage_ == Stage::told) {
    // All ranks split the world's parent in one order, whatever the order of their requests.
    if (context_.next_split != go_.sequence) return false;
    split(context_.world->native_);
  }
  if (stage_ == Stage::parent) {
    if (!settled(native_->parent)) return false;
    split(native_);
  }
  if (stage_ == Stage::split) {
    const auto lock = lock_parent();
    if (!settled(from_->parent)) return false;
    if (from_ != native_) ++context_.next_split;
    stage_ = Stage::ready;
  }
  return true;
}

void Comm::register_regions() {
  const Nccl& nccl = context_.library->nccl();
  if (!context_.options.register_buffers || nccl.comm_register == nullptr) return;
  for (const Region& region : context_.memory.regions()) {
    if (region.kind != PRUN_MEM_CUDA || region.bytes == 0) continue;
    const bool known = std::any_of(native_->registered.begin(), native_->registered.end(),
                                   [&](const auto& r) { return r.first == region.ptr; });
    if (known) continue;
    void* handle = nullptr;
    // Memory that cannot be registered works as well, only slower.
    const ncclResult_t result = nccl.comm_register(native_->handle, region.ptr, region.bytes, &handle);
    if (result != ncclSuccess) context_.log(0, context_.library->failure("ncclCommRegister", result).message);
    native_->registered.emplace_back(region.ptr, result == ncclSuccess ? handle : nullptr);
  }
}

void Comm::deregister(const void* ptr) {
  std::lock_guard lock(native_->calls);
  while (native_->in_call && !native_->retiring) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::erase_if(native_->registered, [&](const auto& r) {
    if (r.first != ptr) return false;
    if (r.second != nullptr && !native_->retiring) context_.library->nccl().comm_deregister(native_->handle, r.second);
    return true;
  });
}

void Comm::check_alive() const {
  if (failure_) throw failure_;
  if (native_->retiring) throw Failure{PRUN_EABORTED, "aborted"};
}

void Comm::push(Launch* launch) {
  std::lock_guard lock(native_->calls);
  check_alive();
  waiting_.push_back(launch);
}

void Comm::withdraw(Launch* launch) {
  std::lock_guard lock(native_->calls);
  std::erase(waiting_, launch);
  if (issued_ == launch) issued_ = nullptr;
}

void Comm::pump() {
  std::lock_guard lock(native_->calls);
  check_alive();
  if (issued_ == nullptr && waiting_.empty()) return;
  context_.use_device();
  try {
    pump_locked();
  } catch (const Failure& failure) {
    fail_locked(failure);
    throw;
  }
}

bool Comm::may_wait(const Launch& launch) const {
  return context_.connects_late || std::any_of(launch.links.begin(), launch.links.end(),
                                               [&](const Link& link) { return linked_.count(link) == 0; });
}

void Comm::call_in_a_thread(const Launch& launch) {
  call_ = std::make_shared<Call>();
  native_->in_call = true;
  std::thread([call = call_, native = native_, library = context_.library, issue = launch.issue] {
    library->cuda().set_device(native->device);
    const RelaxedCapture guard(library->cuda());
    call->result = issue();
    native->in_call = false;
    call->over = true;
  }).detach();
}

void Comm::pump_locked() {
  for (;;) {
    ncclResult_t result = ncclSuccess;
    if (call_ != nullptr) {
      if (!call_->over) return;
      result = std::exchange(call_, nullptr)->result;
    } else if (issued_ == nullptr) {
      if (waiting_.empty()) return;
      register_regions();
      issued_ = waiting_.front();
      waiting_.pop_front();
      issued_->state = Launch::State::issued;
      if (may_wait(*issued_)) return call_in_a_thread(*issued_);
      result = issued_->issue();
    }
    if (issued_ == nullptr) continue;  // the request has withdrawn it
    if (result == ncclSuccess || result == ncclInProgress) {
      const ncclResult_t asked = context_.library->nccl().async_error(native_->handle, &result);
      if (asked != ncclSuccess) result = asked;
    }
    if (result == ncclInProgress) return;
    if (result != ncclSuccess) throw context_.library->failure(issued_->call, result);
    Launch& launch = *std::exchange(issued_, nullptr);
    linked_.insert(launch.links.begin(), launch.links.end());
    if (context_.library->capturing(launch.stream)) {
      launch.state = Launch::State::ended;
      continue;
    }
    launch.event = context_.take_event();
    context_.library->check("cudaEventRecord", context_.library->cuda().event_record(launch.event, launch.stream));
    launch.state = Launch::State::running;  // last, because the enqueuing thread then continues, perhaps with a capture
  }
}

bool Comm::done(Launch& launch) {
  std::lock_guard lock(native_->calls);
  if (launch.state == Launch::State::ended) return true;
  if (launch.state != Launch::State::running) return false;
  const cudaError_t error = context_.library->cuda().event_query(launch.event);
  if (error == cudaSuccess) {
    context_.give_event(std::exchange(launch.event, nullptr));
    launch.state = Launch::State::ended;
    return true;
  }
  if (error != cudaErrorNotReady) throw context_.library->failure("waiting for the device", error);
  // NCCL never ends an operation that it has given up.
  if (const Failure failure = asynchronous(launch.call)) fail_locked(failure);
  return false;
}

// Skips the check while another thread holds the lock: that thread is in a call of NCCL, which returns the error there.
int Comm::check(std::chrono::milliseconds waited) {
  std::unique_lock lock(native_->calls, std::try_to_lock);
  if (!lock.owns_lock() || stage_ != Stage::ready) return -1;
  check_alive();
  if (const Failure failure = asynchronous("in a replayed step")) {
    fail_locked(failure);
    throw failure;
  }
  if (waited < kLongWait) return -1;
  if (Clock::now() - told_ >= kTellEvery) {
    told_ = Clock::now();
    Note note;
    note.kind = Note::waits;
    for (int rank : ranks_)
      if (rank != context_.rank) context_.control.send(rank, note);
  }
  return context_.board.silent_among(ranks_, context_.rank, kSilent);
}

// NCCL does not report which rank it has lost. In a pair it is the other one; otherwise the control connection may have
// lost it, too.
Failure Comm::asynchronous(const char* call) {
  ncclResult_t state = ncclSuccess;
  if (native_->retiring || context_.library->nccl().async_error(native_->handle, &state) != ncclSuccess ||
      state == ncclSuccess || state == ncclInProgress)
    return {};
  Failure failure = context_.library->failure(call, state);
  if (failure.status == PRUN_EPEER) failure.culprit = size() == 2 ? next() : context_.board.lost_among(ranks_);
  return failure;
}

void Comm::fail(const Failure& failure) {
  std::lock_guard lock(native_->calls);
  fail_locked(failure);
}

void Comm::fail_locked(const Failure& failure) {
  if (failure_) return;
  failure_ = failure;
  waiting_.clear();
  issued_ = nullptr;
  context_.retirement.abort(native_);
}

// Does not take the lock, because a call of NCCL may hold it.
void Comm::abort() { context_.retirement.abort(native_); }

Failure Comm::failure() {
  std::lock_guard lock(native_->calls);
  return failure_;
}

}  // namespace prun::nccl

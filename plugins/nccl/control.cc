// The control connection. Notes are small, so most sends are complete when `batch` returns.
#include "control.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>
#include <iterator>

namespace prun::nccl {
namespace {

constexpr int kNapMs = 10;
constexpr uint64_t kLane = 0;

prun_result empty() { return {.size = sizeof(prun_result), .culprit = -1, .message = {}}; }

Failure failure_of(prun_status status, const prun_result& result) { return {status, result.culprit, result.message}; }

std::string sibling(const char* name) {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&prun_transport_v1), &info);
  std::string path = info.dli_fname != nullptr ? info.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1) + name;
}

const prun_transport* load_socket() {
  const std::string path = sibling("socket.so");
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto entry =
      handle != nullptr ? reinterpret_cast<prun_transport_entry>(dlsym(handle, "prun_transport_v1")) : nullptr;
  const prun_transport* table = entry != nullptr ? entry(sdk::host_of_process) : nullptr;
  if (table == nullptr || table->ext == nullptr || table->ext(PRUN_PROGRESS) == nullptr)
    throw Failure{PRUN_ENOTSUP, fmt::format("nccl needs the socket transport of the same prun beside it ({})", path)};
  return table;
}

}  // namespace

Control::Control(const prun_open_params& params, Board& board)
    : table_(load_socket()), board_(board), rank_(params.rank) {
  progress_ = static_cast<const prun_progress*>(table_->ext(PRUN_PROGRESS));
  prun_open_params mine = params;
  mine.options = "";
  prun_result result = empty();
  const prun_status status = table_->open(&mine, &ctx_, &result);
  if (status != PRUN_OK) throw failure_of(status, result);
  incoming_.resize(static_cast<size_t>(params.ranks));
}

Control::~Control() {
  stopping_ = true;
  table_->abort(ctx_);
  if (thread_.joinable()) thread_.join();
  prun_result result = empty();
  for (Incoming& in : incoming_)
    while (in.req != nullptr && table_->test(ctx_, in.req, &result) == PRUN_AGAIN) {
    }
  for (Outgoing& out : outgoing_)
    while (table_->test(ctx_, out.req, &result) == PRUN_AGAIN) {
    }
  table_->close(ctx_);
}

std::string Control::address(size_t room) {
  prun_result result = empty();
  std::string blob(room, '\0');
  const prun_status status = table_->address(ctx_, blob.data(), &room, &result);
  if (status != PRUN_OK) throw failure_of(status, result);
  blob.resize(room);
  return blob;
}

Failure Control::connect(const sdk::Blobs& blobs) {
  std::vector<const void*> data;
  std::vector<size_t> bytes;
  for (std::string_view blob : blobs) data.push_back(blob.data()), bytes.push_back(blob.size());
  prun_result result = empty();
  return failure_of(table_->connect(ctx_, data.data(), bytes.data(), &result), result);
}

void Control::abort() {
  stopping_ = true;
  table_->abort(ctx_);
}

bool Control::receive(int peer) {
  Incoming& in = incoming_[peer];
  const prun_p2p op = {1, peer, kLane, &in.note, sizeof in.note, PRUN_MEM_HOST, nullptr};
  prun_result result = empty();
  if (table_->batch(ctx_, &op, 1, {PRUN_MEM_HOST, nullptr}, &in.req, &result) == PRUN_OK) return true;
  in.req = nullptr;
  board_.lose(peer);
  return false;
}

void Control::start() {
  for (int peer = 0; peer < static_cast<int>(incoming_.size()); ++peer)
    if (peer != rank_) receive(peer);
  thread_ = std::thread([this] { run(); });
}

void Control::take(int peer) {
  Incoming& in = incoming_[peer];
  while (in.req != nullptr && progress_->ended(ctx_, in.req) != 0) {
    prun_result result = empty();
    const prun_status status = table_->test(ctx_, in.req, &result);
    if (status == PRUN_AGAIN) return;
    in.req = nullptr;
    if (status == PRUN_OK) {
      board_.deliver(peer, in.note);
      if (!receive(peer)) return;
    } else {
      board_.lose(peer);
    }
  }
}

void Control::run() {
  while (!stopping_) {
    progress_->progress(ctx_, kNapMs);
    for (int peer = 0; peer < static_cast<int>(incoming_.size()); ++peer) take(peer);
    reap();
  }
}

void Control::reap() {
  std::lock_guard lock(mutex_);
  for (auto out = outgoing_.begin(); out != outgoing_.end();) {
    prun_result result = empty();
    const bool gone = progress_->ended(ctx_, out->req) != 0 && table_->test(ctx_, out->req, &result) != PRUN_AGAIN;
    out = gone ? outgoing_.erase(out) : std::next(out);
  }
}

void Control::send(int to, const Note& note) {
  std::lock_guard lock(mutex_);
  outgoing_.push_back({note, nullptr});
  Outgoing& out = outgoing_.back();
  const prun_p2p op = {0, to, kLane, &out.note, sizeof out.note, PRUN_MEM_HOST, nullptr};
  prun_result result = empty();
  if (table_->batch(ctx_, &op, 1, {PRUN_MEM_HOST, nullptr}, &out.req, &result) != PRUN_OK ||
      (progress_->ended(ctx_, out.req) != 0 && table_->test(ctx_, out.req, &result) != PRUN_AGAIN))
    outgoing_.pop_back();
}

}  // namespace prun::nccl

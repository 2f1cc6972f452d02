// Blobs, endpoints, the first message each way, and closing.
//
// UCX's error handling excludes the fastest transports of one host (posix, sysv and cma, 1.13), and would report the
// death of a local rank 20 s later than the launcher does. So endpoints within one host do without it.
#include <fmt/format.h>
#include <prun/sdk/host.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "context.h"
#include "log.h"

namespace prun::ucx {
namespace {

constexpr char kMagic[8] = {'p', 'r', 'u', 'n', 'u', 'c', 'x', '1'};
constexpr uint64_t kHelloTag = uint64_t{1} << 56;  // a bit above those of senders and lanes

// Header of a blob; the worker's address follows.
struct AddressHeader {
  char magic[8];
  uint32_t bytes;  // bytes of the worker's address
  uint16_t ucx_major, ucx_minor;
  sdk::HostId host;
};

// The first message consists of one header per piece of memory, each followed by its packed key.
struct MemoryHeader {
  uint64_t address, bytes, key_bytes;
};
constexpr size_t kHelloRoom = 4096;

AddressHeader own_header(size_t bytes) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  AddressHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.bytes = static_cast<uint32_t>(bytes);
  header.ucx_major = static_cast<uint16_t>(major);
  header.ucx_minor = static_cast<uint16_t>(minor);
  header.host = sdk::this_host();
  return header;
}

// Returns the worker's address in a rank's blob. Throws Failure for a foreign blob or another UCX version.
std::string read_blob(int rank, std::string_view blob, const AddressHeader& mine, AddressHeader& theirs) {
  if (blob.size() >= sizeof theirs) std::memcpy(&theirs, blob.data(), sizeof theirs);
  if (blob.size() < sizeof theirs || std::memcmp(theirs.magic, kMagic, sizeof kMagic) != 0 ||
      theirs.bytes != blob.size() - sizeof theirs)
    throw Failure{PRUN_EINVAL, rank, fmt::format("the address of rank #{} is not one of this transport", rank)};
  if (theirs.ucx_major != mine.ucx_major || theirs.ucx_minor != mine.ucx_minor)
    throw Failure{PRUN_EINVAL, rank,
                  fmt::format("rank #{} has UCX {}.{}, this rank #{}.{}: all ranks need the same", rank,
                              theirs.ucx_major, theirs.ucx_minor, mine.ucx_major, mine.ucx_minor)};
  return std::string(blob.substr(sizeof theirs));
}

// Returns whether a port of an RDMA device is active.
bool has_rdma() {
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", none)) {
      std::string state;
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace

// UCX scores high only with RDMA. Over TCP socket is faster, and between ranks of one host shm is.
int Context::score(const prun_open_params&, std::span<const int>) { return has_rdma() ? 60 : 10; }

std::string Context::address() {
  const std::string address = worker_.address();
  const AddressHeader header = own_header(address.size());
  if (sizeof header + address.size() > PRUN_MAX_ADDRESS)
    throw Failure{PRUN_ESYSTEM,
                  fmt::format("UCX's address has {} bytes, {} are possible: use fewer devices (devices=, --interface)",
                              address.size(), PRUN_MAX_ADDRESS - sizeof header)};
  return sdk::bytes_of(header) + address;
}

void Context::create_endpoint(Peer& peer, const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = peer.same_host ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_lost, &peer};
  Overheard warnings;
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &peer.endpoint);
  if (status != UCS_OK)
    throw Failure{
        PRUN_EPEER, peer.rank,
        fmt::format("rank #{} cannot be reached: {} {}", peer.rank, ucs_status_string(status), warnings.take())};
}

void Context::on_lost(void* user_data, ucp_ep_h, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(user_data);
  peer.lost = status;
  peer.context->some_lost_ = true;
}

// Packs the keys that fit. Memory without a packed key is sent like any other memory.
std::string Context::own_hello() {
  std::string hello;
  for (const Memory& memory : memory_) {
    void* key = nullptr;
    MemoryHeader header{reinterpret_cast<uint64_t>(memory.start), memory.bytes, 0};
    check("ucp_rkey_pack", ucp_rkey_pack(worker_.context(), memory.handle, &key, &header.key_bytes));
    const bool fits = hello.size() + sizeof header + header.key_bytes <= kHelloRoom;
    if (fits) {
      hello.append(reinterpret_cast<const char*>(&header), sizeof header);
      hello.append(static_cast<const char*>(key), header.key_bytes);
      ++shared_;
    }
    ucp_rkey_buffer_release(key);
    if (!fits) break;
  }
  return hello;
}

// Every rank sends its keys to every rank, which also proves that all pairs are connected.
void Context::start_connecting(const sdk::Blobs& blobs) {
  const AddressHeader mine = own_header(0);
  for (Peer& peer : peers_) {
    AddressHeader theirs{};
    const std::string address = read_blob(peer.rank, blobs[peer.rank], mine, theirs);
    peer.same_host = theirs.host == mine.host;
    create_endpoint(peer, address);
  }
  hellos_.assign(peers_.size() + 1, std::string(kHelloRoom, '\0'));
  hellos_.back() = own_hello();
  connecting_ = new_request(2 * peers_.size());
  for (size_t i = 0; i < connecting_->operations.size(); ++i) {
    Operation& operation = connecting_->operations[i];
    operation.peer = static_cast<int>(i / 2);
    operation.is_recv = i % 2 == 0;
    std::string& hello = operation.is_recv ? hellos_[i / 2] : hellos_.back();
    operation.any_size = &hello;
    operation.bytes = hello.size();
    post(operation, kHelloTag | static_cast<uint64_t>(operation.is_recv ? operation.peer : rank), hello.data());
  }
}

Failure Context::connect(const sdk::Blobs& blobs) {
  std::unique_lock lock = enter();
  if (connecting_ == nullptr) start_connecting(blobs);
  while (!failure_ && progress()) {
  }
  if (!settled(*connecting_)) return awaited_to_connect();
  if (failure_) return failure_;
  for (Peer& peer : peers_) read_hello(peer, hellos_[peer.rank]);
  hellos_.clear();
  return {};
}

Failure Context::awaited_to_connect() const {
  for (const Operation& operation : connecting_->operations) {
    if (operation.open && operation.is_recv) return {PRUN_AGAIN, operation.peer, "it has not said hello"};
  }
  return {PRUN_AGAIN, ""};
}

void Context::read_hello(Peer& peer, std::string_view hello) {
  peer.maps_us = peer.same_host;
  while (!hello.empty()) {
    MemoryHeader header{};
    if (hello.size() >= sizeof header) std::memcpy(&header, hello.data(), sizeof header);
    hello.remove_prefix(std::min(hello.size(), sizeof header));
    if (header.key_bytes == 0 || header.key_bytes > hello.size())
      throw Failure{PRUN_ECORRUPT, peer.rank, fmt::format("the first message of rank #{} is malformed", peer.rank)};
    Peer::Memory memory{header.address, header.bytes, nullptr, nullptr};
    check("ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(peer.endpoint, hello.data(), &memory.key));
    void* mapped = nullptr;
    if (peer.same_host && ucp_rkey_ptr(memory.key, memory.address, &mapped) == UCS_OK)
      memory.mapped = static_cast<const char*>(mapped);
    peer.maps_us = peer.maps_us && memory.mapped != nullptr;
    peer.memory.push_back(memory);
    hello.remove_prefix(header.key_bytes);
  }
}

// Flushes ended sends that UCX still holds, until the deadline, because a dead peer would block the flush indefinitely.
// Returns whether all endpoints are closed.
bool Context::close_endpoints(Clock::time_point deadline) {
  std::vector<ucs_status_ptr_t> closing;
  for (Peer& peer : peers_) {
    for (const Peer::Memory& memory : peer.memory) ucp_rkey_destroy(memory.key);
    peer.memory.clear();
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t param{};
    if (!peer.same_host && (failure_ || peer.lost != UCS_OK)) {
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    }
    const ucs_status_ptr_t ucx = ucp_ep_close_nbx(peer.endpoint, &param);
    if (UCS_PTR_IS_PTR(ucx)) closing.push_back(ucx);
  }
  while (!closing.empty() && Clock::now() < deadline) {
    if (!worker_.progress()) sched_yield();
    std::erase_if(closing, [](ucs_status_ptr_t ucx) {
      if (ucp_request_check_status(ucx) == UCS_INPROGRESS) return false;
      ucp_request_free(ucx);
      return true;
    });
  }
  return closing.empty();
}

// Destroys a context, or retains it until the process ends if UCX still holds operations: closing those would make
// progress, which could write into memory that has been freed.
void Context::close(std::unique_ptr<Context> context) {
  static auto& left = *new std::vector<std::unique_ptr<Context>>;
  const bool failed = context->failure_ || context->stopped();
  const auto patience = std::chrono::milliseconds(failed ? 50 : 1000);
  std::optional<Overheard> unheard;  // discards UCX's warnings about unexpected messages
  if (failed) unheard.emplace();
  if (context->open_ == 0 && context->close_endpoints(Clock::now() + patience)) return context.reset();
  context->log_open_.leave();
  left.push_back(std::move(context));
}

}  // namespace prun::ucx

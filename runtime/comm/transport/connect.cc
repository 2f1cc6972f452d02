// Detects differences between ranks within seconds; otherwise they would show as garbage in the first collective.
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <thread>

#include "base/text.h"
#include "comm/transport/job_state.h"
#include "comm/transport/long_wait.h"
#include "comm/transport/transport_session.h"

namespace prun {
namespace {

constexpr std::array<const char*, 8> kFields = {"transport ABI",           "transport",
                                                "transport version",       "build of the plugin",
                                                "build of prun",           "value of the transport options",
                                                "value of comm.algorithm", "calibration of algorithms"};
using Identity = std::array<std::string, kFields.size()>;

// Packs the fields as lines of text, followed by the raw address.
std::string pack(const Identity& identity, std::string_view address) {
  std::string blob;
  for (std::string field : identity) {
    std::replace(field.begin(), field.end(), '\n', ' ');
    blob += field + "\n";
  }
  return blob.append(address);
}

std::string unpack(const std::string& blob, int rank, Identity& identity) {
  size_t at = 0;
  for (std::string& field : identity) {
    size_t end = blob.find('\n', at);
    if (end == std::string::npos)
      throw Error(Exit::join, fmt::format("rank {} sent something else than its address", rank));
    field = blob.substr(at, end - at);
    at = end + 1;
  }
  return blob.substr(at);
}

// Throws if ranks differ in a field, naming each value and its ranks.
void check_same(const std::map<int, Identity>& identities) {
  for (size_t field = 0; field < kFields.size(); ++field) {
    std::map<std::string, std::vector<int>> ranks_of;
    for (const auto& [rank, identity] : identities) ranks_of[identity[field]].push_back(rank);
    if (ranks_of.size() == 1) continue;
    std::vector<std::string> parts;
    for (const auto& [value, ranks] : ranks_of) {
      parts.push_back(
          fmt::format("'{}' on {} {}", value, ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", ")));
    }
    throw Error(Exit::join, fmt::format("the {} is not the same on all ranks: {}", kFields[field], join(parts, "; ")));
  }
}

// Returns the build id among an object's notes [at, end); "" if there is none.
std::string build_id_in(const char* at, const char* end) {
  const auto padded = [](uint32_t bytes) { return (bytes + 3) / 4 * 4; };
  while (at + sizeof(ElfW(Nhdr)) <= end) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof note);
    const char* name = at + sizeof note;
    const auto* id = reinterpret_cast<const unsigned char*>(name + padded(note.n_namesz));
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
      return fmt::format("{:02x}", fmt::join(id, id + note.n_descsz, ""));
    at = reinterpret_cast<const char*>(id) + padded(note.n_descsz);
  }
  return "";
}

struct Search {
  uintptr_t address;
  std::string id;
};

// Callback of dl_iterate_phdr; returns nonzero for the object that contains the address.
int visit_object(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const std::span<const ElfW(Phdr)> headers(info->dlpi_phdr, info->dlpi_phnum);
  const bool inside = std::any_of(headers.begin(), headers.end(), [&](const ElfW(Phdr) & header) {
    return header.p_type == PT_LOAD && search->address - info->dlpi_addr - header.p_vaddr < header.p_memsz;
  });
  if (!inside) return 0;
  for (const ElfW(Phdr) & header : headers) {
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    if (header.p_type == PT_NOTE && search->id.empty()) search->id = build_id_in(at, at + header.p_memsz);
  }
  return 1;
}

std::string own_address(const TransportSession& session) {
  // Guard bytes after the address detect a plugin that writes beyond its capacity.
  constexpr char kUntouched = 0x5a;
  std::string address(2 * PRUN_MAX_ADDRESS, kUntouched);
  size_t bytes = PRUN_MAX_ADDRESS;
  prun_result result;
  const prun_status status =
      session.call("address", &prun_transport::address, result, static_cast<void*>(address.data()), &bytes);
  if (status != PRUN_OK) session.fail(status, result, "making an address");
  if (bytes > PRUN_MAX_ADDRESS || address.find_first_not_of(kUntouched, PRUN_MAX_ADDRESS) != std::string::npos) {
    throw Error(Exit::transport,
                fmt::format("making an address over {}: it has more than the {} bytes that there are for it",
                            session.plugin().name, PRUN_MAX_ADDRESS));
  }
  address.resize(bytes);
  return address;
}

void connect_until(const TransportSession& session, const std::vector<std::string>& addresses, double deadline_s) {
  std::vector<const void*> blobs;
  std::vector<size_t> bytes;
  for (const std::string& address : addresses) {
    blobs.push_back(address.data());
    bytes.push_back(address.size());
  }
  AwakeTime waited;
  int awaited = -1;
  for (int attempt = 0;; ++attempt) {
    prun_result result;
    const prun_status status = session.call("connect", &prun_transport::connect, result, blobs.data(), bytes.data());
    if (status == PRUN_OK) return;
    if (status != PRUN_AGAIN) session.fail(status, result, "connecting");
    if (result.culprit > awaited) {  // all lower ranks have connected
      awaited = result.culprit;
      waited = {};
    }
    if (job_aborted()) throw Aborted(job_abort_reason());
    if (waited.until(AwakeTime::Clock::now()) > std::chrono::duration<double>(deadline_s)) {
      const std::string whom = result.culprit >= 0 ? fmt::format("rank {}", result.culprit) : "a peer";
      const std::string more = result.message[0] != '\0' ? fmt::format(" ({})", session.text_of(status, result)) : "";
      throw Error(Exit::transport, fmt::format("connecting over {}: after {} still waiting for {}{}",
                                               session.plugin().name, human_seconds(deadline_s), whom, more));
    }
    if (attempt < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

}  // namespace

std::string build_id_of(const void* address) {
  Search search{reinterpret_cast<uintptr_t>(address), ""};
  dl_iterate_phdr(visit_object, &search);
  return search.id;
}

double connecting_deadline_s(double deadline_s, double cores_per_rank) {
  // Ranks per core. All pairs connect, so the time grows quadratically: 16 per core take hundredths of a second, 500 a
  // minute.
  constexpr double kRanksInTime = 16;
  return deadline_s * std::max(1.0, 1 / (kRanksInTime * cores_per_rank));
}

void join_and_connect(TransportSession& session, const WorldOptions& options, Bootstrap& bootstrap) {
  const prun_transport& table = session.table();
  Identity mine = {
      std::to_string(table.abi),
      options.transport,
      table.version,
      build_id_of(reinterpret_cast<const void*>(table.open)),
      build_id_of(reinterpret_cast<const void*>(&build_id_of)),
      options.transport_options,
      options.algorithm,
      options.algorithm_costs.empty() ? "" : fmt::format("{:x}", std::hash<std::string>()(options.algorithm_costs))};
  std::vector<std::string> blobs = bootstrap.all_gather(pack(mine, own_address(session)));
  PRUN_CHECK(static_cast<int>(blobs.size()) == options.ranks,
             fmt::format("{} blobs for {} ranks", blobs.size(), options.ranks));
  std::map<int, Identity> identities;
  std::vector<std::string> addresses;
  for (int rank : session.members()) addresses.push_back(unpack(blobs[rank], rank, identities[rank]));
  check_same(identities);
  report_activity(fmt::format("connecting over {}", session.plugin().name));
  connect_until(session, addresses, connecting_deadline_s(options.deadline_s, core_services().cores_per_rank));
  session.connected = true;
  report_activity("");
}

}  // namespace prun

// Joining. A difference between ranks is found here, in seconds, rather than as garbage in the first collective.
#include "comm/transport/connect.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/text.h"
#include "comm/transport/job_state.h"
#include "comm/transport/watchdog.h"

namespace prun {
namespace {

constexpr std::array<const char*, 7> kFields = {"transport ABI",          "transport",
                                                "transport version",      "build of the plugin",
                                                "build of prun",          "value of the transport options",
                                                "value of comm.algorithm"};
using Identity = std::array<std::string, kFields.size()>;

// Lines of text, then the address as it is.
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

// The value that most ranks have is taken for the right one; the others are named.
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

struct Search {
  uintptr_t address;
  std::string id;
};

int visit_object(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  bool inside = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    inside |= header.p_type == PT_LOAD && search->address >= begin && search->address < begin + header.p_memsz;
  }
  if (!inside) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* value = name + (note.n_namesz + 3) / 4 * 4;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        for (uint32_t b = 0; b < note.n_descsz; ++b)
          search->id += fmt::format("{:02x}", static_cast<unsigned char>(value[b]));
        return 1;
      }
      at = value + (note.n_descsz + 3) / 4 * 4;
    }
  }
  return 1;
}

std::string own_address(Link& link) {
  // Room behind it, whose bytes tell of a plugin that does not keep to its own.
  constexpr char kUntouched = 0x5a;
  std::string address(2 * PRUN_MAX_ADDRESS, kUntouched);
  size_t bytes = PRUN_MAX_ADDRESS;
  prun_result result = empty_result();
  InPlugin inside("address");
  prun_status status = link.told(link.table().address(link.ctx(), address.data(), &bytes, &result), result, "address");
  if (status != PRUN_OK) link.fail(status, result, "making an address");
  if (bytes > PRUN_MAX_ADDRESS || address.find_first_not_of(kUntouched, PRUN_MAX_ADDRESS) != std::string::npos) {
    throw Error(Exit::transport,
                fmt::format("making an address over {}: it has more than the {} bytes that there are for it",
                            link.plugin().name, PRUN_MAX_ADDRESS));
  }
  address.resize(bytes);
  return address;
}

void connect_until(Link& link, const std::vector<std::string>& addresses, double deadline_s) {
  std::vector<const void*> blobs;
  std::vector<size_t> bytes;
  for (const std::string& address : addresses) {
    blobs.push_back(address.data());
    bytes.push_back(address.size());
  }
  auto start = std::chrono::steady_clock::now();
  for (int attempt = 0;; ++attempt) {
    prun_result result = empty_result();
    prun_status status = [&] {
      InPlugin inside("connect");
      return link.told(link.table().connect(link.ctx(), blobs.data(), bytes.data(), &result), result, "connect");
    }();
    if (status == PRUN_OK) return;
    if (status != PRUN_AGAIN) link.fail(status, result, "connecting");
    if (host_aborted()) throw Aborted(host_abort_reason());
    if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(deadline_s)) {
      std::string whom = result.culprit >= 0 ? fmt::format("rank {}", result.culprit) : "a peer";
      std::string more = result.message[0] != '\0' ? fmt::format(" ({})", link.text_of(status, result)) : "";
      throw Error(Exit::transport, fmt::format("connecting over {}: after {} still waiting for {}{}",
                                               link.plugin().name, human_seconds(deadline_s), whom, more));
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

void join_and_connect(Link& link, const WorldOptions& options, Bootstrap& bootstrap) {
  const prun_transport& table = link.table();
  Identity mine = {std::to_string(table.abi),
                   options.transport,
                   table.version,
                   build_id_of(reinterpret_cast<const void*>(table.open)),
                   build_id_of(reinterpret_cast<const void*>(&build_id_of)),
                   options.transport_options,
                   options.algorithm};
  std::vector<std::string> blobs = bootstrap.all_gather(pack(mine, own_address(link)));
  PRUN_CHECK(static_cast<int>(blobs.size()) == options.ranks,
             fmt::format("{} blobs for {} ranks", blobs.size(), options.ranks));
  std::map<int, Identity> identities;
  std::vector<std::string> addresses;
  for (int rank : link.members()) addresses.push_back(unpack(blobs[rank], rank, identities[rank]));
  check_same(identities);
  host_doing(fmt::format("connecting over {}", link.plugin().name));
  connect_until(link, addresses, options.deadline_s);
  host_doing("");
}

}  // namespace prun

// A rank's arena fits the memory that its host has available for it.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "verify/verify.h"
#include "verify/view.h"

namespace prun {

std::string largest_roles(const Program& program) {
  std::vector<int> roles;
  for (int role = 0; role < kRoles; role++)
    if (program.role_bytes[role] > 0) roles.push_back(role);
  std::stable_sort(roles.begin(), roles.end(),
                   [&](int a, int b) { return program.role_bytes[a] > program.role_bytes[b]; });
  std::vector<std::string> parts;
  for (size_t i = 0; i < roles.size() && i < 3; i++) {
    parts.push_back(
        fmt::format("{} {}", role_name(static_cast<Role>(roles[i])), human_bytes(program.role_bytes[roles[i]])));
  }
  return parts.empty() ? "" : " (" + join(parts, ", ") + ")";
}

std::string largest_buffers(const Program& program) {
  std::vector<const Buffer*> buffers;
  for (const BufferId id : program.buffers.ids()) buffers.push_back(&program.buffers[id]);
  std::stable_sort(buffers.begin(), buffers.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  std::vector<std::string> parts;
  std::set<std::pair<Role, std::string>> shown;  // layers of one kind have one line
  for (const Buffer* each : buffers) {
    if (parts.size() == 3 || each->bytes == 0) break;
    if (!each->site.known() || !shown.emplace(each->role, each->site.text()).second) continue;
    parts.push_back(
        fmt::format("{} {} ({}, {})", each->name, human_bytes(each->bytes), role_name(each->role), each->site.text()));
  }
  return parts.empty() ? "" : "; the largest buffers: " + join(parts, ", ");
}

namespace verify {

namespace {

std::string offloaded(const Program& program) {
  return program.host_arena_bytes > 0
             ? fmt::format(" and {} for what is offloaded", human_bytes(program.host_arena_bytes))
             : "";
}

}  // namespace

void memory_suffices(const JobView& view, Findings& findings) {
  if (view.memory_limit <= 0) return;
  for (size_t i = 1; i < view.bodies.size(); i += 2) {
    const BodyView& body = view.bodies[i];
    const Program& program = *body.program;
    const int64_t bytes = program.arena_bytes + program.host_arena_bytes;  // both arenas are in the same memory
    if (bytes <= view.memory_limit) continue;
    std::string message =
        fmt::format("{}needs {} a rank{}{}, {} available", body.where(), human_bytes(program.arena_bytes),
                    largest_roles(program), offloaded(program), human_bytes(view.memory_limit));
    if (view.local_ranks > 1) {
      message += fmt::format(" to each of {} ranks on this host; {} such ranks would fit", view.local_ranks,
                             view.memory_limit * view.local_ranks / bytes);
    }
    findings.add("more memory than there is", message + largest_buffers(program), {});
  }
}

}  // namespace verify
}  // namespace prun

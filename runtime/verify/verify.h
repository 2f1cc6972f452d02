// Proves a job right before anything is launched: one function per invariant, in the list of verify.cc.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace prun {

struct Finding {
  std::string rule;     // "use after free"
  std::string message;  // names both sites
  Site site;
};

// All findings, the first of each kind first (at most 8 of a kind); empty when the job is right. `memory_limit`:
// bytes a rank may use on its host, 0 = unknown. `local_ranks`: how many share that host, for the message.
std::vector<Finding> verify_job(const Job& job, int64_t memory_limit, int local_ranks = 1);

// Throws plan_error with the first finding and the number of others.
void require_valid(const Job& job, int64_t memory_limit, int local_ranks = 1);

// " (activation 1.2 GiB, param 0.4 GiB)": the largest three roles of an arena, for the reader who wonders what to
// shrink.
std::string largest_roles(const Program& program);

// How a transport carries the messages of a pair of ranks: a send ends when its receive has begun; up to k sends end
// before that; or all ops of the pair, both ways, execute one after another in the order in which they were issued.
enum class TransportClass { rendezvous, eager, queue_ordered };
std::string_view transport_class_name(TransportClass kind);

// Whether a verified job ends on every transport of that class. verify_job demands rendezvous, which the transports
// here are at least. `credits` of eager: sends of a pair and lane on their way.
bool carries(TransportClass kind, const Job& job, int credits = 1);

}  // namespace prun

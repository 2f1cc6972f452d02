// Static verification of a job before launch: one function per invariant, listed in verify.cc.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace prun {

struct Finding {
  std::string rule;     // for example "use after free"
  std::string message;  // names both sites
  Site site;
};

// Returns all findings, the first of each rule first (at most 8 per rule); empty when the job is correct.
// `memory_limit`: bytes that a rank may use on its host, 0 = unknown. `local_ranks`: ranks that share that host, for
// the message.
std::vector<Finding> verify_job(const Job& job, int64_t memory_limit, int local_ranks = 1);

// Throws plan_error with the first finding and the number of further findings.
void require_valid(const Job& job, int64_t memory_limit, int local_ranks = 1);

// Returns the three largest roles of an arena, as a hint at what to shrink: " (activation 1.2 GiB, param 0.4 GiB)".
std::string largest_roles(const Program& program);
// Returns the three largest buffers of different lines, each with its line: "; the largest buffers: block0.up 2.00 MiB
// (activation, gpt.lua:46)".
std::string largest_buffers(const Program& program);

// The delivery of messages of a pair of ranks by a transport. rendezvous: a send completes when its receive has begun.
// eager: up to k sends complete before that. queue_ordered: all ops of the pair, in both directions, execute one after
// another in the order of issue.
enum class TransportClass { rendezvous, eager, queue_ordered };
std::string_view transport_class_name(TransportClass kind);

// Returns whether a verified job terminates on every transport of that class. verify_job proves this for rendezvous,
// whose guarantees all transports here give. `credits`, eager only: sends in flight per pair and lane.
bool carries(TransportClass kind, const Job& job, int credits = 1);

}  // namespace prun

// prun check PLAN: verifies the plan, and predicts memory per rank and role and bytes on the wire per axis; starts no
// rank.
#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "attention_lists.h"
#include "base/text.h"
#include "calibrate/algorithm_costs.h"
#include "data/feed_ring.h"
#include "ir/op_cost.h"
#include "ir/state.h"
#include "job/algorithm_choice.h"
#include "job/build.h"
#include "job/proof.h"
#include "job_options.h"
#include "parameter_lists.h"
#include "verify/verify.h"
#include "view_copies.h"

namespace prun {
namespace {

// Returns the wire bytes of a step by axis; axes of one rank are included with 0.
std::map<std::string, double> bytes_per_axis(const Program& program) {
  std::map<std::string, double> bytes;
  for (const Axis& axis : program.mesh.axes()) bytes[axis.name] = 0;
  const Body& step = program.step();
  const WrittenOut places(step);
  for (const StreamId stream : step.streams.ids())
    for (int i = 0; i < std::ssize(step.streams[stream].ops); ++i)
      if (const Op& op = step.streams[stream].ops[static_cast<size_t>(i)]; op.communicates())
        bytes[op.axis] += wire_bytes(program, op) * static_cast<double>(places.runs(stream, i));
  return bytes;
}

int64_t ops_in(const Body& step) {
  int64_t ops = 0;
  for (const StreamId stream : step.streams.ids()) ops += WrittenOut(step).ops(stream);
  return ops;
}

// Returns the bytes of shared memory of the ring of a feed; 0 = no feed.
int64_t feed_bytes(const Job& job) {
  const DataSource& data = job.classes.front().step().data;
  return data.feed.empty() ? 0 : feed_ring_bytes(data);
}

nlohmann::json as_json(const Job& job, const ProofReport& proof) {
  nlohmann::json classes = nlohmann::json::array();
  for (const Program& program : job.classes) {
    nlohmann::json roles, host_roles, wire;
    for (int r = 0; r < kRoles; ++r) {
      const std::string role(role_name(static_cast<Role>(r)));
      roles[role] = program.role_bytes[r];
      host_roles[role] = program.host_role_bytes[r];
    }
    for (const auto& [axis, bytes] : bytes_per_axis(program)) wire[axis] = static_cast<int64_t>(std::llround(bytes));
    classes.push_back({{"arena_bytes", program.arena_bytes},
                       {"roles", roles},
                       {"host_arena_bytes", program.host_arena_bytes},
                       {"host_roles", host_roles},
                       {"wire_bytes_per_step", wire},
                       {"ops", ops_in(program.step())}});
  }
  nlohmann::json transports = nlohmann::json::array();
  for (TransportClass kind : {TransportClass::rendezvous, TransportClass::eager, TransportClass::queue_ordered})
    if (carries(kind, job)) transports.push_back(std::string(transport_class_name(kind)));
  return {{"transports", transports},
          {"proof", proof.text},
          {"proven", proof.proven},
          {"apart_from", proof.apart_from},
          {"feed_bytes", feed_bytes(job)},
          {"ranks", job.class_of_rank.size()},
          {"parameters", parameter_count(job)},
          {"classes", classes},
          {"class_of_rank", job.class_of_rank}};
}

void print_class(const Job& job, size_t c) {
  const Program& program = job.classes[c];
  int64_t ranks = 0;
  for (int of : job.class_of_rank) ranks += of == static_cast<int>(c);
  fmt::print("\n{}: {} ops a step on {}\n", counted(ranks, "rank"), ops_in(program.step()),
             counted(std::ssize(program.step().streams), "stream"));
  const auto print_arena = [](const char* what, int64_t bytes, const int64_t(&roles)[kRoles]) {
    fmt::print("  {:<18} {:>12}\n", what, human_bytes(bytes));
    for (int r = 0; r < kRoles; ++r)
      if (roles[r] > 0)
        fmt::print("    {:<16} {:>12}  {:>14} B\n", role_name(static_cast<Role>(r)), human_bytes(roles[r]), roles[r]);
  };
  print_arena("memory per rank", program.arena_bytes, program.role_bytes);
  if (program.host_arena_bytes > 0) print_arena("on the host", program.host_arena_bytes, program.host_role_bytes);
  for (const auto& [axis, bytes] : bytes_per_axis(program))
    fmt::print("  sent over {:<8} {:>12} a step and rank\n", axis,
               human_bytes(static_cast<int64_t>(std::llround(bytes))));
}

class Check final : public PlanCommand {
 public:
  Check() { job_.purpose = Purpose::check; }
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
};

void Check::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("ranks and devices");
  option::device(table, job_);
  option::device_options(table, job_);
  option::nnodes(table, job_);
  table.group("checks");
  option::prove(table, job_);
  declare_compilation(table, job_);
  option::checkpoint_every(table, job_);
  option::base(table, job_);
}

void Check::settle() {
  check_ranks(job_);
  require_plan();
}

int Check::run() {
  const int ranks = job_.ranks();
  // The plan and the programs of a large model are never destroyed, because the process exits right after.
  static std::deque<std::pair<Plan, Job>>& kept = *new std::deque<std::pair<Plan, Job>>;
  auto& [plan, job] = kept.emplace_back();
  job = build_job(job_, ranks, &plan);
  const std::string algorithms = chosen_algorithms(job, calibrated_algorithm_costs());
  const ProofReport proof = prove_plan(job_, plan, ranks);
  if (line_.json) {
    nlohmann::json all = as_json(job, proof);
    if (!algorithms.empty()) all["algorithms"] = algorithms;
    if (nlohmann::json lists = parameter_lists_json(plan); !lists.empty()) all["groups"] = std::move(lists);
    if (nlohmann::json copies = view_copies_json(job); !copies.empty()) all["view_copies"] = std::move(copies);
    fmt::print("{}\n", all.dump());
    return 0;
  }
  // Without parameters, one line reports the verification.
  fmt::print("{}: verified for {} ({}){}{}\n", job_.plan, counted(std::ssize(job.class_of_rank), "rank"),
             job.classes.front().mesh.text(), proof.proven ? "\n" : ", ", proof.text);
  if (const int64_t parameters = parameter_count(job); parameters > 0)
    fmt::print("{} parameters\n{}{}", grouped(parameters), parameter_lists(plan), attention_lists(plan));
  if (!algorithms.empty()) fmt::print("by calibration: {}\n", algorithms);
  for (size_t c = 0; c < job.classes.size() && c < 8; ++c) print_class(job, c);
  fmt::print("{}", view_copies(job));
  if (const int64_t bytes = feed_bytes(job); bytes > 0)
    fmt::print("\nfeed '{}': {} in /dev/shm ({} batches, {} B)\n", plan.data.feed, human_bytes(bytes), plan.data.slots,
               grouped(bytes));
  if (job.classes.size() > 8) fmt::print("\nand {} more classes of ranks (--json lists all)\n", job.classes.size() - 8);
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_check() { return std::make_unique<Check>(); }

}  // namespace prun

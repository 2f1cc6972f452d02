// The order of the passes; read top to bottom.
#include "compile/compile.h"
#include "compile/draft.h"

namespace prun {
namespace {

void describe(Draft& draft) {
  Program& program = draft.program;
  program.name = draft.plan.path;
  program.mesh = draft.plan.mesh;
  program.device = draft.options.device;
  program.rank_order = draft.plan.rank_order;
  program.schedule = {draft.plan.steps, draft.plan.seed, draft.plan.optimizer.lr};
}

void finish(Program& program, const CompileOptions& options) {
  if (options.check_finite) check_finite(program);
  add_workspaces(program, options);
  join_step(program);
  assign_memory(program);
}

Job compile_training(const Plan& plan, const CompileOptions& options) {
  Draft shared{plan, options};
  describe(shared);
  shared.graph = plan.graph;
  find_data_axes(shared);
  partition(shared);
  distribute(shared);
  differentiate(shared);
  hide_reductions(shared);
  fuse(shared);
  fuse_losses(shared);
  Job job;
  for (int rank = 0; rank < pipeline_ranks(plan); ++rank) {
    Draft draft = shared;
    draft.pipeline_rank = rank;
    place(draft);
    schedule(draft);
    communicate(draft);
    evaluate(draft);
    synchronize(draft);
    finish(draft.program, options);
    job.classes.push_back(std::move(draft.program));
  }
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank)
    job.class_of_rank.push_back(plan.pipeline ? plan.mesh.index(plan.pipeline->axis, rank) : 0);
  address_puts(job);
  return job;
}

Job compile_programs(const Plan& plan, const CompileOptions& options) {
  Job job;
  for (const RankProgram& source : plan.programs) {
    Draft draft{plan, options};
    describe(draft);
    lower_program(draft, source);
    finish(draft.program, options);
    job.classes.push_back(std::move(draft.program));
  }
  job.class_of_rank = plan.program_of_rank;
  return job;
}

}  // namespace

Job compile(const Plan& plan, const CompileOptions& options) {
  return plan.programs.empty() ? compile_training(plan, options) : compile_programs(plan, options);
}

}  // namespace prun

// The order of the passes, and the runner that calls, times and checks them. A new pass is a file and a line in
// kPasses.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "compile/compile.h"
#include "compile/compile_state.h"

namespace prun {
namespace {

// Unit of work of a pass, which determines how often the pass runs.
enum class Scope : uint8_t {
  model,    // the graph of the whole model: once
  trained,  // the program of one class of ranks, built from the graph
  listed,   // a program that the plan lists op by op (level 3)
  program,  // every class's program, from either source
  job,      // the programs of all classes: once
};

// A model's forward pass alone is an evaluation or a prediction (forward.h).
enum class Purpose : uint8_t { any, training, generation, forward, samples };  // samples: training and forward

struct Pass {
  std::string_view name;
  Scope scope;
  void (*run)(CompileState& state);
  Purpose purpose = Purpose::any;  // compilations that run the pass
};

constexpr Pass kPasses[] = {
    {"pad_vocabulary", Scope::model, pad_vocabulary},
    {"decode", Scope::model, decode, Purpose::generation},
    {"buffers", Scope::model, separate_buffers, Purpose::samples},
    {"data_axes", Scope::model, find_data_axes, Purpose::samples},
    {"partition", Scope::model, partition, Purpose::samples},
    {"forward", Scope::model, begin_forward, Purpose::forward},
    {"distribute", Scope::model, distribute},
    {"merge_pointwise", Scope::model, merge_pointwise},
    {"autodiff", Scope::model, differentiate, Purpose::training},
    {"repeat_rounds", Scope::model, repeat_rounds, Purpose::training},
    {"overlap_dw", Scope::model, overlap_dw, Purpose::training},
    {"merge_gradients", Scope::model, merge_gradients, Purpose::training},
    {"fuse", Scope::model, fuse},
    {"fuse_loss", Scope::model, fuse_losses, Purpose::training},
    {"elide_views", Scope::model, elide_views},
    {"write_parts", Scope::model, write_parts, Purpose::training},
    {"place", Scope::trained, place},
    {"schedule", Scope::trained, schedule, Purpose::samples},
    {"step", Scope::trained, build_step, Purpose::training},
    {"generate", Scope::trained, generate, Purpose::generation},

    {"synchronize", Scope::trained, synchronize, Purpose::training},
    {"check_replicas", Scope::trained, check_replicas, Purpose::training},
    {"report", Scope::trained, report, Purpose::training},
    {"evaluate", Scope::trained, evaluate, Purpose::samples},
    {"checkpoint", Scope::trained, checkpoint, Purpose::training},
    {"lower_program", Scope::listed, lower_program},
    {"check_finite", Scope::program, check_finite},
    {"workspace", Scope::program, [](CompileState& state) { add_workspaces(state.program, state.options); }},
    {"widen", Scope::program, widen},
    {"step_barrier", Scope::program,
     [](CompileState& state) { add_step_barrier(state.program, !state.options.joins_steps); }},
    {"repeat", Scope::program, describe_repeat},
    {"memory", Scope::program,
     [](CompileState& state) {
       if (state.options.leave_memory) return;
       state.options.count_memory ? count_memory(state.program) : assign_memory(state.program);
     }},
    {"put_offsets", Scope::job, [](CompileState& state) { resolve_put_offsets(*state.job); }},
};

std::string program_text(const CompileState& state, int rank_class) {
  Job alone{{state.program}, {}};
  for (const int of_rank : state.job->class_of_rank) alone.class_of_rank.push_back(of_rank == rank_class ? 0 : -1);
  return dump_job(alone);
}

std::string text_of(const CompileState& state, Scope scope, int rank_class) {
  if (scope == Scope::job) return dump_job(*state.job);
  if (scope == Scope::model) return dump_graph(state.graph, state.backward);
  if (state.program.step().op_count() == 0 && !state.steps.empty()) return schedule_text(state);
  return program_text(state, rank_class);
}

void run_passes(Scope scope, CompileState& state, int rank_class = -1) {
  const Purpose purpose = state.options.generation ? Purpose::generation
                          : state.options.forward  ? Purpose::forward
                                                   : Purpose::training;
  const auto serves = [&](Purpose of_pass) {
    return of_pass == Purpose::any || of_pass == purpose ||
           (of_pass == Purpose::samples && purpose != Purpose::generation);
  };
  for (const Pass& pass : kPasses) {
    if (pass.scope != scope || !serves(pass.purpose)) continue;
    const auto begin = std::chrono::steady_clock::now();
    pass.run(state);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
#ifndef NDEBUG
    check_invariants(state, pass.name);
#endif
    if (const auto& report = state.options.after_pass)
      report({pass.name, rank_class, time.count(), [&] { return text_of(state, scope, rank_class); }});
  }
}

Program describe(const Plan& plan, const CompileOptions& options) {
  Program program;
  program.name = plan.path;
  program.model = plan.model;
  if (plan.initial_weights && !options.resumes) program.initial_weights = plan.initial_weights->path;
  if (!options.generation && plan.adapters.any()) program.adapters = plan.adapters;
  program.mesh = plan.mesh;
  program.device = options.device;
  program.rank_order = plan.rank_order;
  program.schedule = {.steps = options.forward ? 0 : plan.steps,
                      .begin = options.begin,
                      .seed = plan.seed,
                      .learning_rate = plan.optimizer.lr,
                      .most_skips = options.most_skips};
  if (plan.evaluation) program.schedule.watched.patience = plan.evaluation->patience;
  if (plan.keeping && !plan.keeping->best.empty()) {
    program.schedule.watched.metric = plan.keeping->best;
    program.schedule.watched.largest = plan.keeping->largest;
    program.schedule.watched.keeps = options.checkpoint_every > 0;
  }
  return program;
}

// `shortened`: source of `plan`; null: the plan has its full schedule.
Job compile_listed(const Plan& plan, const CompileOptions& options, const Shortened* shortened) {
  Job job;
  job.class_of_rank = plan.program_of_rank;
  const bool listed = !plan.programs.empty();
  for (int rank = 0; rank < plan.mesh.ranks() && !listed; ++rank)
    job.class_of_rank.push_back(plan.pipeline ? plan.mesh.index(plan.pipeline->axis, rank) : 0);
  const StrategyIndex strategies(plan);
  CompileState model(plan, options, strategies);
  model.job = &job;
  model.shortened = shortened;
  model.graph = plan.graph;
  SharedAttrs shared;
  for (Node& node : model.graph.nodes) node.attrs = shared.of(node.attrs);
  model.program = describe(plan, options);
  if (!listed) run_passes(Scope::model, model);
  const int classes = listed ? static_cast<int>(std::ssize(plan.programs)) : pipeline_ranks(plan);
  const std::vector<int>& only = options.only_classes;
  for (int rank_class = 0; rank_class < classes; ++rank_class) {
    if (!only.empty() && std::find(only.begin(), only.end(), rank_class) == only.end()) {
      job.classes.push_back(model.program);  // NOLINT(bugprone-use-after-move): only the last class moves it
      continue;
    }
    // The last class moves the model's state, which is as large as a program.
    CompileState state = rank_class + 1 < classes ? model : std::move(model);
    state.pipeline_rank = rank_class;
    if (listed) state.source = &plan.programs[rank_class];
    run_passes(listed ? Scope::listed : Scope::trained, state, rank_class);
    run_passes(Scope::program, state, rank_class);
    job.classes.push_back(std::move(state.program));
  }
  if (only.empty()) run_passes(Scope::job, model);
  return job;
}

}  // namespace

Job compile(const Plan& plan, const CompileOptions& options) {
  const bool as_it_is = options.every_microbatch || options.check_finite || options.generation || options.forward;
  for (const int microbatches : as_it_is ? std::vector<int>() : periods_of(plan)) try {
      if (const std::optional<Shortened> shortened = shorten(plan, microbatches))
        return compile_listed(shortened->plan, options, &*shortened);
    } catch (const DoesNotRecur& reason) {
      log_debug("compile", "no period of {} microbatches: {}", microbatches, reason.what);
      if (options.starts_over) options.starts_over();
    }
  return compile_listed(plan, options, nullptr);
}

std::vector<std::string_view> pass_names() {
  std::vector<std::string_view> names;
  for (const Pass& pass : kPasses) names.push_back(pass.name);
  return names;
}

}  // namespace prun

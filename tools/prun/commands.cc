// The commands, in the order of --help. Each maker is in the file of its command.
#include "command.h"

namespace prun {

std::unique_ptr<Command> make_run();         // run.cc
std::unique_ptr<Command> make_generate();    // generate.cc
std::unique_ptr<Command> make_eval();        // forward.cc
std::unique_ptr<Command> make_predict();     // forward.cc
std::unique_ptr<Command> make_check();       // check.cc
std::unique_ptr<Command> make_sim();         // sim.cc
std::unique_ptr<Command> make_calibrate();   // calibrate/calibrate.cc
std::unique_ptr<Command> make_tune();        // tune/tune.cc
std::unique_ptr<Command> make_dump();        // dump.cc
std::unique_ptr<Command> make_plans();       // plans.cc
std::unique_ptr<Command> make_plugins();     // plugins.cc
std::unique_ptr<Command> make_doctor();      // doctor.cc
std::unique_ptr<Command> make_conform();     // conform.cc
std::unique_ptr<Command> make_ckpt();        // ckpt.cc
std::unique_ptr<Command> make_runs();        // runs.cc
std::unique_ptr<Command> make_status();      // status.cc
std::unique_ptr<Command> make_explain();     // explain_run.cc
std::unique_ptr<Command> make_clean();       // clean.cc
std::unique_ptr<Command> make_draw();        // draw/draw.cc
std::unique_ptr<Command> make_diff();        // diff/diff.cc
std::unique_ptr<Command> make_bench();       // bench/bench.cc
std::unique_ptr<Command> make_init();        // init.cc
std::unique_ptr<Command> make_version();     // version.cc
std::unique_ptr<Command> make_completion();  // completion.cc
std::unique_ptr<Command> make_man();         // man.cc

const std::vector<CommandRow>& commands() {
  static const std::vector<CommandRow> kCommands = {
      {"run", "prun PLAN [options]", "train: run the plan on --nproc ranks", make_run},
      {"generate", "prun generate PLAN|FOLDER [options]", "continue a text with the model that was trained",
       make_generate},
      {"eval", "prun eval PLAN --from DIR", "the loss of a checkpoint on the plan's evaluation, without training",
       make_eval},
      {"predict", "prun predict PLAN --from DIR --out FILE", "write what the model predicts for each sample, as .npy",
       make_predict},
      {"check", "prun check PLAN [options]", "verify it and predict memory and traffic; starts no rank", make_check},
      {"sim", "prun sim PLAN --cluster FILE", "predict a step on a cluster that you need not have; starts no rank",
       make_sim},
      {"calibrate", "prun calibrate", "measure this machine and write the cluster file that describes it",
       make_calibrate},
      {"tune", "prun tune PLAN --cluster FILE", "find the plan's fastest arguments on a cluster; starts no rank",
       make_tune},
      {"dump", "prun dump PLAN [options]", "print the program that the ranks would run", make_dump},
      {"plans", "prun plans", "list the plans that come with prun", make_plans},
      {"plugins", "prun plugins", "list the transports; --explain: which auto takes, and why", make_plugins},
      {"doctor", "prun doctor [options]",
       "check this machine, or the connections of --nnodes hosts: OK, WARN or FAIL, with the fix", make_doctor},
      {"conform", "prun conform PLUGIN [ITEM]",
       "try a transport or a device with the suite for all of them; ITEM:CASE: one case of an item", make_conform},
      {"ckpt", "prun ckpt VERB DIR ..",
       "checkpoints: ls, show, verify, diff, reshard; export to and import from Hugging Face", make_ckpt},
      {"runs", "prun runs [DIR]", "list the runs that --runs or --checkpoint kept (default: those in runs)", make_runs},
      {"status", "prun status [RUN]", "list your running jobs on this machine, and the state of their ranks",
       make_status},
      {"explain", "prun explain [RUN]",
       "show where each rank of a failed or hanging run is, and which rank blocks the others", make_explain},
      {"clean", "prun clean [DIR ..]", "remove files and shared memory of crashed jobs", make_clean},
      {"draw", "prun draw WHAT ..", "draw a plan, a trace, rows of metrics or runs: a page, a picture or text",
       make_draw},
      {"diff", "prun diff PLAN [PLAN]", "compare memory, traffic and order of two plans, or of one at two settings",
       make_diff},
      {"bench", "prun bench OP[,OP] [..]", "collectives by size over a transport, in nccl-tests' columns", make_bench},
      {"init", "prun init [FOLDER]", "begin a folder of plans: a first plan, and .luarc.json for the editor",
       make_init},
      {"version", "prun version", "version, commit, ABIs and devices of this prun", make_version},
      {"completion", "prun completion SHELL", "print the completion script for bash, zsh or fish", make_completion},
      {"man", "prun man [COMMAND]", "the manual page of prun or of a command; --out FOLDER: all of them", make_man},
  };
  return kCommands;
}

}  // namespace prun

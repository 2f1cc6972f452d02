// One function per command; each returns the exit code and throws Error.
#pragma once
#include "options.h"

namespace prun {

int run_command(Options& options);        // run.cc
int generate_command(Options& options);   // generate.cc
int check_command(Options& options);      // check.cc
int sim_command(Options& options);        // sim.cc
int calibrate_command(Options& options);  // calibrate/calibrate.cc
int tune_command(Options& options);       // tune/tune.cc
int dump_command(Options& options);       // dump.cc
int plans_command(Options& options);      // plans.cc
int plugins_command(Options& options);    // plugins.cc
// prun plugins --explain, for --nproc ranks a host and --nnodes hosts, two of each if there are less. Throws as
// choose_interface.
int explain_plugins(const Options& options);  // explain.cc
int doctor_command(Options& options);         // doctor.cc
int conform_command(Options& options);        // conform.cc
int ckpt_command(Options& options);           // ckpt.cc
int runs_command(Options& options);           // runs.cc
int explain_command(Options& options);        // supervision/explain_run.cc
int status_command(Options& options);         // supervision/status.cc
int clean_command(Options& options);          // supervision/clean.cc
int diff_command(Options& options);           // diff/diff.cc
int draw_command(Options& options);           // draw/draw.cc
int bench_command(Options& options);          // bench/bench.cc
int init_command(Options& options);           // init.cc
int version_command(Options& options);        // version.cc
int completion_command(Options& options);     // completion.cc
int man_command(Options& options);            // man.cc
// prun __complete WORD ..: candidates for the last word, one a line; no errors. `words` are those behind it.
int complete_command(const std::vector<std::string>& words);  // complete.cc

}  // namespace prun

// One function per command; each returns the exit code and throws Error.
#pragma once
#include "build_job.h"
#include "options.h"

namespace prun {

int run_command(const Options& options, const Places& places);      // run.cc
int check_command(const Options& options, const Places& places);    // check.cc
int dump_command(const Options& options, const Places& places);     // dump.cc
int plans_command(const Options& options, const Places& places);    // plans.cc
int plugins_command(const Options& options, const Places& places);  // plugins.cc
int doctor_command(const Options& options, const Places& places);   // doctor.cc
int conform_command(const Options& options, const Places& places);  // conform.cc
int bench_command(const Options& options, const Places& places);    // bench/bench.cc

}  // namespace prun

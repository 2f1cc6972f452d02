// Environment variables set by launchers, recorded from Open MPI 4.1, MPICH 4.0, Slurm 22.05, torchrun 2.5 and
// Kubernetes.
#include "launch/environments.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace prun {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<ForeignPlace> read(const Variables& variables, const std::string& chosen = "") {
  const auto get = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return read_environments(get, chosen);
}

std::string error_of(const Variables& variables, const std::string& chosen = "") {
  try {
    read(variables, chosen);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1981939713"},    {"PMIX_RANK", "3"}};
const Variables kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "8"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "7"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_STEP_NUM_TASKS", "11"},
                          {"SLURM_PROCID", "9"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_NODELIST", "gpu[003-005],login"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

TEST(EnvironmentsTest, NothingSaysNothing) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"RANK", "1"}})) << "half of a row";
  EXPECT_FALSE(read({{"JOB_COMPLETION_INDEX", "1"}})) << "an indexed job of jobs that know nothing of each other";
}

TEST(EnvironmentsTest, OpenMpi) {
  const auto place = read(kOpenMpi);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "openmpi");
  EXPECT_EQ(place->index, 3);
  EXPECT_EQ(place->count, 4);
  EXPECT_EQ(place->local_index, 1);
  EXPECT_EQ(place->local_count, 2);
  EXPECT_EQ(place->job, "1981939713");
  EXPECT_EQ(place->rendezvous, "");
}

TEST(EnvironmentsTest, MpichNamesNoJobSoItsParentDoes) {
  const auto place = read(kMpich);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "mpich");
  EXPECT_EQ(place->local_count, 2);
  EXPECT_NE(place->job.find('@'), std::string::npos) << place->job;
}

TEST(EnvironmentsTest, Slurm) {
  const auto place = read(kSlurm);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "slurm");
  EXPECT_EQ(place->index, 9);
  EXPECT_EQ(place->count, 11);
  EXPECT_EQ(place->local_count, 3) << "the third node has three";
  EXPECT_EQ(place->job, "7.2");
  EXPECT_EQ(place->rendezvous, "gpu003:29514");
  Variables first = kSlurm;
  first["SLURM_NODEID"] = "1";
  first["SLURM_STEP_NODELIST"] = "login,gpu[003-005]";
  EXPECT_EQ(read(first)->local_count, 4);
  EXPECT_EQ(read(first)->rendezvous, "login:29514");
}

TEST(EnvironmentsTest, ABatchScriptIsNoStep) {
  Variables script = kSlurm;
  script.erase("SLURM_STEP_ID");
  EXPECT_FALSE(read(script));
}

TEST(EnvironmentsTest, AShellInAStepOfSlurmIsNoStep) {
  Variables shell = kSlurm;
  shell["SLURM_STEP_ID"] = "4294967290";
  EXPECT_FALSE(read(shell));
}

TEST(EnvironmentsTest, Torchrun) {
  const auto place = read(kTorchrun);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "torchrun");
  EXPECT_EQ(place->rendezvous, "10.0.0.1:29501") << "its agent listens on 29500";
  Variables kubeflow = kTorchrun;
  kubeflow.erase("TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(read(kubeflow)->rendezvous, "10.0.0.1:29500");
}

TEST(EnvironmentsTest, Kubernetes) {
  const auto place = read({{"JOB_COMPLETION_INDEX", "2"}, {"PRUN_NNODES", "4"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "kubernetes");
  EXPECT_EQ(place->index, 2);
  EXPECT_EQ(place->count, 4);
  EXPECT_EQ(place->local_count, -1);
}

TEST(EnvironmentsTest, OursComesFirst) {
  const auto place = read({{"PRUN_NODE_RANK", "1"}, {"PRUN_NNODES", "2"}, {"PRUN_JOB", "x"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "prun");
  EXPECT_EQ(place->job, "x");
}

// The process would train alone.
TEST(EnvironmentsTest, HalfOfOursIsAnError) {
  EXPECT_THROW(read({{"PRUN_NNODES", "2"}}), Error);
  EXPECT_THROW(read({{"PRUN_NODE_RANK", "0"}}), Error);
  EXPECT_FALSE(read({{"PRUN_NNODES", "1"}}));
}

// `srun --mpi=pmi2` sets both.
TEST(EnvironmentsTest, RowsThatAgreeCompleteEachOther) {
  Variables both = kSlurm;
  both["PMI_RANK"] = "9";
  both["PMI_SIZE"] = "11";
  const auto place = read(both);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "mpich");
  EXPECT_EQ(place->local_index, 1);
  EXPECT_EQ(place->local_count, 3);
  EXPECT_EQ(place->job, "7.2");
}

TEST(EnvironmentsTest, AConflictPrintsTheTable) {
  Variables both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  const std::string text = error_of(both);
  for (const char* part : {"torchrun has 5 of 8, slurm has 9 of 11", "--launcher torchrun or --launcher slurm chooses",
                           "\n  torchrun    process 5 of 8   (RANK=5 WORLD_SIZE=8", "\n  slurm       process 9 of 11 ",
                           "\n  openmpi     silent without OMPI_COMM_WORLD_RANK"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(read(both, "slurm")->index, 9);
  EXPECT_FALSE(read(both, "none"));
}

// `srun --pty bash`, in which the user runs mpirun or another launcher.
TEST(EnvironmentsTest, OneProcessSaysNothing) {
  Variables shell = {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}};
  EXPECT_FALSE(read(shell));
  shell.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(read(shell)->launcher, "openmpi");
}

TEST(EnvironmentsTest, NonsenseIsRefused) {
  EXPECT_EQ(error_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), "RANK=x in the environment is not a number");
  EXPECT_EQ(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2 is not below WORLD_SIZE=2");
  EXPECT_EQ(error_of({}, "slrum"), "--launcher: there is no row 'slrum' (did you mean 'slurm'?)");
  EXPECT_EQ(error_of({}, "slurm").substr(0, 45), "--launcher slurm: its variables are not set\n ");
}

}  // namespace
}  // namespace prun

// Replication of commits in the memory of hosts:
//
//     commit    rank i of host h --its files--> a rank of host h + 1
//     restart   a host fetches missing files from any host that has them
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/program.h"
#include "launch/launch.h"
#include "launch/sealed_stream.h"

namespace prun {

struct JobSpec;

class ReplicaExchange {
 public:
  // Collective. `spec.checkpoint.memory` is this host's folder.
  ReplicaExchange(const RankStart& start, const JobSpec& spec);

  // Copies this rank's files of the commit `name`, in this order, to the next host; does nothing if there is only one
  // host. Returns once that host has them. Throws corrupt_link or checkpoint_write.
  void copy(const std::string& name, const std::vector<std::string>& files);
  // Collective: fetches the files of the commit that this host's ranks need into its folder. Returns the commit's path.
  // Throws corrupt_link or checkpoint_invalid.
  std::string restore(const Job& job, const std::string& name);

 private:
  // All-gathered by the ranks.
  struct Place {
    int64_t node = 0;
    std::string address;
    std::vector<std::string> files;  // COMMIT/FILE in its host's memory; sent by the first rank of a host

    template <class Fields>
    void each_field(Fields&& fields) {
      fields(node, address, files);
    }
  };

  void serve(SealedStream& stream) const;
  void keep(SealedStream& stream, const std::string& path, int64_t bytes) const;
  void give(SealedStream& stream, const std::string& path) const;
  void fetch(const std::string& file);
  void fetch_missing(const std::vector<std::string>& files);
  SealedStream& stream_to(int rank);
  std::vector<int> ranks_of(int64_t node) const;
  int neighbour() const;  // -1: there is no other host
  void wait_for_all() { start_.launcher->all_gather(""); }

  const RankStart& start_;
  const std::string folder_;
  std::unique_ptr<SealedListener> listener_;
  std::vector<Place> places_;                           // by rank
  std::vector<std::unique_ptr<SealedStream>> streams_;  // by rank, opened on demand; used by one thread at a time
};

}  // namespace prun

// Collectives of an MPI: mpicxx -O3 mpi.cc -o mpi; mpirun -np 4 mpi all_reduce 4,4194304 0.3 in
#include <mpi.h>

#include "timing.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  peers::Library library;
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.ranks);
  library.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  library.slowest = [](double mine) {
    double slowest = mine;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
  };
  library.from_first = [](double value) {
    MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return value;
  };
  const peers::Request request = peers::parse_request(argc, argv, false);
  const std::string& op = request.op;
  const size_t ranks = static_cast<size_t>(library.ranks);
  for (size_t bytes : request.bytes) {
    const size_t part = peers::count_of(op, bytes, library.ranks);
    const size_t whole = op == "all_reduce" || op == "broadcast" ? part : part * ranks;
    const int count = static_cast<int>(part);
    std::vector<float> a(whole, 1.0f), b(whole, 1.0f);
    float *in = a.data(), *out = b.data();
    std::function<void()> call;
    if (op == "all_reduce") {
      const void* from = request.in_place ? MPI_IN_PLACE : in;
      call = [=] { MPI_Allreduce(from, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    } else if (op == "reduce_scatter") {
      const void* from = request.in_place ? MPI_IN_PLACE : in;
      call = [=] { MPI_Reduce_scatter_block(from, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    } else if (op == "all_gather") {
      const void* from = request.in_place ? MPI_IN_PLACE : in;
      call = [=] { MPI_Allgather(from, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD); };
    } else if (op == "all_to_all") {
      call = [=] { MPI_Alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD); };
    } else if (op == "broadcast") {
      call = [=] { MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD); };
    } else {
      std::fprintf(stderr, "no such op: %s\n", op.c_str());
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    peers::measure(library, request, whole * sizeof(float), call);
  }
  MPI_Finalize();
}

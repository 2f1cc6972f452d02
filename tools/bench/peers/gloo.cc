// Collectives of Gloo over TCP on loopback: g++ -O3 gloo.cc -lgloo -o gloo; gloo 4 all_reduce 4096 0.3 in ring
//
// Algorithms: all_reduce has ring, bcube (the newer interface), halving_doubling and ring_chunked (the older one, in
// place only); reduce_scatter has only halving_doubling; the others have one each.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "timing.h"

namespace {

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using peers::Request;

void larger(void* to, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    static_cast<double*>(to)[i] = std::max(static_cast<const double*>(a)[i], static_cast<const double*>(b)[i]);
}
void sum(void* to, const void* a, const void* b, size_t n) { gloo::sum<float>(to, a, b, n); }

peers::Library library_of(const Context& context) {
  peers::Library library;
  library.rank = context->rank;
  library.ranks = context->size;
  library.barrier = [context] {
    gloo::BarrierOptions options(context);
    options.setTag(1);
    gloo::barrier(options);
  };
  library.slowest = [context](double mine) {
    gloo::AllreduceOptions options(context);
    options.setTag(2);
    options.setOutput(&mine, 1);
    options.setReduceFunction(larger);
    gloo::allreduce(options);
    return mine;
  };
  library.from_first = [context](double value) {
    gloo::BroadcastOptions options(context);
    options.setTag(3);
    options.setRoot(0);
    options.setOutput(&value, 1);
    gloo::broadcast(options);
    return value;
  };
  return library;
}

// Returns the timed function, whose objects are created once, as a careful caller reuses them too.
template <class Options, void (*run)(Options&)>
std::function<void()> repeat(Options options) {
  auto kept = std::make_shared<Options>(std::move(options));
  return [kept] { run(*kept); };
}

std::function<void()> all_reduce(const Context& context, const Request& request, float* in, float* out, size_t count) {
  if (request.algorithm == "halving_doubling") {
    auto kept = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, std::vector<float*>{out}, count);
    return [kept] { kept->run(); };
  }
  if (request.algorithm == "ring_chunked") {
    auto kept = std::make_shared<gloo::AllreduceRingChunked<float>>(context, std::vector<float*>{out}, count);
    return [kept] { kept->run(); };
  }
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  auto options = std::make_shared<gloo::AllreduceOptions>(context);
  options->setTag(4);
  options->setAlgorithm(request.algorithm == "bcube" ? Algorithm::BCUBE : Algorithm::RING);
  if (!request.in_place) options->setInput(in, count);
  options->setOutput(out, count);
  options->setReduceFunction(sum);
  return [options] { gloo::allreduce(*options); };
}

std::function<void()> call_of(const Context& context, const Request& request, float* in, float* out, size_t part) {
  const size_t whole = part * static_cast<size_t>(context->size);
  if (request.op == "all_reduce") return all_reduce(context, request, in, out, part);
  if (request.op == "reduce_scatter") {
    std::vector<int> parts(static_cast<size_t>(context->size), static_cast<int>(part));
    auto kept = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(context, std::vector<float*>{out},
                                                                            static_cast<int>(whole), parts);
    return [kept] { kept->run(); };
  }
  if (request.op == "all_gather") {
    gloo::AllgatherOptions options(context);
    options.setTag(5);
    if (!request.in_place) options.setInput(in, part);
    options.setOutput(out, whole);
    return repeat<gloo::AllgatherOptions, gloo::allgather>(std::move(options));
  }
  if (request.op == "all_to_all") {
    gloo::AlltoallOptions options(context);
    options.setTag(6);
    options.setInput(in, whole);
    options.setOutput(out, whole);
    return repeat<gloo::AlltoallOptions, gloo::alltoall>(std::move(options));
  }
  if (request.op == "broadcast") {
    gloo::BroadcastOptions options(context);
    options.setTag(7);
    options.setRoot(0);
    options.setOutput(out, part);
    return repeat<gloo::BroadcastOptions, gloo::broadcast>(std::move(options));
  }
  std::fprintf(stderr, "no such op: %s\n", request.op.c_str());
  std::exit(2);
}

void be_rank(int rank, int ranks, const std::string& folder, const Request& request) {
  gloo::transport::tcp::attr loopback("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(loopback);
  context->connectFullMesh(store, device);
  const peers::Library library = library_of(context);
  for (size_t bytes : request.bytes) {
    const size_t part = peers::count_of(request.op, bytes, ranks);
    const bool parts = request.op != "all_reduce" && request.op != "broadcast";
    const size_t whole = part * (parts ? static_cast<size_t>(ranks) : 1);
    std::vector<float> in(whole, 1.0f), out(whole, 1.0f);
    peers::measure(library, request, whole * sizeof(float), call_of(context, request, in.data(), out.data(), part));
    library.barrier();  // the algorithm's buffers are freed with it, so no rank may still send into them
  }
  library.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const Request request = peers::parse_request(argc, argv, true);
  const int ranks = request.ranks;
  std::string folder = "/tmp/gloo_store.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  for (int rank = 1; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    be_rank(rank, ranks, folder, request);
    _exit(0);
  }
  be_rank(0, ranks, folder, request);
  int status = 0, worst = 0;
  while (wait(&status) > 0) worst = std::max(worst, status);
  std::filesystem::remove_all(folder);
  return worst == 0 ? 0 : 1;
}

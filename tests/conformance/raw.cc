// Sessions of the plugin under test, without worlds and communicators.
#include "tests/conformance/raw.h"

#include "comm/transport/job_state.h"
#include "comm/transport/transport_session.h"

namespace prun::testing {

prun_req* Raw::post(std::vector<prun_p2p> ops) {
  prun_req* req = nullptr;
  prun_result result = empty_result();
  const prun_status status = session.batch(ops, &req, result);
  if (status != PRUN_OK) throw Error(Exit::transport, status_text(status, result));
  return req;
}

void Raw::wait(prun_req* req) {
  prun_result result = empty_result();
  const prun_status status = session.wait(req, 0, result);
  if (status != PRUN_OK) session.fail(status, result, "waiting");
}

std::unique_ptr<TransportSession> open_raw(LocalBootstrap& bootstrap, const WorldOptions& options) {
  set_job(&bootstrap, options.ranks);
  return std::make_unique<TransportSession>(load_named(options.transport, options.plugin_dirs), options);
}

std::string run_raw(int ranks, const std::function<std::string(Raw&)>& body, double timeout_s) {
  LocalJob job;
  job.timeout_s = timeout_s;
  job.ranks = ranks;
  return failures(run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    const WorldOptions options = suite().options(bootstrap);
    const std::unique_ptr<TransportSession> session = open_raw(bootstrap, options);
    join_and_connect(*session, options, bootstrap);
    Raw raw{bootstrap, *session, bootstrap.rank(), ranks};
    std::string text = body(raw);
    if (text.empty()) bootstrap.barrier();
    return text;
  }));
}

bool queue_ordered() { return load_named(suite().transport, suite().plugin_dirs).table.queue_ordered != 0; }

}  // namespace prun::testing

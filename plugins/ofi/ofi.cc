// A transport over libfabric: tagged messages of an unconnected endpoint, the worked example of a plugin that is built
// from an installed prun alone (README.md). Point to point only; the core makes everything else of it.
//
// Surprising facts: libfabric may have no room for an operation (FI_EAGAIN), so each waits in a queue of ours first;
// and it reports a long receive of a short message as success, so sizes are compared here. The first error ends all.
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "prun/transport.h"

struct prun_req {
  size_t left = 0;  // operations that have not ended
};

namespace {

const prun_host* g_host = nullptr;
constexpr uint64_t kHello = 1 << 16;  // above the lanes; the sender's rank comes above it
constexpr int kSourceBit = 20;

struct Op {
  fi_context context;  // first: libfabric gives its address back
  prun_p2p p2p;
  prun_req* req;
};

prun_status fail(prun_result* result, prun_status status, int culprit, const std::string& text) {
  result->culprit = culprit;
  snprintf(result->message, sizeof result->message, "%s", text.c_str());
  return status;
}

struct Close {
  template <class T>
  void operator()(T* object) const {
    fi_close(&object->fid);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Close>;

}  // namespace

struct prun_ctx {
  int rank = 0, ranks = 0, wait_fd = -1;
  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> info{nullptr, fi_freeinfo};
  Owned<fid_fabric> fabric;  // closed from the endpoint up
  Owned<fid_domain> domain;
  Owned<fid_av> av;
  Owned<fid_cq> cq;
  Owned<fid_ep> ep;
  std::vector<fi_addr_t> peers;
  prun_req* hello = nullptr;
  std::mutex mutex;               // for all below
  std::deque<Op*> unposted[2];    // sends, receives: each kind in its order
  std::unordered_set<Op*> alive;  // that have not ended: libfabric holds on to them and to their buffers
  prun_status failed = PRUN_OK;
  prun_result reason{};

  void set_failed(prun_status status, int culprit, const std::string& text) {
    if (failed == PRUN_OK) failed = fail(&reason, status, culprit, text);
  }
  void add(const prun_p2p& p2p, prun_req* req) {
    Op* op = new Op{{}, p2p, req};
    ++req->left;
    alive.insert(op);
    unposted[p2p.is_recv].push_back(op);
  }
  void post(std::deque<Op*>& queue) {
    for (; !queue.empty() && failed == PRUN_OK; queue.pop_front()) {
      Op* op = queue.front();
      const prun_p2p& p = op->p2p;
      const uint64_t source = static_cast<uint64_t>(p.is_recv != 0 ? p.peer : rank) << kSourceBit;
      const fi_addr_t peer = peers[static_cast<size_t>(p.peer)];
      ssize_t n = p.is_recv != 0 ? fi_trecv(ep.get(), p.ptr, p.bytes, nullptr, peer, source | p.tag, 0, op)
                                 : fi_tsend(ep.get(), p.ptr, p.bytes, nullptr, peer, source | p.tag, op);
      if (n == -FI_EAGAIN) return;
      if (n != 0) set_failed(PRUN_EPEER, p.peer, fi_strerror(static_cast<int>(-n)));
    }
  }
  void mismatch(const Op& op, size_t came) {
    set_failed(PRUN_EMISMATCH, op.p2p.peer,
               "a message of " + std::to_string(came) + " bytes on lane " + std::to_string(op.p2p.tag) + " where " +
                   std::to_string(op.p2p.bytes) + " are expected");
  }
  void ended(Op* op, size_t came) {
    if (op->p2p.is_recv != 0 && came != op->p2p.bytes) return mismatch(*op, came);
    --op->req->left;
    alive.erase(op);
    delete op;
  }
  void went_wrong() {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(cq.get(), &entry, 0) <= 0) return;
    Op* op = static_cast<Op*>(entry.op_context);
    if (op != nullptr && entry.err == FI_ETRUNC) return mismatch(*op, entry.len + entry.olen);
    set_failed(PRUN_EPEER, op != nullptr ? op->p2p.peer : -1, fi_strerror(entry.err));
  }
  void take(const fi_cq_tagged_entry* entries, ssize_t n) {
    for (ssize_t i = 0; i < n && failed == PRUN_OK; ++i) ended(static_cast<Op*>(entries[i].op_context), entries[i].len);
    if (n == -FI_EAVAIL)
      went_wrong();
    else if (n < 0 && n != -FI_EAGAIN && n != -FI_EINTR)
      set_failed(PRUN_ESYSTEM, -1, fi_strerror(static_cast<int>(-n)));
  }
  void progress() {
    fi_cq_tagged_entry entries[16];
    for (ssize_t n = 1; n > 0 && failed == PRUN_OK;) {
      post(unposted[1]);
      post(unposted[0]);
      take(entries, n = fi_cq_read(cq.get(), entries, 16));
    }
  }
};

namespace {

prun_status ofi_open(const prun_open_params* params, prun_ctx** out, prun_result* result) {
  std::string provider = "tcp", options = params->options;
  if (options.rfind("provider=", 0) == 0 && options.find(',') == std::string::npos)
    provider = options.substr(9);
  else if (!options.empty())
    return fail(result, PRUN_EINVAL, -1, "unknown option '" + options + "' (there is provider=NAME)");
  auto c = std::make_unique<prun_ctx>();
  c->rank = params->rank;
  c->ranks = params->ranks;
  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> hints(fi_allocinfo(), fi_freeinfo);
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;  // first in, first out
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  // Nobody authenticates itself here: jobs of one host stay on the loopback device.
  const char* device = params->interface_name;
  if (device == nullptr && provider == "tcp" && params->local_ranks == params->ranks) device = "lo";
  if (device != nullptr) hints->domain_attr->name = strdup(device);
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* av = nullptr;
  fid_cq* cq = nullptr;
  fid_ep* ep = nullptr;
  fi_av_attr av_attr{};
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_TAGGED;
  cq_attr.wait_obj = FI_WAIT_FD;
  const char* doing = "fi_getinfo";
  int error = fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints.get(), &info);
  auto next = [&](const char* name, auto&& call) {
    if (error == 0) doing = name, error = call();
  };
  c->info.reset(info);
  next("fi_fabric", [&] { return fi_fabric(info->fabric_attr, &fabric, nullptr); });
  c->fabric.reset(fabric);
  next("fi_domain", [&] { return fi_domain(fabric, info, &domain, nullptr); });
  c->domain.reset(domain);
  next("fi_av_open", [&] { return fi_av_open(domain, &av_attr, &av, nullptr); });
  c->av.reset(av);
  next("fi_cq_open", [&] { return fi_cq_open(domain, &cq_attr, &cq, nullptr); });
  c->cq.reset(cq);
  next("fi_control", [&] { return fi_control(&cq->fid, FI_GETWAIT, &c->wait_fd); });
  next("fi_endpoint", [&] { return fi_endpoint(domain, info, &ep, nullptr); });
  c->ep.reset(ep);
  next("fi_ep_bind", [&] { return fi_ep_bind(ep, &av->fid, 0); });
  next("fi_ep_bind", [&] { return fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV); });
  next("fi_enable", [&] { return fi_enable(ep); });
  if (error != 0) {
    return fail(result, PRUN_ESYSTEM, -1,
                std::string(doing) + ": " + fi_strerror(-error) + " (provider " + provider +
                    (device != nullptr ? std::string(", device ") + device : "") + "; `fi_info` lists what there is)");
  }
  *out = c.release();
  return PRUN_OK;
}

prun_status ofi_address(prun_ctx* c, void* blob, size_t* bytes, prun_result* result) {
  int error = fi_getname(&c->ep->fid, blob, bytes);
  return error == 0 ? PRUN_OK : fail(result, PRUN_ESYSTEM, -1, std::string("fi_getname: ") + fi_strerror(-error));
}

prun_status ofi_batch(prun_ctx* c, const prun_p2p* ops, size_t n, prun_queue, prun_req** req, prun_result* result) {
  std::lock_guard lock(c->mutex);
  if (c->failed != PRUN_OK) return fail(result, c->failed, c->reason.culprit, c->reason.message);
  *req = new prun_req;
  for (size_t i = 0; i < n; ++i) c->add(ops[i], *req);
  c->progress();
  return PRUN_OK;
}

prun_status ofi_test(prun_ctx* c, prun_req* req, prun_result* result) {
  {
    std::lock_guard lock(c->mutex);
    c->progress();
    if (g_host->aborted() != 0) c->set_failed(PRUN_EABORTED, -1, "aborted");
    if (c->failed != PRUN_OK || req->left == 0) {
      prun_status status = req->left == 0 ? PRUN_OK : c->failed;
      if (status != PRUN_OK) fail(result, status, c->reason.culprit, c->reason.message);
      delete req;
      return status;
    }
  }
  // Briefly: another thread may take what this request waits for.
  fid* queue = &c->cq->fid;
  pollfd ready{c->wait_fd, POLLIN, 0};
  if (fi_trywait(c->fabric.get(), &queue, 1) == FI_SUCCESS) poll(&ready, 1, 1);
  return PRUN_AGAIN;
}

// An unconnected endpoint finds out with the first message whether the peer is there: so everybody says hello.
prun_status ofi_connect(prun_ctx* c, const void* const* blobs, const size_t*, prun_result* result) {
  if (c->hello == nullptr) {
    c->peers.resize(static_cast<size_t>(c->ranks));
    std::vector<prun_p2p> ops;
    for (int r = 0; r < c->ranks; ++r) {
      if (fi_av_insert(c->av.get(), blobs[r], 1, &c->peers[static_cast<size_t>(r)], 0, nullptr) != 1)
        return fail(result, PRUN_EINVAL, r, "its address is none of this provider");
      for (int is_recv : {1, 0}) ops.push_back({is_recv, r, kHello, nullptr, 0, PRUN_MEM_HOST, nullptr});
    }
    prun_status status = ofi_batch(c, ops.data(), ops.size(), {PRUN_MEM_HOST, nullptr}, &c->hello, result);
    if (status != PRUN_OK) return status;
  }
  prun_status status = ofi_test(c, c->hello, result);
  std::lock_guard lock(c->mutex);
  for (Op* op : c->alive) result->culprit = status == PRUN_AGAIN ? op->p2p.peer : result->culprit;
  return status;
}

void ofi_abort(prun_ctx* c) {
  std::lock_guard lock(c->mutex);
  c->set_failed(PRUN_EABORTED, -1, "aborted");
}

// Closing an endpoint makes progress: what has failed half-way would be received into buffers that are gone. So after
// a failure the end of the process closes it; a rank whose transport has failed is about to end.
void ofi_close(prun_ctx* c) {
  if (c->alive.empty()) delete c;
}

}  // namespace

const prun_transport* prun_transport_v1(const prun_host* host) {
  g_host = host;
  static prun_transport table{};
  table.size = sizeof table;
  table.abi = PRUN_TRANSPORT_ABI;
  table.name = "ofi";
  table.version = "1.0.0";
  table.summary = "libfabric's tagged messages: tcp and what else libfabric has";
  table.mem_kinds = 1u << PRUN_MEM_HOST;
  table.open = ofi_open;
  table.address = ofi_address;
  table.connect = ofi_connect;
  table.batch = ofi_batch;
  table.test = ofi_test;
  table.abort = ofi_abort;
  table.close = ofi_close;
  return &table;
}

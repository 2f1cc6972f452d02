// A transport over libfabric: tagged messages of an unconnected endpoint, the example of a plugin that is built from an
// installed prun alone (README.md). It provides messages; the core builds collectives on them.
#include <poll.h>
#include <prun/sdk/messages.h>
#include <prun/sdk/options.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <unordered_set>

namespace prun::ofi {
using sdk::Failure;

struct Release {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
  void operator()(auto* object) const { fi_close(&object->fid); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;  // an object of libfabric's

void read_options(const char* text, std::string& provider) {
  const sdk::Option rows[] = {{"provider", &provider, "a provider; `fi_info` lists what there is"}};
  sdk::parse_options("ofi", text, rows);
}

class Ofi : public sdk::MessageTransport {
 public:
  static void check_options(const char* text) {
    std::string provider;
    read_options(text, provider);
  }
  explicit Ofi(const prun_open_params& params) : MessageTransport(params) {
    read_options(params.options, provider_);
    // libfabric does not authenticate, so jobs of one host use only the loopback device.
    const char* device = params.interface_name;
    if (device == nullptr && provider_ == "tcp" && local_ranks == ranks) device = "lo";
    const Owned<fi_info> hints(fi_allocinfo());
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;  // first in, first out
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup(provider_.c_str());
    if (device != nullptr) hints->domain_attr->name = strdup(device);
    fi_info* found = nullptr;
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints.get(), &found));
    const Owned<fi_info> info(found);
    fi_av_attr peers{};
    fi_cq_attr completions{0, 0, FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, 0, FI_CQ_COND_NONE, nullptr};
    fabric_ = open<fid_fabric>("fi_fabric", fi_fabric, info->fabric_attr);
    domain_ = open<fid_domain>("fi_domain", fi_domain, fabric_.get(), info.get());
    av_ = open<fid_av>("fi_av_open", fi_av_open, domain_.get(), &peers);
    cq_ = open<fid_cq>("fi_cq_open", fi_cq_open, domain_.get(), &completions);
    ep_ = open<fid_ep>("fi_endpoint", fi_endpoint, domain_.get(), info.get());
    check("fi_control", fi_control(&cq_->fid, FI_GETWAIT, &wait_fd_));
    check("fi_ep_bind", fi_ep_bind(ep_.get(), &av_->fid, 0));
    check("fi_ep_bind", fi_ep_bind(ep_.get(), &cq_->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(ep_.get()));
  }

  std::string address() {
    std::string name(PRUN_MAX_ADDRESS, '\0');
    size_t bytes = name.size();
    check("fi_getname", fi_getname(&ep_->fid, name.data(), &bytes));
    return name.substr(0, bytes);
  }

  Failure connect(const sdk::Blobs& blobs) {
    for (int r = static_cast<int>(peers_.size()); r < ranks; ++r)
      if (fi_av_insert(av_.get(), blobs[r].data(), 1, &peers_.emplace_back(), 0, nullptr) != 1)
        return {PRUN_EINVAL, r, "its address is none of this provider"};
    return greet();
  }

  // Closing an endpoint makes progress, which would receive into freed buffers after a failure. So it then remains open
  // until the process ends.
  static void close(std::unique_ptr<Ofi> ofi) { ofi->alive_.empty() ? ofi.reset() : (void)ofi.release(); }

 private:
  struct Op {
    fi_context context;  // first member, because libfabric returns its address
    prun_p2p p2p;
    Request& request;
  };

  void check(const char* call, ssize_t error) const {
    if (error != 0)
      throw Failure(PRUN_ESYSTEM, -1, call, ": ", fi_strerror(static_cast<int>(-error)), " (provider ", provider_, ")");
  }
  template <class T>
  Owned<T> open(const char* call, auto function, auto... arguments) const {
    T* made = nullptr;
    check(call, function(arguments..., &made, nullptr));
    return Owned<T>(made);
  }

  // A tag is a lane (or the greeting) in 20 bits, and the sender above it.
  bool start(const prun_p2p& p, Request& request) override {
    auto op = std::make_unique<Op>(Op{{}, p, request});
    const uint64_t tag = static_cast<uint64_t>(p.is_recv != 0 ? p.peer : rank) << 20 | p.tag;
    const ssize_t n = p.is_recv != 0 ? fi_trecv(ep_.get(), p.ptr, p.bytes, nullptr, peers_[p.peer], tag, 0, op.get())
                                     : fi_tsend(ep_.get(), p.ptr, p.bytes, nullptr, peers_[p.peer], tag, op.get());
    if (n != 0 && n != -FI_EAGAIN) throw Failure(PRUN_EPEER, p.peer, fi_strerror(static_cast<int>(-n)));
    if (n == 0) alive_.insert(op.release());
    return n == 0;
  }
  void progress() override {
    fi_cq_tagged_entry entries[16];
    ssize_t n = 0;
    while ((n = fi_cq_read(cq_.get(), entries, 16)) > 0)
      for (ssize_t i = 0; i < n; ++i) ended(static_cast<Op*>(entries[i].op_context), entries[i].len);
    if (n == -FI_EAVAIL) return went_wrong();
    if (n != -FI_EAGAIN && n != -FI_EINTR) check("fi_cq_read", n);
  }
  void wait() override {
    fid* queue = &cq_->fid;
    pollfd ready{wait_fd_, POLLIN, 0};
    if (fi_trywait(fabric_.get(), &queue, 1) == FI_SUCCESS) poll(&ready, 1, 1);
  }

  // Completes an operation. libfabric accepts a message shorter than its receive, so sizes are compared here.
  void ended(Op* op, size_t came) {
    if (op->p2p.is_recv != 0 && came != op->p2p.bytes)
      throw Failure(PRUN_EMISMATCH, op->p2p.peer, "a message of ", came, " bytes on lane ", op->p2p.tag, " where ",
                    op->p2p.bytes, " are expected");
    --op->request.left;
    alive_.erase(op);
    delete op;
  }
  void went_wrong() {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(cq_.get(), &entry, 0) <= 0) return;
    auto* op = static_cast<Op*>(entry.op_context);
    if (op != nullptr && entry.err == FI_ETRUNC) ended(op, entry.len + entry.olen);
    throw Failure(PRUN_EPEER, op != nullptr ? op->p2p.peer : -1, fi_strerror(entry.err));
  }

  std::string provider_ = "tcp";
  Owned<fid_fabric> fabric_;  // closed from the endpoint up
  Owned<fid_domain> domain_;
  Owned<fid_av> av_;
  Owned<fid_cq> cq_;
  Owned<fid_ep> ep_;
  int wait_fd_ = -1;
  std::vector<fi_addr_t> peers_;
  std::unordered_set<Op*> alive_;  // not ended: libfabric refers to them and to their buffers
};

}  // namespace prun::ofi

const prun_transport* prun_transport_v1(const prun_host* host) {
  return prun::sdk::transport_table<prun::ofi::Ofi>(
      host, {.name = "ofi", .version = "1.0.0", .summary = "libfabric's tagged messages: tcp and what else it has"});
}

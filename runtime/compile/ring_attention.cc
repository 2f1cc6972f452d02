// Surprising fact: gradients of keys and values are added after their block, not in it, so that the partial sums of the
// previous ranks may arrive while the block computes; as an input they would delay its start.
#include "compile/ring_attention.h"

#include "ir/ops/rules.h"

namespace prun {
namespace {

class Ring {
 public:
  Ring(const RingNode& node, int ranks, const MakeTemporary& temporary)
      : node_(node), ranks_(ranks), temporary_(temporary) {
    const int64_t heads = node.attrs.integer("heads", 1), shared = node.attrs.integer("kv_heads", heads);
    const int64_t size = ops::last_dim(node.qkv) / (heads + 2 * shared);
    q_ = {ops::wide(node.qkv.dtype), {node.qkv.shape[0], node.qkv.shape[1], heads * size}};
    kv_ = {node.qkv.dtype, {node.qkv.shape[0], node.qkv.shape[1], 2 * shared * size}};
  }

  std::vector<RingStep> forward() {
    const TensorId qkv = node_.reads[0], out = node_.writes[0], lse = node_.writes[1];
    const bool narrow = q_.dtype != node_.qkv.dtype;
    const TensorId sum = narrow ? temporary_("out", q_) : out;
    copy_keys(qkv);
    for (int hop = 0; hop < ranks_; ++hop) {
      pass_keys(hop);
      std::vector<TensorId> reads = {qkv, keys(hop)};
      if (hop > 0) reads.insert(reads.end(), {sum, lse});
      add(ops::attention_block, reads, {sum, lse}, block_attrs(hop));
    }
    if (narrow) {
      Attrs attrs;
      attrs.set("dtype", std::string(dtype_name(node_.qkv.dtype)));
      add(ops::cast, {sum}, {out}, attrs);
    }
    return std::move(steps_);
  }

  std::vector<RingStep> backward() {
    const TensorId qkv = node_.reads[0], out = node_.reads[1], dout = node_.reads[2], lse = node_.reads[3];
    const TensorType dkv{q_.dtype, kv_.shape};
    const TensorId dq = temporary_("dq", q_), arriving = ranks_ > 1 ? temporary_("dkv arriving", dkv) : -1;
    const TensorId sums[] = {temporary_("dkv", dkv), ranks_ > 1 ? temporary_("dkv of the next hop", dkv) : -1};
    copy_keys(qkv);
    for (int hop = 0; hop < ranks_; ++hop) {
      const TensorId sum = sums[hop % 2];
      if (hop > 0) receive(arriving, ranks_ + hop - 1);
      pass_keys(hop);
      std::vector<TensorId> reads = {qkv, keys(hop), out, dout, lse};
      if (hop > 0) reads.push_back(dq);
      add(ops::attention_block_grad, reads, {dq, sum}, block_attrs(hop));
      if (hop > 0) add(ops::add, {sum, arriving}, {sum}, {});
      if (ranks_ > 1) send(sum, ranks_ + hop);
    }
    if (ranks_ > 1) receive(arriving, 2 * ranks_ - 1);
    add(ops::join_qkv, {dq, ranks_ > 1 ? arriving : sums[0]}, {node_.writes[0]}, {});
    return std::move(steps_);
  }

 private:
  // Returns the keys and values of a hop. Double-buffered: one buffer is in use while the other receives the next hop.
  TensorId keys(int hop) const { return keys_[hop % 2]; }
  void copy_keys(TensorId qkv) {
    keys_[0] = temporary_("kv", kv_);
    if (ranks_ > 1) keys_[1] = temporary_("kv of the next hop", kv_);
    add(ops::copy_kv, {qkv}, {keys_[0]}, {});
  }
  void pass_keys(int hop) {
    if (hop + 1 == ranks_) return;
    send(keys(hop), hop);
    receive(keys(hop + 1), hop);
  }

  Attrs block_attrs(int hop) const {
    Attrs attrs = node_.attrs;
    attrs.set("hop", int64_t{hop});
    return attrs;
  }
  void send(TensorId tensor, int tag) { add(ops::send, {tensor}, {}, message(1, tag), "ring_send"); }
  void receive(TensorId tensor, int tag) { add(ops::recv, {}, {tensor}, message(-1, tag), "ring_recv"); }
  static Attrs message(int64_t peer, int64_t tag) {
    Attrs attrs;
    attrs.set("peer", peer);
    attrs.set("tag", tag);
    return attrs;
  }
  void add(const OpDef& kind, std::vector<TensorId> reads, std::vector<TensorId> writes, Attrs attrs,
           const std::string& stream = "") {
    steps_.push_back({&kind, std::move(reads), std::move(writes), std::move(attrs), stream});
  }

  const RingNode& node_;
  const int ranks_;
  const MakeTemporary& temporary_;
  TensorType q_, kv_;
  TensorId keys_[2];
  std::vector<RingStep> steps_;
};

}  // namespace

std::vector<RingStep> lower_ring_attention(const RingNode& node, int ranks, const MakeTemporary& temporary) {
  return Ring(node, ranks, temporary).forward();
}

std::vector<RingStep> lower_ring_attention_grad(const RingNode& node, int ranks, const MakeTemporary& temporary) {
  return Ring(node, ranks, temporary).backward();
}

}  // namespace prun

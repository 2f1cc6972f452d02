// Odd sizes, single rows and columns, sizes beyond a block of threads; the second half of the ops in place.
#include "tests/agreement/agreement_cases.h"

#include "tests/unit/op_list.h"

namespace prun {
namespace {

constexpr std::optional<Dtype> T = std::nullopt, F32 = Dtype::f32, I32 = Dtype::i32, I64 = Dtype::i64;

Attrs none() { return {}; }
Attrs transposed() { return make_attrs({{"transpose", int64_t{1}}}); }
Attrs activated(const char* act) { return make_attrs({{"act", std::string(act)}}); }
Attrs heads(int64_t n, bool causal) { return make_attrs({{"heads", n}, {"causal", int64_t{causal}}}); }
Attrs scaled() { return make_attrs({{"scale", 0.037}}); }
Attrs form(const char* name) { return make_attrs({{"approximate", std::string(name)}}); }
Attrs adamw() { return make_attrs({{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}); }

}  // namespace

std::vector<Case> matrix_cases() {
  std::vector<Case> out;
  for (Shape s : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{17, 33, 65}, Shape{64, 128, 96}}) {
    int64_t m = s[0], k = s[1], n = s[2];
    double tolerance = 2e-6;
    out.push_back(
        {"linear", {{T, {m, k}}, {T, {k, n}}, {T, {n}}, {T, {m, n}}}, {"linear", {0, 1, 2}, {3}}, {}, tolerance});
    out.push_back(
        {"linear without bias", {{T, {m, k}}, {T, {k, n}}, {T, {m, n}}}, {"linear", {0, 1}, {2}}, {}, tolerance});
    out.push_back({"linear transposed",
                   {{T, {m, k}}, {T, {n, k}}, {T, {n}}, {T, {m, n}}},
                   {"linear", {0, 1, 2}, {3}, transposed()},
                   {},
                   tolerance});
    out.push_back({"linear relu",
                   {{T, {m, k}}, {T, {k, n}}, {T, {n}}, {T, {m, n}}},
                   {"linear", {0, 1, 2}, {3}, activated("relu")},
                   {},
                   tolerance});
    out.push_back({"linear gelu",
                   {{T, {m, k}}, {T, {k, n}}, {T, {n}}, {T, {m, n}}},
                   {"linear", {0, 1, 2}, {3}, activated("gelu")},
                   {},
                   tolerance});
    out.push_back({"linear_dx", {{T, {m, n}}, {T, {k, n}}, {T, {m, k}}}, {"linear_dx", {0, 1}, {2}}, {}, tolerance});
    out.push_back({"linear_dx transposed",
                   {{T, {m, n}}, {T, {n, k}}, {T, {m, k}}},
                   {"linear_dx", {0, 1}, {2}, transposed()},
                   {},
                   tolerance});
    out.push_back({"linear_dw",
                   {{T, {m, k}}, {T, {m, n}}, {F32, {k, n}}, {F32, {n}}},
                   {"linear_dw", {0, 1}, {2, 3}},
                   {},
                   tolerance});
    out.push_back({"linear_dw without bias",
                   {{T, {m, k}}, {T, {m, n}}, {F32, {k, n}}},
                   {"linear_dw", {0, 1}, {2}},
                   {},
                   tolerance});
    out.push_back({"linear_dw transposed",
                   {{T, {m, k}}, {T, {m, n}}, {F32, {n, k}}, {F32, {n}}},
                   {"linear_dw", {0, 1}, {2, 3}, transposed()},
                   {},
                   tolerance});
    Slot wide{T, {m, k}, -2, 2}, pre{T, {m, n}, -3, 3};
    out.push_back({"linear_gelu",
                   {wide, {T, {k, n}}, {T, {n}}, pre, pre},
                   {"linear_gelu", {0, 1, 2}, {3, 4}},
                   {},
                   2 * tolerance});
    out.push_back({"linear_gelu transposed, without bias",
                   {wide, {T, {n, k}}, pre, pre},
                   {"linear_gelu", {0, 1}, {2, 3}, transposed()},
                   {},
                   2 * tolerance});
    out.push_back(
        {"linear_dx_gelu", {wide, {T, {n, k}}, pre, pre}, {"linear_dx_gelu", {0, 1, 2}, {3}}, {}, 2 * tolerance});
    out.push_back({"linear_dx_gelu transposed",
                   {wide, {T, {k, n}}, pre, pre},
                   {"linear_dx_gelu", {0, 1, 2}, {3}, transposed()},
                   {},
                   2 * tolerance});
  }
  return out;
}

std::vector<Case> attention_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, length, heads, head_width;
  };
  for (Sizes s : {Sizes{1, 1, 1, 1},
                  {2, 5, 3, 7},
                  {1, 37, 2, 16},
                  {2, 64, 1, 64},
                  {1, 130, 3, 20},
                  {1, 200, 1, 8},
                  {1, 65, 1, 80},
                  {1, 129, 1, 128},
                  {1, 17, 2, 256}})
    for (bool causal : {false, true}) {
      int64_t d = s.heads * s.head_width;
      const double rounding = s.head_width > 64 ? 4 : 1;  // of long sums in f32
      Slot qkv{T, {s.batch, s.length, 3 * d}, -2, 2}, row{T, {s.batch, s.length, d}},
          lse{F32, {s.batch, s.heads, s.length}};
      OpLine forward{"attention", {0}, {1, 2}, heads(s.heads, causal)};
      out.push_back({"attention", {qkv, row, lse}, forward, {}, 3e-6 * rounding});
      out.push_back({"attention_grad",
                     {qkv, row, lse, row, qkv},
                     {"attention_grad", {0, 1, 3, 2}, {4}, heads(s.heads, causal)},
                     {forward},
                     5e-6 * rounding});
    }
  // Scores of 160,000: exp without a shift overflows.
  out.push_back({"attention of large scores",
                 {{T, {1, 70, 3 * 16}, 200, 200}, {T, {1, 70, 16}}, {F32, {1, 1, 70}}},
                 {"attention", {0}, {1, 2}, heads(1, true)}});
  for (auto [shared, size] : {std::pair<int64_t, int64_t>{1, 7}, {2, 20}, {3, 16}}) {
    Attrs attrs = make_attrs({{"heads", int64_t{6}}, {"kv_heads", shared}, {"causal", int64_t{shared != 2}}});
    Slot qkv{T, {2, 37, (6 + 2 * shared) * size}, -2, 2}, row{T, {2, 37, 6 * size}}, lse{F32, {2, 6, 37}};
    OpLine forward{"attention", {0}, {1, 2}, attrs};
    out.push_back({"attention with shared keys", {qkv, row, lse}, forward, {}, 3e-6});
    out.push_back({"attention_grad with shared keys",
                   {qkv, row, lse, row, qkv},
                   {"attention_grad", {0, 1, 3, 2}, {4}, attrs},
                   {forward},
                   5e-6});
  }
  for (int64_t size : {2, 14, 32})
    for (int64_t chunks : {1, 2}) {
      Attrs attrs = make_attrs({{"size", size}, {"heads", int64_t{3}}, {"chunks", chunks}});
      attrs.set("tokens_axis", std::string("dp"));
      Slot x{T, {2, 34, 5 * size}};
      out.push_back({"rotary", {x, x}, {"rotary", {0}, {1}, attrs}});
      attrs.set("inverse", int64_t{1});
      out.push_back({"rotary back, in place", {x}, {"rotary", {0}, {0}, attrs}});
    }
  return out;
}

// Of rank 2 of 4: hop 1 sees earlier keys, hop 3 later ones.
std::vector<Case> attention_block_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, length, heads, kv_heads, size, chunks;
  };
  for (Sizes s : {Sizes{1, 2, 1, 1, 1, 2}, {2, 6, 4, 2, 7, 2}, {1, 74, 2, 1, 16, 2}, {1, 37, 3, 3, 20, 1}})
    for (int64_t hop : {0, 1, 3})
      for (bool causal : {false, true}) {
        Slot qkv{T, {s.batch, s.length, (s.heads + 2 * s.kv_heads) * s.size}, -2, 2},
            kv{T, {s.batch, s.length, 2 * s.kv_heads * s.size}, -2, 2}, row{T, {s.batch, s.length, s.heads * s.size}},
            sum{F32, row.shape}, lse{F32, {s.batch, s.heads, s.length}}, dkv{F32, kv.shape};
        Attrs first = heads(s.heads, causal), later = first;
        for (Attrs* attrs : {&first, &later}) {
          attrs->set("kv_heads", s.kv_heads), attrs->set("chunks", s.chunks);
          attrs->set("tokens_axis", std::string("dp")), attrs->set("hop", attrs == &first ? 0 : hop);
        }
        OpLine own{"attention_block", {0, 1}, {3, 4}, first}, other{"attention_block", {0, 2, 3, 4}, {5, 6}, later};
        OpLine rounded{"cast", {5}, {7}};
        if (hop == 0) out.push_back({"attention_block", {qkv, kv, kv, sum, lse}, own, {}, 3e-6});
        std::vector<Slot> slots = {qkv, kv, kv, sum, lse, sum, lse, row, row, sum, sum, dkv};
        if (hop > 0) out.push_back({"attention_block merged", slots, other, {own}, 3e-6});
        if (hop > 0)
          out.push_back(
              {"attention_block in place", slots, {"attention_block", {0, 2, 3, 4}, {3, 4}, later}, {own}, 3e-6});
        out.push_back({"attention_block_grad",
                       slots,
                       {"attention_block_grad", {0, 2, 7, 8, 6}, {10, 11}, later},
                       {own, other, rounded},
                       8e-6});
        out.push_back({"attention_block_grad merged",
                       slots,
                       {"attention_block_grad", {0, 2, 7, 8, 6, 9}, {10, 11}, later},
                       {own, other, rounded},
                       8e-6});
        out.push_back({"attention_block_grad in place",
                       slots,
                       {"attention_block_grad", {0, 2, 7, 8, 6, 9}, {9, 11}, later},
                       {own, other, rounded},
                       8e-6});
        out.push_back({"copy_kv", {qkv, kv}, {"copy_kv", {0}, {1}}, {}, 0});
        out.push_back({"join_qkv", {sum, dkv, qkv}, {"join_qkv", {0, 1}, {2}}, {}, 0});
      }
  return out;
}

std::vector<Case> row_cases() {
  std::vector<Case> out;
  for (auto [rows, n] : {std::pair<int64_t, int64_t>{1, 1},
                         {3, 5},
                         {7, 33},
                         {17, 257},
                         {130, 24},
                         {67, 136},
                         {37, 1024},
                         {2, 2056},
                         {1, 12296}}) {
    Slot x{T, {rows, n}}, vector{T, {n}}, grad{F32, {n}}, statistic{F32, {rows}},
        targets{I32, {rows}, 0, static_cast<double>(n)};
    if (n > 1) {
      OpLine scaled_rows{"rmsnorm", {0, 1}, {2, 3}, none()};
      out.push_back({"rmsnorm", {x, vector, x, statistic}, scaled_rows, {}, 3e-6});
      out.push_back({"rmsnorm_grad",
                     {x, vector, x, statistic, x, x, grad},
                     {"rmsnorm_grad", {0, 4, 1, 3}, {5, 6}},
                     {scaled_rows},
                     5e-6});
      OpLine forward{"layernorm", {0, 1, 2}, {3, 4, 5}, none()};
      out.push_back({"layernorm", {x, vector, vector, x, statistic, statistic}, forward, {}, 3e-6});
      out.push_back({"layernorm_grad",
                     {x, vector, vector, x, statistic, statistic, x, x, grad, grad},
                     {"layernorm_grad", {0, 6, 1, 4, 5}, {7, 8, 9}},
                     {forward},
                     5e-6});
    }
    out.push_back({"bias", {x, vector, x}, {"bias", {0, 1}, {2}}});
    out.push_back({"bias in place", {x, vector}, {"bias", {0, 1}, {0}}});
    out.push_back({"bias_grad", {x, grad}, {"bias_grad", {0}, {1}}});
    Slot logits{T, {rows, n}, -8, 8};
    OpLine loss{"cross_entropy", {0, 1}, {2, 3}, scaled()};
    out.push_back({"cross_entropy", {logits, targets, {F32, {}}, statistic}, loss, {}, 3e-6});
    out.push_back({"cross_entropy_grad",
                   {logits, targets, {F32, {}}, statistic, x},
                   {"cross_entropy_grad", {0, 1, 3}, {4}, scaled()},
                   {loss},
                   3e-6});
    Slot deep{T, {rows, n}, -300, -200};  // exp(200) is no f32
    out.push_back({"cross_entropy of deep logits", {deep, targets, {F32, {}}, statistic}, loss, {}, 3e-6});
    out.push_back({"cross_entropy_grad in place",
                   {logits, targets, {F32, {}}, statistic},
                   {"cross_entropy_grad", {0, 1, 3}, {0}, scaled()},
                   {loss},
                   3e-6});
    OpLine both{"cross_entropy_and_grad", {0, 1}, {2, 3, 4}, scaled()},
        gradient{"cross_entropy_grad", {0, 1, 3}, {4}, scaled()};
    const std::vector<Slot> made = {logits, targets, {F32, {}}, statistic, x};
    out.push_back({"cross_entropy_and_grad", made, both, {}, 3e-6});
    both.writes[2] = gradient.writes[0] = 0;
    out.push_back({"cross_entropy_and_grad in place", made, both, {}, 3e-6, true, {loss, gradient}});
    // Of four ranks this is the third: its columns begin at 2n, and the vocabulary ends among them.
    for (int64_t vocab : {2 * n + (n + 1) / 2, 4 * n}) {
      Attrs split = make_attrs({{"scale", 0.037}, {"vocab", vocab}, {"axis", std::string("dp")}});
      Slot all{I32, {rows}, 0, static_cast<double>(vocab)}, sums{F32, {2, rows}};
      OpLine top{"cross_entropy_max", {0}, {2}, split}, sum{"cross_entropy_sums", {0, 1, 2}, {3}, split},
          finish{"cross_entropy_finish", {3, 2, 0, 1}, {4, 5}, split};
      std::vector<Slot> slots = {logits, all, statistic, sums, {F32, {}}, statistic, x};
      out.push_back({"cross_entropy_max", slots, top, {}, 0});
      out.push_back({"cross_entropy_sums", slots, sum, {top}, 3e-6});
      out.push_back({"cross_entropy_finish", slots, finish, {top, sum}, 3e-6});
      out.push_back({"cross_entropy_grad of a rank",
                     slots,
                     {"cross_entropy_grad", {0, 1, 5}, {6}, split},
                     {top, sum, finish},
                     3e-6});
    }
  }
  // A residual and a norm as one: each way in which a kernel holds a row.
  for (auto [rows, n] : {std::pair<int64_t, int64_t>{7, 33}, {130, 24}, {37, 1024}, {1, 12296}}) {
    Slot x{T, {rows, n}}, vector{T, {n}}, grad{F32, {n}}, statistic{F32, {rows}};
    OpLine scaled_rows{"rmsnorm", {0, 1}, {2, 3}}, normalized{"layernorm", {0, 1, 2}, {3, 4, 5}};
    out.push_back({.name = "add_rmsnorm",
                   .slots = {x, x, vector, x, x, statistic},
                   .op = {"add_rmsnorm", {0, 1, 2}, {3, 4, 5}},
                   .tolerance = 3e-6,
                   .apart = {{"add", {0, 1}, {4}}, {"rmsnorm", {4, 2}, {3, 5}}}});
    out.push_back({.name = "rmsnorm_grad_add",
                   .slots = {x, vector, x, statistic, x, x, x, x, grad},
                   .op = {"rmsnorm_grad_add", {0, 4, 1, 3, 5}, {6, 8}},
                   .before = {scaled_rows},
                   .tolerance = 5e-6,
                   .apart = {{"rmsnorm_grad", {0, 4, 1, 3}, {7, 8}}, {"add", {5, 7}, {6}}}});
    out.push_back({.name = "add_layernorm",
                   .slots = {x, x, vector, vector, x, x, statistic, statistic},
                   .op = {"add_layernorm", {0, 1, 2, 3}, {4, 5, 6, 7}},
                   .tolerance = 3e-6,
                   .apart = {{"add", {0, 1}, {5}}, {"layernorm", {5, 2, 3}, {4, 6, 7}}}});
    out.push_back({.name = "layernorm_grad_add",
                   .slots = {x, vector, vector, x, statistic, statistic, x, x, x, x, grad, grad},
                   .op = {"layernorm_grad_add", {0, 6, 1, 4, 5, 7}, {8, 10, 11}},
                   .before = {normalized},
                   .tolerance = 5e-6,
                   .apart = {{"layernorm_grad", {0, 6, 1, 4, 5}, {9, 10, 11}}, {"add", {7, 9}, {8}}}});
  }
  for (int64_t d : {1, 7, 33, 40}) {
    Slot tokens{I32, {3, 5}, 0, 11}, table{T, {11, d}}, positions{T, {6, d}}, y{T, {3, 5, d}};
    out.push_back({"embedding", {tokens, table, y}, {"embedding", {0, 1}, {2}}});
    out.push_back({"embedding with positions", {tokens, table, positions, y}, {"embedding", {0, 1, 2}, {3}}});
    Attrs sizes = make_attrs({{"vocab", int64_t{11}}, {"positions", int64_t{6}}});
    out.push_back(
        {"embedding_grad", {tokens, y, {F32, {11, d}}, {F32, {6, d}}}, {"embedding_grad", {0, 1}, {2, 3}, sizes}});
    sizes.set("positions", int64_t{0});
    out.push_back(
        {"embedding_grad without positions", {tokens, y, {F32, {11, d}}}, {"embedding_grad", {0, 1}, {2}, sizes}});
    Slot all{I32, {3, 5}, 0, 44};  // of four ranks
    sizes.set("axis", std::string("dp"));
    out.push_back({"embedding of a rank", {all, table, y}, {"embedding", {0, 1}, {2}, sizes}});
    out.push_back({"embedding_grad of a rank", {all, y, {F32, {11, d}}}, {"embedding_grad", {0, 1}, {2}, sizes}});
    for (int64_t chunks : {1, 2}) {
      Slot x{T, {3, 6, d}};
      Attrs tokens_of = make_attrs({{"tokens_axis", std::string("dp")}, {"chunks", chunks}});
      out.push_back({"positions", {x, {T, {25, d}}, x}, {"positions", {0, 1}, {2}, tokens_of}});
      out.push_back({"positions_grad", {x, {F32, {25, d}}}, {"positions_grad", {0}, {1}, tokens_of}});
    }
  }
  for (int64_t vocab : {7, 600}) {  // rows with many tokens, and many rows with few
    Slot tokens{I32, {2, 1301}, 0, static_cast<double>(vocab)}, y{T, {2, 1301, 12}};
    out.push_back({"embedding_grad of many tokens",
                   {tokens, y, {F32, {vocab, 12}}, {F32, {1400, 12}}},
                   {"embedding_grad", {0, 1}, {2, 3}, make_attrs({{"vocab", vocab}, {"positions", int64_t{1400}}})},
                   {},
                   1e-5});
  }
  return out;
}

std::vector<Case> moe_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, tokens, experts, k, capacity, width;
  };
  for (Sizes s : {Sizes{1, 1, 1, 1, 0, 1},
                  {2, 5, 4, 2, 3, 7},
                  {3, 7, 8, 3, 0, 33},
                  {2, 70, 4, 2, 40, 300},
                  {2, 96, 6, 1, 0, 33},
                  {2, 400, 40, 3, 50, 40}}) {
    int64_t n = s.batch * s.tokens, slots = s.capacity == 0 ? n : s.capacity;
    Slot logits{T, {s.batch, s.tokens, s.experts}, -3, 3}, weights{F32, {n, s.k}}, places{I32, {n, s.k}},
        counts{F32, {s.experts}}, x{T, {s.batch, s.tokens, s.width}}, y{T, {s.experts, slots, s.width}};
    Attrs attrs = make_attrs({{"k", s.k},
                              {"capacity", s.capacity},
                              {"experts", s.experts},
                              {"batch", s.batch},
                              {"tokens", s.tokens},
                              {"aux", 0.3}});
    Attrs whole = make_attrs({{"k", s.k}, {"aux", 0.3}}), share = whole;
    share.set("tokens", 4 * n), share.set("scale", 0.5 / static_cast<double>(n));
    OpLine forward{"route", {0}, {1, 2, 3}, attrs};
    out.push_back({"route", {logits, weights, places, counts}, forward});
    for (const Attrs& a : {whole, share})
      out.push_back({"route_grad",
                     {logits, weights, places, counts, weights, logits},
                     {"route_grad", {0, 1, 4, 3}, {5}, a},
                     {forward},
                     1e-5});
    out.push_back({"route_grad without counts",
                   {logits, weights, places, counts, weights, logits},
                   {"route_grad", {0, 1, 4}, {5}, whole},
                   {forward},
                   2e-6});
    out.push_back(
        {"dispatch", {logits, weights, places, counts, x, y}, {"dispatch", {4, 2}, {5}, attrs}, {forward}, 0});
    out.push_back(
        {"dispatch_grad", {logits, weights, places, counts, y, x}, {"dispatch_grad", {2, 4}, {5}}, {forward}});
    out.push_back({"combine", {logits, weights, places, counts, y, x}, {"combine", {4, 2, 1}, {5}, attrs}, {forward}});
    out.push_back({"combine_grad",
                   {logits, weights, places, counts, y, x, y, weights},
                   {"combine_grad", {4, 2, 1, 5}, {6, 7}},
                   {forward},
                   3e-6});
    Slot w{T, {s.experts, s.width, 17}}, wide{T, {s.experts, slots, 17}}, dw{F32, w.shape};
    out.push_back({"expert_linear", {y, w, wide}, {"expert_linear", {0, 1}, {2}}, {}, 3e-6});
    out.push_back({"expert_linear_dx", {wide, w, y}, {"expert_linear_dx", {0, 1}, {2}}, {}, 3e-6});
    out.push_back({"expert_linear_dw", {y, wide, dw}, {"expert_linear_dw", {0, 1}, {2}}, {}, 3e-6});
    // Of what route has dispatched, where slots stay empty.
    OpLine send{"dispatch", {4, 2}, {5}, attrs};
    std::vector<Slot> sent = {logits, weights, places, counts, x, y, w, wide, dw, {T, {s.experts, 17, s.width}}};
    out.push_back({"expert_linear of slots", sent, {"expert_linear", {5, 6}, {7}}, {forward, send}, 3e-6});
    out.push_back({"expert_linear_dx of slots", sent, {"expert_linear_dx", {5, 9}, {7}}, {forward, send}, 3e-6});
    out.push_back({"expert_linear_dw of slots", sent, {"expert_linear_dw", {5, 7}, {8}}, {forward, send}, 3e-6});
  }
  return out;
}

std::vector<Case> pointwise_cases() {
  std::vector<Case> out;
  for (int64_t n : {1, 7, 33, 72, 128, 1029, 8200}) {
    Attrs dropped = make_attrs({{"p", 0.3}, {"key", int64_t{5}}, {"samples", int64_t{8}}, {"first", int64_t{2}}});
    for (const char* axis : {"rows_axis", "split_axis"}) dropped.set(axis, std::string("dp"));
    out.push_back({"dropout of rows", {{T, {3, n}}, {T, {3, n}}}, {"dropout", {0}, {1}, dropped}});
    dropped.set("tokens_axis", std::string("dp"));
    dropped.set("chunks", int64_t{2});
    out.push_back({"dropout of tokens", {{T, {3, 4, n}}, {T, {3, 4, n}}}, {"dropout", {0}, {1}, dropped}});
    out.push_back({"dropout in place", {{T, {3, 4, n}}}, {"dropout", {0}, {0}, dropped}});
  }
  for (int64_t n : {1, 7, 33, 1029, 8200}) {
    Slot x{T, {n}, -4, 4}, scalar{F32, {}};
    for (const char* approximate : {"tanh", "none"}) {
      out.push_back({"gelu", {x, x}, {"gelu", {0}, {1}, form(approximate)}, {}, 2e-6});
      out.push_back({"gelu_dx", {x, x, x}, {"gelu_dx", {0, 1}, {2}, form(approximate)}, {}, 2e-6});
    }
    out.push_back({"gelu_dx in place", {x, x}, {"gelu_dx", {0, 1}, {1}, none()}, {}, 2e-6});
    out.push_back({"relu", {x, x}, {"relu", {0}, {1}}});
    out.push_back({"relu in place", {x}, {"relu", {0}, {0}}});
    out.push_back({"relu_dx", {x, x, x}, {"relu_dx", {0, 1}, {2}}});
    out.push_back({"tanh", {x, x}, {"tanh", {0}, {1}}, {}, 2e-6});
    out.push_back({"tanh in place", {x}, {"tanh", {0}, {0}}, {}, 2e-6});
    out.push_back({"tanh_dx", {x, x, x}, {"tanh_dx", {0, 1}, {2}}, {}, 2e-6});
    out.push_back({"silu_mul", {x, x, x}, {"silu_mul", {0, 1}, {2}}, {}, 2e-6});
    out.push_back({"silu_mul_grad", {x, x, x, x, x}, {"silu_mul_grad", {0, 1, 2}, {3, 4}}, {}, 2e-6});
    out.push_back({"silu_mul_grad in place", {x, x, x}, {"silu_mul_grad", {0, 1, 2}, {0, 1}}, {}, 2e-6});
    out.push_back({"add", {x, x, x}, {"add", {0, 1}, {2}}});
    out.push_back({"add in place", {x, x}, {"add", {0, 1}, {0}}});
    out.push_back({"mul", {x, x, x}, {"mul", {0, 1}, {2}}});
    out.push_back({"scale", {x, x}, {"scale", {0}, {1}, make_attrs({{"factor", 0.3}})}});
    out.push_back({"cast up", {x, {F32, {n}}}, {"cast", {0}, {1}, make_attrs({{"dtype", std::string("f32")}})}, {}, 0});
    out.push_back({"cast down",
                   {{F32, {n}}, {Dtype::bf16, {n}}},
                   {"cast", {0}, {1}, make_attrs({{"dtype", std::string("bf16")}})}});
    out.push_back({"copy", {x, x}, {"copy", {0}, {1}}, {}, 0});
    out.push_back({"copy in place", {x}, {"copy", {0}, {0}}, {}, 0});
    out.push_back({"add of whole numbers",
                   {{I64, {n}, 0, 100}, {I64, {n}, 0, 100}, {I64, {n}}},
                   {"add", {0, 1}, {2}},
                   {},
                   0,
                   false});
    out.push_back({"mse", {x, x, scalar}, {"mse", {0, 1}, {2}, scaled()}, {}, 2e-6});
    out.push_back({"mse_grad", {x, x, x}, {"mse_grad", {0, 1}, {2}, scaled()}});
    out.push_back({"mean_square", {x, scalar}, {"mean_square", {0}, {1}, scaled()}, {}, 2e-6});
    out.push_back({"mean_square_grad", {x, x}, {"mean_square_grad", {0}, {1}, scaled()}});
    out.push_back({"mean", {{T, {n}, 0, 1}, scalar}, {"mean", {0}, {1}, scaled()}, {}, 2e-6});
    out.push_back({"mean_grad", {x, x}, {"mean_grad", {0}, {1}, scaled()}});
  }
  return out;
}

std::vector<Case> piece_cases() {
  std::vector<Case> out;
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 2, 5}, {3, 2, 16}, {70, 33, 17}})
    for (std::optional<Dtype> dtype : {T, I32, I64}) {
      Slot apart{dtype, {4, a, b, c}, -99, 99}, whole{dtype, {a, 4 * b, c}, -99, 99}, piece{dtype, {a, b, c}};
      Attrs attrs = make_attrs({{"pieces", int64_t{4}}, {"dim", int64_t{1}}, {"axis", std::string("dp")}});
      bool bf16 = !dtype.has_value();
      out.push_back({"join_pieces", {apart, whole}, {"join_pieces", {0}, {1}, attrs}, {}, 0, bf16});
      out.push_back({"cut_pieces", {whole, apart}, {"cut_pieces", {0}, {1}, attrs}, {}, 0, bf16});
      out.push_back({"take_piece", {whole, piece}, {"take_piece", {0}, {1}, attrs}, {}, 0, bf16});
    }
  return out;
}

std::vector<Case> training_cases() {
  std::vector<Case> out;
  for (int64_t n : {1, 7, 1029, 20011}) {
    Slot grad{F32, {n}}, param{T, {n}}, m{F32, {n}}, v{F32, {n}, 0.01, 1}, clip{F32, {}, 0.5, 0.6};
    out.push_back({"adamw", {grad, param, m, v}, {"adamw", {0, 1, 2, 3}, {1, 2, 3}, adamw()}, {}, 2e-6});
    out.push_back(
        {"adamw clipped", {grad, param, m, v, clip}, {"adamw", {0, 1, 2, 3, 4}, {1, 2, 3}, adamw()}, {}, 2e-6});
    Attrs plain = make_attrs({{"weight_decay", 0.1}}), heavy = make_attrs({{"momentum", 0.9}, {"weight_decay", 0.1}});
    out.push_back({"sgd", {grad, param}, {"sgd", {0, 1}, {1}, plain}});
    out.push_back({"sgd clipped", {grad, param, clip}, {"sgd", {0, 1, 2}, {1}, plain}});
    out.push_back({"sgd with momentum", {grad, param, m}, {"sgd", {0, 1, 2}, {1, 2}, heavy}});
    out.push_back({"sgd with momentum, clipped", {grad, param, m, clip}, {"sgd", {0, 1, 2, 3}, {1, 2}, heavy}});
    Attrs signs = make_attrs({{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}});
    out.push_back({"lion", {grad, param, m}, {"lion", {0, 1, 2}, {1, 2}, signs}, {}, 2e-6});
    out.push_back({"lion clipped", {grad, param, m, clip}, {"lion", {0, 1, 2, 3}, {1, 2}, signs}, {}, 2e-6});
    Slot master{F32, {n}}, low{Dtype::bf16, {n}};
    const auto cast = [](int to) { return OpLine{"cast", {1}, {to}, make_attrs({{"dtype", std::string("bf16")}})}; };
    out.push_back({"adamw_cast",
                   {grad, master, m, v, low},
                   {"adamw_cast", {0, 1, 2, 3}, {1, 2, 3, 4}, adamw()},
                   {},
                   2e-6,
                   false,
                   {{"adamw", {0, 1, 2, 3}, {1, 2, 3}, adamw()}, cast(4)}});
    out.push_back({"adamw_cast clipped",
                   {grad, master, m, v, clip, low},
                   {"adamw_cast", {0, 1, 2, 3, 4}, {1, 2, 3, 5}, adamw()},
                   {},
                   2e-6,
                   false,
                   {{"adamw", {0, 1, 2, 3, 4}, {1, 2, 3}, adamw()}, cast(5)}});
    out.push_back({"sgd_cast",
                   {grad, master, low},
                   {"sgd_cast", {0, 1}, {1, 2}, plain},
                   {},
                   1e-6,
                   false,
                   {{"sgd", {0, 1}, {1}, plain}, cast(2)}});
    out.push_back({"sgd_cast with momentum, clipped",
                   {grad, master, m, clip, low},
                   {"sgd_cast", {0, 1, 2, 3}, {1, 2, 4}, heavy},
                   {},
                   1e-6,
                   false,
                   {{"sgd", {0, 1, 2, 3}, {1, 2}, heavy}, cast(4)}});
    out.push_back({"norm2", {grad, m, v, {F32, {}}}, {"norm2", {0, 1, 2}, {3}}});
    out.push_back({"norm2 of weighted tensors",
                   {grad, m, v, {F32, {}}},
                   {"norm2", {0, 1, 2}, {3}, make_attrs({{"weights", std::vector<double>{0.5, 1, 0}}})}});
    out.push_back({"norm2 of tensors with whole weights",
                   {grad, m, v, {F32, {}}},
                   {"norm2", {0, 1, 2}, {3}, make_attrs({{"weights", std::vector<int64_t>{1, 0, 2}}})}});
    Attrs pieces = make_attrs({{"piece_starts", std::vector<int64_t>{n / 3, 2 * n + n / 5, 2 * n + n / 2, 3 * n}},
                               {"piece_weights", std::vector<double>{0.25, 0.5, 1, 7}}});
    out.push_back({"norm2 of weighted pieces", {grad, {F32, {}}}, {"norm2", {0}, {1}, pieces}});
    pieces.set("axis", std::string("dp"));
    out.push_back({"norm2 of weighted pieces of a shard", {grad, {F32, {}}}, {"norm2", {0}, {1}, pieces}});
  }
  // More than a block adds up, cut where no vector begins.
  Slot flat{F32, {70001}}, other{F32, {3}};
  Attrs cut = make_attrs({{"piece_starts", std::vector<int64_t>{33333, 140001, 140002, 170005}},
                          {"piece_weights", std::vector<double>{0.25, 0.5, 1, 7}}});
  out.push_back({"norm2 of large tensors", {flat, other, {F32, {}}}, {"norm2", {0, 1}, {2}}});
  out.push_back({"norm2 of pieces of a large tensor", {flat, {F32, {}}}, {"norm2", {0}, {1}, cut}});
  cut.set("axis", std::string("dp"));
  out.push_back({"norm2 of pieces of a large shard", {flat, {F32, {}}}, {"norm2", {0}, {1}, cut}});
  for (double norm2 : {0.0, 0.3, 9.0})
    out.push_back({"clip_coefficient",
                   {{F32, {}, norm2, norm2}, {F32, {}}, {F32, {}}},
                   {"clip_coefficient", {0}, {1, 2}, make_attrs({{"max", 1.0}})}});
  // Numbers, infinities and NaNs, of more elements than one thread takes.
  for (int64_t n : {1, 7, 40001})
    for (int64_t infinite : {0, 1})
      out.push_back(
          {"check_finite",
           {{T, {n}}, {T, {n}}, {T, {n}}, {I32, {}}},
           {"check_finite", {0, 1, 2}, {3}, make_attrs({{"infinite", infinite}})},
           {{"scale", {0}, {1}, make_attrs({{"factor", 1e300}})}, {"scale", {1}, {2}, make_attrs({{"factor", 0.0}})}}});
  // On one rank of an axis only; and of a beginning, in which there are few of the infinities of the whole.
  for (int64_t root : {1, 2})
    out.push_back({"check_finite at a root",
                   {{T, {9}}, {T, {9}}, {I32, {}}},
                   {"check_finite", {1}, {2}, make_attrs({{"root", root}, {"axis", std::string("dp")}})},
                   {{"scale", {0}, {1}, make_attrs({{"factor", 1e300}})}}});
  for (double most : {2.0, 400.0, 10000.0})
    out.push_back({"check_finite of a beginning",
                   {{T, {40001}}, {T, {40001}}, {Dtype::i64, {4}, 0, most}, {I32, {}}},
                   {"check_finite", {1, 2}, {3}, make_attrs({{"counted", int64_t{1}}})},
                   {{"scale", {0}, {1}, make_attrs({{"factor", 3.45e38}})}}});
  return out;
}

// These agree to the bit.
std::vector<Case> source_cases() {
  std::vector<Case> out;
  Attrs init = make_attrs({{"starts", std::vector<int64_t>{0, 16, 38, 48, 1031}},
                           {"counts", std::vector<int64_t>{13, 21, 9, 977, 35}},
                           {"kinds", std::vector<int64_t>{1, 3, 2, 4, 3}},
                           {"scales", std::vector<double>{0, 0.02, 0.7, 0.1, 1}},
                           {"keys", std::vector<int64_t>{3, 5, 8, 13, 21}}});
  out.push_back({"init_params", {{T, {1088}}}, {"init_params", {}, {0}, init}, {}, 0});
  init.set("axis", std::string("dp"));  // rank 2 of 4: elements [544, 816)
  out.push_back({"init_params of a shard", {{T, {272}}}, {"init_params", {}, {0}, init}, {}, 0});
  // A fused weight [3, 5|4|5] split over four ranks, and [9, 4] by its rows: 3·(2+1+2) and 3·4 elements here.
  Attrs split = make_attrs({{"starts", std::vector<int64_t>{0, 16, 32}},
                            {"counts", std::vector<int64_t>{15, 7, 12}},
                            {"kinds", std::vector<int64_t>{3, 1, 4}},
                            {"scales", std::vector<double>{0.02, 0, 1}},
                            {"keys", std::vector<int64_t>{3, 5, 8}},
                            {"split_outer", std::vector<int64_t>{3, 0, 1}},
                            {"split_block_count", std::vector<int64_t>{3, 0, 1}},
                            {"split_blocks", std::vector<int64_t>{5, 4, 5, 36}},
                            {"split_slice", std::vector<int64_t>{1, 0, 4}},
                            {"split_axis", std::string("dp,,dp")}});
  out.push_back({"init_params of split parameters", {{T, {48}}}, {"init_params", {}, {0}, split}, {}, 0});
  split.set("axis", std::string("dp"));
  out.push_back({"init_params of a shard of split parameters", {{T, {12}}}, {"init_params", {}, {0}, split}, {}, 0});
  out.push_back({"fill", {{T, {7}}}, {"fill", {}, {0}, make_attrs({{"value", 1.7}})}, {}, 0});
  out.push_back(
      {"values", {{T, {3}}}, {"values", {}, {0}, make_attrs({{"values", std::vector<double>{1, -2.5, 3}}})}, {}, 0});
  out.push_back({"values of whole numbers",
                 {{T, {2}}},
                 {"values", {}, {0}, make_attrs({{"values", std::vector<int64_t>{4, -1}}})},
                 {},
                 0});
  out.push_back({"iota",
                 {{I64, {5}}},
                 {"iota", {}, {0}, make_attrs({{"start", int64_t{3}}, {"step", int64_t{2}}})},
                 {},
                 0,
                 false});
  out.push_back(
      {"iota of a count", {{I64, {}, 0, 4}, {T, {5}}}, {"iota", {0}, {1}, make_attrs({{"start", 0.5}})}, {}, 0});
  out.push_back({"random_int",
                 {{I64, {33}}},
                 {"random_int", {}, {0}, make_attrs({{"low", int64_t{-3}}, {"high", int64_t{9}}, {"key", int64_t{4}}})},
                 {},
                 0,
                 false});
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& family : {matrix_cases(), attention_cases(), row_cases(), pointwise_cases(), piece_cases(),
                             training_cases(), source_cases(), moe_cases(), attention_block_cases()})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace prun

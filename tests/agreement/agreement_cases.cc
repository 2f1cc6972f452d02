// Odd sizes, single rows and columns, sizes beyond a thread block; the second half of the ops in place.
#include "tests/agreement/agreement_cases.h"

#include "tests/agreement/case_family.h"

namespace prun {
namespace {

Attrs activated(const char* act) { return make_attrs({{"act", act}}); }
Attrs scaled() { return make_attrs({{"scale", 0.037}}); }
Attrs form(const char* name) { return make_attrs({{"approximate", name}}); }
Attrs cast_to(const char* dtype) { return make_attrs({{"dtype", dtype}}); }
Attrs adamw() { return make_attrs({{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}); }
Attrs adam() {
  Attrs l2 = adamw();
  l2.set("l2", 1.0);
  return l2;
}

}  // namespace

std::vector<Case> matrix_cases() {
  std::vector<Case> out;
  const Attrs transposed = make_attrs({{"transpose", 1}});
  for (Shape s : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{17, 33, 65}, Shape{64, 128, 96}}) {
    const int64_t m = s[0], k = s[1], n = s[2];
    const double tolerance = 2e-6;
    Family f(out, {{"x dx", {T, {m, k}}},
                   {"wide", {T, {m, k}, -2, 2}},
                   {"w", {T, {k, n}}},
                   {"turned", {T, {n, k}}},
                   {"b", {T, {n}}},
                   {"y", {T, {m, n}}},
                   {"pre made", {T, {m, n}, -3, 3}},
                   {"dw sum", {F32, {k, n}}},
                   {"dw_transposed", {F32, {n, k}}},
                   {"db bias_sum", {F32, {n}}}});
    f.add("linear", "linear x w b > y", tolerance);
    f.add("linear without bias", "linear x w > y", tolerance);
    f.add("linear transposed", {"linear x turned b > y", transposed}, tolerance);
    f.add("linear relu", {"linear x w b > y", activated("relu")}, tolerance);
    f.add("linear gelu", {"linear x w b > y", activated("gelu")}, tolerance);
    f.add("linear_dx", "linear_dx y w > dx", tolerance);
    f.add("linear_dx transposed", {"linear_dx y turned > dx", transposed}, tolerance);
    f.add("linear_dw", "linear_dw x y > dw db", tolerance);
    f.add("linear_dw without bias", "linear_dw x y > dw", tolerance);
    f.add("linear_dw transposed", {"linear_dw x y > dw_transposed db", transposed}, tolerance);
    f.add("linear_dw_add", "linear_dw_add x y sum bias_sum > dw db", tolerance);
    f.add("linear_dw_add in place", "linear_dw_add x y dw db > dw db", tolerance);
    f.add("linear_dw_add without bias", "linear_dw_add x y dw > dw", tolerance);
    f.add("linear_dw_add transposed", {"linear_dw_add x y dw_transposed db > dw_transposed db", transposed}, tolerance);
    f.add("linear_gelu", "linear_gelu wide w b > pre made", 2 * tolerance);
    f.add("linear_gelu transposed, without bias", {"linear_gelu wide turned > pre made", transposed}, 2 * tolerance);
    // Reads the gradient of the layer's result and the values before gelu; returns the gradient of those values.
    f.add("linear_dx_gelu", "linear_dx_gelu wide turned pre > made", 2 * tolerance);
    f.add("linear_dx_gelu transposed", {"linear_dx_gelu wide w pre > made", transposed}, 2 * tolerance);
  }
  return out;
}

namespace {

using Sizes = std::vector<std::pair<int64_t, int64_t>>;

// A norm, a bias and a loss over rows.
void add_rows(std::vector<Case>& out) {
  for (auto [rows, n] :
       Sizes{{1, 1}, {3, 5}, {7, 33}, {17, 257}, {130, 24}, {67, 136}, {37, 1024}, {2, 2056}, {1, 12296}}) {
    const Slot x{T, {rows, n}}, vector{T, {n}}, grad{F32, {n}}, statistic{F32, {rows}};
    const Line rms{"rmsnorm x gamma > y rstd"}, layer{"layernorm x gamma beta > y mean rstd"};
    Family norms(out, {{"x y dy dx far", x}, {"gamma beta", vector}, {"mean rstd", statistic}, {"dgamma dbeta", grad}});
    if (n > 1) {
      const Line huge{"scale x > far", make_attrs({{"factor", 1e30}})};
      norms.add("rmsnorm of squares that no f32 holds", "rmsnorm far gamma > y rstd", 3e-6, {huge});
      norms.add("layernorm of squares that no f32 holds", "layernorm far gamma beta > y mean rstd", 3e-6, {huge});
      norms.add("rmsnorm", rms, 3e-6);
      norms.add("rmsnorm_grad", "rmsnorm_grad x dy gamma rstd > dx dgamma", 5e-6, {rms});
      norms.add("layernorm", layer, 3e-6);
      norms.add("layernorm_grad", "layernorm_grad x dy gamma mean rstd > dx dgamma dbeta", 5e-6, {layer});
    }
    norms.add("bias", "bias x beta > y");
    norms.add("bias in place", "bias x beta > x");
    norms.add("bias_grad", "bias_grad x > dbeta");
    norms.add("bias_grad_add", "bias_grad_add x dgamma > dbeta");
    norms.add("bias_grad_add in place", "bias_grad_add x dbeta > dbeta");
    Family losses(out, {{"logits", {T, {rows, n}, -8, 8}},
                        {"deep", {T, {rows, n}, -300, -200}},                    // exp(200) overflows f32
                        {"targets", {I32, {rows}, -1, static_cast<double>(n)}},  // -1: ignored
                        {"loss", {F32, {}}},
                        {"lse", statistic},
                        {"dx", x}});
    const Line loss{"cross_entropy logits targets > loss lse", scaled()};
    const Line in_place{"cross_entropy_grad logits targets lse > logits", scaled()};
    losses.add("cross_entropy", loss, 3e-6);
    losses.add("cross_entropy_grad", {"cross_entropy_grad logits targets lse > dx", scaled()}, 3e-6, {loss});
    losses.add("cross_entropy of deep logits", {"cross_entropy deep targets > loss lse", scaled()}, 3e-6);
    losses.add("cross_entropy_grad in place", in_place, 3e-6, {loss});
    losses.add("cross_entropy_and_grad", {"cross_entropy_and_grad logits targets > loss lse dx", scaled()}, 3e-6);
    losses.add("cross_entropy_and_grad in place", {"cross_entropy_and_grad logits targets > loss lse logits", scaled()},
               3e-6, {}, {loss, in_place});
    // The last columns are padding, whose values must not count.
    if (const int64_t vocab = n - (n + 7) / 8; vocab > 0) {
      const Attrs padded = make_attrs({{"scale", 0.037}, {"vocab", vocab}});
      const Line padded_loss{"cross_entropy logits few_targets > loss lse", padded},
          padded_in_place{"cross_entropy_grad logits few_targets lse > logits", padded};
      Family few(out, {{"logits", {T, {rows, n}, -8, 8}},
                       {"few_targets", {I32, {rows}, -1, static_cast<double>(vocab)}},
                       {"loss", {F32, {}}},
                       {"lse", statistic},
                       {"dx", x}});
      few.add("cross_entropy of padded logits", padded_loss, 3e-6);
      few.add("cross_entropy_grad of padded logits", {"cross_entropy_grad logits few_targets lse > dx", padded}, 3e-6,
              {padded_loss});
      few.add("cross_entropy_and_grad of padded logits",
              {"cross_entropy_and_grad logits few_targets > loss lse dx", padded}, 3e-6);
      few.add("cross_entropy_and_grad of padded logits in place",
              {"cross_entropy_and_grad logits few_targets > loss lse logits", padded}, 3e-6, {},
              {padded_loss, padded_in_place});
    }
    // The third of four ranks: its columns start at 2n, and the vocabulary ends among them.
    for (int64_t vocab : {2 * n + (n + 1) / 2, 4 * n}) {
      Family split(out, {{"logits", {T, {rows, n}, -8, 8}},
                         {"targets", {I32, {rows}, -1, static_cast<double>(vocab)}},
                         {"top lse", statistic},
                         {"sums", {F32, {2, rows}}},
                         {"loss", {F32, {}}},
                         {"dx", x}});
      const Attrs share = make_attrs({{"scale", 0.037}, {"vocab", vocab}, {"axis", "dp"}});
      const Line top{"cross_entropy_max logits > top", share},
          sum{"cross_entropy_sums logits targets top > sums", share},
          finish{"cross_entropy_finish sums top logits targets > loss lse", share};
      split.add("cross_entropy_max", top, 0);
      split.add("cross_entropy_sums", sum, 3e-6, {top});
      split.add("cross_entropy_finish", finish, 3e-6, {top, sum});
      split.add("cross_entropy_grad of a rank", {"cross_entropy_grad logits targets lse > dx", share}, 3e-6,
                {top, sum, finish});
    }
  }
}

// A fused residual and norm, for each way in which a kernel holds a row.
void add_residual_norms(std::vector<Case>& out) {
  for (auto [rows, n] : Sizes{{7, 33}, {130, 24}, {37, 1024}, {1, 12296}}) {
    Family f(out, {{"x residual y sum dy dsum dx dx_alone", {T, {rows, n}}},
                   {"gamma beta", {T, {n}}},
                   {"mean rstd", {F32, {rows}}},
                   {"dgamma dbeta", {F32, {n}}}});
    f.add("add_rmsnorm", "add_rmsnorm x residual gamma > y sum rstd", 3e-6, {},
          {"add x residual > sum", "rmsnorm sum gamma > y rstd"});
    f.add("rmsnorm_grad_add", "rmsnorm_grad_add x dy gamma rstd dsum > dx dgamma", 5e-6, {"rmsnorm x gamma > y rstd"},
          {"rmsnorm_grad x dy gamma rstd > dx_alone dgamma", "add dsum dx_alone > dx"});
    f.add("add_layernorm", "add_layernorm x residual gamma beta > y sum mean rstd", 3e-6, {},
          {"add x residual > sum", "layernorm sum gamma beta > y mean rstd"});
    f.add("layernorm_grad_add", "layernorm_grad_add x dy gamma mean rstd dsum > dx dgamma dbeta", 5e-6,
          {"layernorm x gamma beta > y mean rstd"},
          {"layernorm_grad x dy gamma mean rstd > dx_alone dgamma dbeta", "add dsum dx_alone > dx"});
  }
}

void add_tables(std::vector<Case>& out) {
  for (int64_t d : {1, 7, 33, 40}) {
    Family f(out, {{"tokens", {I32, {3, 5}, 0, 11}},
                   {"of_four_ranks", {I32, {3, 5}, 0, 44}},
                   {"few_tokens", {I32, {3, 5}, 0, 9}},
                   {"table", {T, {11, d}}},
                   {"positions", {T, {6, d}}},
                   {"y", {T, {3, 5, d}}},
                   {"dtable", {F32, {11, d}}},
                   {"dpositions", {F32, {6, d}}},
                   {"x moved", {T, {3, 6, d}}},
                   {"places", {T, {25, d}}},
                   {"dplaces", {F32, {25, d}}},
                   {"many_places", {T, {97, d}}},
                   {"dmany", {F32, {97, d}}}});
    Attrs sizes = make_attrs({{"vocab", 11}, {"positions", 6}});
    f.add("embedding", "embedding tokens table > y");
    f.add("embedding with positions", "embedding tokens table positions > y");
    f.add("embedding_grad", {"embedding_grad tokens y > dtable dpositions", sizes});
    sizes.set("positions", 0);
    f.add("embedding_grad without positions", {"embedding_grad tokens y > dtable", sizes});
    sizes.set("axis", "dp");
    f.add("embedding of a rank", {"embedding of_four_ranks table > y", sizes});
    f.add("embedding_grad of a rank", {"embedding_grad of_four_ranks y > dtable", sizes});
    sizes.set("valid", 44);  // of rows of which the last rank has only padding
    f.add("embedding of a rank with padding elsewhere", {"embedding of_four_ranks table > y", sizes});
    f.add("embedding_grad of a rank with padding elsewhere", {"embedding_grad of_four_ranks y > dtable", sizes});
    sizes.erase("axis");
    sizes.set("valid", 9);
    f.add("embedding of a padded table", {"embedding few_tokens table > y", sizes});
    f.add("embedding_grad of a padded table", {"embedding_grad few_tokens y > dtable", sizes});
    for (int64_t chunks : {1, 2}) {
      const Attrs tokens_of = make_attrs({{"tokens_axis", "dp"}, {"chunks", chunks}});
      f.add("positions", {"positions x places > moved", tokens_of});
      f.add("positions_grad", {"positions_grad x > dplaces", tokens_of});
      const Attrs runs_of = make_attrs({{"tokens_axis", "dp,dp"}, {"chunks", chunks}});
      f.add("positions of a run", {"positions x many_places > moved", runs_of});
      f.add("positions_grad of a run", {"positions_grad x > dmany", runs_of});
    }
  }
  for (int64_t vocab : {7, 600}) {  // rows with many tokens, and many rows with few
    Family f(out, {{"tokens", {I32, {2, 1301}, 0, static_cast<double>(vocab)}},
                   {"y", {T, {2, 1301, 12}}},
                   {"dtable", {F32, {vocab, 12}}},
                   {"dpositions", {F32, {1400, 12}}}});
    f.add("embedding_grad of many tokens",
          {"embedding_grad tokens y > dtable dpositions", make_attrs({{"vocab", vocab}, {"positions", 1400}})}, 1e-5);
  }
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> out;
  add_rows(out);
  add_residual_norms(out);
  add_tables(out);
  return out;
}

std::vector<Case> moe_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, tokens, experts, k, capacity, width;
  };
  const std::vector<Sizes> sizes = {{1, 1, 1, 1, 0, 1},     {2, 5, 4, 2, 3, 7},   {3, 7, 8, 3, 0, 33},
                                    {2, 70, 4, 2, 40, 300}, {2, 96, 6, 1, 0, 33}, {2, 400, 40, 3, 50, 40}};
  for (const Sizes& s : sizes) {
    const int64_t n = s.batch * s.tokens, slots = s.capacity == 0 ? n : s.capacity;
    Family f(out, {{"logits dlogits", {T, {s.batch, s.tokens, s.experts}, -3, 3}},
                   {"weights dweights", {F32, {n, s.k}}},
                   {"places", {I32, {n, s.k}}},
                   {"counts", {F32, {s.experts}}},
                   {"x joined", {T, {s.batch, s.tokens, s.width}}},
                   {"y dy", {T, {s.experts, slots, s.width}}},
                   {"w", {T, {s.experts, s.width, 17}}},
                   {"turned", {T, {s.experts, 17, s.width}}},
                   {"wide", {T, {s.experts, slots, 17}}},
                   {"dw sum", {F32, {s.experts, s.width, 17}}}});
    Attrs attrs = make_attrs({{"k", s.k}, {"capacity", s.capacity}, {"experts", s.experts}, {"batch", s.batch}});
    attrs.set("tokens", s.tokens), attrs.set("aux", 0.3);
    const Attrs whole = make_attrs({{"k", s.k}, {"aux", 0.3}});
    Attrs share = whole;
    share.set("tokens", 4 * n), share.set("scale", 0.5 / static_cast<double>(n));
    const Line route{"route logits > weights places counts", attrs}, send{"dispatch x places > y", attrs};
    f.add("route", route);
    for (const Attrs& a : {whole, share})
      f.add("route_grad", {"route_grad logits weights dweights counts > dlogits", a}, 1e-5, {route});
    f.add("route_grad without counts", {"route_grad logits weights dweights > dlogits", whole}, 2e-6, {route});
    f.add("dispatch", send, 0, {route});
    f.add("dispatch_grad", "dispatch_grad places y > x", 1e-6, {route});
    f.add("combine", {"combine y places weights > joined", attrs}, 1e-6, {route});
    f.add("combine_grad", "combine_grad y places weights joined > dy dweights", 3e-6, {route});
    f.add("expert_linear", "expert_linear y w > wide", 3e-6);
    f.add("expert_linear_dx", "expert_linear_dx wide w > y", 3e-6);
    f.add("expert_linear_dw", "expert_linear_dw y wide > dw", 3e-6);
    f.add("expert_linear_dw_add", "expert_linear_dw_add y wide sum > dw", 3e-6);
    f.add("expert_linear_dw_add in place", "expert_linear_dw_add y wide dw > dw", 3e-6);
    // Experts' ops on tokens dispatched by route, with empty slots.
    f.add("expert_linear of slots", "expert_linear y w > wide", 3e-6, {route, send});
    f.add("expert_linear_dx of slots", "expert_linear_dx y turned > wide", 3e-6, {route, send});
    f.add("expert_linear_dw of slots", "expert_linear_dw y wide > dw", 3e-6, {route, send});
  }
  return out;
}

std::vector<Case> pointwise_cases() {
  std::vector<Case> out;
  for (int64_t n : {1, 7, 33, 72, 128, 1029, 8200}) {
    Family f(out, {{"x y", {T, {3, n}}}, {"sample masked", {T, {3, 4, n}}}});
    Attrs dropped = make_attrs({{"p", 0.3}, {"key", 5}, {"samples", 8}, {"first", 2}});
    dropped.set("rows_axis", "dp"), dropped.set("split_axis", "dp");
    f.add("dropout of rows", {"dropout x > y", dropped});
    dropped.set("tokens_axis", "dp"), dropped.set("chunks", 2);
    f.add("dropout of tokens", {"dropout sample > masked", dropped});
    f.add("dropout in place", {"dropout sample > sample", dropped});
    dropped.set("tokens_axis", "dp,dp");
    f.add("dropout of a run of tokens", {"dropout sample > masked", dropped});
  }
  for (int64_t n : {1, 7, 33, 1029, 8200}) {
    Family f(out, {{"x y z dx dy", {T, {n}, -4, 4}},
                   {"above", {T, {n}, 0, 1}},
                   {"sum", {F32, {}}},
                   {"single", {F32, {n}}},
                   {"half", {BF16, {n}}},
                   {"i j k", {I64, {n}, 0, 100}}});
    for (const char* approximate : {"tanh", "none"}) {
      f.add("gelu", {"gelu x > y", form(approximate)}, 2e-6);
      f.add("gelu_dx", {"gelu_dx x y > dx", form(approximate)}, 2e-6);
    }
    f.add("gelu_dx in place", "gelu_dx x y > y", 2e-6);
    f.add("relu", "relu x > y");
    f.add("relu in place", "relu x > x");
    f.add("relu_dx", "relu_dx x y > dx");
    f.add("tanh", "tanh x > y", 2e-6);
    f.add("tanh in place", "tanh x > x", 2e-6);
    f.add("tanh_dx", "tanh_dx x y > dx", 2e-6);
    f.add("silu_mul", "silu_mul x y > z", 2e-6);
    f.add("silu_mul_grad", "silu_mul_grad x y z > dx dy", 2e-6);
    f.add("silu_mul_grad in place", "silu_mul_grad x y z > x y", 2e-6);
    f.add("add", "add x y > z");
    f.add("add in place", "add x y > x");
    f.add("mul", "mul x y > z");
    f.add("scale", {"scale x > y", make_attrs({{"factor", 0.3}})});
    f.add("cast up", {"cast x > single", cast_to("f32")}, 0);
    f.add("cast down", {"cast single > half", cast_to("bf16")});
    f.add("copy", "copy x > y", 0);
    f.add("copy in place", "copy x > x", 0);
    f.add("add of whole numbers", "add i j > k", 0).bf16 = false;
    f.add("mse", {"mse x y > sum", scaled()}, 2e-6);
    f.add("mse_grad", {"mse_grad x y > dx", scaled()});
    f.add("mean_square", {"mean_square x > sum", scaled()}, 2e-6);
    f.add("mean_square_grad", {"mean_square_grad x > dx", scaled()});
    f.add("mean", {"mean above > sum", scaled()}, 2e-6);
    f.add("mean_grad", {"mean_grad x > dx", scaled()});
  }
  return out;
}

std::vector<Case> piece_cases() {
  std::vector<Case> out;
  const Attrs attrs = make_attrs({{"pieces", 4}, {"dim", 1}, {"axis", "dp"}});
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 2, 5}, {3, 2, 16}, {70, 33, 17}})
    for (std::optional<Dtype> dtype : {T, I32, I64}) {
      Family f(out, {{"apart", {dtype, {4, a, b, c}, -99, 99}},
                     {"whole", {dtype, {a, 4 * b, c}, -99, 99}},
                     {"piece", {dtype, {a, b, c}}}});
      for (const auto& [name, line] : {std::pair{"join_pieces", "join_pieces apart > whole"},
                                       {"cut_pieces", "cut_pieces whole > apart"},
                                       {"take_piece", "take_piece whole > piece"}})
        f.add(name, {line, attrs}, 0).bf16 = !dtype.has_value();
    }
  return out;
}

namespace {

const Attrs kPlain = make_attrs({{"weight_decay", 0.1}});
const Attrs kHeavy = make_attrs({{"momentum", 0.9}, {"weight_decay", 0.1}});
const Attrs kAhead = make_attrs({{"momentum", 0.9}, {"nesterov", 1.0}, {"weight_decay", 0.1}});
const Attrs kSlow = make_attrs({{"beta1", 0.99999}, {"beta2", 0.9999999}, {"eps", 1e-8}, {"weight_decay", 0.1}});
const Attrs kSigns = make_attrs({{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}});

void add_updates(Family& f) {
  f.add("adamw", {"adamw grad param m v > param m v", adamw()}, 2e-6);
  f.add("adamw clipped", {"adamw grad param m v clip > param m v", adamw()}, 2e-6);
  f.add("adamw of averages that hardly move", {"adamw grad param m v > param m v", kSlow}, 2e-6);
  f.add("sgd", {"sgd grad param > param", kPlain});
  f.add("sgd clipped", {"sgd grad param clip > param", kPlain});
  f.add("sgd with momentum", {"sgd grad param m > param m", kHeavy});
  f.add("sgd with momentum, clipped", {"sgd grad param m clip > param m", kHeavy});
  f.add("sgd with Nesterov momentum", {"sgd grad param m > param m", kAhead});
  f.add("sgd with Nesterov momentum, clipped", {"sgd grad param m clip > param m", kAhead});
  f.add("adamw with l2", {"adamw grad param m v > param m v", adam()}, 2e-6);
  f.add("adamw with l2, clipped", {"adamw grad param m v clip > param m v", adam()}, 2e-6);
  f.add("lion", {"lion grad param m > param m", kSigns}, 2e-6);
  f.add("lion of averages that hardly move", {"lion grad param m > param m", kSlow}, 2e-6);
  f.add("lion clipped", {"lion grad param m clip > param m", kSigns}, 2e-6);
  f.add("adamw that skips", {"adamw grad param m v skip > param m v", adamw()});
  f.add("sgd that skips", {"sgd grad param skip > param", kPlain});
  f.add("sgd with momentum that skips", {"sgd grad param m skip > param m", kHeavy});
  f.add("lion that skips", {"lion grad param m skip > param m", kSigns});
}

// Returns the rule with four groups of parameters: in pieces of the op's `n` elements, or of the shards of all ranks.
Attrs in_pieces(Attrs rule, Counts starts, int64_t n, bool of_shards) {
  rule.set("piece_starts", std::move(starts));
  rule.set("piece_lr_factors", Numbers{1, 0.25, 2, 1});
  rule.set("piece_weight_decays", Numbers{0.1, 0, 0.5, 0});
  rule.erase("weight_decay");
  if (of_shards) rule.set("axis", "dp"), rule.set("shard", n);
  return rule;
}

void add_updates_of_groups(Family& f, int64_t n) {
  Attrs slower = adamw();
  slower.set("lr_factor", 0.25);
  f.add("adamw with a factor", {"adamw grad param m v > param m v", slower}, 2e-6);
  const int64_t quarter = n / 16 * 4;  // packs of 4 elements are in one piece
  const Counts uneven = {0, n / 3, n / 3 + n / 5, n - 1}, even = {0, quarter, 2 * quarter, 3 * quarter},
               shards = {0, 2 * n + n / 5, 2 * n + n / 2, 3 * n};
  for (const Counts& starts : {uneven, even, shards}) {
    const auto add = [&](const char* name, const char* line, const Attrs& attrs) {
      f.add(name, {line, in_pieces(attrs, starts, n, starts == shards)}, 2e-6);
    };
    add("adamw of pieces", "adamw grad param m v > param m v", adamw());
    add("adamw with l2, of pieces", "adamw grad param m v > param m v", adam());
    add("sgd of pieces", "sgd grad param > param", kPlain);
    add("sgd with momentum, of pieces", "sgd grad param m clip > param m", kHeavy);
    add("lion of pieces", "lion grad param m > param m", kSigns);
  }
}

// f32 in, bf16 out.
void add_casting_updates(Family& f, std::vector<Case>& out) {
  const Line cast{"cast master > low", cast_to("bf16")};
  const size_t casts = out.size();
  f.add("adamw_cast", {"adamw_cast grad master m v > master m v low", adamw()}, 2e-6, {},
        {{"adamw grad master m v > master m v", adamw()}, cast});
  f.add("adamw_cast clipped", {"adamw_cast grad master m v clip > master m v low", adamw()}, 2e-6, {},
        {{"adamw grad master m v clip > master m v", adamw()}, cast});
  f.add("adamw_cast with l2", {"adamw_cast grad master m v > master m v low", adam()}, 2e-6, {},
        {{"adamw grad master m v > master m v", adam()}, cast});
  f.add("sgd_cast with Nesterov momentum", {"sgd_cast grad master m > master m low", kAhead}, 1e-6, {},
        {{"sgd grad master m > master m", kAhead}, cast});
  f.add("sgd_cast", {"sgd_cast grad master > master low", kPlain}, 1e-6, {},
        {{"sgd grad master > master", kPlain}, cast});
  f.add("sgd_cast with momentum, clipped", {"sgd_cast grad master m clip > master m low", kHeavy}, 1e-6, {},
        {{"sgd grad master m clip > master m", kHeavy}, cast});
  for (size_t i = casts; i < out.size(); ++i) out[i].bf16 = false;
}

void add_norms(Family& f, int64_t n) {
  f.add("norm2", "norm2 grad m v > norm");
  f.add("norm2 of weighted tensors", {"norm2 grad m v > norm", make_attrs({{"weights", Numbers{0.5, 1, 0}}})});
  f.add("norm2 of tensors with whole weights", {"norm2 grad m v > norm", make_attrs({{"weights", Counts{1, 0, 2}}})});
  Attrs pieces = make_attrs({{"piece_starts", Counts{n / 3, 2 * n + n / 5, 2 * n + n / 2, 3 * n}},
                             {"piece_weights", Numbers{0.25, 0.5, 1, 7}}});
  f.add("norm2 of weighted pieces", {"norm2 grad > norm", pieces});
  for (const double size : {1e25, 1e-30})
    f.add("norm2 of numbers whose squares no f32 holds", "norm2 far > norm", 1e-6,
          {{"scale grad > far", make_attrs({{"factor", size}})}});
  pieces.set("axis", "dp");
  f.add("norm2 of weighted pieces of a shard", {"norm2 grad > norm", pieces});
}

void add_large_norms(std::vector<Case>& out) {
  // More elements than one thread block sums, split at unaligned positions.
  Family large(out, {{"flat", {F32, {70001}}}, {"other", {F32, {3}}}, {"norm", {F64, {}}}});
  Attrs cut = make_attrs(
      {{"piece_starts", Counts{33333, 140001, 140002, 170005}}, {"piece_weights", Numbers{0.25, 0.5, 1, 7}}});
  large.add("norm2 of large tensors", "norm2 flat other > norm");
  large.add("norm2 of pieces of a large tensor", {"norm2 flat > norm", cut});
  cut.set("axis", "dp");
  large.add("norm2 of pieces of a large shard", {"norm2 flat > norm", cut});
}

void add_clipping(std::vector<Case>& out) {
  for (double square : {0.0, 0.3, 9.0, 1e50, 1e-60}) {
    Family f(out, {{"square", {F64, {}, square, square}}, {"factor", {F32, {}}}, {"norm", {F64, {}}}});
    f.add("clip_coefficient", {"clip_coefficient square > factor norm", make_attrs({{"max", 1.0}})});
    f.add("clip_coefficient that clips nothing",
          {"clip_coefficient square > factor norm", make_attrs({{"max", 0.0}, {"skip", int64_t{1}}})});
  }
  {
    Family f(out, {{"x large", {F64, {}, 1e10, 1e10}}, {"factor", {F32, {}}}, {"norm", {F64, {}}}});
    f.add("clip_coefficient that skips",
          {"clip_coefficient large > factor norm", make_attrs({{"max", 1.0}, {"skip", int64_t{1}}})}, 1e-6,
          {{"scale x > large", make_attrs({{"factor", 1e300}})}});
  }
}

void add_finite_checks(std::vector<Case>& out) {
  // Numbers, infinities and NaNs, in more elements than one thread reads.
  const auto times = [](const char* line, double factor) { return Line{line, make_attrs({{"factor", factor}})}; };
  for (int64_t n : {1, 7, 40001})
    for (int64_t infinite : {0, 1}) {
      Family f(out, {{"x large none", {T, {n}}}, {"flags", {I32, {}}}});
      f.add("check_finite", {"check_finite x large none > flags", make_attrs({{"infinite", infinite}})}, 1e-6,
            {times("scale x > large", 1e300), times("scale large > none", 0)});
    }
  // On one rank of an axis only; and on a prefix of the tensor, which holds few of its infinities.
  for (int64_t root : {1, 2}) {
    Family f(out, {{"x large", {T, {9}}}, {"flags", {I32, {}}}});
    f.add("check_finite at a root", {"check_finite large > flags", make_attrs({{"root", root}, {"axis", "dp"}})}, 1e-6,
          {times("scale x > large", 1e300)});
  }
  for (double most : {2.0, 400.0, 10000.0}) {
    Family f(out, {{"x large", {T, {40001}}}, {"counts", {I64, {4}, 0, most}}, {"flags", {I32, {}}}});
    f.add("check_finite of a beginning", {"check_finite large counts > flags", make_attrs({{"counted", 1}})}, 1e-6,
          {times("scale x > large", 3.45e38)});
  }
}

}  // namespace

std::vector<Case> training_cases() {
  std::vector<Case> out;
  for (int64_t n : {1, 7, 1029, 20011}) {
    Family f(out, {{"grad master m", {F32, {n}}},
                   {"param", {T, {n}}},
                   {"v", {F32, {n}, 0.01, 1}},
                   {"clip", {F32, {}, 0.5, 0.6}},
                   {"skip", {F32, {}, -1, -1}},
                   {"low", {BF16, {n}}},
                   {"far", {F32, {n}}},
                   {"norm", {F64, {}}}});
    add_updates(f);
    add_casting_updates(f, out);
    add_norms(f, n);
  }
  for (int64_t n : {1, 1029, 8192}) {
    Family f(out,
             {{"grad m", {F32, {n}}}, {"param", {T, {n}}}, {"v", {F32, {n}, 0.01, 1}}, {"clip", {F32, {}, 0.5, 0.6}}});
    add_updates_of_groups(f, n);
  }
  add_large_norms(out);
  add_clipping(out);
  add_finite_checks(out);
  for (int64_t n : {1, 40001}) {
    Family f(out, {{"x y", {T, {n}}}, {"counts", {I64, {3}, 0, 1000}}, {"prints", {I64, {3}}}});
    f.add("fingerprint", "fingerprint x counts y > prints");
  }
  return out;
}

// Cases that agree bitwise.
std::vector<Case> source_cases() {
  std::vector<Case> out;
  Family f(out, {{"flat", {T, {1408}}},
                 {"shard", {T, {352}}},
                 {"split", {T, {48}}},
                 {"split_shard", {T, {12}}},
                 {"padded", {T, {96}}},
                 {"padded_shard", {T, {24}}},
                 {"x", {T, {7}}},
                 {"three", {T, {3}}},
                 {"two", {T, {2}}},
                 {"whole", {I64, {5}}},
                 {"count", {I64, {}, 0, 4}},
                 {"five", {T, {5}}},
                 {"random", {I64, {33}}}});
  Attrs init = make_attrs({{"starts", Counts{0, 16, 38, 48, 1031}},
                           {"counts", Counts{13, 21, 9, 977, 371}},
                           {"kinds", Counts{1, 3, 2, 4, 3}},
                           {"scales", Numbers{0, 0.02, 0.7, 0.1, 1}},
                           {"keys", Counts{3, 5, 8, 13, 21}}});
  f.add("init_params", {"init_params > flat", init}, 0);
  init.set("axis", "dp");  // rank 2 of 4: elements [704, 1056)
  f.add("init_params of a shard", {"init_params > shard", init}, 0);
  // A fused weight [3, 5|4|5] split over four ranks, and [9, 4] by its rows: 3·(2+1+2) and 3·4 elements here.
  Attrs split = make_attrs({{"starts", Counts{0, 16, 32}},
                            {"counts", Counts{15, 7, 12}},
                            {"kinds", Counts{3, 1, 4}},
                            {"scales", Numbers{0.02, 0, 1}},
                            {"keys", Counts{3, 5, 8}},
                            {"split_outer", Counts{3, 0, 1}},
                            {"split_block_count", Counts{3, 0, 1}},
                            {"split_blocks", Counts{5, 4, 5, 36}},
                            {"split_slice", Counts{1, 0, 4}},
                            {"split_axis", "dp,,dp"}});
  f.add("init_params of split parameters", {"init_params > split", split}, 0);
  split.set("axis", "dp");
  f.add("init_params of a shard of split parameters", {"init_params > split_shard", split}, 0);
  // [3, 5] by its columns and [9, 4] by its rows, padded to 4 columns a rank and to 16 rows.
  Attrs padded = make_attrs({{"starts", Counts{0, 16, 32}},
                             {"counts", Counts{12, 7, 64}},
                             {"kinds", Counts{3, 1, 4}},
                             {"scales", Numbers{0.02, 0, 1}},
                             {"keys", Counts{3, 5, 8}},
                             {"split_outer", Counts{3, 0, 1}},
                             {"split_block_count", Counts{1, 0, 1}},
                             {"split_blocks", Counts{5, 36}},
                             {"split_slice", Counts{1, 0, 4}},
                             {"split_axis", "dp,,"},
                             {"split_grain", Counts{4, 1, 16}}});
  f.add("init_params of padded parameters", {"init_params > padded", padded}, 0);
  padded.set("axis", "dp");
  f.add("init_params of a shard of padded parameters", {"init_params > padded_shard", padded}, 0);
  f.add("fill", {"fill > x", make_attrs({{"value", 1.7}})}, 0);
  f.add("values", {"values > three", make_attrs({{"values", Numbers{1, -2.5, 3}}})}, 0);
  f.add("values of whole numbers", {"values > two", make_attrs({{"values", Counts{4, -1}}})}, 0);
  f.add("iota", {"iota > whole", make_attrs({{"start", 3}, {"step", 2}})}, 0).bf16 = false;
  f.add("iota of a count", {"iota count > five", make_attrs({{"start", 0.5}})}, 0);
  f.add("random_int", {"random_int > random", make_attrs({{"low", -3}, {"high", 9}, {"key", 4}})}, 0).bf16 = false;
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& family : {matrix_cases(), attention_cases(), row_cases(), pointwise_cases(), arithmetic_cases(),
                             piece_cases(), training_cases(), source_cases(), moe_cases(), attention_block_cases(), decode_cases()})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace prun

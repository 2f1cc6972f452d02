// Attention of a training step, of a decoder with a KV cache, and of a block of keys in ring attention.
#include "tests/agreement/case_family.h"

namespace prun {

namespace {

// Forms of rotary for heads of `size` elements: their names, and attributes.
std::vector<std::pair<const char*, Attrs>> rotary_forms(int64_t size) {
  const auto of = [&](std::initializer_list<std::pair<const char*, Attr>> more) {
    Attrs attrs = make_attrs({{"size", size}, {"base", 5000.0}});
    for (const auto& [name, value] : more) attrs.set(name, value);
    return attrs;
  };
  const int64_t part = std::max<int64_t>(2, size / 4 * 2);
  std::vector<double> factors;
  factors.reserve(size / 2);
  for (int64_t i = 0; i < size / 2; ++i) factors.push_back(1 + 0.25 * static_cast<double>(i % 5));
  return {
      {"", of({})},
      {" of a part", of({{"part", part}})},
      {" of neighbors", of({{"interleaved", int64_t{1}}})},
      {" of a part's neighbors", of({{"interleaved", int64_t{1}}, {"part", part}})},
      {" back", of({{"inverse", int64_t{1}}, {"attention_factor", 1.25}})},
      {", YaRN", of({{"scaling", std::string("yarn")},
                     {"factor", 4.0},
                     {"original_context", int64_t{64}},
                     {"beta_fast", 16.0},
                     {"beta_slow", 0.5},
                     {"attention_factor", 1.125}})},
      {", YaRN without rounding", of({{"scaling", std::string("yarn")},
                                      {"factor", 4.0},
                                      {"original_context", int64_t{64}},
                                      {"whole_pairs", int64_t{0}}})},
      {", LongRoPE", of({{"scaling", std::string("longrope")}, {"factors", factors}, {"interleaved", int64_t{1}}})},
  };
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, length, heads, head_width;
  };
  const std::vector<Sizes> sizes = {{1, 1, 1, 1},   {2, 5, 3, 7},   {1, 37, 2, 16},   {2, 64, 1, 64}, {1, 130, 3, 20},
                                    {1, 200, 1, 8}, {1, 65, 1, 80}, {1, 129, 1, 128}, {1, 17, 2, 256}};
  for (const Sizes& s : sizes)
    for (bool causal : {false, true}) {
      const int64_t d = s.heads * s.head_width;
      const double rounding = s.head_width > 64 ? 4 : 1;  // longer sums in f32
      const Slot wide{T, {s.batch, s.length, 3 * d}, -2, 2}, row{T, {s.batch, s.length, d}};
      Family f(out, {{"qkv dqkv", wide}, {"y dy", row}, {"lse", {F32, {s.batch, s.heads, s.length}}}});
      const Attrs heads = make_attrs({{"heads", s.heads}, {"causal", causal}});
      const Line forward{"attention qkv > y lse", heads};
      f.add("attention", forward, 3e-6 * rounding);
      f.add("attention_grad", {"attention_grad qkv y dy lse > dqkv", heads}, 5e-6 * rounding, {forward});
    }
  // Scores of 160,000: exp overflows unless the maximum is subtracted.
  Family large(out, {{"qkv", {T, {1, 70, 3 * 16}, 200, 200}}, {"y", {T, {1, 70, 16}}}, {"lse", {F32, {1, 1, 70}}}});
  large.add("attention of large scores", {"attention qkv > y lse", make_attrs({{"heads", 1}, {"causal", 1}})});
  for (auto [shared, size] : {std::pair<int64_t, int64_t>{1, 7}, {2, 20}, {3, 16}}) {
    const Attrs attrs = make_attrs({{"heads", 6}, {"kv_heads", shared}, {"causal", shared != 2}});
    const Slot wide{T, {2, 37, (6 + 2 * shared) * size}, -2, 2}, row{T, {2, 37, 6 * size}};
    Family f(out, {{"qkv dqkv", wide}, {"y dy", row}, {"lse", {F32, {2, 6, 37}}}});
    const Line forward{"attention qkv > y lse", attrs};
    f.add("attention with shared keys", forward, 3e-6);
    f.add("attention_grad with shared keys", {"attention_grad qkv y dy lse > dqkv", attrs}, 5e-6, {forward});
  }
  for (int64_t size : {2, 14, 32})
    for (int64_t chunks : {1, 2}) {
      Attrs attrs = make_attrs({{"size", size}, {"heads", 3}, {"chunks", chunks}, {"tokens_axis", "dp"}});
      Family f(out, {{"x y", {T, {2, 34, 5 * size}}}});
      f.add("rotary", {"rotary x > y", attrs});
      attrs.set("inverse", 1);
      f.add("rotary back, in place", {"rotary x > x", attrs});
      if (size == 2) continue;
      for (int64_t part : {size / 2 / 2 * 2, size - 2}) {
        attrs.set("part", part);
        f.add("rotary of a part", {"rotary x > y", attrs});
        f.add("rotary of a part, in place", {"rotary x > x", attrs});
      }
      attrs.set("part", size);
      attrs.set("scaling", "linear");
      attrs.set("factor", 2.5);
      f.add("rotary, linear scaling", {"rotary x > y", attrs});
      attrs.set("scaling", "llama3");
      attrs.set("low_freq_factor", 1.0);
      attrs.set("high_freq_factor", 4.0);
      attrs.set("original_context", int64_t{64});
      f.add("rotary, Llama 3's scaling", {"rotary x > y", attrs});
      for (auto& [form, turn] : rotary_forms(size)) {
        turn.set("heads", int64_t{3}), turn.set("chunks", chunks), turn.set("tokens_axis", std::string("dp"));
        f.add("rotary" + std::string(form), {"rotary x > y", turn});
        f.add("rotary in place" + std::string(form), {"rotary x > x", turn});
      }
    }
  return out;
}

// A chunk of a prompt, one token, and tokens in arbitrary order.
std::vector<Case> decode_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, length, context, heads, kv_heads, size;
  };
  for (Sizes s : {Sizes{1, 1, 1, 1, 1, 2},
                  {1, 1, 1100, 3, 3, 16},
                  {2, 5, 37, 4, 2, 14},
                  {1, 33, 100, 6, 1, 64},
                  {4, 9, 20, 1, 1, 14},
                  {2, 17, 1030, 4, 2, 64},
                  {1, 1, 1100, 12, 2, 128},
                  {2, 1, 70, 2, 2, 80},
                  {1, 3, 140, 2, 1, 256}}) {
    const int64_t kept = 2 * s.kv_heads * s.size;
    Family f(out, {{"qkv turned", {T, {s.batch, s.length, s.heads * s.size + kept}, -2, 2}},
                   {"at", {I32, {s.batch, s.length}, 0, static_cast<double>(s.context)}},
                   {"far", {I32, {s.batch, s.length}, -1000, 100000}},
                   {"cache", {T, {s.batch, s.context, kept}, -2, 2}},
                   {"y", {T, {s.batch, s.length, s.heads * s.size}}}});
    const Attrs heads = make_attrs({{"heads", s.heads}, {"kv_heads", s.kv_heads}, {"context", s.context}});
    const Attrs turns = make_attrs({{"heads", s.heads}, {"size", s.size}, {"base", 5000.0}});
    f.add("cached_attention", {"cached_attention qkv at cache > y cache", heads}, 4e-6);
    for (auto& [form, attrs] : rotary_forms(s.size)) {
      attrs.set("heads", s.heads);
      f.add("rotary_at" + std::string(form), {"rotary_at qkv at > turned", attrs});
      f.add("rotary_at far" + std::string(form), {"rotary_at qkv far > qkv", attrs});
    }
    Attrs scaled = turns;
    for (const auto& [name, value] :
         {std::pair{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 3.0}, {"original_context", 40.0}})
      scaled.set(name, value);
    scaled.set("scaling", "llama3");
    f.add("rotary_at, Llama 3's scaling", {"rotary_at qkv at > turned", scaled});
  }
  return out;
}

// Rank 2 of 4: hop 1 has earlier keys, hop 3 has later ones.
std::vector<Case> attention_block_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, length, heads, kv_heads, size, chunks;
  };
  for (Sizes s :
       {Sizes{1, 2, 1, 1, 1, 2}, {2, 6, 4, 2, 7, 2}, {1, 74, 2, 1, 16, 2}, {1, 37, 3, 3, 20, 1}, {2, 36, 4, 2, 8, 1}})
    for (int64_t hop : {0, 1, 3})
      for (bool causal : {false, true}) {
        const Slot kv{T, {s.batch, s.length, 2 * s.kv_heads * s.size}, -2, 2},
            row{T, {s.batch, s.length, s.heads * s.size}};
        Family f(out, {{"qkv", {T, {s.batch, s.length, (s.heads + 2 * s.kv_heads) * s.size}, -2, 2}},
                       {"own_kv kv", kv},
                       {"own_sum sum dq_before dq", {F32, row.shape}},
                       {"own_lse lse", {F32, {s.batch, s.heads, s.length}}},
                       {"y dy", row},
                       {"dkv", {F32, kv.shape}}});
        Attrs first = make_attrs({{"heads", s.heads}, {"causal", causal}, {"kv_heads", s.kv_heads}});
        first.set("chunks", s.chunks), first.set("tokens_axis", "dp"), first.set("hop", 0);
        Attrs later = first;
        later.set("hop", hop);
        const Line own{"attention_block qkv own_kv > own_sum own_lse", first},
            other{"attention_block qkv kv own_sum own_lse > sum lse", later}, rounded{"cast sum > y"};
        if (hop == 0) f.add("attention_block", own, 3e-6);
        if (hop > 0) {
          f.add("attention_block merged", other, 3e-6, {own});
          f.add("attention_block in place", {"attention_block qkv kv own_sum own_lse > own_sum own_lse", later}, 3e-6,
                {own});
        }
        const std::vector<Line> before = {own, other, rounded};
        f.add("attention_block_grad", {"attention_block_grad qkv kv y dy lse > dq dkv", later}, 8e-6, before);
        f.add("attention_block_grad merged", {"attention_block_grad qkv kv y dy lse dq_before > dq dkv", later}, 8e-6,
              before);
        f.add("attention_block_grad in place",
              {"attention_block_grad qkv kv y dy lse dq_before > dq_before dkv", later}, 8e-6, before);
        f.add("copy_kv", "copy_kv qkv > kv", 0);
        f.add("join_qkv", "join_qkv sum dkv > qkv", 0);
      }
  return out;
}

}  // namespace prun

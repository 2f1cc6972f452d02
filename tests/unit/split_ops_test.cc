// Ops that compute one rank's part of a tensor: the parts of all ranks together equal the result of one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "prun/philox.h"
#include "tests/unit/one_op.h"

namespace prun::test {
namespace {

Values slice(const Values& all, int64_t first, int64_t count) {
  Values out(static_cast<size_t>(count));  // zeros beyond the end
  for (int64_t i = 0; i < count && first + i < static_cast<int64_t>(all.size()); ++i)
    out[static_cast<size_t>(i)] = all[static_cast<size_t>(first + i)];
  return out;
}

// Returns columns [first, first + count) of rows of `width` elements; columns beyond the end are `fill`.
Values columns(const Values& all, int64_t width, int64_t first, int64_t count, double fill) {
  Values out;
  for (int64_t row = 0; row < static_cast<int64_t>(all.size()) / width; ++row)
    for (int64_t i = first; i < first + count; ++i)
      out.push_back(i < width ? all[static_cast<size_t>(row * width + i)] : fill);
  return out;
}

int64_t ceil_of(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

TEST(SplitOps, EmbeddingOfASplitVocabulary) {
  const int64_t vocab = 11, width = 3, tokens = 14;
  const Values ids = random_tokens(tokens, 3, vocab), table = random_values(vocab * width, 1, Dtype::f32, 4),
               dy = random_values(tokens * width, 2, Dtype::f32, 4);
  OneOp whole("embedding"), whole_grad("embedding_grad");
  whole.read(Dtype::i32, {2, 7}, ids).read(Dtype::f32, {vocab, width}, table).write(Dtype::f32, {2, 7, width});
  whole_grad.read(Dtype::i32, {2, 7}, ids).read(Dtype::f32, {2, 7, width}, dy).write(Dtype::f32, {vocab, width});
  const Values want = whole.run(cpu()).result(), want_grad = whole_grad.run(cpu()).result();
  for (int ranks : {1, 2, 3, 4}) {
    const int64_t rows = ceil_of(vocab, ranks);
    Values sum(want.size()), grads;
    for (int rank = 0; rank < ranks; ++rank) {
      OneOp part("embedding"), grad("embedding_grad");
      for (OneOp* op : {&part, &grad}) op->mesh({{"tp", ranks}}, rank).attr("axis", "tp");
      part.read(Dtype::i32, {2, 7}, ids);
      part.read(Dtype::f32, {rows, width}, slice(table, rank * rows * width, rows * width));
      const Values y = part.write(Dtype::f32, {2, 7, width}).run(cpu()).result();
      for (size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
      grad.read(Dtype::i32, {2, 7}, ids).read(Dtype::f32, {2, 7, width}, dy);
      const Values dtable = grad.write(Dtype::f32, {rows, width}).run(cpu()).result();
      grads.insert(grads.end(), dtable.begin(), dtable.end());
    }
    EXPECT_EQ(sum, want) << ranks;
    EXPECT_EQ(slice(grads, 0, vocab * width), want_grad) << ranks;
    for (size_t i = want_grad.size(); i < grads.size(); ++i) EXPECT_EQ(grads[i], 0);
  }
}

// The positions of each rank's tokens, written out by hand instead of computed as devices do.
TEST(SplitOps, PositionsOfASplitSample) {
  struct Split {
    int cp, tp;  // tp divides a rank's share of cp into runs
    int64_t chunks;
    std::vector<Values> held;
  };
  const Split splits[] = {
      {1, 1, 1, {{0, 1, 2, 3, 4, 5, 6, 7}}},       {2, 1, 1, {{0, 1, 2, 3}, {4, 5, 6, 7}}},
      {1, 1, 2, {{0, 1, 2, 3, 4, 5, 6, 7}}},       {2, 1, 2, {{0, 1, 6, 7}, {2, 3, 4, 5}}},
      {4, 1, 2, {{0, 7}, {1, 6}, {2, 5}, {3, 4}}}, {2, 2, 1, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {2, 2, 2, {{0, 1}, {6, 7}, {2, 3}, {4, 5}}}, {2, 4, 2, {{0}, {1}, {6}, {7}, {2}, {3}, {4}, {5}}}};
  for (const Split& split : splits) {
    Values positions(10), gradients(10);
    for (size_t i = 0; i < 10; ++i) positions[i] = static_cast<double>(i);
    for (int rank = 0; rank < split.cp * split.tp; ++rank) {
      const Values& held = split.held[static_cast<size_t>(rank)];
      const int64_t length = static_cast<int64_t>(held.size());
      OneOp op("positions"), grad("positions_grad");
      for (OneOp* one : {&op, &grad})
        one->mesh({{"cp", split.cp}, {"tp", split.tp}}, rank)
            .attr("tokens_axis", split.tp > 1 ? "cp,tp" : "cp")
            .attr("chunks", split.chunks);
      op.read(Dtype::f32, {1, length, 1}, Values(held.size(), 0)).read(Dtype::f32, {10, 1}, positions);
      EXPECT_EQ(op.write(Dtype::f32, {1, length, 1}).run(cpu()).result(), held)
          << rank << " of " << split.cp << " x " << split.tp;
      Values dy = held;
      dy.insert(dy.end(), held.begin(), held.end());
      grad.read(Dtype::f32, {2, length, 1}, dy).write(Dtype::f32, {10, 1});
      const Values dtable = grad.run(cpu()).result();
      for (size_t i = 0; i < 10; ++i) gradients[i] += dtable[i];
    }
    EXPECT_EQ(gradients, (Values{0, 2, 4, 6, 8, 10, 12, 14, 0, 0})) << split.cp << " x " << split.tp;
  }
}

// The ops of a tensor-parallel group, with the all-reduces done by hand; the last ranks have only padding.
TEST(SplitOps, CrossEntropyOfASplitVocabulary) {
  const int64_t vocab = 9, rows = 5;
  const Values logits = random_values(rows * vocab, 1, Dtype::f32, 4), targets = random_tokens(rows, 3, vocab);
  OneOp whole("cross_entropy");
  whole.attr("scale", 0.25).read(Dtype::f32, {rows, vocab}, logits).read(Dtype::i32, {rows}, targets);
  whole.write(Dtype::f32, {}).write(Dtype::f32, {rows}).run(cpu());
  const double loss = whole.result(0)[0];
  const Values lse = whole.result(1);
  OneOp whole_grad("cross_entropy_grad");
  whole_grad.attr("scale", 0.25).read(Dtype::f32, {rows, vocab}, logits).read(Dtype::i32, {rows}, targets);
  const Values want = whole_grad.read(Dtype::f32, {rows}, lse).write(Dtype::f32, {rows, vocab}).run(cpu()).result();
  for (int ranks : {1, 2, 4, 7}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const int64_t width = ceil_of(vocab, ranks);
    auto op = [&](const char* kind, int rank) {
      OneOp one(kind);
      one.mesh({{"tp", ranks}}, rank).attr("axis", "tp").attr("vocab", vocab).attr("scale", 0.25);
      return one;
    };
    auto local = [&](int rank) { return columns(logits, vocab, rank * width, width, 1e9); };
    Values top(rows, -INFINITY), sums(2 * rows);
    for (int rank = 0; rank < ranks; ++rank) {
      OneOp one = op("cross_entropy_max", rank);
      const Values part =
          one.read(Dtype::f32, {rows, width}, local(rank)).write(Dtype::f32, {rows}).run(cpu()).result();
      for (size_t i = 0; i < top.size(); ++i) top[i] = std::max(top[i], part[i]);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      OneOp one = op("cross_entropy_sums", rank);
      one.read(Dtype::f32, {rows, width}, local(rank)).read(Dtype::i32, {rows}, targets).read(Dtype::f32, {rows}, top);
      const Values part = one.write(Dtype::f32, {2, rows}).run(cpu()).result();
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
    }
    for (int rank = 0; rank < ranks; ++rank) {
      OneOp finish = op("cross_entropy_finish", rank);
      finish.read(Dtype::f32, {2, rows}, sums).read(Dtype::f32, {rows}, top);
      finish.read(Dtype::f32, {rows, width}, local(rank)).read(Dtype::i32, {rows}, targets);
      finish.write(Dtype::f32, {}).write(Dtype::f32, {rows}).run(cpu());
      EXPECT_NEAR(finish.result(0)[0], loss, 4e-6);
      OneOp grad = op("cross_entropy_grad", rank);
      grad.read(Dtype::f32, {rows, width}, local(rank)).read(Dtype::i32, {rows}, targets);
      grad.read(Dtype::f32, {rows}, finish.result(1)).write(Dtype::f32, {rows, width}).run(cpu());
      const Values expected = columns(want, vocab, rank * width, width, 0), got = grad.result();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-7) << "rank " << rank << " " << i;
    }
  }
}

TEST(SplitOps, PiecesJoinAndCut) {
  const Values ranks = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};  // [2, 2] per rank
  const Values joined = {0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23};
  auto op = [](const char* kind) {
    OneOp one(kind);
    one.attr("pieces", 3).attr("dim", 1);
    return one;
  };
  OneOp join = op("join_pieces"), cut = op("cut_pieces"), take = op("take_piece");
  EXPECT_EQ(join.read(Dtype::f32, {3, 2, 2}, ranks).write(Dtype::f32, {2, 6}).run(cpu()).result(), joined);
  EXPECT_EQ(cut.read(Dtype::bf16, {2, 6}, joined).write(Dtype::bf16, {3, 2, 2}).run(cpu()).result(), ranks);
  take.mesh({{"tp", 3}}, 1).attr("axis", "tp").read(Dtype::i64, {2, 6}, joined);
  EXPECT_EQ(take.write(Dtype::i64, {2, 2}).run(cpu()).result(), slice(ranks, 4, 4));
}

// The mask is the same for every distribution of samples, tokens and columns, and differs by op, step and seed.
TEST(SplitOps, DropoutIsTheSameUnderEverySharding) {
  const int64_t batch = 4, length = 8, width = 90;
  auto masked = [&](std::vector<Axis> mesh, int rank, Shape shape, int64_t first, int64_t samples, int64_t chunks) {
    OneOp op("dropout");
    op.mesh(std::move(mesh), rank).at_step(5, 0, 42).attr("p", 0.25).attr("key", 3);
    op.attr("rows_axis", "dp,ep").attr("tokens_axis", "cp").attr("chunks", chunks);
    op.attr("split_axis", "tp").attr("first", first).attr("samples", samples);
    op.read(Dtype::f32, shape, Values(static_cast<size_t>(element_count(shape)), 3.0));
    return op.write(Dtype::f32, shape).run(cpu()).result();
  };
  auto mesh = [](int dp, int ep, int cp, int tp) {
    return std::vector<Axis>{{"dp", dp}, {"ep", ep}, {"cp", cp}, {"tp", tp}};
  };
  const Values whole = masked(mesh(1, 1, 1, 1), 0, {batch, length, width}, 0, batch, 1);
  int64_t kept = 0;
  for (double y : whole) {
    EXPECT_TRUE(y == 0 || y == 4) << y;
    kept += y != 0;
  }
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(whole.size()), 0.75, 0.03);
  auto element = [&](int64_t sample, int64_t token, int64_t column) {
    return whole[static_cast<size_t>((sample * length + token) * width + column)];
  };
  for (int rank = 0; rank < 16; ++rank) {
    const int64_t sample = rank / 4, c = rank / 2 % 2, t = rank % 2;
    for (int64_t chunks : {1, 2}) {
      const Values part = masked(mesh(2, 2, 2, 2), rank, {1, length / 2, width / 2}, 0, 1, chunks);
      for (int64_t token = 0; token < 4; ++token) {
        const int64_t place = chunks == 1 ? 4 * c + token : c == 0 ? (token < 2 ? token : token + 4) : token + 2;
        for (int64_t j = 0; j < width / 2; ++j)
          ASSERT_EQ(part[static_cast<size_t>(token * width / 2 + j)], element(sample, place, t * width / 2 + j))
              << rank;
      }
    }
  }
  const Values second = masked(mesh(2, 1, 1, 1), 1, {1, length, width}, 1, 2, 1);  // the second microbatch of rank 1
  EXPECT_EQ(second, slice(whole, 3 * length * width, length * width));
  for (int other : {0, 1, 2}) {
    OneOp op("dropout");
    op.at_step(other == 0 ? 6 : 5, 0, other == 1 ? 43 : 42).attr("p", 0.25).attr("key", other == 2 ? 4 : 3);
    op.read(Dtype::f32, {batch, length, width}, Values(whole.size(), 3.0)).write(Dtype::f32, {batch, length, width});
    EXPECT_NE(op.run(cpu()).result(), whole);
  }
}

// prun/philox.h defines the random word of each element for all devices; this test generates one block at a time.
TEST(SplitOps, DropoutDrawsTheWordsThatEveryDeviceDraws) {
  const int64_t batch = 2, length = 3, key = 3;
  const uint64_t seed = uint64_t{5} << 40 | 42, stream = philox::dropout_stream(seed, static_cast<uint64_t>(key), 5);
  for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (int64_t width : {1, 15, 64, 200}) {
      OneOp op("dropout");
      op.at_step(5, 0, seed).attr("p", 0.25).attr("key", key);
      op.read(dtype, {batch, length, width}, Values(static_cast<size_t>(batch * length * width), 3.0));
      const Values got = op.write(dtype, {batch, length, width}).run(cpu()).result();
      for (int64_t i = 0; i < std::ssize(got); ++i) {
        const int64_t size = length * width;
        const uint32_t word =
            philox::dropout_word(stream, static_cast<uint64_t>(i / size), static_cast<uint64_t>(i % size));
        ASSERT_EQ(got[static_cast<size_t>(i)], word >= philox::dropout_bound(0.25) ? 4.0 : 0.0) << width << " " << i;
      }
    }
  }
}

// Compares with angles written out by hand.
TEST(SplitOps, RotaryTurnsByThePositionInTheWholeSample) {
  const Values held = {2, 3, 4, 5};  // of 8 positions; rank 1 of 2 with balanced chunks
  OneOp op("rotary");
  op.mesh({{"cp", 2}}, 1).attr("tokens_axis", "cp").attr("chunks", 2);
  op.attr("size", 4).attr("heads", 1).attr("base", 100.0);
  Values x;
  for (int token = 0; token < 4; ++token)
    for (double value : {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}) x.push_back(value);
  const Values y = op.read(Dtype::f32, {1, 4, 8}, x).write(Dtype::f32, {1, 4, 8}).run(cpu()).result();
  for (size_t token = 0; token < 4; ++token) {
    const double fast = held[token], slow = held[token] / 10;
    const double want[] = {std::cos(fast) - 3 * std::sin(fast),
                           2 * std::cos(slow) - 4 * std::sin(slow),
                           3 * std::cos(fast) + std::sin(fast),
                           4 * std::cos(slow) + 2 * std::sin(slow),
                           5,
                           6,
                           7,
                           8};
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[token * 8 + i], want[i], 2e-6) << token << " " << i;
  }
}

struct Layout {
  std::vector<int64_t> outer, blocks, block_counts, slices;
  std::string axes, parts = {};
};

Values initial(std::vector<int64_t> counts, const Layout& layout, std::vector<Axis> mesh, int rank, int64_t total,
               const std::string& shard) {
  OneOp op("init_params");
  std::vector<int64_t> starts, kinds, keys;
  int64_t start = 0;
  for (int64_t count : counts) {
    starts.push_back(start);
    keys.push_back(static_cast<int64_t>(keys.size()));
    kinds.push_back(3 + keys.back() % 2);  // normal and uniform
    start += round_up(count, 16);
  }
  op.mesh(std::move(mesh), rank).at_step(0, 0, 42).attr("axis", shard);
  op.attr("starts", starts).attr("counts", counts).attr("kinds", kinds).attr("keys", keys);
  op.attr("scales", std::vector<double>(counts.size(), 1.0));
  if (!layout.outer.empty())
    op.attr("split_outer", layout.outer).attr("split_blocks", layout.blocks).attr("split_axis", layout.axes);
  if (!layout.outer.empty()) op.attr("split_block_count", layout.block_counts).attr("split_slice", layout.slices);
  if (!layout.parts.empty()) op.attr("split_parts", layout.parts);
  return op.write(Dtype::f32, {total}).run(cpu()).result();
}

// Four experts [3, 6], two on each rank of ep, of each of which the ranks of tp have columns.
TEST(SplitOps, InitialValuesOfPartsOfExperts) {
  const Values whole = initial({72}, {}, {}, 0, 80, "");
  for (int ep : {0, 1})
    for (int tp : {0, 1, 2}) {
      const Layout layout{{6}, {6}, {1}, {1}, "tp", "ep"};
      const Values part = initial({12}, layout, {{"ep", 2}, {"tp", 3}}, ep * 3 + tp, 16, "");
      for (int64_t row = 0; row < 6; ++row)
        for (int64_t j = 0; j < 2; ++j)
          EXPECT_EQ(part[static_cast<size_t>(row * 2 + j)],
                    whole[static_cast<size_t>((ep * 6 + row) * 6 + tp * 2 + j)]);
    }
}

// A fused weight [3, 10|6|6] split by columns, a replicated vector, and a matrix [7, 5] split by rows.
TEST(SplitOps, InitialValuesAreThoseOfTheWholeParameter) {
  const Layout layout{{3, 0, 1}, {10, 6, 6, 35}, {3, 0, 1}, {1, 0, 5}, "tp,,tp"};
  const Values whole = initial({66, 9, 35}, {}, {}, 0, 144, "");
  for (int ranks : {1, 2, 3, 4}) {
    const int64_t q = ceil_of(10, ranks), kv = ceil_of(6, ranks), row = q + 2 * kv, rows = ceil_of(7, ranks);
    const std::vector<int64_t> counts = {3 * row, 9, rows * 5};
    const int64_t vector = round_up(3 * row, 16), matrix = vector + 16, total = round_up(matrix + rows * 5, 16);
    for (int rank = 0; rank < ranks; ++rank) {
      Values want(static_cast<size_t>(total));
      auto copy = [&](int64_t to, int64_t from, bool valid) {
        if (valid) want[static_cast<size_t>(to)] = whole[static_cast<size_t>(from)];
      };
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t j = 0; j < q; ++j) copy(r * row + j, r * 22 + rank * q + j, rank * q + j < 10);
        for (int64_t b : {0, 1})
          for (int64_t j = 0; j < kv; ++j)
            copy(r * row + q + b * kv + j, r * 22 + 10 + b * 6 + rank * kv + j, rank * kv + j < 6);
      }
      for (int64_t i = 0; i < 9; ++i) copy(vector + i, 80 + i, true);
      for (int64_t i = 0; i < rows * 5; ++i) copy(matrix + i, 96 + rank * rows * 5 + i, rank * rows * 5 + i < 35);
      EXPECT_EQ(initial(counts, layout, {{"tp", ranks}}, rank, total, ""), want) << rank << " of " << ranks;
      Values joined;
      for (int shard : {0, 1}) {
        const std::vector<Axis> mesh = {{"dp", 2}, {"tp", ranks}};
        const Values part = initial(counts, layout, mesh, shard * ranks + rank, total / 2, "dp");
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, want) << rank << " of " << ranks << ", flat shards";
    }
  }
}

TEST(SplitOps, NormsCountWhatIsOnSeveralRanksOnce) {
  OneOp tensors("norm2");
  tensors.attr("weights", std::vector<double>{1, 0.5}).read(Dtype::f32, {2}, {3, 4}).read(Dtype::f32, {1}, {2});
  EXPECT_EQ(tensors.write(Dtype::f64, {}).run(cpu()).result()[0], 27);
  double sum = 0;
  for (int rank :
       {0, 1, 2}) {  // a flat vector 1 2 3 | 4 5 6 | 7 8 9; elements 2 to 6 have weight 1/2, the last piece has 0
    OneOp flat("norm2");
    flat.mesh({{"dp", 3}}, rank).attr("axis", "dp");
    flat.attr("piece_starts", std::vector<int64_t>{0, 2, 7, 8})
        .attr("piece_weights", std::vector<double>{1, 0.5, 1, 0});
    sum += flat.read(Dtype::f32, {3}, {3.0 * rank + 1, 3.0 * rank + 2, 3.0 * rank + 3})
               .write(Dtype::f64, {})
               .run(cpu())
               .result()[0];
  }
  EXPECT_EQ(sum, 1 + 4 + (9 + 16 + 25 + 36 + 49) / 2.0 + 64);
}

}  // namespace
}  // namespace prun::test

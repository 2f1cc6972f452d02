// The binary form: deserializing returns the serialized job, and any damage is an Error(mismatch), never a crash.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <random>

#include "base/error.h"
#include "tests/unit/sample_job.h"

namespace prun {
namespace {

constexpr size_t kDigestAt = 8, kPayloadAt = 40;

// Appends the right digest to any bytes, so that only the reader's bounds checks reject them.
std::string with_digest(std::string bytes) {
  unsigned char digest[32];
  EVP_Digest(bytes.data() + kPayloadAt, bytes.size() - kPayloadAt, digest, nullptr, EVP_sha256(), nullptr);
  bytes.replace(kDigestAt, 32, reinterpret_cast<char*>(digest), 32);
  return bytes;
}

std::string refusal(std::string_view bytes) {
  try {
    parse_job(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::mismatch) << error.what();
    return error.what();
  }
  return "";
}

TEST(Serialize, RoundTripIsEqualToTheByte) {
  std::string bytes = serialize_job(sample_job());
  Job back = parse_job(bytes);
  EXPECT_EQ(serialize_job(back), bytes);
  EXPECT_EQ(dump_job(back), dump_job(sample_job()));
  const Program& program = back.program(3);
  EXPECT_EQ(program.schedule.seed, UINT64_MAX);
  EXPECT_EQ(program.step().streams[0].ops[2].attrs.integer("big"), INT64_MIN);
  EXPECT_EQ(program.step().streams[1].ops[0].waits[0], (Edge{0, 2, 1}));
  EXPECT_EQ(program.mesh, Mesh({{"dp", 4}}));
  EXPECT_EQ(program.step().data.files.at(0).path, "/home/someone/data.bin");
  EXPECT_EQ(program.role_bytes[3], 5248);
}

TEST(Serialize, TheHostsArenaIsKept) {
  Job job = sample_job();
  Program& program = job.classes[0];
  program.buffers[4].space = Space::host;
  program.buffers[4].offset = 0;
  program.host_arena_bytes = program.host_role_bytes[1] = 64;
  const Job back = parse_job(serialize_job(job));
  EXPECT_EQ(dump_job(back), dump_job(job));
  EXPECT_EQ(back.classes[0].buffers[4].space, Space::host);
  EXPECT_EQ(back.classes[0].host_role_bytes[1], 64);
  program.host_arena_bytes = 0;
  EXPECT_NE(refusal(serialize_job(job)), "");
}

TEST(Serialize, EvaluationsAreKept) {
  Job job = sample_job();
  Program& program = job.classes[0];
  program.bodies.push_back({"evaluation", {50, 4}, program.step().streams, program.step().data, 6});
  program.bodies[2].data.files.at(0).path = "/other.bin";
  const std::string bytes = serialize_job(job);
  const Job back = parse_job(bytes);
  EXPECT_EQ(serialize_job(back), bytes);
  EXPECT_EQ(dump_job(back), dump_job(job));
  EXPECT_EQ(back.classes[0].bodies[2].data.files.at(0).path, "/other.bin");
  program.bodies[2].streams[0].ops[1].reads[0] = 99;
  EXPECT_NE(refusal(serialize_job(job)), "");
  program.bodies[2].streams.clear();
  program.bodies[2].when.times = 0;
  EXPECT_NE(refusal(serialize_job(job)), "") << "they would divide by the number of batches";
}

// Ranks of different builds compare this hash, so it changes only together with the version.
TEST(Serialize, HashIsStable) {
  EXPECT_EQ(job_hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  std::string bytes = serialize_job(sample_job());
  EXPECT_EQ(job_hash(bytes), job_hash(serialize_job(sample_job())));
  Job other = sample_job();
  other.classes[0].step().streams[0].ops[1].site.line++;
  EXPECT_NE(job_hash(serialize_job(other)), job_hash(bytes));
}

TEST(Serialize, EveryTruncationIsRefused) {
  std::string bytes = serialize_job(sample_job());
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_NE(refusal(std::string_view(bytes).substr(0, n)), "") << n;
    if (n < kPayloadAt) continue;
    EXPECT_NE(refusal(with_digest(bytes.substr(0, n))), "") << n;
  }
  EXPECT_NE(refusal(with_digest(bytes + "x")).find("1 bytes too many"), std::string::npos);
}

TEST(Serialize, EveryFlippedBitIsRefused) {
  std::string bytes = serialize_job(sample_job());
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    std::string flipped = bytes;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << i % 8));
    EXPECT_NE(refusal(flipped), "") << "bit " << i;
    // With a valid digest the bytes may be another job; the reader reads it in full or rejects it.
    refusal(with_digest(flipped));
  }
}

TEST(Serialize, GarbageWithARightDigestIsRefusedOrRead) {
  std::mt19937_64 random(1);
  std::string bytes = serialize_job(sample_job());
  for (int round = 0; round < 2000; ++round) {
    std::string garbage = bytes;
    for (size_t i = kPayloadAt + random() % 64; i < garbage.size(); i += 1 + random() % 256)
      garbage[i] = static_cast<char>(random());
    refusal(with_digest(garbage));
  }
}

TEST(Serialize, RefusalsSayWhatIsWrong) {
  std::string bytes = serialize_job(sample_job());
  EXPECT_EQ(refusal("nonsense"),
            "the program is damaged or of another version of prun: it does not begin with PRUNJOB");
  std::string other = bytes;
  other[7] = 99;
  EXPECT_NE(refusal(other).find("format 99, this prun reads "), std::string::npos);
  other = bytes;
  other.back() = static_cast<char>(other.back() ^ 1);
  EXPECT_NE(refusal(other).find("its digest is wrong"), std::string::npos);

  auto refused = [](auto change) {
    Job job = sample_job();
    change(job.classes[0], job);
    return refusal(serialize_job(job));
  };
  EXPECT_NE(refused([](Program& p, Job&) { p.tensors[2].buffer = 99; }).find("buffer 99 of 5"), std::string::npos);
  EXPECT_NE(refused([](Program& p, Job&) { p.tensors[5].shape = {4, 21}; }), "");
  EXPECT_NE(refused([](Program& p, Job&) { p.tensors[5].shape = {INT64_MAX, INT64_MAX}; }), "");
  EXPECT_NE(refused([](Program& p, Job&) { p.buffers[4].offset = 7104; }), "");
  EXPECT_NE(refused([](Program& p, Job&) { p.step().streams[0].ops[1].reads[0] = -1; }), "");
  EXPECT_NE(refused([](Program& p, Job&) { p.step().streams[0].ops[1].waits[0].index = 1; }), "");
  EXPECT_NE(refused([](Program& p, Job&) { p.step().streams[1].ops[0].axis = "tp"; }).find("no axis 'tp'"),
            std::string::npos);
  EXPECT_NE(refused([](Program&, Job& job) { job.class_of_rank[1] = 1; }), "");
  EXPECT_NE(refused([](Program&, Job& job) { job.class_of_rank.pop_back(); }), "");
}

}  // namespace
}  // namespace prun

#include "data/feed_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "data/element.h"

namespace prun {
namespace {

static_assert(sizeof(prun_feed_input) == 120 && offsetof(prun_feed_header, taken) == 4520);
static_assert(sizeof(prun_feed_header) <= PRUN_FEED_HEADER && sizeof(prun_feed_slot) <= PRUN_FEED_SLOT_HEADER);

template <size_t N>
std::string text_of(const char (&text)[N]) {
  return {text, strnlen(text, N)};
}

std::string shape_words(const std::string& element, const std::vector<int64_t>& dims) {
  const std::optional<Element> known = parse_element(element);
  std::string text = fmt::format("{} [batch", known ? std::string(numpy_name(*known)) : element);
  for (const int64_t size : dims) text += fmt::format(", {}", size);
  return text + "]";
}

FeedInput input_of(const prun_feed_input& input) {
  FeedInput out{text_of(input.name), text_of(input.element), {}};
  for (uint64_t d = 0; d < std::min<uint64_t>(input.dim_count, PRUN_FEED_DIMS); ++d)
    out.dims.push_back(static_cast<int64_t>(input.dims[d]));
  return out;
}

int64_t bytes_of(const FeedInput& input, int64_t batch) {
  int64_t bytes = batch * element_width(parse_element(input.element).value());
  for (const int64_t size : input.dims) bytes *= size;
  return bytes;
}

constexpr int64_t kAlign = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Throws usage_error if the file is smaller than its header promises, so that no read is outside the mapping.
void require_whole(const prun_feed_header& header, int64_t bytes, const std::string& path) {
  const auto bad = [&](const std::string& what) {
    throw usage_error(fmt::format("{}: this is not the ring of a feed that this prun reads: {}", path, what));
  };
  if (text_of(header.magic) != std::string(PRUN_FEED_MAGIC).substr(0, sizeof header.magic)) bad("its magic is wrong");
  if (header.version != PRUN_FEED_VERSION)
    bad(fmt::format("its version is {}, this prun reads {}", header.version, PRUN_FEED_VERSION));
  const uint64_t size = static_cast<uint64_t>(bytes);
  if (header.input_count > PRUN_FEED_INPUTS || header.slots == 0 || header.slot_bytes < PRUN_FEED_SLOT_HEADER ||
      header.slot_bytes > size || header.slots > (size - PRUN_FEED_HEADER) / header.slot_bytes)
    bad("its slots are not within the file");
  for (uint32_t i = 0; i < header.input_count; ++i) {
    const FeedInput input = input_of(header.inputs[i]);
    if (!parse_element(input.element)) bad(fmt::format("'{}' has elements '{}'", input.name, input.element));
    const uint64_t end =
        header.inputs[i].offset + static_cast<uint64_t>(bytes_of(input, static_cast<int64_t>(header.batch)));
    if (header.inputs[i].offset < PRUN_FEED_SLOT_HEADER || end > header.slot_bytes)
      bad(fmt::format("'{}' is not within a slot", input.name));
  }
}

}  // namespace

std::string feed_path(const std::string& feed) {
  return feed.find('/') != std::string::npos ? feed : fmt::format("/dev/shm/prun-feed-{}-{}", getuid(), feed);
}

int64_t feed_ring_bytes(const DataSource& source) {
  int64_t slot = PRUN_FEED_SLOT_HEADER;
  for (const FeedInput& input : source.inputs) slot = aligned(slot) + bytes_of(input, source.global_batch);
  return PRUN_FEED_HEADER + source.slots * aligned(slot);
}

std::unique_ptr<FeedRing> FeedRing::open(const std::string& feed) {
  const std::string path = feed_path(feed);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0 && errno == ENOENT) return nullptr;
  if (descriptor < 0) throw usage_error(fmt::format("the feed {}: {}", path, strerror(errno)));
  std::unique_ptr<FeedRing> ring(new FeedRing);
  ring->descriptor_ = descriptor;
  struct stat info = {};
  if (fstat(descriptor, &info) != 0 || info.st_size < PRUN_FEED_HEADER)
    throw usage_error(fmt::format("{}: this is not the ring of a feed", path));
  if (!ring->feeder_lives()) return nullptr;
  ring->bytes_ = static_cast<size_t>(info.st_size);
  ring->memory_ = mmap(nullptr, ring->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (ring->memory_ == MAP_FAILED) {
    ring->memory_ = nullptr;
    throw usage_error(fmt::format("the feed {}: mmap: {}", path, strerror(errno)));
  }
  require_whole(ring->header(), info.st_size, path);
  return ring;
}

FeedRing::~FeedRing() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

const prun_feed_slot& FeedRing::slot(uint64_t batch) const {
  const prun_feed_header& head = header();
  const auto* begin = static_cast<const std::byte*>(memory_) + PRUN_FEED_HEADER;
  return *reinterpret_cast<const prun_feed_slot*>(begin + batch % head.slots * head.slot_bytes);
}

bool FeedRing::feeder_lives() const {
  struct flock lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = 0, lock.l_len = 1;
  return fcntl(descriptor_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void FeedRing::hold() const {
  struct flock lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = 1, lock.l_len = 1;
  for (int tries = 100; fcntl(descriptor_, F_SETLK, &lock) != 0; --tries) {  // the feeder has it for moments
    if (tries == 0) throw usage_error("another job reads this feed: a feed serves one job at a time");
    usleep(10000);
  }
}

std::string FeedRing::fingerprint() const { return text_of(header().fingerprint); }

void require_feed_fits(const prun_feed_header& header, const DataSource& source, const Site& site) {
  std::vector<FeedInput> given;
  std::vector<std::string> names;
  given.reserve(header.input_count);
  names.reserve(header.input_count);
  for (uint32_t i = 0; i < header.input_count; ++i) given.push_back(input_of(header.inputs[i]));
  for (const FeedInput& input : given) names.push_back(input.name);
  const auto fail = [&](const std::string& what) {
    throw plan_error(fmt::format("the feed '{}' {}", source.feed, what), site);
  };
  for (const FeedInput& wanted : source.inputs) {
    const auto found =
        std::find_if(given.begin(), given.end(), [&](const FeedInput& input) { return input.name == wanted.name; });
    if (found == given.end())
      fail(fmt::format("gives {}, and the plan declares '{}'", names.empty() ? "nothing" : join(names, ", "),
                       wanted.name));
    if (found->element != wanted.element || found->dims != wanted.dims)
      fail(fmt::format("gives '{}' as {}, and the plan declares {}", wanted.name,
                       shape_words(found->element, found->dims), shape_words(wanted.element, wanted.dims)));
  }
  if (header.batch != static_cast<uint64_t>(source.global_batch))
    fail(fmt::format("gives batches of {} samples, and the plan has {}", header.batch, source.global_batch));
}

}  // namespace prun

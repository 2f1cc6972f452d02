// Reads all of a plan's data once before launch, so that errors do not appear after hours: every id must have a row in
// the tables and logits that take it, every number of an array must be finite.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/cores.h"
#include "base/text.h"
#include "data/data_files.h"
#include "data/packed_documents.h"
#include "ir/graph.h"

namespace prun {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;  // fits the cache of a core
constexpr int64_t kBytesOfThread = 8 << 20;
constexpr int kMostThreads = 16;
constexpr int64_t kSaidBytes = int64_t{8} << 30;  // data above this size are announced, because reading takes long

struct Range {
  double least = 0, most = 0;
  bool finite = true, counts = false;  // counts: an id is not the ignored one
  void join(const Range& other) {
    least = std::min(least, other.least), most = std::max(most, other.most);
    finite = finite && other.finite, counts = counts || other.counts;
  }
};

// Processes blocks of a fixed size, so that the compiler vectorizes the loops.
template <class T>
Range range_of(const T* data, int64_t count, std::optional<int64_t> ignored) {
  constexpr int64_t kBlock = 1024;
  T least = 0, most = 0, differ = 0;
  const bool representable = ignored && std::in_range<T>(*ignored);
  const T skipped = representable ? static_cast<T>(*ignored) : T{0};
  const auto take = [&](const T* p, int64_t n) {
    T low = least, high = most, other = differ;
    for (int64_t i = 0; i < n; ++i) {
      const T id = p[i] == skipped ? T{0} : p[i];
      other = static_cast<T>(other | (p[i] ^ skipped));
      low = id < low ? id : low;
      high = id > high ? id : high;
    }
    least = low, most = high, differ = other;
  };
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) take(data + i, kBlock);
  take(data + i, count - i);
  return {static_cast<double>(least), static_cast<double>(most), true, differ != 0 || !representable};
}

// A value must be finite as f32: 0 · x is 0 only for finite x, so a sum of 0 means that all are finite.
template <class T>
requires(!std::is_integral_v<T>) Range range_of(const T* data, int64_t count, std::optional<int64_t>) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += 0.0F * static_cast<float>(data[i]);
  return {0, 0, sum == 0.0F, true};
}

Range range_of(const DataFiles& files, int64_t first, int64_t count, std::optional<int64_t> ignored,
               std::vector<std::byte>& buffer) {
  buffer.resize(count * element_width(files.element()));
  files.read(first, count, buffer.data());
  return with_elements(files.element(), buffer.data(),
                       [&](const auto* data) { return range_of(data, count, ignored); });
}

// Returns the range of the elements from `first` on; those equal to `ignored` count as 0.
Range range_of(const DataFiles& files, std::optional<int64_t> ignored, int64_t first = 0) {
  const int64_t step = kChunkBytes / element_width(files.element()), count = files.count();
  const int64_t bytes = (count - first) * element_width(files.element());
  std::atomic<int64_t> next = first;
  std::mutex mutex;
  Range all;
  std::exception_ptr failed;
  const auto work = [&] {
    std::vector<std::byte> buffer;
    Range mine;
    try {
      for (int64_t at = next.fetch_add(step); at < count; at = next.fetch_add(step))
        mine.join(range_of(files, at, std::min(step, count - at), ignored, buffer));
    } catch (...) {
      const std::lock_guard lock(mutex);
      failed = std::current_exception();
      next = count;
    }
    const std::lock_guard lock(mutex);
    all.join(mine);
  };
  const int64_t threads = std::clamp<int64_t>(bytes / kBytesOfThread, 1, std::min(usable_cores(), kMostThreads));
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // thread limit reached: the existing threads do the work
  }
  work();
  for (std::thread& other : others) other.join();
  if (failed) std::rethrow_exception(failed);
  return all;
}

// Returns the index and value of the first element for which `wrong` holds.
template <class Wrong>
std::pair<int64_t, double> first_that(const DataFiles& files, const Wrong& wrong) {
  const int64_t step = kChunkBytes / element_width(files.element());
  std::vector<std::byte> buffer(kChunkBytes);
  for (int64_t at = 0; at < files.count(); at += step) {
    const int64_t count = std::min(step, files.count() - at);
    files.read(at, count, buffer.data());
    int64_t found = -1;
    double value = 0;
    with_elements(files.element(), buffer.data(), [&](const auto* data) {
      for (int64_t i = 0; i < count && found < 0; ++i)
        if (wrong(static_cast<double>(data[i]))) found = i, value = static_cast<double>(data[i]);
    });
    if (found >= 0) return {at + found, value};
  }
  throw usage_error("the data has changed while it was read");
}

// Returns the smallest table size that ids of `input` ("" = any input) are looked up in. Ids may be ignored only if no
// op looks them up.
IdLimit least_limit(const std::vector<IdLimit>& limits, const Data& data, const std::string& input) {
  IdLimit least{"", std::numeric_limits<int64_t>::max(), "", {}, {}};
  bool all = true;
  for (const IdLimit& limit : limits) {
    if (!input.empty() && limit.input != input) continue;
    if (input.empty() && limit.input == "positions") continue;  // check_documents.cc
    all = all && limit.ignored;
    if (limit.size < least.size) least = limit;
  }
  if (!all) least.ignored.reset();
  if (input.empty() && data.vocab > 0 && data.vocab < least.size)
    least = {"", data.vocab, fmt::format("the data's vocab is {}", data.vocab), {}, {}};
  return least;
}

bool can_exceed(Element element, int64_t size) {
  const int64_t bits = 8 * element_width(element);
  return element == Element::i32 || element == Element::i64 || size < int64_t{1} << bits;
}

// Returns whether all out-of-range ids are located where a header would be.
bool fits_behind_header(const DataFiles& files, const IdLimit& limit, int64_t at) {
  const int64_t header = kTokenHeaderBytes / element_width(files.element());
  return at < header && files.count() > header &&
         range_of(files, limit.ignored, header).most < static_cast<double>(limit.size);
}

[[noreturn]] void fail_id(const DataFiles& files, const Data& data, const IdLimit& limit, const Range& range) {
  const auto [at, id] = first_that(files, [&](double v) {
    const bool ignored = limit.ignored && v == static_cast<double>(*limit.ignored);
    return !ignored && (v < 0 || v >= static_cast<double>(limit.size));
  });
  const DataFiles::Place place = files.place(at);
  const std::string where = limit.site.known() ? fmt::format(" ({})", limit.site.text()) : "";
  const std::string sample =
      limit.input.empty() || data.kind != "arrays" ? "" : fmt::format(" of sample {}", at / limit.per_sample);
  std::string text =
      fmt::format("{} has the id {} at position {}{} (byte {}), and {}{}: ", place.path, static_cast<int64_t>(id),
                  sample.empty() ? place.element : at % limit.per_sample, sample, place.byte, limit.table, where);
  if (range.least < 0)
    text += limit.ignored ? fmt::format("ids count from 0, and the loss ignores only {} (ignore)", *limit.ignored)
                          : "ids count from 0";
  else if (data.kind == "tokens" && fits_behind_header(files, limit, at))
    text += "those behind byte 1024 have; when a header stands before them, skip_bytes = 1024";
  else
    text += fmt::format("the largest id of the data is {}, so {} are needed", static_cast<int64_t>(range.most),
                        static_cast<int64_t>(range.most) + 1);
  throw plan_error("data: " + text, data.site);
}

[[noreturn]] void fail_finite(const DataFiles& files, const Data& data) {
  const auto [at, value] = first_that(files, [](double v) { return !std::isfinite(static_cast<float>(v)); });
  const DataFiles::Place place = files.place(at);
  throw plan_error(fmt::format("data: {} has {} at position {} (byte {}), which is no number of 32 bits", place.path,
                               value, place.element, place.byte),
                   data.site);
}

void check(const std::vector<IdLimit>& limits, const Data& data, const std::string& name) {
  const DataFiles files(data, name);
  const IdLimit limit = least_limit(limits, data, name);
  const bool may_ignore_all = limit.ignored && !name.empty();
  if (!is_float(files.element()) && !can_exceed(files.element(), limit.size) && !may_ignore_all) return;
  const bool ids = limit.size < std::numeric_limits<int64_t>::max();
  if (!is_float(files.element()) && !ids) return;
  const Range range = range_of(files, limit.ignored);
  if (!range.finite) fail_finite(files, data);
  if (may_ignore_all && !range.counts)
    throw plan_error(fmt::format("data: {}: every label is {}, which the loss ignores{}: there is nothing to train",
                                 files.place(0).path, *limit.ignored,
                                 limit.site.known() ? fmt::format(" ({})", limit.site.text()) : ""),
                     data.site);
  if (range.least < 0 || range.most >= static_cast<double>(limit.size)) fail_id(files, data, limit, range);
}

void check(const std::vector<IdLimit>& limits, const Data& data) {
  int64_t bytes = 0;
  std::vector<std::string> names;
  for (const DataFile& file : data.files) {
    bytes += file.bytes;
    if (std::find(names.begin(), names.end(), file.name) == names.end()) names.push_back(file.name);
  }
  if (bytes > kSaidBytes)
    fmt::print(stderr, "prun: reading {} of data once, for ids without a row\n", human_bytes(bytes));
  for (const std::string& name : names) check(limits, data, name);
}

// Rejects an end-of-document token that does not occur, because the loss would silently cross documents.
void check_document_end(const Data& data) {
  if (data.document_end < 0 || data.files.empty() || data.capacity > 0) return;
  const DataFiles files(data, "");
  const int64_t step = kChunkBytes / element_width(files.element());
  std::vector<std::byte> buffer(kChunkBytes);
  for (int64_t at = 0; at < files.count(); at += step) {
    const int64_t count = std::min(step, files.count() - at);
    files.read(at, count, buffer.data());
    const bool found = with_elements(files.element(), buffer.data(), [&](const auto* ids) {
      return std::any_of(ids, ids + count, [&](auto id) { return static_cast<int64_t>(id) == data.document_end; });
    });
    if (found) return;
  }
  const int64_t more = std::ssize(data.files) - 1;
  throw plan_error(
      fmt::format("data: no document ends with {} (document_end): it is nowhere in {}{}", data.document_end,
                  files.place(0).path, more > 0 ? fmt::format(" and {} more", counted(more, "file")) : ""),
      data.site);
}

}  // namespace

void check_data(const Plan& plan) {
  const std::vector<IdLimit> limits = id_limits(plan.graph);
  check_document_end(plan.data);
  check_documents(plan.data, limits);
  if (plan.evaluation && plan.evaluation->data.files != plan.data.files) check_documents(plan.evaluation->data, limits);
  check(limits, plan.data);
  if (plan.evaluation && plan.evaluation->data.files != plan.data.files) check(limits, plan.evaluation->data);
}

}  // namespace prun

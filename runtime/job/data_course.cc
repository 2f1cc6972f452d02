#include "job/data_course.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "data/data_files.h"
#include "job/checkpoints.h"

namespace prun {
namespace {

using checkpoint::DataBlock;
using checkpoint::DataContent;
using checkpoint::DataIdentity;

// Returns the digests of the sampled blocks of `elements` elements, except those beyond the end of the files.
std::vector<std::string> digests_of(const DataFiles& files, int64_t elements) {
  const int64_t width = element_width(files.element());
  std::vector<std::string> digests;
  std::vector<std::byte> bytes;
  for (const DataBlock& block : checkpoint::blocks_of(elements, width)) {
    if (block.end > files.count()) break;
    bytes.resize((block.end - block.begin) * width);
    files.read(block.begin, block.end - block.begin, bytes.data());
    Sha256 sum;
    sum.add(bytes.data(), bytes.size());
    digests.push_back(sum.hex().substr(0, 16));
  }
  return digests;
}

DataIdentity identify(const DataSource& source, int64_t context, const std::string& fingerprint = "") {
  DataIdentity identity{source.kind, source.order, context, source.first, source.count, {}};
  if (source.capacity > 0)
    identity.packing =
        fmt::format("documents that end with {}, long = \"{}\"", source.document_end, source.long_documents);
  if (!source.feed.empty()) identity.contents.push_back({"feed", "feed", 0, {fingerprint}});
  std::vector<std::string> names;
  for (const DataFile& file : source.files)
    if (std::find(names.begin(), names.end(), file.name) == names.end()) names.push_back(file.name);
  for (const std::string& name : names) {
    const DataFiles files(source, name);
    identity.contents.push_back(
        {name, std::string(element_name(files.element())), files.count(), digests_of(files, files.count())});
  }
  return identity;
}

// Describes how the content `now` differs from `before`, an input of the same name; "" = identical.
std::string content_difference(const DataContent& before, const DataContent& now, const DataSource& source) {
  const DataFiles files(source, now.name);
  const std::string path = files.place(0).path;
  if (now.element != before.element) {
    const auto type = [](const std::string& element) {
      const std::optional<Element> known = parse_element(element);
      return known ? std::string(numpy_name(*known)) : element;
    };
    return fmt::format("{} holds {}, and they held {}", path, type(now.element), type(before.element));
  }
  const std::string unit = source.kind == "arrays" ? "number" : "token";
  const std::vector<std::string> digests =
      now.elements == before.elements ? now.blocks : digests_of(files, before.elements);
  const std::vector<DataBlock> blocks = checkpoint::blocks_of(before.elements, element_width(files.element()));
  for (size_t i = 0; i < digests.size(); ++i) {
    if (i < before.blocks.size() && digests[i] == before.blocks[i]) continue;
    const DataFiles::Place place = files.place(blocks[i].begin);
    const std::string sizes = now.elements == before.elements
                                  ? ""
                                  : fmt::format("; it has {}, and they had {}", counted(now.elements, unit.c_str()),
                                                grouped(before.elements));
    return fmt::format("{} has other content in the {} from byte {} on{}", place.path,
                       human_bytes((blocks[i].end - blocks[i].begin) * element_width(files.element())), place.byte,
                       sizes);
  }
  if (now.elements > before.elements)
    return fmt::format("{} has grown from {} to {} (the first {} are as before)", path,
                       counted(before.elements, unit.c_str()), now.elements, before.elements);
  if (now.elements < before.elements)
    return fmt::format("{} has shrunk from {} to {}", path, counted(before.elements, unit.c_str()), now.elements);
  return "";
}

std::vector<std::string> content_differences(const DataIdentity& before, const DataIdentity& now,
                                             const DataSource& source) {
  const auto names = [](const DataIdentity& of) {
    std::vector<std::string> all;
    for (const DataContent& content : of.contents) all.push_back(content.name);
    return all;
  };
  if (names(before) != names(now))
    return {fmt::format("they give {}, and gave {}", join(names(now), " and "), join(names(before), " and "))};
  std::vector<std::string> found;
  for (size_t i = 0; i < now.contents.size(); ++i)
    if (std::string differs = content_difference(before.contents[i], now.contents[i], source); !differs.empty())
      found.push_back(std::move(differs));
  return found;
}

std::vector<std::string> differences(const DataIdentity& before, const DataIdentity& now, const DataSource& source) {
  if (before.kind != now.kind)
    return {fmt::format("they are prun.data.{}, and were prun.data.{}", now.kind, before.kind)};
  if (!source.feed.empty()) {
    if (before.contents == now.contents) return {};
    const auto fingerprint = [](const DataIdentity& of) {
      return of.contents.size() == 1 && of.contents[0].blocks.size() == 1 ? of.contents[0].blocks[0] : "";
    };
    return {fmt::format("the feed '{}' has the fingerprint '{}', and had '{}'", source.feed, fingerprint(now),
                        fingerprint(before))};
  }
  std::vector<std::string> found = content_differences(before, now, source);
  if (before.context != now.context)
    found.push_back(
        fmt::format("a sample has {}, and had {} (context)", counted(now.context, "token"), before.context));
  if (before.packing != now.packing) {
    const auto words = [](const DataIdentity& of) { return of.packing.empty() ? "windows of the text" : of.packing; };
    found.push_back(fmt::format("samples are {}, and were {}", words(now), words(before)));
  }
  if (before.order != now.order)
    found.push_back(fmt::format("their order is '{}', and was '{}'", now.order, before.order));
  if (found.empty() && (before.first != now.first || before.count != now.count) && now.count > 0)
    found.push_back(fmt::format("training has {} of them, and had {} (an evaluation holds out another part)",
                                counted(now.count, source.kind == "arrays" ? "sample" : "token"), before.count));
  return found;
}

// A checkpoint of format 1 has only the kind, the path and the size.
std::vector<std::string> differences(const checkpoint::SavedData& before, const DataSource& now) {
  std::vector<std::string> found;
  if (before.kind != now.words()) found.push_back(fmt::format("they are {}, and were {}", now.words(), before.kind));
  if (before.file_bytes != now.file_bytes())
    found.push_back(
        fmt::format("{} has {} bytes, and {} had {}", now.path(), now.file_bytes(), before.path, before.file_bytes));
  if (found.empty() && before.path != now.path())
    fmt::print(stderr,
               "prun: whether {} has the content of {} is not known: the checkpoint has no fingerprint of its data\n",
               now.path(), before.path);
  return found;
}

// Sets the position to the first sample. A restart that resumes the same checkpoint keeps its skipped samples, because
// they belong to the new data.
void begin_at_first_sample(CheckpointSettings& s, Job& job) {
  const bool again = s.replaced_data_of == s.resume;
  s.replaced_data_of = s.resume;
  s.begin.samples = 0;
  if (!again) s.begin.left_out = {};
  for (Program& program : job.classes) {
    program.schedule.begin.samples = 0;
    program.schedule.begin.left_out = s.begin.left_out;
  }
}

}  // namespace

std::vector<DataIdentity> identify_data(const Job& job, int64_t context, const std::string& fingerprint) {
  std::vector<DataIdentity> all;
  for (const Body& body : job.classes.front().bodies)
    if (!body.data.kind.empty() && (all.empty() || !body.data.files.empty()))
      all.push_back(identify(body.data, context, fingerprint));
  return all;
}

void require_same_data(CheckpointSettings& s, Job& job, const Plan& plan, const DataIdentity& identity) {
  if (!s.resumes || !s.kept.empty()) return;  // commits in memory belong to this run
  const checkpoint::Index index = checkpoint::read_index(s.resume);
  const uint64_t seed = job.classes.front().schedule.seed;
  std::vector<std::string> found;
  if (index.data.identity.known())
    found = differences(index.data.identity, identity, plan.data);
  else if (!index.data.kind.empty())
    found = differences(index.data, plan.data);
  if (index.seed != seed && !s.new_data)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} was trained with seed {}, this plan has {}: its data would come in another order",
                            s.resume, index.seed, seed));
  if (index.seed != seed) found.push_back(fmt::format("the seed is {}, and was {}", seed, index.seed));
  if (found.empty()) return;
  if (!s.new_data)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("the data are not those that {} was trained with: {}; use those, or add --new-data to go "
                            "on with the first sample of these",
                            s.resume, join(found, "; ")),
                plan.data.site);
  begin_at_first_sample(s, job);
  fmt::print(stderr, "prun: step {} begins with the first sample of other data (--new-data): {}\n", s.begin.step + 1,
             join(found, "; "));
}

void require_data_of_node_0(const std::vector<DataIdentity>& identities, const Job& job, int node) {
  if (identities.empty()) return;
  size_t i = 0;
  for (const Body& body : job.classes.front().bodies) {
    if (body.data.kind.empty() || (i > 0 && body.data.files.empty()) || i >= identities.size()) continue;
    const DataIdentity& theirs = identities[i++];
    const std::vector<std::string> found = content_differences(theirs, identify(body.data, theirs.context), body.data);
    if (!found.empty())
      throw usage_error(fmt::format("node {} has other data than node 0: {}", node, join(found, "; ")));
  }
}

}  // namespace prun

// Reads a description with yaml-cpp. A file that is `like` another one is read over it: maps are merged by key, lists
// are replaced.
#include "checkpoint/hf/description.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <set>

#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/formula.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
using Read = std::function<void(const YAML::Node&)>;

// Returns the number that the whole text is.
template <class T>
std::optional<T> number_in(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<T>(value) : std::nullopt;
}

bool is_quoted(const YAML::Node& node) { return node.Tag() == "!"; }

class DescriptionReader {
 public:
  DescriptionReader(Description& to, std::string folder) : to_(to), folder_(std::move(folder)) {}

  void read(const std::string& path) {
    if (++depth_ > 5) throw invalid(path, "it is like itself");
    const std::string before = std::exchange(path_, path);
    YAML::Node root;
    try {
      root.reset(YAML::Load(read_file(path)));
    } catch (const YAML::Exception& wrong) {
      throw Error(Exit::checkpoint_invalid, wrong.msg, Site{path, wrong.mark.line + 1});
    }
    if (root.IsMap() && root["like"]) {
      const std::string name = text(root["like"]), base = folder_ + "/" + name + ".yaml";
      if (!std::filesystem::exists(base)) fail(root["like"], fmt::format("there is no description '{}'", name));
      read(base);
      to_.like = name;
    }
    read_root(root);
    path_ = before;
    --depth_;
  }

 private:
  Site site(const YAML::Node& node) const { return {path_, node.Mark().line + 1}; }
  [[noreturn]] void fail(const YAML::Node& node, const std::string& what) const {
    throw Error(Exit::checkpoint_invalid, printable(what), site(node));
  }

  std::string text(const YAML::Node& node) const {
    if (!node.IsScalar()) fail(node, "this should be one value");
    return node.Scalar();
  }

  // Calls the reader of each field of a map.
  void fields(const YAML::Node& map, const std::string& what,
              const std::vector<std::pair<std::string, Read>>& known) const {
    std::vector<std::string> names;
    names.reserve(known.size());
    for (const auto& [name, read] : known) names.push_back(name);
    each(map, what, [&](const std::string& key, const YAML::Node& node, const YAML::Node& value) {
      const auto found = std::ranges::find(names, key);
      if (found == names.end()) fail(node, fmt::format("{} has no field '{}'{}", what, key, did_you_mean(key, names)));
      known[found - names.begin()].second(value);
    });
  }

  void each(const YAML::Node& map, const std::string& what,
            const std::function<void(const std::string&, const YAML::Node&, const YAML::Node&)>& take) const {
    if (!map.IsMap()) fail(map, fmt::format("{} should be a map of fields", what));
    std::set<std::string> seen;
    for (const auto& pair : map) {
      const std::string key = text(pair.first);
      if (!seen.insert(key).second) fail(pair.first, fmt::format("{} has '{}' twice", what, key));
      take(key, pair.first, pair.second);
    }
  }

  static Read into(std::string& value, const DescriptionReader& self) {
    return [&value, &self](const YAML::Node& node) { value = self.text(node); };
  }

  // One value, or each of a list.
  std::vector<YAML::Node> several(const YAML::Node& node) const {
    if (!node.IsSequence()) return {node};
    return {node.begin(), node.end()};
  }

  std::vector<std::string> texts(const YAML::Node& node) const {
    std::vector<std::string> all;
    for (const YAML::Node& one : several(node)) all.push_back(text(one));
    return all;
  }

  Formula formula(const YAML::Node& node) const {
    Formula made{text(node), site(node)};
    try {
      names_in(made.text);
    } catch (const Error& error) {
      fail(node, error.message());
    }
    return made;
  }

  std::vector<Formula> formulas(const YAML::Node& node) const {
    std::vector<Formula> all;
    for (const YAML::Node& one : several(node)) all.push_back(formula(one));
    return all;
  }

  DescribedValue value(const YAML::Node& node) const {
    const std::string word = text(node);
    if (is_quoted(node)) return {{}, word};
    if (word == "true" || word == "false") return {{}, static_cast<int64_t>(word == "true"), true};
    if (const auto whole = number_in<int64_t>(word)) return {{}, *whole};
    if (const auto number = number_in<double>(word)) return {{}, *number};
    return {formula(node)};
  }

  Json json(const YAML::Node& node) const {
    if (node.IsNull()) return nullptr;
    if (node.IsSequence()) {
      Json all = Json::array();
      for (const YAML::Node& one : node) all.push_back(json(one));
      return all;
    }
    if (node.IsMap()) {
      Json all = Json::object();
      each(node, "it", [&](const std::string& key, const YAML::Node&, const YAML::Node& one) { all[key] = json(one); });
      return all;
    }
    const std::string word = text(node);
    if (is_quoted(node)) return word;
    if (word == "true" || word == "false") return word == "true";
    if (const auto whole = number_in<int64_t>(word)) return *whole;
    if (const auto number = number_in<double>(word)) return *number;
    return word;
  }

  // Replaces or adds an entry; null removes it.
  template <class T>
  void put(std::vector<std::pair<std::string, T>>& all, const std::string& key, const YAML::Node& node, T made) const {
    const auto found = std::ranges::find_if(all, [&](const auto& one) { return one.first == key; });
    if (node.IsNull()) {
      if (found != all.end()) all.erase(found);
    } else if (found != all.end()) {
      found->second = std::move(made);
    } else {
      all.emplace_back(key, std::move(made));
    }
  }

  void read_values(const YAML::Node& node, const std::string& what,
                   std::vector<std::pair<std::string, DescribedValue>>& all) const {
    each(node, what, [&](const std::string& key, const YAML::Node&, const YAML::Node& one) {
      put(all, key, one, one.IsNull() ? DescribedValue{} : value(one));
    });
  }

  void read_option(const std::string& ours, const YAML::Node& name, const YAML::Node& node) {
    std::erase_if(to_.options, [&](const DescribedOption& one) { return node.IsNull() && one.ours == ours; });
    if (node.IsNull()) return;
    DescribedOption option;
    option.ours = ours;
    option.site = site(name);
    if (node.IsScalar()) {
      option.key = text(node);
    } else {
      fields(node, "an option",
             {{"key", into(option.key, *this)},
              {"list", into(option.list, *this)},
              {"default", [&](const YAML::Node& one) { option.usual = value(one); }},
              {"is", [&](const YAML::Node& one) { option.is = value(one); }},
              {"values", [&](const YAML::Node& one) {
                 each(one, "values", [&](const std::string& theirs, const YAML::Node&, const YAML::Node& our) {
                   option.allowed.emplace_back(theirs, constant(our));
                 });
               }}});
      if (option.key.empty() != option.is.has_value()) fail(name, fmt::format("'{}' needs a key, or is: VALUE", ours));
    }
    const auto found = std::ranges::find(to_.options, ours, &DescribedOption::ours);
    if (found != to_.options.end())
      *found = option;
    else
      to_.options.push_back(option);
  }

  // A text needs no quotes where formulas are not allowed.
  Attr constant(const YAML::Node& node) const {
    const std::string word = text(node);
    if (is_quoted(node)) return word;
    if (word == "true" || word == "false") return static_cast<int64_t>(word == "true");
    if (const auto whole = number_in<int64_t>(word)) return *whole;
    if (const auto number = number_in<double>(word)) return *number;
    return word;
  }

  void read_requirement(const std::string& key, const YAML::Node& node) {
    std::erase_if(to_.require, [&](const Requirement& one) { return one.key == key; });
    if (node.IsNull()) return;
    Requirement rule;
    rule.key = key;
    fields(node, "a requirement",
           {{"is",
             [&](const YAML::Node& one) {
               for (const YAML::Node& each : several(one)) rule.allowed.push_back(json(each));
             }},
            {"at_least", [&](const YAML::Node& one) { rule.at_least = formula(one); }},
            {"default", [&](const YAML::Node& one) { rule.usual = json(one); }},
            {"when", into(rule.when, *this)},
            {"because", into(rule.because, *this)}});
    if (rule.allowed.empty() != rule.at_least.given()) fail(node, fmt::format("'{}' needs is or at_least", key));
    to_.require.push_back(std::move(rule));
  }

  // "qkv", or [qkv, begin, count].
  DescribedPart part(const YAML::Node& node) const {
    if (!node.IsSequence()) return {text(node), {}, {}};
    if (node.size() != 3) fail(node, "a part is a name, or [name, begin, count]");
    return {text(node[0]), formula(node[1]), formula(node[2])};
  }

  std::vector<DescribedPart> named(const YAML::Node& node) const {
    std::vector<DescribedPart> all;
    for (const YAML::Node& one : several(node)) all.push_back(part(one));
    return all;
  }

  // A norm is a tensor for its weight and one for its bias.
  void read_norm(const YAML::Node& node, std::vector<DescribedTensor>& all) const {
    std::string theirs, ours;
    DescribedTensor weight;
    weight.site = site(node);
    fields(node, "a norm",
           {{"norm", into(theirs, *this)},
            {"ours", into(ours, *this)},
            {"size", [&](const YAML::Node& one) { weight.shape = {formula(one)}; }},
            {"bias", [&](const YAML::Node& one) { weight.bias = formula(one); }}});
    if (ours.empty()) fail(node, fmt::format("the norm '{}' needs ours: NAME", theirs));
    DescribedTensor bias = weight;
    weight.bias = {};
    weight.theirs = {theirs + ".weight"};
    weight.ours = {{ours + ".weight", {}, {}}};
    all.push_back(weight);
    if (!bias.bias.given()) return;
    bias.when = std::exchange(bias.bias, Formula());
    bias.theirs = {theirs + ".bias"};
    bias.ours = {{ours + ".bias", {}, {}}};
    all.push_back(bias);
  }

  void read_tensor(const YAML::Node& node, std::vector<DescribedTensor>& all) const {
    if (!node.IsMap()) fail(node, "a tensor should be a map of fields");
    if (node["norm"]) return read_norm(node, all);
    DescribedTensor tensor;
    tensor.site = site(node);
    tensor.linear = static_cast<bool>(node["linear"]);
    const auto into_formula = [&](Formula& to) { return [&to, this](const YAML::Node& one) { to = formula(one); }; };
    const auto into_formulas = [&](std::vector<Formula>& to) {
      return [&to, this](const YAML::Node& one) { to = formulas(one); };
    };
    const auto theirs = [&](const YAML::Node& one) { tensor.theirs = texts(one); };
    std::string layout = tensor.linear ? "out_in" : "rows";
    std::vector<std::pair<std::string, Read>> known = {
        {"ours", [&](const YAML::Node& one) { tensor.ours = named(one); }},
        {"layout", into(layout, *this)},
        {"when", into_formula(tensor.when)}};
    if (tensor.linear)
      known.insert(known.end(), {{"linear", theirs},
                                 {"in", into_formula(tensor.in)},
                                 {"out", into_formulas(tensor.out)},
                                 {"bias", into_formula(tensor.bias)},
                                 {"experts", into_formula(tensor.experts)}});
    else
      known.insert(known.end(), {{"tensor", theirs},
                                 {"parts", [&](const YAML::Node& one) { tensor.ours = named(one); }},
                                 {"shape", into_formulas(tensor.shape)},
                                 {"reshaped", into_formulas(tensor.reshaped)},
                                 {"copy", [&](const YAML::Node& one) { tensor.copy = text(one) == "true"; }}});
    fields(node, tensor.linear ? "a linear layer" : "a tensor", known);
    std::vector<std::string> layouts = {"rows", "out_in", "in_out"};
    const auto found = std::ranges::find(layouts, layout);
    if (found == layouts.end() || (tensor.linear && layout == "rows"))
      fail(node["layout"], fmt::format("there is no layout '{}'{}", layout, did_you_mean(layout, layouts)));
    tensor.layout = static_cast<Layout>(found - layouts.begin());
    check_lists(node, tensor);
    all.push_back(std::move(tensor));
  }

  void check_lists(const YAML::Node& node, const DescribedTensor& tensor) const {
    if (tensor.theirs.empty()) fail(node, "this needs tensor, linear or norm: the name in their files");
    if (tensor.ours.empty()) fail(node, fmt::format("'{}' needs ours: NAME", tensor.theirs.front()));
    const size_t most = std::max(tensor.theirs.size(), tensor.ours.size());
    if (std::min(tensor.theirs.size(), tensor.ours.size()) != 1)
      fail(node, "one tensor of theirs is one or several of ours, or the other way round");
    if (!tensor.linear && tensor.theirs.size() > 1) fail(node, "only a linear layer is several tensors of theirs");
    if (most > 1 && !tensor.out.empty() && tensor.out.size() != most)
      fail(node, fmt::format("out has {}, and there are {} layers", counted(std::ssize(tensor.out), "size"), most));
    if (tensor.ours.size() > 1 && tensor.layout == Layout::in_out)
      fail(node, "with the layout in_out, a tensor of theirs is in one of ours");
    for (const DescribedPart& part : tensor.ours) {
      if (tensor.linear && part.count.given())
        fail(node, "a linear layer has names and no parts of them; a tensor may");
      if (!tensor.linear && most > 1 && !part.count.given()) fail(node, "each part is [name, begin, count]");
    }
  }

  void read_tensors(const YAML::Node& node, std::vector<DescribedTensor>& all) const {
    all.clear();
    if (!node.IsSequence()) fail(node, "this should be a list of tensors");
    for (const YAML::Node& one : node) read_tensor(one, all);
  }

  void read_rope(const YAML::Node& node) {
    if (!to_.rope) to_.rope.emplace();
    fields(node, "rope",
           {{"base",
             [&](const YAML::Node& one) {
               const auto number = number_in<double>(text(one));
               if (!number) fail(one, fmt::format("base is '{}', should be a number", text(one)));
               to_.rope->base = *number;
             }},
            {"scalings", [&](const YAML::Node& one) { to_.rope->scalings = texts(one); }}});
  }

  void read_root(const YAML::Node& root) {
    const auto options = [&](const YAML::Node& node) {
      each(node, "options", [&](const std::string& ours, const YAML::Node& name, const YAML::Node& one) {
        read_option(ours, name, one);
      });
    };
    const auto require = [&](const YAML::Node& node) {
      each(node, "require",
           [&](const std::string& key, const YAML::Node&, const YAML::Node& one) { read_requirement(key, one); });
    };
    const auto layers = [&](const YAML::Node& node) {
      fields(node, "layers",
             {{"theirs", into(to_.their_layers, *this)},
              {"ours", into(to_.our_layers, *this)},
              {"tensors", [&](const YAML::Node& one) { read_tensors(one, to_.layers); }}});
    };
    fields(root, "a description",
           {{"like", [](const YAML::Node&) {}},
            {"architecture", into(to_.architecture, *this)},
            {"model_type", into(to_.model_type, *this)},
            {"model", into(to_.model, *this)},
            {"prefix", into(to_.prefix, *this)},
            {"options", options},
            {"defaults", [&](const YAML::Node& node) { read_values(node, "defaults", to_.defaults); }},
            {"sizes", [&](const YAML::Node& node) { read_values(node, "sizes", to_.sizes); }},
            {"free", [&](const YAML::Node& node) { to_.free = texts(node); }},
            {"require", require},
            {"config", [&](const YAML::Node& node) { to_.config.update(json(node)); }},
            {"rope", [&](const YAML::Node& node) { read_rope(node); }},
            {"tensors", [&](const YAML::Node& node) { read_tensors(node, to_.tensors); }},
            {"layers", layers},
            {"ignore", [&](const YAML::Node& node) { to_.ignore = texts(node); }},
            {"constants", [&](const YAML::Node& node) { to_.constants = texts(node); }}});
  }

  Description& to_;
  std::string folder_, path_;
  int depth_ = 0;
};

// Each name of a formula is an option or an earlier size.
void check_names(const Description& description) {
  std::vector<std::string> known;
  for (const DescribedOption& one : description.options) known.push_back(one.ours);
  for (const auto& [name, value] : description.defaults) known.push_back(name);
  const auto check = [&](const Formula& formula) {
    if (!formula.given()) return;
    for (const std::string& name : names_in(formula.text))
      if (std::ranges::find(known, name) == known.end())
        throw Error(Exit::checkpoint_invalid,
                    fmt::format("there is no option or size '{}'{}", name, did_you_mean(name, known)), formula.site);
  };
  const auto check_value = [&](const DescribedValue& value) {
    if (value.formula) check(*value.formula);
  };
  for (const auto& [name, value] : description.defaults) check_value(value);
  for (const auto& [name, value] : description.sizes) {
    check_value(value);  // of earlier sizes only, so that none is computed from itself
    known.push_back(name);
  }
  for (const DescribedOption& one : description.options)
    for (const auto* value : {&one.usual, &one.is})
      if (*value) check_value(**value);
  for (const Requirement& one : description.require) check(one.at_least);
  for (const auto* all : {&description.tensors, &description.layers})
    for (const DescribedTensor& one : *all) {
      for (const Formula* formula : {&one.in, &one.bias, &one.when, &one.experts}) check(*formula);
      for (const auto* list : {&one.out, &one.shape, &one.reshaped})
        for (const Formula& formula : *list) check(formula);
      for (const DescribedPart& part : one.ours)
        for (const Formula* formula : {&part.begin, &part.count}) check(*formula);
    }
}

}  // namespace

Description read_description(const std::string& path, const std::string& folder) {
  Description made;
  made.path = path;
  DescriptionReader(made, folder).read(path);
  check_names(made);
  return made;
}

}  // namespace prun::checkpoint

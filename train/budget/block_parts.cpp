#include <refrain/train/budget/block_parts.h>

#include <refrain/core/check.h>

#include <charconv>
#include <sstream>

namespace refrain {

namespace {

constexpr const char* kForms = "expected such as \"0-3 none\", \"4-11 block keep attention\" or \"12-23 group 4 block\", got \"";

std::int64_t number(const std::string& line, std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= 0 && value < 1000000, "checkpoint_parts: ", kForms, line, "\"");
  return value;
}

}  // namespace

BlockPart parse_block_part(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  check(words.size() >= 2, "checkpoint_parts: ", kForms, line, "\"");
  BlockPart part;
  const std::size_t dash = words[0].find('-');
  part.first = number(line, std::string_view(words[0]).substr(0, dash));
  part.last = dash == std::string::npos ? part.first : number(line, std::string_view(words[0]).substr(dash + 1));
  check(part.first <= part.last, "checkpoint_parts: the first block comes after the last in \"", line, "\"");
  std::size_t next = 1;
  const auto has = [&](std::string_view word) { return next < words.size() && words[next] == word && ++next; };
  if (has("none")) {
    check(next == words.size(), "checkpoint_parts: ", kForms, line, "\"");
    return part;
  }
  if (has("group")) {
    check(next < words.size(), "checkpoint_parts: ", kForms, line, "\"");
    part.group = number(line, words[next++]);
    check(part.group >= 1, "checkpoint_parts: a group has at least 1 block, got \"", line, "\"");
  }
  part.per_block = has("block");
  if (part.per_block && has("keep")) {
    check(next < words.size(), "checkpoint_parts: nothing to keep in \"", line, "\"");
    part.keep.assign(words.begin() + std::ptrdiff_t(next), words.end());
    next = words.size();
  }
  check((part.per_block || part.group > 0) && next == words.size(), "checkpoint_parts: ", kForms, line, "\"");
  return part;
}

std::string to_text(const BlockPart& part) {
  std::string text = part.last == part.first ? concat(part.first) : concat(part.first, '-', part.last);
  if (part.group > 0) text += concat(" group ", part.group);
  if (part.per_block) text += " block";
  if (!part.keep.empty()) text += " keep";
  for (const std::string& op : part.keep) text += concat(' ', op);
  return part.group > 0 || part.per_block ? text : text + " none";
}

std::vector<ChainPart> chain_parts(std::span<const BlockPart> parts, std::span<const std::shared_ptr<Stage>> stages) {
  std::vector<std::size_t> blocks;  // block -> stage
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i]->is_block()) blocks.push_back(i);
  }
  std::vector<ChainPart> tree;
  std::size_t next_stage = 0;
  const auto add_bare = [&](std::size_t end) {
    for (; next_stage < end; ++next_stage) tree.push_back({next_stage, next_stage + 1, false, {}, {}});
  };
  // Regions of up to `length` blocks from block `first` on, in a tree of their own. Other stages between blocks end a region.
  const auto regions = [&](std::size_t first, std::size_t last, std::size_t length) {
    std::vector<ChainPart> list;
    for (std::size_t begin = first; begin <= last;) {
      std::size_t end = begin + 1;
      while (end <= last && end - begin < length && blocks[end] == blocks[end - 1] + 1) ++end;
      list.push_back({blocks[begin], blocks[end - 1] + 1, true, {}, {}});
      begin = end;
    }
    return list;
  };
  std::int64_t next_block = 0;
  for (const BlockPart& part : parts) {
    check(part.first >= next_block, "checkpoint_parts: block ", part.first, " is named twice or out of order");
    check(part.last < std::int64_t(blocks.size()), "checkpoint_parts: there are ", blocks.size(), " blocks, counted from 0, got block ", part.last);
    next_block = part.last + 1;
    if (!part.per_block && part.group == 0) continue;
    for (ChainPart& outer : regions(std::size_t(part.first), std::size_t(part.last), part.group > 0 ? std::size_t(part.group) : 1)) {
      add_bare(outer.begin);
      next_stage = outer.end;
      const bool is_inner = part.group == 0 || outer.end - outer.begin == 1;
      if (part.per_block && is_inner) outer.keep = part.keep;
      if (part.per_block && !is_inner) {
        for (std::size_t i = outer.begin; i < outer.end; ++i) outer.parts.push_back({i, i + 1, true, part.keep, {}});
      }
      tree.push_back(std::move(outer));
    }
  }
  add_bare(stages.size());
  return tree;
}

}  // namespace refrain

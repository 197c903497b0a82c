// Puts page, style, script and data together; what the page shows is the scripts' affair.
#include <refrain/train/report_html/report_html.h>

#include <refrain/core/check.h>
#include <refrain/train/markup.h>
#include <refrain/train/report.h>
#include <refrain/train/report_html/page.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

namespace refrain {

namespace {

// The same JSON value: these characters stand only inside strings, where an escape means the same. U+2028 and U+2029 end lines
// in old scripts.
std::string as_script_data(std::string_view json) {
  std::string out;
  out.reserve(json.size() + json.size() / 64);
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '<') {
      out += "\\u003c";
    } else if (c == '>') {
      out += "\\u003e";
    } else if (c == '&') {
      out += "\\u0026";
    } else if (json.substr(i, 3) == "\xe2\x80\xa8" || json.substr(i, 3) == "\xe2\x80\xa9") {
      out += json[i + 2] == '\xa8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

void add_row(std::string& out, std::string_view name, std::int64_t bytes) {
  out += "<tr><td>";
  out += escaped(name);
  out += concat("</td><td class=\"number\">", bytes_text(bytes), " (", bytes, " bytes)</td></tr>\n");
}

// What can be said without a script: the peak, its kinds and its groups.
std::string without_script(const nlohmann::json& memory) {
  std::string out = "<section><h1>" + escaped(memory.value("title", "Memory report")) + "</h1>\n";
  out += "<p>The charts, the treemap and the unfolding receipt of this page are drawn by JavaScript, which is off or not there. ";
  out += "In short:</p>\n<table class=\"data\">\n";
  add_row(out, memory.value("planned", false) ? "peak, as planned" : "peak, as measured", memory.at("peak_bytes").get<std::int64_t>());
  add_row(out, "reserved", memory.value("reserved_bytes", std::int64_t{0}));
  out += "</table>\n<h2>At the peak, by kind</h2>\n<table class=\"data\">\n";
  const nlohmann::json& kinds = memory.at("kinds");
  std::vector<std::int64_t> per_kind(kinds.size(), 0);
  for (const nlohmann::json& block : memory.at("peak").at("blocks"))
    per_kind.at(block.at(2).get<std::size_t>()) += block.at(1).get<std::int64_t>();
  for (std::size_t k = 0; k < per_kind.size(); ++k) {
    if (per_kind[k] > 0) add_row(out, kinds[k].get<std::string>(), per_kind[k]);
  }
  out += "</table>\n<h2>By group</h2>\n<table class=\"data\">\n";
  for (const nlohmann::json& group : memory.at("groups"))
    add_row(out, group.at("name").get<std::string>(), group.at("bytes").get<std::int64_t>());
  return out + "</table></section>\n";
}

}  // namespace

std::string report_html(const std::string& memory_json) {
  std::map<std::string, std::string, std::less<>> parts;
  try {
    const nlohmann::json memory = nlohmann::json::parse(memory_json);
    parts["title"] = escaped(memory.value("title", "") + " · memory");
    parts["noscript"] = without_script(memory);
  } catch (const std::exception& error) {  // of the parser, or a number where there is none
    throw DataError(std::string("report_html: expected a memory.json, got: ") + error.what());
  }
  parts["memory"] = as_script_data(memory_json);
  parts["css"] = page::kStyle;
  for (const std::string_view script : page::kScripts) parts["js"] += script;

  // One pass from left to right: what is put in is not looked at again, so data that reads {{css}} stays data.
  std::string out;
  std::string_view rest = page::kPage;
  for (std::size_t open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const std::size_t close = rest.find("}}", open);
    invariant(close != std::string_view::npos, "report_html: a place in the page has no end");
    const auto part = parts.find(rest.substr(open + 2, close - open - 2));
    invariant(part != parts.end(), "report_html: the page has a place for what there is not");
    out += rest.substr(0, open);
    out += part->second;
    rest.remove_prefix(close + 2);
  }
  out += rest;
  return out;
}

}  // namespace refrain

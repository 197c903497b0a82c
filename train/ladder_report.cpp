// The ladder as text, as JSON and as a page.
#include <refrain/core/check.h>
#include <refrain/train/ladder.h>
#include <refrain/train/markup.h>
#include <refrain/train/report_html/page.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace refrain {

namespace {

constexpr const char* kNotes[] = {
    "Plans are of the kernels of the device that --device names, the CPU's without it; their scratch is part of the figures.",
    "Figures leave out the input: the loader's batch slots come on top and are listed as 'input'.",
    "Published: the article's reserved peak on a GPU, its first figure before and its second after the change where there are two.",
    "Reserved: with packing = \"online\" to plan faster, of the budget with packing = \"plan\", which takes less.",
    "In 16-mixed the residual stream is f32, the rest of a block 16-bit: of the 10 units a block keeps, 2 take 4 bytes and 8 take 2.",
    "That is 24 bytes where f32 takes 40; the arithmetic has more for A.",
    "Of the sharded rungs figures are one rank's of four. Host: beside them, in host memory.",
    "GB are decimal. In brackets: difference from what arithmetic says. FLOPs: of a step, against the rung's first column.",
};

std::string gb(double bytes, int digits = 3) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, bytes / 1e9);
  return text;
}
std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", std::abs(share) < 0.0005 ? 0.0 : 100 * share);
  return text;
}
std::string times(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f x", ratio);
  return text;
}
std::string published(const LadderRung& rung) {
  std::string text;
  for (const double value : rung.published_gb) text += (text.empty() ? "" : " / ") + gb(1e9 * value, 2);
  return text;
}
double ratio(const LadderRung& rung, const LadderEntry& entry) { return 1e9 * rung.published_gb.back() / double(entry.bytes()); }
double off_target(const LadderEntry& entry) { return double(entry.bytes()) / (1e9 * entry.target_gb) - 1; }

// To the width of a column of text.
std::string padded(std::string text) {
  text.resize(std::max<std::size_t>(text.size(), 10), ' ');
  return text;
}
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += concat(text.empty() ? "" : " ", word);
  return text;
}

}  // namespace

std::string ladder_text(const std::vector<LadderRung>& rungs) {
  std::string out = "The memory ladder: ViT-L/16, 10 classes, 224 x 224 images. Planned, nothing computed.\n";
  for (const LadderRung& rung : rungs) {
    out += concat("\n", rung.name, ", published ", published(rung), " GB\n");
    for (const LadderEntry& entry : rung.entries) {
      if (!entry.is_planned()) {
        out += concat("  ", padded(entry.column), " ", entry.missing, "\n");
      } else {
        char line[240];
        std::string target;
        if (entry.target_gb > 0) target = concat("arithmetic ", gb(1e9 * entry.target_gb, 2), " (", percent(off_target(entry)), ")");
        std::snprintf(line, sizeof line, "  %-10s %8s GB %9s less   %-29s input %5s   reserved %6s   FLOPs %8s\n", entry.column.c_str(),
                      gb(double(entry.bytes())).c_str(), times(ratio(rung, entry)).c_str(), target.c_str(),
                      gb(double(entry.input_bytes)).c_str(), gb(double(entry.reserved_bytes), 2).c_str(),
                      entry.step_flops > 0 ? percent(entry.extra_flops_share).c_str() : "-");
        out += line;
        if (entry.host_bytes > 0) out.insert(out.size() - 1, concat("   host ", gb(double(entry.host_bytes), 2)));
      }
      if (!entry.note.empty()) out += concat("             ", entry.note, "\n");
    }
  }
  out += "\nColumns\n";
  for (const LadderColumn& column : ladder_columns()) out += concat("  ", padded(column.name), " ", column.meaning, "\n");
  out += "\nNotes\n";
  for (const char* note : kNotes) out += concat("  ", note, "\n");
  return out;
}

std::string ladder_json(const std::vector<LadderRung>& rungs) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const LadderRung& rung : rungs) {
    Json entries = Json::array();
    for (const LadderEntry& entry : rung.entries) {
      Json made{{"column", entry.column},
                {"flags", joined(entry.flags)},
                {"target_gb", entry.target_gb > 0 ? Json(entry.target_gb) : Json(nullptr)}};
      if (entry.is_planned()) {
        made["bytes_without_input"] = entry.bytes();
        made["peak_bytes"] = entry.peak_bytes;
        made["input_bytes"] = entry.input_bytes;
        made["reserved_bytes"] = entry.reserved_bytes;
        if (entry.host_bytes > 0) made["host_bytes"] = entry.host_bytes;
        if (entry.world_size > 1) made["world_size"] = entry.world_size;
        made["times_less_than_published"] = ratio(rung, entry);
        made["step_flops"] = entry.step_flops;
        made["extra_flops_share"] = entry.extra_flops_share;
        if (!entry.note.empty()) made["note"] = entry.note;
      } else {
        made["missing"] = entry.missing;
      }
      entries.push_back(std::move(made));
    }
    list.push_back({{"rung", rung.name}, {"published_gb", rung.published_gb}, {"entries", std::move(entries)}});
  }
  Json notes = Json::array();
  for (const char* note : kNotes) notes.push_back(note);
  return Json{{"model", "vit_l_16"}, {"planned_for", "cpu"}, {"rungs", std::move(list)}, {"notes", std::move(notes)}}.dump(2) + "\n";
}

std::string ladder_html(const std::vector<LadderRung>& rungs) {
  std::string out = concat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n",
      "<meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\">\n",
      "<title>Memory ladder of ViT-L/16</title>\n<style>\n", page::kStyle,
      ".ladder { display: grid; grid-template-columns: 88px minmax(80px, 1fr) repeat(5, auto); gap: 5px 18px; align-items: center; "
      "font-size: 14px; }\n"
      ".ladder .track { height: 15px; } .ladder .track div { height: 15px; border-radius: 3px; background: var(--parameter); }\n"
      ".ladder .track .out { background: var(--communication); } .ladder .title { font-size: 12.5px; font-weight: 600; color: "
      "var(--muted); }\n"
      ".ladder .gap { grid-column: 2 / -1; font-size: 13px; }\n"
      "@media (max-width: 760px) { .ladder { grid-template-columns: 70px minmax(50px, 1fr) auto auto; } .ladder .optional { display: none; "
      "} }\n",
      "</style></head><body><main>\n<section style=\"margin-top:0\"><h1>The memory ladder of ViT-L/16</h1>\n",
      "<p class=\"muted\">10 classes, 224 × 224 images. Planned, nothing computed.</p></section>\n");
  for (const LadderRung& rung : rungs) {
    out += concat("<section><div class=\"head\"><h2>", escaped(rung.name), "</h2><span class=\"muted\">published: ", published(rung), " GB</span></div>\n");
    if (!rung.entries.empty()) {
      double widest = 1e9 * rung.published_gb.front();
      for (const LadderEntry& entry : rung.entries) widest = std::max(widest, double(entry.bytes()));
      const auto bar = [&](double bytes, const char* kind) {
        return concat("<div class=\"track\"><div class=\"", kind, "\" style=\"width:", fixed(100 * bytes / widest, 2), "%\"></div></div>");
      };
      out +=
          "<div class=\"ladder\"><span class=\"title\"></span><span class=\"title\"></span><span class=\"title number\">GB</span><span "
          "class=\"title number\">less by</span>"
          "<span class=\"title number optional\">arithmetic</span><span class=\"title number optional\">input</span><span class=\"title "
          "number optional\">FLOPs</span>\n";
      out += concat(
          "<span class=\"muted\">published</span>", bar(1e9 * rung.published_gb.front(), "out"), "<span class=\"number\">", published(rung),
          "</span><span></span><span class=\"optional\"></span><span class=\"optional\"></span><span class=\"optional\"></span>\n");
      for (const LadderEntry& entry : rung.entries) {
        out += concat("<span title=\"", escaped(joined(entry.flags)), "\">", entry.column, "</span>");
        if (!entry.is_planned()) {
          out += concat("<span class=\"muted gap\">", escaped(entry.missing), "</span>\n");
          continue;
        }
        out += concat(bar(double(entry.bytes()), "own"), "<span class=\"number\" title=\"", entry.bytes(), " bytes\">",
                      gb(double(entry.bytes())), "</span><span class=\"number\">", times(ratio(rung, entry)),
                      "</span><span class=\"number optional\">",
                      entry.target_gb > 0 ? concat(gb(1e9 * entry.target_gb, 2), " (", percent(off_target(entry)), ")") : "",
                      "</span><span class=\"number optional\">", gb(double(entry.input_bytes)), "</span><span class=\"number optional\">",
                      entry.step_flops > 0 ? percent(entry.extra_flops_share) : "–", "</span>\n");
        if (!entry.note.empty()) out += concat("<span class=\"muted gap\">", escaped(entry.note), "</span>\n");
      }
      out += "</div>\n";
    }
    out += "</section>\n";
  }
  out += "<section><h2>Columns</h2><table class=\"data\">\n";
  for (const LadderColumn& column : ladder_columns())
    out += concat("<tr><td>", column.name, "</td><td>", escaped(column.meaning), "</td></tr>\n");
  out += "</table></section>\n<footer>";
  for (const char* note : kNotes) out += concat("<p>", escaped(note), "</p>");
  return out + "</footer></main></body></html>\n";
}

}  // namespace refrain

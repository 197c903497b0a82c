#include <refrain/train/memory_export.h>

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/train/config_keys.h>
#include <refrain/train/memory_blocks.h>
#include <refrain/train/memory_svg.h>
#include <refrain/train/remedies_json.h>
#include <refrain/train/report_html/report_html.h>

#include <map>
#include <set>
#include <sstream>

namespace refrain {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostMetrics = 4'000;

// Texts that occur often, as indices into a list of them.
class Table {
 public:
  std::size_t index(std::string_view text) {
    const auto [place, is_new] = indices_.try_emplace(std::string(text), texts_.size());
    if (is_new) texts_.emplace_back(text);
    return place->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, std::size_t> indices_;
  std::vector<std::string> texts_;
};

Json config_json(const Config& config) {
  Json json;
  detail::for_each_key(
      config, [](std::string_view) {},
      [&](const detail::Key& key, const auto& field) {
        if constexpr (std::is_same_v<std::decay_t<decltype(field)>, ByteCount>) json[std::string(key.name)] = field.value;
        else json[std::string(key.name)] = field;
      });
  return json;
}

Json curve_json(const MemoryCurve& curve) {
  Json bytes = Json::object();
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) bytes[std::string(name_of(MemoryKind(kind)))] = curve.bytes[std::size_t(kind)];
  return {{"ticks", curve.ticks}, {"seconds", curve.seconds}, {"bytes", std::move(bytes)}};
}

Json block_json(const MemoryBlock& block, Table& modules, Table& ops) {
  return {block.id,
          block.bytes,
          int(block.tag.kind),
          int(block.tag.phase),
          modules.index(block.tag.module->text),
          ops.index(block.tag.op),
          block.birth,
          block.death};
}

Json thinned(Json column) {
  const std::size_t k = (column.size() + kMostMetrics - 1) / kMostMetrics;
  if (k <= 1) return column;
  Json out = Json::array();
  for (std::size_t i = (column.size() - 1) % k; i < column.size(); i += k) out.push_back(std::move(column[i]));
  return out;
}

// Rows of metrics.jsonl, column by column, of more than kMostMetrics every k-th and the last. A damaged line is passed over: the
// file may be growing.
Json metrics_json(const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return nullptr;
  constexpr const char* kColumns[] = {"loss", "lr", "grad_norm", "samples_per_second"};
  Json out = Json::object();
  for (const char* column : {"step", "loss", "lr", "grad_norm", "samples_per_second", "test_step", "test_accuracy", "test_loss"})
    out[column] = Json::array();
  std::istringstream lines(read_text_file(path));
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("step")) continue;
    if (row.contains("loss")) {
      out["step"].push_back(row["step"]);
      for (const char* column : kColumns) out[column].push_back(row.value(column, Json(nullptr)));
    }
    if (row.contains("test_accuracy")) {
      out["test_step"].push_back(row["step"]);
      out["test_accuracy"].push_back(row["test_accuracy"]);
      out["test_loss"].push_back(row.value("test_loss", Json(nullptr)));
    }
  }
  for (Json& column : out) column = thinned(std::move(column));
  return out;
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

}  // namespace

std::string memory_json(const MemoryExport& what) {
  Table modules, ops;
  modules.index("");
  ops.index("");
  Json json;
  json["title"] = what.title;
  json["planned"] = what.is_planned;
  json["precision"] = what.config.precision;
  json["config"] = config_json(what.config);
  json["peak_bytes"] = what.receipt.peak_bytes;
  json["unknown_bytes"] = what.receipt.unknown_bytes;
  json["reserved_bytes"] = what.reserved_bytes;
  json["kinds"] = Json::array();
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) json["kinds"].push_back(name_of(MemoryKind(kind)));
  json["marks"] = Json::array();
  for (const TimelineMark& mark : what.timeline.marks()) json["marks"].push_back({{"tick", mark.tick}, {"label", mark.label}});
  json["curve"] = curve_json(memory_curve(what.timeline));
  json["planned_curve"] = what.planned_curve ? curve_json(*what.planned_curve) : Json(nullptr);
  Json blocks = Json::array(), peak = Json::array();
  for (const MemoryBlock& block : exported_blocks(what.timeline).blocks) blocks.push_back(block_json(block, modules, ops));
  for (const MemoryBlock& block : what.timeline.peak()) peak.push_back(block_json(block, modules, ops));
  json["modules"] = modules.texts();
  json["ops"] = ops.texts();
  json["phases"] = Json::array();
  for (int phase = 0; phase < kNumPhases; ++phase) json["phases"].push_back(name_of(Phase(phase)));
  json["blocks"] = std::move(blocks);
  json["peak"] = {{"tick", what.timeline.peak_tick()}, {"moment", what.receipt.moment}, {"blocks", std::move(peak)}};
  json["groups"] = groups_json(what.receipt, what.remedies);
  json["combined"] = combined_json(what.remedies);
  json["metrics"] = metrics_json(what.metrics);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string memory_csv(const MemoryExport& what) {
  std::map<std::uint64_t, MemoryBlock> blocks;
  std::set<std::uint64_t> at_peak;
  for (const MemoryBlock& block : exported_blocks(what.timeline).blocks) blocks.emplace(block.id, block);
  for (const MemoryBlock& block : what.timeline.peak()) {
    blocks.insert_or_assign(block.id, block);
    at_peak.insert(block.id);
  }
  std::string out = "id,bytes,kind,phase,module,op,birth,death,alive_at_peak\n";
  for (const auto& [id, block] : blocks) {
    const std::string death = block.death < 0 ? "" : std::to_string(block.death);
    out += concat(id, ',', block.bytes, ',', name_of(block.tag.kind), ',', name_of(block.tag.phase), ',',
                  csv_field(block.tag.module->text), ',', csv_field(block.tag.op), ',', block.birth, ',', death, ',',
                  at_peak.contains(id) ? 1 : 0, '\n');
  }
  return out;
}

void export_memory(const std::filesystem::path& directory, const MemoryExport& what) {
  make_directories(directory);
  const std::string json = memory_json(what);
  write_file_atomically(directory / "memory.json", json);
  write_file_atomically(directory / "memory.csv", memory_csv(what));
  write_file_atomically(directory / "trace.json", memory_trace(what));
  write_file_atomically(directory / "memory.svg", memory_svg(what.timeline, what.title));
  write_file_atomically(directory / "report.html", report_html(json));
}

}  // namespace refrain

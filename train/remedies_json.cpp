#include <refrain/train/remedies_json.h>

namespace refrain {

namespace {

using Json = nlohmann::ordered_json;

Json remedy_json(const Remedy& remedy) {
  return {{"name", remedy.name},
          {"flags", remedy.flags_text()},
          {"effect", name_of(remedy.effect)},
          {"peak_bytes", remedy.peak_bytes},
          {"reserved_bytes", remedy.reserved_bytes},
          {"saved_bytes", remedy.saved_bytes},
          {"extra_flops_share", remedy.extra_flops_share}};
}

}  // namespace

Json groups_json(const Receipt& receipt, const Remedies& remedies) {
  Json groups = Json::array();
  for (std::size_t i = 0; i < receipt.groups.size(); ++i) {
    const ReceiptGroup& group = receipt.groups[i];
    Json json = {{"name", group.name},
                 {"kind", group.is_other ? Json(nullptr) : Json(name_of(group.kind))},
                 {"modules", group.modules},
                 {"bytes", group.bytes},
                 {"count", group.count},
                 {"remedies", Json::array()}};
    for (const Remedy* remedy : remedies.of_group(receipt, i)) {
      Json of_group = remedy_json(*remedy);
      of_group["group_bytes"] = remedy->group_bytes[i];
      json["remedies"].push_back(std::move(of_group));
    }
    groups.push_back(std::move(json));
  }
  return groups;
}

Json combined_json(const Remedies& remedies) {
  Json list = Json::array();
  for (const Remedy& remedy : remedies.combined) list.push_back(remedy_json(remedy));
  return list;
}

Json receipt_json(const Receipt& receipt, const Remedies& remedies) {
  Json tensors = Json::array();
  for (const ReceiptLine& line : receipt.lines) {
    tensors.push_back({{"id", line.id},
                       {"bytes", line.bytes},
                       {"kind", name_of(line.kind)},
                       {"phase", name_of(line.phase)},
                       {"module", line.module->text},
                       {"op", line.op},
                       {"birth", line.birth},
                       {"death", line.death},
                       {"born", line.born},
                       {"died", line.died},
                       {"group", line.group}});
  }
  return {{"peak_bytes", receipt.peak_bytes}, {"unknown_bytes", receipt.unknown_bytes}, {"tick", receipt.tick}, {"moment", receipt.moment},
          {"groups", groups_json(receipt, remedies)}, {"combined", combined_json(remedies)}, {"tensors", std::move(tensors)}};
}

}  // namespace refrain

#include <refrain/autograd/skeleton.h>

namespace refrain {

namespace {

// For every op, last first: visit(op index, is_reached). Follows each gradient to the values it contributes to and
// calls deliver(capture) for those from outside.
template <class Visit, class Deliver>
void walk_reached(const Skeleton& skeleton, const std::vector<bool>& reached_outputs, Visit&& visit, Deliver&& deliver) {
  std::vector<std::vector<bool>> reached;
  for (const SkeletonOp& op : skeleton.ops) reached.emplace_back(op.results.size(), false);
  for (std::size_t i = 0; i < skeleton.outputs.size(); ++i) {
    const ValueRef& ref = skeleton.outputs[i];
    if (reached_outputs[i]) reached[std::size_t(ref.index)][std::size_t(ref.output)] = true;
  }
  for (std::size_t i = skeleton.ops.size(); i-- > 0;) {
    const SkeletonOp& op = skeleton.ops[i];
    std::vector<bool> op_outputs;
    bool is_reached = false;
    for (std::size_t j = 0; j < std::size_t(op.num_outputs); ++j) {
      op_outputs.push_back(op.results[j].wants_grad && reached[i][j]);
      is_reached |= op_outputs.back();
    }
    visit(i, is_reached);
    if (!is_reached) continue;
    const auto contribute = [&](const ValueRef& ref) {
      if (ref.kind == ValueRef::Kind::inner) reached[std::size_t(ref.index)][std::size_t(ref.output)] = true;
      if (ref.kind == ValueRef::Kind::outer) deliver(ref.index);
    };
    if (op.region != nullptr) {
      op.region->for_each_contribution(op_outputs, [&](int capture) { contribute(op.inputs[std::size_t(capture)]); });
    } else {
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        if (op.needs[k]) contribute(op.inputs[k]);
      }
    }
  }
}

}  // namespace

Skeleton::Demand Skeleton::demand(const std::vector<bool>& reached_outputs, const std::vector<std::vector<Tensor>>& kept) const {
  Demand demand;
  demand.computes.assign(ops.size(), false);
  for (const SkeletonOp& op : ops) demand.results.emplace_back(op.results.size(), false);
  const auto need = [&](const ValueRef& ref) {
    if (ref.kind == ValueRef::Kind::inner) demand.results[std::size_t(ref.index)][std::size_t(ref.output)] = true;
  };
  const auto visit = [&](std::size_t i, bool is_reached) {
    const SkeletonOp& op = ops[i];
    if (is_reached) {
      for (const ValueRef& ref : op.saved) need(ref);
    }
    if (op.is_read) demand.results[i].assign(op.results.size(), true);
    bool computes = op.is_read;
    for (std::size_t j = 0; j < op.results.size(); ++j) {
      computes |= demand.results[i][j] && (kept.empty() || !kept[i][j].defined());
    }
    if (op.region != nullptr && is_reached) {
      // A nested region that found values of this one by capture runs again, so that it finds the new ones.
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        computes |= op.inputs[k].kind == ValueRef::Kind::inner && !op.region->captures[k].is_argument;
      }
    }
    demand.computes[i] = computes;
    if (computes) {
      for (const ValueRef& ref : op.inputs) need(ref);
    }
  };
  walk_reached(*this, reached_outputs, visit, [](int) {});
  return demand;
}

void Skeleton::for_each_contribution(const std::vector<bool>& reached_outputs, const std::function<void(int)>& deliver) const {
  walk_reached(*this, reached_outputs, [](std::size_t, bool) {}, [&](int capture) {
    if (captures[std::size_t(capture)].wants_grad) deliver(capture);
  });
}

bool Skeleton::wants_grad() const {
  for (const ValueRef& ref : outputs) {
    if (ops[std::size_t(ref.index)].results[std::size_t(ref.output)].wants_grad) return true;
  }
  return false;
}

}  // namespace refrain

// A training's memory and work before it runs. The whole program – model, optimizer, loader slots, windows, updates,
// evaluations – is run on a plan device, whose tensors have sizes and no bytes, through the very arena code of the run. Peak and
// reserved bytes are therefore the run's to the byte, on the device that the configuration names: a plan for CUDA has the scratch
// of CUDA's kernels, and needs no such device. Needs neither weights nor data.
#pragma once

#include <refrain/core/memory/layout.h>
#include <refrain/core/memory/ledger.h>
#include <refrain/core/memory/timeline.h>
#include <refrain/kernels/kernel.h>
#include <refrain/train/calibrate.h>
#include <refrain/train/config.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace refrain {

struct PlanOptions {
  std::int64_t num_train = 0, num_test = 0;  // samples; 0: as the data says, else 60000 and 10000
  bool work = true;                          // count FLOPs and bytes moved; without, a plan takes half the time and says 0
  bool timeline = false;                     // every allocation with its birth and death, in Plan::timeline
  // Run every micro-batch of a window and every batch of an evaluation, as the training does: its timeline is then the run's,
  // event by event. Otherwise those between that are like their neighbours are left out.
  bool whole_windows = false;
  // With packing = "plan": false leaves the layout out, which takes half the time, and makes reserved_bytes those of packing =
  // "online". Everything else stays the same.
  bool is_packed = true;
  // Of the ranks of such a world, this one. No rank has more batches than rank 0.
  int world_size = 1, rank = 0;
};

// Where in a plan's timeline the parts of the program stand as they repeat themselves: indices of marks, -1 where there is none.
struct PlannedParts {
  std::int64_t window = -1, last_window = -1;  // of a step; the shorter one at the end of an epoch
  std::int64_t evaluation = -1;
};

// Work of a part of the program.
struct PlannedWork {
  Cost total, replay;
};

struct Plan {
  Config config;                      // as the run would resolve it
  std::int64_t num_train = 0, num_test = 0;
  int world_size = 1, rank = 0;       // memory and work are this rank's
  std::vector<std::string> notes;     // what was assumed about the data, and why
  std::int64_t num_parameters = 0;
  std::int64_t steps = 0, steps_per_epoch = 0, evaluations = 0;

  Ledger ledger;                      // its peak is the run's
  std::int64_t reserved_bytes = 0;    // of the arena, holes included
  Ledger host;                        // of what is offloaded (Device::host()); empty where nothing is
  std::int64_t host_reserved_bytes = 0;
  std::shared_ptr<const Layout> layout;  // that the run follows; null with packing = "online"

  std::optional<Timeline> timeline;   // when asked for; from the building of the model to the end of the rehearsal
  PlannedParts parts;                 // of the timeline

  PlannedWork step, evaluation, run;         // of a whole window with its update; of one evaluation; of all steps
  double replayed_share() const { return run.total.flops > 0 ? run.replay.flops / run.total.flops : 0; }

  // For estimates of time, flops and bytes at these rates one after the other; 0 without. The caller sets them, as
  // measure_rates() says or from elsewhere: a plan itself measures nothing.
  std::optional<MachineRates> rates = {};
  double seconds_of(const Cost& cost) const {
    return rates ? cost.flops / rates->flops_per_second + cost.bytes / rates->bytes_per_second : 0;
  }
  double step_seconds() const { return seconds_of(step.total); }
  double run_seconds() const { return seconds_of(run.total) + double(evaluations) * seconds_of(evaluation.total); }
};

// Plans run_training(config). A memory limit is not applied: the plan says what there would have to be. Loss scaling is planned
// without steps that overflow. Windows and epochs are repeated until nothing changes any more, and counted from then on.
//
// The plan runs on a thread of its own, with its own device, random numbers and cost meter: trainings that go on in this
// process are untouched. Throws InvalidArgument as run_training does, and for a size that neither configuration nor data tells.
Plan plan_training(const Config& config, const PlanOptions& options = {});

}  // namespace refrain

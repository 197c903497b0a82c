// The train room's public surface.
#pragma once

#include <refrain/train/config.h>
#include <refrain/train/memory_export.h>
#include <refrain/train/plan.h>
#include <refrain/train/plan_report.h>
#include <refrain/train/presets.h>
#include <refrain/train/receipt.h>
#include <refrain/train/remedies.h>
#include <refrain/train/run.h>
#include <refrain/train/setup.h>
#include <refrain/train/snapshot_state.h>
#include <refrain/train/trainer.h>

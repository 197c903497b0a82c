// The optim room's public surface.
#pragma once

#include <refrain/optim/adam.h>
#include <refrain/optim/clip_grad.h>
#include <refrain/optim/grad_scaler.h>
#include <refrain/optim/fused_update.h>
#include <refrain/optim/optimizer.h>
#include <refrain/optim/parameter_group.h>
#include <refrain/optim/schedule.h>
#include <refrain/optim/sgd.h>
#include <refrain/optim/update_options.h>

// The autograd room's public surface.
#pragma once

#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/op.h>
#include <refrain/autograd/precision.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/stage.h>
#include <refrain/autograd/stage_keeper.h>
#include <refrain/autograd/tape.h>
#include <refrain/autograd/ops/all.h>

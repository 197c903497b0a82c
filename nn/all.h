// The public surface of nn: modules, layers and initial values.
#pragma once

#include <refrain/nn/attention.h>
#include <refrain/nn/convolution.h>
#include <refrain/nn/creation.h>
#include <refrain/nn/dropout.h>
#include <refrain/nn/embedding.h>
#include <refrain/nn/init.h>
#include <refrain/nn/linear.h>
#include <refrain/nn/loss.h>
#include <refrain/nn/mlp.h>
#include <refrain/nn/module.h>
#include <refrain/nn/norm.h>
#include <refrain/nn/patch_embedding.h>

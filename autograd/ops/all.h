// Every differentiable function.
#pragma once

#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/attention.h>
#include <refrain/autograd/ops/concat.h>
#include <refrain/autograd/ops/convert.h>
#include <refrain/autograd/ops/convolution.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/embedding.h>
#include <refrain/autograd/ops/in_place.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/linear_cross_entropy.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/matmul.h>
#include <refrain/autograd/ops/mlp.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/ops/view.h>

// The kernels room's public surface: every contract.
#pragma once

#include <refrain/kernels/kernel.h>
#include <refrain/kernels/attention/attention.h>
#include <refrain/kernels/concat/concat.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/dropout/dropout.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/loss/loss.h>
#include <refrain/kernels/matmul/matmul.h>
#include <refrain/kernels/norm/norm.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/reduce/reduce_ranks.h>
#include <refrain/kernels/softmax/softmax.h>
#include <refrain/kernels/update/update.h>

// The core room's public surface.
#pragma once

#include <refrain/core/check.h>
#include <refrain/core/context.h>
#include <refrain/core/copier.h>
#include <refrain/core/device.h>
#include <refrain/core/dtype.h>
#include <refrain/core/half.h>
#include <refrain/core/named_tensor.h>
#include <refrain/core/parallel.h>
#include <refrain/core/random.h>
#include <refrain/core/shape.h>
#include <refrain/core/storage.h>
#include <refrain/core/tensor.h>
#include <refrain/core/view.h>
#include <refrain/core/memory/arena.h>
#include <refrain/core/memory/ledger.h>
#include <refrain/core/io/file.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>

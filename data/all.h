// The data room's public surface.
#pragma once

#include <refrain/data/cifar10.h>
#include <refrain/data/dataset.h>
#include <refrain/data/idx.h>
#include <refrain/data/loader.h>
#include <refrain/data/planned_samples.h>
#include <refrain/data/samples.h>

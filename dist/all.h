// The dist room's public surface.
#pragma once

#include <refrain/dist/data_parallel.h>
#include <refrain/dist/join_group.h>
#include <refrain/dist/local_sgd.h>
#include <refrain/dist/process_group.h>
#include <refrain/dist/rank_lost.h>

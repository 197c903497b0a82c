// The public surface of models.
#pragma once

#include <refrain/models/block.h>
#include <refrain/models/chain_model.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/head.h>
#include <refrain/models/vit.h>

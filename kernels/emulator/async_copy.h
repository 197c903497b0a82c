// Model of cp.async: a copy lands as late as it may, at its wait, and what it writes is NaN until then.
#pragma once

#include <refrain/kernels/emulator/thread.h>

namespace refrain::emulator {

// Where `is_wanted` is false zeros are written and the source is not read.
void cp_async(void* to, const void* from, unsigned bytes, bool is_wanted, Site site);
void cp_async_commit();
void cp_async_wait(unsigned num_pending);  // all but the latest num_pending groups have landed
void cp_async_wait_all();                  // with what was not committed

}  // namespace refrain::emulator

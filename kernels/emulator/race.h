// Where the race detector listens. race.cpp is linked into the race flavour, where kernels are compiled with instrumentation;
// race_off.cpp, which hears nothing, into the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace refrain::emulator {

struct DeviceThread;

// What models of instructions read and wrote on behalf of thread `linear` of the running block.
void note_read(const void* address, std::size_t bytes, unsigned linear);
void note_write(const void* address, std::size_t bytes, unsigned linear);
void note_atomic(const void* address, std::size_t bytes);
// A __syncwarp of the lanes in the mask: what each did before comes before what each does next.
void order_lanes(DeviceThread* lanes, unsigned mask, std::uint16_t& warp_stamp);

void start_race_check();
std::string end_race_check();  // the first race of the launch, or nothing

// Whether races are looked for.
extern const bool kFindsRaces;

}  // namespace refrain::emulator

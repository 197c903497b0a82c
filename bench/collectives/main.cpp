// Collectives over ranks of this machine.
//
//   bench_collectives [--device cpu|cuda] [--ranks 2,4] [--repetitions 9]
//
// cpu: beside Gloo's own ring. cuda: a GPU a rank; with one rank NCCL's messages to itself, and the kernel that adds.
#include <refrain/bench/collectives/ranks.h>

#include <sstream>
#include <string>

int main(int count, char** values) {
  std::string ranks, device = "cpu";
  int repetitions = 9;
  for (int i = 1; i + 1 < count; i += 2) {
    if (std::string(values[i]) == "--device") device = values[i + 1];
    if (std::string(values[i]) == "--ranks") ranks = values[i + 1];
    if (std::string(values[i]) == "--repetitions") repetitions = std::max(1, std::atoi(values[i + 1]));
  }
  if (ranks.empty()) ranks = device == "cuda" ? "1" : "2,4";
  std::vector<int> world_sizes;
  std::istringstream list(ranks);
  for (std::string number; std::getline(list, number, ',');) world_sizes.push_back(std::max(1, std::atoi(number.c_str())));
  return device == "cuda" ? refrain::bench::run_cuda(world_sizes, repetitions) : refrain::bench::run_gloo(world_sizes, repetitions);
}

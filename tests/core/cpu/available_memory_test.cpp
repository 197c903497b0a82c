// What a control group and the system leave, from trees of files as the kernel writes them.
#include <refrain/core/cpu/available_memory.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <limits>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();

const char* const kV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const char* const kV1 =
    "31 23 0:27 / /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 / /sys/fs/cgroup/memory rw shared:6 - cgroup cgroup rw,memory\n";

std::string meminfo(std::int64_t mib) {
  return "MemTotal:       99999999 kB\nMemFree:          1024 kB\nMemAvailable:   " + std::to_string(mib * 1024) + " kB\n";
}

void write_v2(const ScratchDirectory& root, const std::string& group, const std::string& max, const std::string& high,
              std::int64_t used_mib, std::int64_t cache_mib) {
  const std::string directory = "sys/fs/cgroup" + group;
  root.write(directory + "/memory.max", max + "\n");
  root.write(directory + "/memory.high", high + "\n");
  root.write(directory + "/memory.current", std::to_string(used_mib * kMiB) + "\n");
  root.write(directory + "/memory.stat",
             "anon 5\ninactive_anon 7\ninactive_file " + std::to_string(cache_mib * kMiB) + "\nactive_file 3\n");
}

void write_v1(const ScratchDirectory& root, const std::string& group, const std::string& limit, std::int64_t used_mib,
              std::int64_t cache_mib) {
  const std::string directory = "sys/fs/cgroup/memory" + group;
  root.write(directory + "/memory.limit_in_bytes", limit + "\n");
  root.write(directory + "/memory.usage_in_bytes", std::to_string(used_mib * kMiB) + "\n");
  root.write(directory + "/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(cache_mib * kMiB) + "\n");
}

std::string mib(std::int64_t count) { return std::to_string(count * kMiB); }

}  // namespace

TEST_CASE("available memory: without files nothing is known, without groups it is the system's") {
  const ScratchDirectory root;
  CHECK(available_memory(root / "nowhere") == kNothing);
  root.write("proc/meminfo", meminfo(500));
  CHECK(available_memory(root / "") == 500 * kMiB);
  root.write("proc/self/cgroup", "0::/user.slice\nnonsense\n:\n");
  CHECK(available_memory(root / "") == 500 * kMiB);  // no mount
  root.write("proc/self/mountinfo", std::string("\n - \nshort - cgroup2\n") + kV2);
  CHECK(available_memory(root / "") == 500 * kMiB);  // a mount without files
  root.write("proc/meminfo", "MemFree: 2048 kB\n");
  CHECK(available_memory(root / "") == 2 * kMiB);
  root.write("proc/meminfo", "MemAvailable: 99999999999999999999999999 kB\n");
  CHECK(available_memory(root / "") == kNothing);
}

TEST_CASE("available memory: v2 takes the least of max and high over the group and its parents, cache counted as free") {
  const ScratchDirectory root;
  root.write("proc/meminfo", meminfo(5000));
  root.write("proc/self/mountinfo", kV2);
  root.write("proc/self/cgroup", "0::/a/b/c\n");
  write_v2(root, "/a/b/c", "max", "max", 10, 0);
  CHECK(available_memory(root / "") == 5000 * kMiB);
  write_v2(root, "/a/b/c", mib(1000), "max", 300, 100);
  CHECK(available_memory(root / "") == 800 * kMiB);
  write_v2(root, "/a/b/c", mib(1000), mib(600), 300, 100);
  CHECK(available_memory(root / "") == 400 * kMiB);
  write_v2(root, "/a", mib(700), "max", 650, 50);  // a parent
  CHECK(available_memory(root / "") == 100 * kMiB);
  write_v2(root, "/a", mib(700), "max", 900, 50);  // over its limit
  CHECK(available_memory(root / "") == 0);
  write_v2(root, "/a", "99999999999999999999999", "max", 900, 50);
  CHECK(available_memory(root / "") == 400 * kMiB);
  root.write("sys/fs/cgroup/a/b/c/memory.current", "not a number\n");
  CHECK(available_memory(root / "") == 5000 * kMiB);
}

TEST_CASE("available memory: v1 reads the memory hierarchy, whatever else is mounted") {
  const ScratchDirectory root;
  root.write("proc/meminfo", meminfo(5000));
  root.write("proc/self/mountinfo", kV1);
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:hugetlb,memory:/job/step\n");
  write_v1(root, "/job/step", "9223372036854771712", 10, 0);  // how v1 writes "none"
  CHECK(available_memory(root / "") == 5000 * kMiB);
  write_v1(root, "/job/step", mib(1000), 300, 100);
  CHECK(available_memory(root / "") == 800 * kMiB);
  write_v1(root, "/job", mib(500), 300, 0);
  CHECK(available_memory(root / "") == 200 * kMiB);
  write_v1(root, "", mib(400), 350, 0);
  CHECK(available_memory(root / "") == 50 * kMiB);
}

TEST_CASE("available memory: in a container the mount shows the group itself, under any name") {
  const ScratchDirectory root;
  root.write("proc/meminfo", meminfo(5000));
  write_v2(root, "", mib(1000), "max", 200, 0);
  root.write("proc/self/mountinfo", kV2);
  for (const char* path : {"/", "/..", "/../../other", ""}) {
    root.write("proc/self/cgroup", std::string("0::") + path + "\n");
    CHECK(available_memory(root / "") == 800 * kMiB);
  }
  root.write("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  root.write("proc/self/cgroup", "0::/docker/abc/inner\n");
  CHECK(available_memory(root / "") == 800 * kMiB);
  write_v2(root, "/inner", mib(100), "max", 40, 0);
  CHECK(available_memory(root / "") == 60 * kMiB);
  root.write("proc/self/mountinfo", "30 23 0:26 / /with\\040blank ro - cgroup2 cgroup rw\n");
  root.write("proc/self/cgroup", "0::/\n");
  root.write("with blank/memory.max", mib(30));
  root.write("with blank/memory.current", "0");
  CHECK(available_memory(root / "") == 30 * kMiB);
}

TEST_CASE("available memory: this system tells") {
  CHECK(available_memory() > 0);
  CHECK(available_memory() < std::int64_t{1} << 50);
}

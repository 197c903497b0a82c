// What the store is made of, and the places that launchers' variables give; what is wrong with them in one clear line.
#include "rendezvous_support.h"

#include <refrain/dist/join_group.h>
#include <refrain/dist/net/frame.h>
#include <refrain/dist/net/secret.h>
#include <refrain/tests/support/catch.h>

#include <cstdlib>

namespace refrain {

namespace {

using detail::FrameType;
using testing::has;
using testing::problem_of;

// Clears what a launcher would have set, and afterwards what the test has.
class Environment {
 public:
  Environment() { clear(); }
  ~Environment() { clear(); }
  void set(const char* name, const char* value) { setenv(name, value, 1); }
  void clear() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "REFRAIN_TOKEN",
          "REFRAIN_STORE_FD", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"})
      unsetenv(name);
  }
};

}  // namespace

TEST_CASE("hmac: published examples, and comparison") {
  const auto text = [](const detail::Digest& digest) {
    return detail::hex({reinterpret_cast<const char*>(digest.data()), digest.size()});
  };
  // RFC 4231, cases 2 and 6.
  CHECK(text(detail::hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(text(detail::hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  const detail::Digest digest = detail::hmac_sha256("key", "bytes");
  std::string same(reinterpret_cast<const char*>(digest.data()), digest.size());
  CHECK(detail::is_equal_in_constant_time(digest, same));
  CHECK_FALSE(detail::is_equal_in_constant_time(digest, same.substr(1)));
  same.back() = char(same.back() ^ 1);
  CHECK_FALSE(detail::is_equal_in_constant_time(digest, same));
}

TEST_CASE("frames: cut anywhere, bounded, and nonsense is refused") {
  const std::string two = detail::encode(FrameType::beat, "abc") + detail::encode(FrameType::bye, "");
  detail::FrameReader reader(3);
  std::vector<std::string> payloads;
  for (const char c : two) {
    reader.add(std::string_view(&c, 1));
    while (const auto frame = reader.next()) payloads.push_back(frame->payload);
  }
  CHECK(payloads == std::vector<std::string>{"abc", ""});
  for (const std::string& bad : {std::string("GET / HTTP/1.1\r\n"), std::string("R?"), detail::encode(FrameType::beat, "abcd"),
                                 std::string("RFN1\0aaaa", 9), std::string("RFN1\x01\xff\xff\xff\xff", 9)}) {
    detail::FrameReader strict(3);
    strict.add(bad);
    CHECK_THROWS_AS(strict.next(), DataError);
  }
  const std::string fields = detail::PayloadWriter().number(-5).text("host").bytes();
  detail::PayloadReader good(fields);
  CHECK(good.number() == -5);
  CHECK_THROWS_AS(good.text(3), DataError);
  detail::PayloadReader cut(std::string_view(fields).substr(0, fields.size() - 1));
  CHECK(cut.number() == -5);
  CHECK_THROWS_AS(cut.text(10), DataError);
  CHECK_THROWS_AS(cut.done(), DataError);
}

TEST_CASE("places: torchrun's, Open MPI's and Slurm's variables, and what is wrong with them") {
  Environment environment;
  CHECK(place_from_environment().world_size == 1);
  environment.set("RANK", "3");
  CHECK(problem_of([] { place_from_environment(); }) == "RANK is set, WORLD_SIZE is not");
  environment.set("WORLD_SIZE", "3");
  CHECK(problem_of([] { place_from_environment(); }) == "RANK is 3, but WORLD_SIZE is 3: ranks go from 0 to 2");
  environment.set("RANK", "two");
  CHECK(problem_of([] { place_from_environment(); }) == "RANK: expected a number from 0 to 1023, got 'two'");
  environment.set("RANK", "2");
  CHECK(place_from_environment().local_world_size == 3);
  CHECK(place_from_environment().master_addr == "127.0.0.1");
  environment.set("LOCAL_WORLD_SIZE", "1");
  CHECK(has(problem_of([] { place_from_environment(); }), "MASTER_ADDR is not set"));
  environment.set("MASTER_ADDR", "head");
  environment.set("MASTER_PORT", "70000");
  CHECK(has(problem_of([] { place_from_environment(); }), "MASTER_PORT: expected a number from 1 to 65535"));
  environment.clear();
  environment.set("WORLD_SIZE", "2");
  CHECK(problem_of([] { place_from_environment(); }) == "WORLD_SIZE is set, RANK is not");
  environment.clear();
  environment.set("OMPI_COMM_WORLD_RANK", "1");
  environment.set("OMPI_COMM_WORLD_SIZE", "4");
  environment.set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  environment.set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  CHECK(place_from_environment().rank == 1);
  environment.clear();
  environment.set("SLURM_PROCID", "0");  // a batch script
  CHECK(place_from_environment().world_size == 1);
  environment.set("SLURM_STEP_NUM_TASKS", "6");
  environment.set("SLURM_PROCID", "5");
  environment.set("SLURM_LOCALID", "1");
  environment.set("SLURM_STEP_TASKS_PER_NODE", "2(x3)");
  environment.set("MASTER_ADDR", "head");
  const Place place = place_from_environment();
  CHECK(place.rank == 5);
  CHECK(place.local_rank == 1);
  CHECK(place.local_world_size == 2);
}

#ifndef REFRAIN_HAS_GLOO
TEST_CASE("a build without Gloo names the package when it is asked for a second rank") {
  CHECK(has(problem_of([] { join_group({.rank = 0, .world_size = 2}, Device::new_cpu(), {}); }), "libgloo-dev"));
}
#endif

}  // namespace refrain

// How ranks meet: who is admitted, what strangers can do, what goes wrong when a group forms; each with one clear line.
#ifdef REFRAIN_HAS_GLOO

#include "gloo_ranks.h"
#include "rendezvous_support.h"

#include <refrain/dist/net/frame.h>
#include <refrain/dist/store/obituary.h>
#include <refrain/tests/support/catch.h>

#include <random>

namespace refrain {

namespace {

using detail::Clock;
using detail::FrameType;
using std::chrono::milliseconds;
using testing::free_port;
using testing::gloo_ranks;
using testing::has;
using testing::problem_of;

// What the other side of a connection said until it closed it, or for a tenth of a second.
std::string answer_to(int port, const std::string& bytes) {
  const detail::Socket socket = detail::connect_to("127.0.0.1", port, Clock::now() + milliseconds(2000));
  for (std::size_t sent = 0; sent < bytes.size();) {
    const long count = detail::send_some(socket, std::string_view(bytes).substr(sent));
    if (count < 0) break;
    sent += std::size_t(count);
    if (count == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  std::string answer, problem;
  for (const auto deadline = Clock::now() + milliseconds(100); detail::wait_readable(socket, deadline);)
    if (!detail::receive_some(socket, answer, 1 << 16, problem)) break;
  return answer;
}

}  // namespace

TEST_CASE("strangers, their bytes and their silence do not disturb a group that forms and runs") {
  const int port = free_port();
  std::vector<std::thread> ranks;
  std::vector<double> sums(2);
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const Device device = Device::new_cpu();
      const Place place{.rank = rank, .world_size = 2, .master_port = port, .token = "secret"};
      if (rank == 1) std::this_thread::sleep_for(milliseconds(700));
      const auto group = join_group(place, device, {});
      const Tensor t = full({10}, rank + 1, DType::f32, device);
      for (int i = 0; i < 3; ++i) {
        group->all_reduce(t, ReduceOp::mean).wait();
        std::this_thread::sleep_for(milliseconds(300));
      }
      sums[std::size_t(rank)] = t.data<float>()[0];
    });
  std::mt19937 random(7);
  std::vector<detail::Socket> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(detail::connect_to("127.0.0.1", port, Clock::now() + milliseconds(2000)));
  for (int i = 0; i < 40; ++i) {
    std::string bytes;
    const std::size_t length = random() % 3000;
    for (std::size_t k = 0; k < length; ++k) bytes += char(random());
    if (i % 4 == 1) bytes = detail::encode(FrameType(1 + random() % 13), bytes.substr(0, bytes.size() % 1000));
    if (i % 4 == 2) bytes = std::string("RFN1\x02\xff\xff\xff\x7f", 9) + bytes;
    if (i % 10 == 0) detail::send_obituary({.rank = 1, .world_size = 2, .master_port = port, .token = "guess"}, "host", "a lie");
    if (i % 4 == 3) bytes = detail::encode(FrameType::hello, detail::PayloadWriter().number(1 << 30).bytes());
    CHECK(answer_to(port, bytes).size() < 2000);
  }
  CHECK(answer_to(port, std::string(8 << 20, 'x')).size() < 2000);
  for (std::thread& rank : ranks) rank.join();
  CHECK(sums == std::vector<double>{1.5, 1.5});
}

TEST_CASE("wrong token, taken rank, other world, no such rank: refused in one line, and the right ranks still meet") {
  const int port = free_port();
  const GroupOptions options{.rendezvous_timeout = milliseconds(5000)};
  const auto join = [&](int rank, int world_size, const std::string& token) {
    return problem_of([&] {
      join_group({.rank = rank, .world_size = world_size, .master_port = port, .token = token}, Device::new_cpu(), options);
    });
  };
  std::string first, third;
  std::thread rank0([&] { first = join(0, 3, "secret"); });
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(
      has(join(1, 3, "guess"), "rank 1 is refused by 127.0.0.1:" + std::to_string(port) + ": the tokens differ (REFRAIN_TOKEN"));
  CHECK(has(join(1, 3, ""), "the tokens differ"));
  CHECK(has(join(1, 2, "secret"), "this world has 3 ranks, not 2"));
  CHECK(has(join(0, 3, "secret"), "port " + std::to_string(port) + " on 127.0.0.1 is taken"));
  std::thread rank2([&] { third = join(2, 3, "secret"); });
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(has(join(2, 3, "secret"), "rank 2 is taken by process "));
  CHECK(join(1, 3, "secret") == "no problem");
  rank0.join();
  rank2.join();
  CHECK(first == "no problem");
  CHECK(third == "no problem");
}

TEST_CASE("a rank that never comes is named; so are an unresolvable host, nobody at the port, and a port that is no store's") {
  GroupOptions options;
  options.rendezvous_timeout = milliseconds(400);
  const int port = free_port();
  std::string text;
  try {
    join_group({.rank = 0, .world_size = 3, .master_port = port}, Device::new_cpu(), options);
  } catch (const RankLost& lost) {
    text = lost.what();
    CHECK(lost.rank == 1);
  }
  CHECK(has(text, "of 3 ranks these did not come within 0.4 s: 1, 2"));
  const auto join = [&](const std::string& host, int at) {
    return problem_of([&] {
      join_group({.rank = 1, .world_size = 2, .master_addr = host, .master_port = at, .token = "t"}, Device::new_cpu(), options);
    });
  };
  CHECK(has(join("no-such-host.invalid", port), "host 'no-such-host.invalid' (MASTER_ADDR) has no address: "));
  CHECK(has(join("127.0.0.1", port), "nobody answers at 127.0.0.1:" + std::to_string(port)));
  const detail::Socket other = detail::listen_on("127.0.0.1", 0);
  CHECK(has(join("127.0.0.1", detail::port_of(other)), "says nothing"));
}

TEST_CASE("without a token only a loopback address is served") {
  CHECK(detail::is_loopback("127.0.0.1"));
  CHECK(detail::is_loopback("localhost"));
  CHECK(!detail::is_loopback("192.0.2.1"));
  CHECK(has(problem_of([] { join_group({.rank = 1, .world_size = 2, .master_addr = "192.0.2.1"}, Device::new_cpu(), {}); }),
            "REFRAIN_TOKEN is not set"));
}

TEST_CASE("a second group of the same ranks meets on another port while the first lives") {
  gloo_ranks(2, [](ProcessGroup& group) { group.barrier(); });
  gloo_ranks(2, [](ProcessGroup& outer) {
    const Tensor port = zeros({1}, DType::i64, outer.device());
    if (outer.rank() == 0) port.data<std::int64_t>()[0] = free_port();
    outer.broadcast(port, 0).wait();
    const Place place{.rank = outer.rank(), .world_size = 2, .master_port = int(port.data<std::int64_t>()[0]), .token = "t"};
    const auto inner = join_group(place, outer.device(), {});
    inner->barrier();
    outer.barrier();
  });
}

}  // namespace refrain

#endif  // REFRAIN_HAS_GLOO

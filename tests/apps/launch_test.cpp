// `refrain launch` as a person meets it: labels, codes, and what it refuses. What ranks do is in tests/dist.
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/command.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace refrain::testing {

TEST_CASE("launch: runs any command of refrain as ranks, with their lines labelled") {
  const ScratchDirectory scratch;
  const Outcome version = refrain_command(scratch, "launch -n 3 -- --version");
  CHECK(version.code == 0);
  for (const std::string rank : {"0", "1", "2"}) CHECK(version.out.find("[rank " + rank + "] refrain ") != std::string::npos);

  const Outcome failed = refrain_command(scratch, "launch -n 2 -- train nowhere.toml");
  CHECK(failed.code == 3);
  CHECK(failed.err.find("[rank 1] refrain: nowhere.toml: ") != std::string::npos);
  CHECK(failed.err.find("ended with exit code 3") != std::string::npos);

  // One of two machines: its ranks count on from the other's.
  const Outcome second = refrain_command(scratch, "launch -n 2 --hosts a,b --node-rank 1 --master 127.0.0.1:29400 -- --version");
  CHECK(second.code == 2);
  CHECK(second.err.find("REFRAIN_TOKEN") != std::string::npos);
  setenv("REFRAIN_TOKEN", "secret", 1);
  const Outcome with_token =
      refrain_command(scratch, "launch -n 2 --hosts a,b --node-rank 1 --master 127.0.0.1:29400 -- --version");
  unsetenv("REFRAIN_TOKEN");
  CHECK(with_token.code == 0);
  CHECK(with_token.out.find("[rank 3] refrain ") != std::string::npos);
}

TEST_CASE("launch: what cannot be is one line and exit code 2") {
  const ScratchDirectory scratch;
  const auto refused = [&](const std::string& arguments, const std::string& why) {
    const Outcome outcome = refrain_command(scratch, "launch " + arguments);
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find(why) != std::string::npos);
  };
  refused("", "-n: how many ranks?");
  refused("-n 0 -- --version", "-n: expected a number of ranks from 1 to 1024, got '0'");
  refused("-n 2", "expected -- and a command behind it");
  refused("-n 2 --", "expected -- and a command behind it");
  refused("-n 2 train c.toml", "unexpected argument 'train'; the command to run stands behind --");
  refused("-n 2 --master-port 70000 -- --version", "--master-port: expected a port from 1 to 65535, got '70000'");
  refused("-n 2 --node-rank 1 -- --version", "--node-rank and --master go with --hosts");
  refused("-n 2 --hosts no-such-machine,other -- --version", "none of them is this machine");
  refused("-n 2 --hosts a,b --node-rank 2 -- --version", "there are 2 hosts, counted from 0");
  refused("-n 2 --hosts a,,b -- --version", "--hosts: expected names with commas");

  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(bind(taken, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(listen(taken, 1) == 0);
  REQUIRE(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  refused("-n 2 --master-port " + port + " -- --version", "port " + port + " on 127.0.0.1 is taken");
  close(taken);
}

}  // namespace refrain::testing

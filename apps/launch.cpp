// `refrain launch`: ranks of this very program, on this machine.
#include "command.h"
#include "flags.h"

#include <refrain/core/check.h>
#include <refrain/dist/launch.h>
#include <refrain/dist/net/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain launch -n N [FLAGS] -- COMMAND …   run a refrain command as N ranks, such as: refrain launch -n 2 -- train c.toml\n"
    "\n"
    "  -n N                ranks on this machine\n"
    "  --threads T         threads of each rank [REFRAIN_NUM_THREADS, else cores / N]\n"
    "  --master-port P     where rank 0 waits for the others [MASTER_PORT, else a free port]\n"
    "\n"
    "On several machines run the same line on each, with the same secret in REFRAIN_TOKEN:\n"
    "  --hosts A,B         the machines, rank 0's first; each runs N ranks\n"
    "  --node-rank K       which of them this is, from 0 [the one that has this machine's name]\n"
    "  --master ADDR:PORT  where rank 0 waits [the first host, port 29500]\n"
    "\n"
    "Lines of output are labelled [rank 2]. When a rank fails the others have 5 s to end, and are then ended. The exit code is "
    "0\n"
    "when all ranks end so, else the code of the first that failed (128 + the signal, for one that a signal ended).\n";

constexpr int kDefaultPort = 29500;

int port_number(const std::string& name, const std::string& text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  check(error == std::errc{} && end == text.data() + text.size() && port >= 1 && port <= 65535, name,
        ": expected a port from 1 to 65535, got '", text, "'");
  return port;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, comma - begin));
    check(!parts.back().empty(), "--hosts: expected names with commas between them, got '", list, "'");
    begin = comma + 1;
  }
  return parts;
}

// Which of the hosts this machine is, by its name, whole or up to the first dot.
int own_index(const std::vector<std::string>& hosts) {
  const auto brief = [](const std::string& name) { return name.substr(0, name.find('.')); };
  const std::string own = detail::host_name();
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (hosts[i] == own || brief(hosts[i]) == brief(own)) return int(i);
  fail("--hosts: none of them is this machine (", own, "); say which with --node-rank");
}

}  // namespace

int launch_command(const std::vector<std::string>& arguments) {
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const std::vector<std::string> own(arguments.begin(), separator);
  LaunchOptions options{.num_ranks = 0};
  std::vector<std::string> hosts;
  int node = -1;
  std::string master;
  if (const char* port = std::getenv("MASTER_PORT"); port != nullptr && *port != '\0')
    options.master_port = port_number("MASTER_PORT", port);
  if (const char* token = std::getenv("REFRAIN_TOKEN")) options.token = token;
  for (FlagReader reader(own); reader.next();) {
    const std::string& flag = reader.flag();
    if (flag == "--help" || flag == "-h") {
      std::cout << kHelp;
      return kDone;
    }
    if (flag == "-n")
      options.num_ranks = int(count_of(flag, reader.value(), "ranks", 1024));
    else if (flag == "--threads")
      options.threads = int(count_of(flag, reader.value(), "threads", 1024));
    else if (flag == "--master-port")
      options.master_port = port_number(flag, reader.value());
    else if (flag == "--hosts")
      hosts = split(reader.value());
    else if (flag == "--master")
      master = reader.value();
    else if (flag == "--node-rank") {
      const std::string text = reader.value();
      node = text == "0" ? 0 : int(count_of(flag, text, "a machine, counted from 0,", 1023));
    } else
      fail("unexpected argument '", reader.argument(), "'; the command to run stands behind --");
  }
  check(options.num_ranks > 0, "-n: how many ranks? such as refrain launch -n 2 -- train CONFIG.toml");
  check(separator != arguments.end() && separator + 1 != arguments.end(),
        "expected -- and a command behind it, such as -- train CONFIG.toml");
  check(!hosts.empty() || (node < 0 && master.empty()), "--node-rank and --master go with --hosts");
  if (!hosts.empty()) {
    options.num_nodes = int(hosts.size());
    check(options.num_nodes * options.num_ranks <= 1024, "at most 1024 ranks, got ", options.num_nodes, " x ", options.num_ranks);
    options.node = node >= 0 ? node : own_index(hosts);
    check(options.node < options.num_nodes, "--node-rank: ", options.node, ", but there are ", options.num_nodes,
          " hosts, counted from 0");
    options.master_addr = hosts[0];
    if (options.master_port == 0) options.master_port = kDefaultPort;
    if (!master.empty()) {
      const std::size_t colon = master.rfind(':');
      check(colon != std::string::npos && colon > 0, "--master: expected ADDR:PORT, got '", master, "'");
      options.master_addr = master.substr(0, colon);
      options.master_port = port_number("--master", master.substr(colon + 1));
    }
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  check(!error, "cannot find this program: ", error.message());
  options.command = {program.string()};
  options.command.insert(options.command.end(), separator + 1, arguments.end());
  return launch(options);
}

}  // namespace refrain::apps

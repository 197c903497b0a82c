#include <refrain/core/check.h>
#include <refrain/dist/launch.h>
#include <refrain/dist/net/secret.h>
#include <refrain/dist/net/socket.h>
#include <refrain/dist/rank_lost.h>
#include <refrain/dist/store/obituary.h>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace refrain {

namespace {

using detail::Clock;
using detail::Socket;

constexpr int kRankLost = 6, kInterrupted = 75;  // exit codes of the command
constexpr std::size_t kLongestLine = 1 << 16;

// One stream of one rank, line by line.
struct Output {
  Socket read_end;
  int to = STDOUT_FILENO;
  std::string line = {};
};

struct Rank {
  int rank = 0;
  pid_t pid = -1;
  Output out = {}, err = {};
  std::optional<int> status = {};  // as waitpid() gives it
  bool was_ended = false;          // by this process
};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd waiting{fd, POLLOUT, 0};
      poll(&waiting, 1, 1000);
      continue;
    }
    if (written <= 0) return;  // nobody reads any more; the ranks go on
    text.remove_prefix(std::size_t(written));
  }
}

void pass_on(Output& output, int rank) {
  const auto print = [&](std::string_view line) { write_all(output.to, concat("[rank ", rank, "] ", line, "\n")); };
  std::array<char, 16384> buffer;
  while (output.read_end.is_open()) {
    const ssize_t got = read(output.read_end.fd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    if (got == 0) output.read_end.close();
    output.line.append(buffer.data(), std::size_t(std::max<ssize_t>(got, 0)));
    for (std::size_t end; (end = output.line.find('\n')) != std::string::npos; output.line.erase(0, end + 1))
      print(std::string_view(output.line).substr(0, end));
    if (output.line.size() > kLongestLine || (!output.read_end.is_open() && !output.line.empty())) {
      print(output.line);
      output.line.clear();
    }
  }
}

// The environment of a rank, made before fork(): afterwards nothing may be allocated.
std::vector<std::string> environment_of(const LaunchOptions& options, int local_rank, int port, const std::string& token,
                                        int store_fd) {
  std::vector<std::pair<std::string, std::string>> ours{{"RANK", concat(options.node * options.num_ranks + local_rank)},
                                                        {"WORLD_SIZE", concat(options.num_nodes * options.num_ranks)},
                                                        {"LOCAL_RANK", concat(local_rank)},
                                                        {"LOCAL_WORLD_SIZE", concat(options.num_ranks)},
                                                        {"MASTER_ADDR", options.master_addr},
                                                        {"MASTER_PORT", concat(port)},
                                                        {"REFRAIN_TOKEN", token}};
  if (options.num_nodes == 1) ours.emplace_back("REFRAIN_STORE_OPEN", "1");
  if (store_fd >= 0) ours.emplace_back("REFRAIN_STORE_FD", concat(store_fd));
  if (options.threads > 0 || std::getenv("REFRAIN_NUM_THREADS") == nullptr) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    ours.emplace_back("REFRAIN_NUM_THREADS",
                      concat(options.threads > 0 ? options.threads : std::max(1, cores / options.num_ranks)));
  }
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    const auto is_same = [&](const auto& pair) { return pair.first == name; };
    if (name != "REFRAIN_STORE_FD" && name != "REFRAIN_STORE_OPEN" && std::none_of(ours.begin(), ours.end(), is_same))
      all.emplace_back(text);
  }
  for (const auto& [name, value] : ours) all.push_back(name + "=" + value);
  return all;
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options), host_(detail::host_name()) {}
  int run();

 private:
  void start(int local_rank, Socket* store);
  void reap();
  void pass_signals_on();
  void signal_all(int number);
  int finish() const;
  static std::string manner(const Rank& rank);
  std::string how(const Rank& rank) const;
  static int code_of(const Rank& rank) {
    return WIFEXITED(*rank.status) ? WEXITSTATUS(*rank.status) : 128 + WTERMSIG(*rank.status);
  }

  const LaunchOptions options_;
  const std::string host_;
  std::string token_;
  int port_ = 0;
  std::vector<Rank> ranks_;
  Socket signals_;
  sigset_t old_mask_{};
  std::vector<const Rank*> failed_;            // in the order in which they ended
  std::optional<Clock::time_point> deadline_;  // of those that are left
  int num_warnings_ = 0;                       // signals this process has sent them for it
};

void Launcher::start(int local_rank, Socket* store) {
  const std::vector<std::string> environment =
      environment_of(options_, local_rank, port_, token_, store == nullptr ? -1 : store->fd());
  std::vector<char*> variables, arguments;
  for (const std::string& entry : environment) variables.push_back(const_cast<char*>(entry.c_str()));
  for (const std::string& argument : options_.command) arguments.push_back(const_cast<char*>(argument.c_str()));
  variables.push_back(nullptr);
  arguments.push_back(nullptr);
  int out[2], err[2];
  check<StorageError>(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  Socket out_end(out[1]), err_end(err[1]);
  Rank& rank = ranks_.emplace_back();
  rank.rank = options_.node * options_.num_ranks + local_rank;
  rank.out = {.read_end = Socket(out[0])};
  rank.err = {.read_end = Socket(err[0]), .to = STDERR_FILENO};
  for (const int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  check<StorageError>(pid >= 0, "cannot start a process: ", std::strerror(errno));
  if (pid == 0) {
    // A group of its own: a terminal's Ctrl-C comes once, passed on by the launcher.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);  // it died before it could be asked for
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (store != nullptr) fcntl(store->fd(), F_SETFD, 0);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    execve(arguments[0], arguments.data(), variables.data());
    constexpr std::string_view kText = "cannot run the program\n";
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kText.data(), kText.size());
    _exit(127);
  }
  rank.pid = pid;
}

std::string Launcher::manner(const Rank& rank) {
  const int status = *rank.status;
  if (WIFEXITED(status)) return concat("exit code ", WEXITSTATUS(status));
  return concat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
}

std::string Launcher::how(const Rank& rank) const {
  return concat("rank ", rank.rank, " (", host_, WIFEXITED(*rank.status) ? ") ended with " : ") was ended by ", manner(rank));
}

void Launcher::reap() {
  for (Rank& rank : ranks_) {
    if (rank.status) continue;
    int status = 0;
    if (waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
    pass_on(rank.out, rank.rank);
    pass_on(rank.err, rank.rank);
    rank.status = status;
    if (code_of(rank) == 0 || rank.was_ended) continue;
    failed_.push_back(&rank);
    // Those that wait for it to come to the group need not do so for long.
    if (code_of(rank) != kInterrupted && code_of(rank) != kRankLost)
      detail::send_obituary(
          {.rank = rank.rank, .world_size = 1, .master_addr = options_.master_addr, .master_port = port_, .token = token_}, host_,
          concat("its process ended: ", manner(rank)));
    write_all(STDERR_FILENO, concat("refrain launch: ", how(rank), "\n"));
    // One that was interrupted has saved a snapshot; so will the others, and take their time.
    if (code_of(rank) != kInterrupted && !deadline_) deadline_ = Clock::now() + options_.grace;
  }
}

void Launcher::signal_all(int number) {
  for (Rank& rank : ranks_)
    if (!rank.status) kill(rank.pid, number);
}

void Launcher::pass_signals_on() {
  signalfd_siginfo info;
  while (read(signals_.fd(), &info, sizeof info) == ssize_t(sizeof info))
    if (info.ssi_signo != SIGCHLD) signal_all(int(info.ssi_signo));
}

int Launcher::finish() const {
  if (failed_.empty()) return 0;
  const Rank* first = failed_[0];
  for (const Rank* rank : failed_)
    if (code_of(*first) == kRankLost && code_of(*rank) != kRankLost) first = rank;
  if (failed_.size() > 1)
    write_all(STDERR_FILENO, concat("refrain launch: ", how(*first), ", the first of ", failed_.size(), " that failed\n"));
  return code_of(*first);
}

int Launcher::run() {
  Socket store;
  port_ = options_.master_port;
  if (options_.node == 0) {
    store = detail::listen_on(options_.master_addr, port_);
    port_ = detail::port_of(store);
    store = Socket(fcntl(store.fd(), F_DUPFD_CLOEXEC, 10));  // past the standard streams of the rank that inherits it
  }
  token_ = options_.token.empty() ? detail::hex(detail::random_bytes(32)) : options_.token;

  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  signals_ = Socket(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  struct sigaction ignore {
  }, old_pipe{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &old_pipe);
  ranks_.reserve(std::size_t(options_.num_ranks));  // failed_ points into it
  try {
    for (int r = 0; r < options_.num_ranks; ++r) start(r, r == 0 && store.is_open() ? &store : nullptr);
  } catch (...) {
    signal_all(SIGKILL);
    throw;
  }
  store.close();  // rank 0's now: when it ends, nobody listens

  while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.status; })) {
    std::vector<pollfd> waiting{{signals_.fd(), POLLIN, 0}};
    for (const Rank& rank : ranks_)
      for (const Output* output : {&rank.out, &rank.err})
        if (output->read_end.is_open()) waiting.push_back({output->read_end.fd(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), 100);
    pass_signals_on();
    for (Rank& rank : ranks_) {
      pass_on(rank.out, rank.rank);
      pass_on(rank.err, rank.rank);
    }
    reap();
    if (deadline_ && Clock::now() > *deadline_) {
      for (Rank& rank : ranks_) {
        if (rank.status) continue;
        if (!std::exchange(rank.was_ended, true))
          write_all(STDERR_FILENO, concat("refrain launch: rank ", rank.rank, " (", host_, ") is still there and is ended\n"));
      }
      signal_all(num_warnings_++ == 0 ? SIGTERM : SIGKILL);
      deadline_ = Clock::now() + options_.term_grace;
    }
  }
  sigaction(SIGPIPE, &old_pipe, nullptr);
  signals_.close();
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  return finish();
}

}  // namespace

int launch(const LaunchOptions& options) {
  check(!options.command.empty(), "launch: no command");
  check(options.num_ranks >= 1 && options.num_nodes >= 1 && options.node >= 0 && options.node < options.num_nodes,
        "launch: ", options.num_ranks, " ranks on machine ", options.node, " of ", options.num_nodes);
  check<RendezvousError>(options.num_nodes == 1 || (options.master_port > 0 && !options.token.empty()),
                         "launch on several machines: a port and a token (REFRAIN_TOKEN) that all of them are given");
  return Launcher(options).run();
}

}  // namespace refrain

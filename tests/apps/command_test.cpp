// The command's exit codes, messages and files, from outside.
#include <refrain/core/device.h>
#include <refrain/core/io/file.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/command.h>
#include <refrain/tests/support/images.h>
#include <refrain/tests/support/scratch_directory.h>

#include <csignal>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace refrain;
using refrain::testing::Outcome;
using refrain::testing::ScratchDirectory;
using refrain::testing::write_images;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

// A running `refrain`, in a directory, its output going to files there.
class Process {
 public:
  Process(const ScratchDirectory& scratch, std::vector<std::string> arguments, rlim_t file_size_limit = RLIM_INFINITY)
      : directory_(scratch.path()) {
    arguments.insert(arguments.begin(), REFRAIN_COMMAND);
    std::vector<char*> values;
    for (std::string& argument : arguments) values.push_back(argument.data());
    values.push_back(nullptr);
    fs::remove(directory_ / "out");  // another process's
    fs::remove(directory_ / "err");
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int out = ::open((directory_ / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    const int err = ::open((directory_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(out, 1);
    ::dup2(err, 2);
    const rlimit limit{file_size_limit, file_size_limit};
    if (::chdir(directory_.c_str()) == 0 && ::setrlimit(RLIMIT_FSIZE, &limit) == 0) ::execv(values[0], values.data());
    ::_exit(127);
  }
  ~Process() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  // Until the condition holds.
  template <class F>
  static void wait_until(const F& condition) {
    for (int i = 0; i < 6000; ++i) {
      if (condition()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL("waited for 30 seconds in vain");
  }
  // Until the process has written this text.
  void wait_for(const std::string& text) const {
    wait_until([&] { return fs::exists(directory_ / "out") && read_text_file(directory_ / "out").find(text) != std::string::npos; });
  }
  Outcome wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text_file(directory_ / "out"),
            read_text_file(directory_ / "err")};
  }

 private:
  fs::path directory_;
  pid_t pid_;
};

Outcome run_refrain(const ScratchDirectory& scratch, const std::vector<std::string>& arguments) {
  return Process(scratch, arguments).wait();
}

void write_config(const ScratchDirectory& scratch) {
  write_images(scratch);
  scratch.write("small.toml",
                "patch_size = 4\nwidth = 16\ndepth = 2\nnum_heads = 2\nmlp_ratio = 2\ndata_path = \"data\"\nbatch = 10\nepochs = 2\n"
                "lr = 0.05\ncheckpoint = \"block\"\nthreads = 1\n");
}

}  // namespace

TEST_CASE("command: a training ends with code 0, says where everything is, and its run can be evaluated and continued") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome trained = run_refrain(scratch, {"train", "small.toml"});
  INFO(trained.out << trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.err.empty());
  CHECK_THAT(trained.out, Contains("test accuracy") && Contains("run directory runs/small") &&
                              Contains("runs/small/report.html, as text report.txt"));
  CHECK_THAT(trained.out,
             Contains("epoch") && Contains("loss") && Contains("images/s") && Contains("peak") && Contains("replay") && Contains("left"));
  CHECK(trained.out.find('\r') == std::string::npos);
  CHECK(trained.out.find('\x1b') == std::string::npos);
  for (const char* name : {"config.toml", "metrics.jsonl", "metrics.csv", "summary.json", "report.txt", "snapshots/step-10/MANIFEST"})
    CHECK(fs::exists(scratch / "runs/small" / name));

  const Outcome evaluated = run_refrain(scratch, {"evaluate", "runs/small"});
  CHECK(evaluated.code == 0);
  CHECK_THAT(evaluated.out, Contains("test accuracy") && Contains("(20 samples)") && Contains("step-10"));

  const Outcome continued = run_refrain(scratch, {"train", "--resume", "runs/small", "--epochs", "3"});
  CHECK(continued.code == 0);
  CHECK_THAT(continued.out, Contains("after step 10"));
  CHECK(fs::exists(scratch / "runs/small/snapshots/step-15"));

  // From another directory, too: the run knows its data by an absolute path.
  const ScratchDirectory elsewhere;
  const Outcome there = run_refrain(elsewhere, {"evaluate", scratch / "runs/small"});
  INFO(there.out << there.err);
  CHECK(there.code == 0);

  // A second training takes a directory of its own.
  CHECK_THAT(run_refrain(scratch, {"train", "small.toml", "--max-steps=1"}).out, Contains("run directory runs/small-2"));
  CHECK_THAT(run_refrain(scratch, {"train", "--resume", "small.toml", "--epochs", "1"}).out, Contains("run directory runs/small-2"));
}

TEST_CASE("command: wrong usage ends with code 2, one line that says what was expected, and a hint") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const Outcome outcome = run_refrain(scratch, arguments);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Contains(message));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 2);
    CHECK(!fs::exists(scratch / "runs"));
  };
  expect({"trian"}, "hint: refrain --help lists the commands");
  expect({"trian"}, "unknown command 'trian'; did you mean 'train'?");
  expect({"train"}, "expected one configuration file, got 0");
  expect({"train", "small.toml", "more.toml"}, "expected one configuration file, got 2");
  expect({"train", "small.toml", "--bacth", "3"}, "did you mean '--batch'?");
  expect({"train", "small.toml", "--batch", "x"}, "--batch: expected an integer, got 'x'");
  expect({"train", "small.toml", "--accumulate", "0"}, "--accumulate: expected 1 to");
  expect({"train", "small.toml", "--patch-size", "3"}, "patch_size");
  scratch.write("wrong.toml", "batch = 3\nlerning_rate = 1\n");
  expect({"train", "wrong.toml"}, "wrong.toml:2: unknown key 'lerning_rate'");
  expect({"evaluate"}, "expected one run directory");
  expect({"evaluate"}, "hint: refrain evaluate --help");
}

TEST_CASE("command: a device that is not there ends with code 2 and one line, auto runs on the CPU") {
  if (Device::cuda_problem().empty()) return;
  const ScratchDirectory scratch;
  write_config(scratch);
  for (const char* device : {"cuda", "cuda:1"}) {
    const Outcome outcome = run_refrain(scratch, {"train", "small.toml", "--device", device});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Contains("refrain: no CUDA device") && Contains("--device cpu runs on the CPU"));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK(outcome.out.empty());
    CHECK(!fs::exists(scratch / "runs"));
  }
  const Outcome wrong = run_refrain(scratch, {"train", "small.toml", "--device", "coda"});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, Contains("did you mean 'cuda'?"));
  const Outcome automatic = run_refrain(scratch, {"train", "small.toml", "--device", "auto", "--max-steps", "1"});
  CHECK(automatic.code == 0);
  CHECK_THAT(automatic.out, Contains("no CUDA device: running on CPU\n"));
  CHECK_THAT(run_refrain(scratch, {"train", "small.toml", "--max-steps", "1"}).out, !Contains("CUDA"));
  CHECK_THAT(run_refrain(scratch, {"plan", "small.toml", "--device", "cuda"}).out, Contains("Plan of a training on CUDA"));
}

TEST_CASE("command: precision words that contradict each other are refused") {
  const ScratchDirectory scratch;
  write_config(scratch);
  for (const auto& [flags, text] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--precision", "fp16"}, "bf16-mixed"},
           {{"--rounding", "random"}, "stochastic"},
           {{"--loss-scale-init", "1e10"}, "loss_scale_init"},
           {{"--non-finite", "ignore"}, "stop"}}) {
    std::vector<std::string> arguments{"train", "small.toml"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = run_refrain(scratch, arguments);
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Contains(text));
  }
}

TEST_CASE("command: bad or absent data ends with code 3 and names the file") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome absent = run_refrain(scratch, {"train", "absent.toml"});
  CHECK(absent.code == 3);
  CHECK_THAT(absent.err, Contains("absent.toml"));
  const Outcome no_data = run_refrain(scratch, {"train", "small.toml", "--data-path", "nowhere"});
  CHECK(no_data.code == 3);
  CHECK_THAT(no_data.err, Contains("nowhere/train-images-idx3-ubyte"));
  fs::resize_file(scratch / "data/t10k-images-idx3-ubyte", 200);
  const Outcome cut = run_refrain(scratch, {"train", "small.toml"});
  CHECK(cut.code == 3);
  CHECK_THAT(cut.err, Contains("t10k-images-idx3-ubyte: expected 1280 bytes after the header, found 184"));
  CHECK(run_refrain(scratch, {"evaluate", "nowhere"}).code == 3);
}

TEST_CASE("command: a memory limit ends with code 4, a loss that is not finite with code 5") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome memory = run_refrain(scratch, {"train", "small.toml", "--memory-limit", "60kB"});
  CHECK(memory.code == 4);
  CHECK_THAT(memory.err, Contains("out of memory") && Contains(" would take ") && !Contains("hint"));  // names what fits
  const Outcome infinite = run_refrain(scratch, {"train", "small.toml", "--lr", "1e6", "--schedule", "constant", "--epochs", "20"});
  INFO(infinite.out << infinite.err);
  CHECK(infinite.code == 5);
  CHECK_THAT(infinite.err, Contains("step") && Contains("hint"));
}

TEST_CASE(
    "command: f16 that overflows ends with code 5, names op, module and ranges, and keeps a snapshot that resumes in other settings") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome stopped = run_refrain(scratch, {"train", "small.toml", "--precision", "16-true", "--lr", "3e4", "--schedule", "constant",
                                                    "--clip-norm", "0", "--epochs", "20", "--snapshot-every", "0", "--run-dir", "run"});
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 5);
  CHECK_THAT(stopped.err, Contains("; first: ") && Contains(" in module '") && Contains("not finite, from ") && Contains("hint"));
  const Outcome resumed = run_refrain(scratch, {"train", "--resume", "run", "--lr", "1e-3", "--epochs", "1"});
  CHECK_THAT(resumed.out, Contains("resumed from"));
  const Outcome other = run_refrain(scratch, {"train", "--resume", "run", "--precision", "bf16-true"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("f16") && Contains("bf16"));
  // Weights alone can be tested in any precision, and "auto" follows the word.
  CHECK_THAT(run_refrain(scratch, {"evaluate", "run", "--precision", "32-true"}).out, Contains("test accuracy"));
  CHECK_THAT(read_text_file(scratch / "run/config.toml"), Contains("rounding = \"auto\""));
}

TEST_CASE("command: an update that overflows f16 ends with code 5, names the parameter, and saves no such weights") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome stopped = run_refrain(scratch, {"train", "small.toml", "--precision", "16-true", "--lr", "1e6", "--schedule", "constant",
                                                    "--clip-norm", "0", "--max-steps", "1", "--run-dir", "run"});
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 5);
  CHECK_THAT(stopped.err, Contains("the update of step 1 made parameter '") && Contains("lr 1e+06") && Contains("hint"));
  CHECK_FALSE(std::filesystem::exists(scratch / "run/snapshots"));
}

TEST_CASE("command: steps that are skipped without end can be interrupted, and the run resumed with another loss scale") {
  const ScratchDirectory scratch;
  write_config(scratch);
  Process process(scratch, {"train", "small.toml", "--precision", "16-mixed", "--loss-scale-init", "1e20", "--loss-scale-max", "1e20",
                            "--loss-scale-backoff", "0.999999", "--run-dir", "run"});
  process.wait_for("skipped");
  process.signal(SIGTERM);
  const Outcome run = process.wait();
  INFO(run.out << run.err);
  CHECK(run.code == 75);
  const Outcome resumed = run_refrain(scratch, {"train", "--resume", "run", "--loss-scale", "static", "--loss-scale-init", "1024"});
  INFO(resumed.out << resumed.err);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.out, Contains("loss scale 1024 instead of the snapshot's"));
}

TEST_CASE("command: a loss scale that overflows is halved, told and counted, and the run goes on") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome run =
      run_refrain(scratch, {"train", "small.toml", "--precision", "16-mixed", "--loss-scale-init", "16777216", "--run-dir", "run"});
  INFO(run.out << run.err);
  CHECK(run.code == 0);
  CHECK_THAT(run.out, Contains("is not finite: skipped, loss scale now 8388608"));
  CHECK_THAT(read_text_file(scratch / "run/summary.json"), !Contains("\"skipped_steps\": 0,") && Contains("\"precision\": \"16-mixed\""));
}

TEST_CASE("command: a full disk ends with code 7, and the snapshot before it still resumes") {
  const ScratchDirectory scratch;
  write_config(scratch);
  REQUIRE(run_refrain(scratch, {"train", "small.toml", "--run-dir", "run"}).code == 0);
  // Files may not grow beyond 20 kB: enough for the texts, not for the weights.
  Process process(scratch, {"train", "--resume", "run", "--epochs", "3"}, 20'000);
  const Outcome full = process.wait();
  INFO(full.out << full.err);
  CHECK(full.code == 7);
  CHECK_THAT(full.err, Contains("model.safetensors") && Contains("File too large"));
  CHECK(find_latest_snapshot(scratch / "run").latest == snapshot_directory(scratch / "run", 10));
  CHECK(find_latest_snapshot(scratch / "run").skipped.empty());
  CHECK(run_refrain(scratch, {"train", "--resume", "run", "--epochs", "3"}).code == 0);
}

TEST_CASE("command: SIGINT and SIGTERM save a snapshot and end with code 75; the resumed run equals an unbroken one") {
  const ScratchDirectory scratch;
  write_config(scratch);
  REQUIRE(run_refrain(scratch, {"train", "small.toml", "--epochs", "40", "--run-dir", "whole"}).code == 0);
  for (const int number : {SIGINT, SIGTERM}) {
    const std::string run = number == SIGINT ? "int" : "term";
    Process process(scratch, {"train", "small.toml", "--epochs", "40", "--run-dir", run});
    process.wait_for("step 1/");
    process.signal(number);
    const Outcome stopped = process.wait();
    INFO(stopped.out << stopped.err);
    if (stopped.code == 0) continue;  // it was faster than the signal
    CHECK(stopped.code == 75);
    CHECK_THAT(stopped.out, Contains("refrain train --resume " + run));
    REQUIRE(run_refrain(scratch, {"train", "--resume", run}).code == 0);
    CHECK(read_text_file(scratch / run / "snapshots/step-200/model.safetensors") ==
          read_text_file(scratch / "whole/snapshots/step-200/model.safetensors"));
  }
}

TEST_CASE("command: killed in the middle of its saves, it resumes from a whole snapshot") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const auto newest = [&] {
    std::int64_t step = 0;
    if (!fs::exists(scratch / "run/snapshots")) return step;
    for (const auto& entry : fs::directory_iterator(scratch / "run/snapshots"))
      if (entry.path().filename().string().starts_with("step-"))
        step = std::max<std::int64_t>(step, std::stoll(entry.path().filename().string().substr(5)));
    return step;
  };
  for (int round = 0; round < 8; ++round) {
    const std::int64_t before = newest();
    Process process(scratch, {"train", "small.toml", "--resume", "--epochs", "4000", "--snapshot-every", "1", "--run-dir", "run"});
    Process::wait_until([&] { return newest() > before; });
    std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
    process.signal(SIGKILL);
    process.wait();
    const SnapshotSearch search = find_latest_snapshot(scratch / "run");
    REQUIRE(search.latest.has_value());
    CHECK(std::stoll(search.latest->filename().string().substr(5)) > before);
  }
  const Outcome evaluated = run_refrain(scratch, {"evaluate", "run"});
  INFO(evaluated.out << evaluated.err);
  CHECK(evaluated.code == 0);
}

TEST_CASE("command: help names every command and key, the version is told") {
  const ScratchDirectory scratch;
  const Outcome help = run_refrain(scratch, {"--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Contains("train") && Contains("evaluate"));
  for (const char* command : {"train", "evaluate"}) {
    const Outcome keys = run_refrain(scratch, {command, "--help"});
    CHECK(keys.code == 0);
    CHECK_THAT(keys.out,
               Contains("--max-steps") && Contains("--checkpoint") && Contains("none|block|nested|selective") && Contains("--run-dir"));
  }
  CHECK_THAT(run_refrain(scratch, {"--version"}).out, Contains("refrain 0."));
  CHECK(run_refrain(scratch, {}).code == 2);
}

TEST_CASE("command: every configuration in examples is accepted") {
  const ScratchDirectory scratch;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(REFRAIN_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    // With an absent data path only the configuration is looked at.
    const Outcome outcome = run_refrain(scratch, {"train", entry.path(), "--data-path", "absent"});
    INFO(entry.path() << outcome.err);
    CHECK(outcome.code == 3);
  }
  CHECK(count >= 4);
}

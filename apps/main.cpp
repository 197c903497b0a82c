// `refrain`: finds the subcommand, and turns what the library throws into one line, a hint and an exit code.
#include "command.h"

#include <refrain/core/check.h>
#include <refrain/dist/rank_lost.h>
#include <refrain/train/config.h>
#include <refrain/train/run.h>

#include <functional>
#include <iostream>
#include <new>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain trains transformers with little memory.\n"
    "\n"
    "  refrain train CONFIG.toml [--KEY VALUE …]     train as a configuration says\n"
    "  refrain train --resume RUN_DIR                continue a run from its newest snapshot\n"
    "  refrain plan CONFIG.toml [--KEY VALUE …]      memory, work and time of a training, without training\n"
    "  refrain ladder                                the memory ladder of ViT-L/16, planned rung by rung\n"
    "  refrain report MEMORY.json                    report.html of an exported memory.json\n"
    "  refrain fit CONFIG.toml --memory BYTES        what to change so that a training stays within so many bytes\n"
    "  refrain evaluate RUN_DIR                      test a run's newest snapshot\n"
    "  refrain launch -n N -- COMMAND …              run a command as N ranks on this machine\n"
    "\n"
    "  refrain COMMAND --help                        all about a command\n"
    "  refrain --version\n";

struct Command {
  std::string name;
  int (*run)(const std::vector<std::string>&);
  bool has_keys;  // takes a configuration's
};
const std::vector<Command>& commands() {
  static const std::vector<Command> list{{"train", train_command, true},    {"plan", plan_command, true},
                                         {"fit", fit_command, true},        {"ladder", ladder_command, false},
                                         {"report", report_command, false}, {"evaluate", evaluate_command, true},
                                         {"launch", launch_command, false}};
  return list;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::cerr << kHelp;
    return kUsage;
  }
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    std::cout << kHelp;
    return kDone;
  }
  if (name == "--version") {
    std::cout << "refrain " << version() << "\n";
    return kDone;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name == name) return command.run({arguments.begin() + 1, arguments.end()});
    names.push_back(command.name);
  }
  const std::string nearest = nearest_name(name, names);
  fail("unknown command '", name, "'", nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

// Where the command that was asked for says what it takes.
std::string usage_hint(const std::vector<std::string>& arguments) {
  for (const Command& command : commands())
    if (!arguments.empty() && arguments[0] == command.name)
      return "refrain " + command.name + " --help lists " + (command.has_keys ? "every flag and key with its range" : "what it takes");
  return "refrain --help lists the commands";
}

// What to try after running out of memory; nothing where the message names a training that fits, or says that none does.
std::string memory_hint(std::string_view message) {
  if (message.find(" would take ") != message.npos || message.find("the least is ") != message.npos) return "";
  return "try --checkpoint block, a smaller --batch with --accumulate, or a higher --memory-limit";
}

int report(const std::exception& error, std::string_view hint, int code) {
  std::cerr << "refrain: " << error.what() << "\n";
  if (!hint.empty()) std::cerr << "hint: " << hint << "\n";
  return code;
}

int run_and_report(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const InvalidArgument& error) {
    return report(error, usage_hint(arguments), kUsage);
  } catch (const DeviceUnavailable& error) {
    // One line: scripts that try a GPU first show it.
    std::cerr << "refrain: " << error.what() << "; --device cpu runs on the CPU\n";
    return kUsage;
  } catch (const DataError& error) {
    return report(error, "check data_path and the file named above; nothing was changed", kBadData);
  } catch (const OutOfMemory& error) {
    return report(error, memory_hint(error.what()), kOutOfMemory);
  } catch (const std::bad_alloc& error) {
    return report(error, "the system has no memory left; try a smaller --batch", kOutOfMemory);
  } catch (const NonFinite& error) {
    return report(error,
                  "try a lower --lr, a longer --warmup-epochs, --clip-norm 1 or --precision bf16-true in a new run (f16 ends at 65504); "
                  "snapshots hold weights from before, --resume continues from the newest",
                  kNonFinite);
  } catch (const RankLost& error) {
    return report(error, "snapshots are whole; start all ranks again with --resume", kRankLost);
  } catch (const RendezvousError& error) {
    return report(error, "refrain launch --help tells how ranks are started", kUsage);
  } catch (const StorageError& error) {
    return report(error, "older snapshots are whole; make room and continue with refrain train --resume RUN_DIR", kStorage);
  } catch (const std::exception& error) {
    return report(error, "this looks like a defect of refrain; please report it with the configuration", kDefect);
  }
}

}  // namespace

}  // namespace refrain::apps

int main(int count, char** values) {
  return refrain::apps::run_and_report(std::vector<std::string>(values + 1, values + count));
}

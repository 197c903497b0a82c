#!/usr/bin/env python3
"""Training steps in every precision mode against f32, interleaved.

  python3 bench/precision.py --build build/release [--build LABEL=DIR …] [--model vit-s-16] [--rounds 3] [--steps 5]

Each build directory holds bench/bench_train; a second one, built with another REFRAIN_ARCH, shows a processor without
the instructions of this one. Prints a Markdown table: medians over the rounds of each run's median step, and peak bytes.
"""
import argparse
import json
import statistics
import subprocess

MODES = ["32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]


def measure(build, mode, options):
    command = [f"{build}/bench/bench_train", "--model", options.model, "--precision", mode, "--steps", str(options.steps), "--warmup", "1", "--json"]
    if options.threads:
        command += ["--threads", str(options.threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", required=True)
    parser.add_argument("--model", default="vit-s-16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    builds = [text.split("=", 1) if "=" in text else ["", text] for text in options.build]
    runs = {(label, mode): [] for label, _ in builds for mode in MODES}
    for _ in range(options.rounds):
        for mode in MODES:
            for label, build in builds:
                runs[label, mode].append(measure(build, mode, options))
    print(f"{options.model}, {runs[builds[0][0], MODES[0]][0]['threads']} threads, {options.rounds} rounds\n")
    print("| build | mode | ms a step | of f32 | peak MiB of tensors | of f32 | process MiB |")
    print("|---|---|---|---|---|---|---|")
    for label, _ in builds:
        time_of = lambda mode: statistics.median(run["median_ms"] for run in runs[label, mode])
        peak_of = lambda mode: runs[label, mode][0]["peak_bytes"]["total"]
        for mode in MODES:
            times = [run["median_ms"] for run in runs[label, mode]]
            process = max(run["process_peak_bytes"] for run in runs[label, mode])
            print(f"| {label} | {mode} | {time_of(mode):.0f} ({min(times):.0f} … {max(times):.0f}) | **{time_of(mode) / time_of(MODES[0]):.2f}** "
                  f"| {peak_of(mode) / 2**20:.1f} | {peak_of(mode) / peak_of(MODES[0]):.3f} | {process / 2**20:.0f} |")


if __name__ == "__main__":
    main()

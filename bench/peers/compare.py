#!/usr/bin/python3
"""bench_train against PyTorch on this machine, interleaved A B A B …, each run a process of its own.

    bench/peers/compare.py --build build/release                       # all rows, about 10 minutes
    bench/peers/compare.py --build build/release --model vit-28 --rounds 3

Prints medians, ratios and peak process memory, and writes a Markdown table to bench/results/ (--out). What PyTorch
needs is in torch_train.py. Nothing else should run on the machine meanwhile.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPENBLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"

def openblas_core():
    """The kernels OpenBLAS should take. Debian's 0.3.21 takes processors newer than itself for a Prescott, with SSE3."""
    flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags:
        return "SkylakeX"
    return "Haswell" if {"avx2", "fma"} <= flags else ""


# model: (steps a run, most of PyTorch's time, most of its peak memory) that this project asks of itself
ROWS = {
    "vit-s-16": (6, 1.0, 0.6),
    "vit-s-16-checkpoint": (6, 0.8, None),
    "vit-28": (20, 1 / 1.5, None),
    "gpt2-bytes": (10, None, None),
}

HEADINGS = [
    "training",
    "Refrain ms a step",
    "PyTorch ms a step",
    "time ratio",
    "samples/s",
    "peak process MiB",
    "memory ratio",
    "MiB above start",
    "asked for",
]


def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def runners(options):
    """One function an engine: model, steps -> its JSON."""
    threads = str(options.threads)
    refrain = pathlib.Path(options.build) / "bench" / "bench_train"
    if not refrain.exists():
        sys.exit(f"{refrain} is missing: cmake --build {options.build} --target bench_train")
    peer_environment = dict(os.environ, OMP_NUM_THREADS=threads)
    if not pathlib.Path(OPENBLAS, "libblas.so.3").exists():
        sys.exit("OpenBLAS with OpenMP is missing: apt install libopenblas0-openmp")
    peer_environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [OPENBLAS, os.environ.get("LD_LIBRARY_PATH")]))
    peer_environment.pop("OPENBLAS_L2_SIZE", None)
    peer_environment.pop("OPENBLAS_CORETYPE", None)
    if openblas_core():
        peer_environment["OPENBLAS_CORETYPE"] = openblas_core()
    common = ["--threads", threads, "--warmup", str(options.warmup)]
    return {
        "refrain": lambda model, steps: run([refrain, "--model", model, "--steps", str(steps), *common, "--json"], dict(os.environ)),
        "pytorch": lambda model, steps: run(
            [options.python, HERE / "torch_train.py", "--model", model, "--steps", str(steps), *common], peer_environment
        ),
    }


def text_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) / 1024**2
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; Linux {platform.release()}"


def library_versions():
    packages = ["libdnnl2", "libopenblas0-openmp", "python3-torch", "g++"]
    lines = text_of(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages]).splitlines()
    return ", ".join(line for line in lines if len(line.split()) == 2)


def measure(engines, model, steps, rounds):
    runs = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            runs[name].append(engine(model, steps))
            print(f"  {model} {name}: {runs[name][-1]['median_ms']:.0f} ms", file=sys.stderr, flush=True)
    return runs


def summary(runs):
    medians = [r["median_ms"] for r in runs]
    return {
        "median": statistics.median(medians),
        "low": min(medians),
        "high": max(medians),
        "rate": runs[0]["samples_per_step"] / statistics.median(medians) * 1e3,
        "peak": statistics.median(r["process_peak_bytes"] for r in runs) / 2**20,
        "added": statistics.median(r["process_peak_bytes"] - r["process_start_bytes"] for r in runs) / 2**20,
    }


def row(model, runs):
    ours, theirs = summary(runs["refrain"]), summary(runs["pytorch"])
    _, time_limit, memory_limit = ROWS[model]
    goals = [f"time ≤ {time_limit:.2f}" if time_limit else "", f"memory ≤ {memory_limit:.2f}" if memory_limit else ""]
    time_of = lambda s: f"{s['median']:.0f} ({s['low']:.0f} … {s['high']:.0f})"
    cells = [
        f"{model}, batch {runs['refrain'][0]['samples_per_step']}",
        time_of(ours),
        time_of(theirs),
        f"**{ours['median'] / theirs['median']:.2f}**",
        f"{ours['rate']:.1f} / {theirs['rate']:.1f}",
        f"{ours['peak']:.0f} / {theirs['peak']:.0f}",
        f"**{ours['peak'] / theirs['peak']:.2f}**",
        f"{ours['added']:.0f} / {theirs['added']:.0f}",
        ", ".join(filter(None, goals)) or "–",
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description="bench_train against PyTorch, interleaved")
    parser.add_argument("--build", default=str(ROOT / "build" / "release"), help="build folder that holds bench/bench_train")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python that has PyTorch")
    parser.add_argument("--model", action="append", choices=ROWS, help="a row; repeat for several; default all")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each engine")
    parser.add_argument("--steps", type=int, default=0, help="measured steps a run; default by row")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", help="Markdown file; default bench/results/train.md; - for none")
    options = parser.parse_args()

    engines = runners(options)
    lines = []
    version = ""
    for model in options.model or ROWS:
        runs = measure(engines, model, options.steps or ROWS[model][0], options.rounds)
        version = runs["pytorch"][0]["version"]
        lines.append(row(model, runs))

    text = "\n".join(
        [
            "# Training steps against PyTorch",
            "",
            "Forward, loss, backward and plain SGD in f32, the same shapes in both; made by `bench/peers/compare.py`.",
            f"Medians over {options.rounds} interleaved runs of each engine (each run's median step; lowest … highest run in brackets),"
            f" {options.threads} threads on both.",
            "",
            f"- Machine: {machine()}",
            f"- Refrain {text_of(['git', 'describe', '--always', '--dirty'])}; PyTorch {version} with OpenBLAS (OpenMP, {openblas_core() or 'its own choice of'} kernels)",
            f"- Packages: {library_versions()}",
            f"- Date: {datetime.date.today().isoformat()}",
            "",
            "| " + " | ".join(HEADINGS) + " |",
            "|---" * len(HEADINGS) + "|",
            *lines,
            "",
            "“MiB above start” leaves out what the process holds before the model is built (for PyTorch: Python and its libraries).",
            "",
        ]
    )
    print(text)
    if options.out != "-":
        path = pathlib.Path(options.out) if options.out else ROOT / "bench" / "results" / "train.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()

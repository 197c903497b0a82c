#!/usr/bin/env python3
"""Merges what bench/cuda.sh measured into one JSON file and one short Markdown table.

    cuda_report.py WORK OUT      WORK: its directory of parts; OUT: where cuda-CHIP-DATE.{json,md} are written

Rates are medians. MFU is the step's FLOPs, replayed ones left out, over the chip's own measured bf16 product rate.
"""

import datetime
import json
import pathlib
import re
import statistics
import sys

# Kernels that move memory; the others are judged by FLOPs.
COMPUTE = ("matmul/", "attention/", "convolution/conv2d")


def parsed(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def trainings(work):
    found = {}
    for path in sorted(work.glob("*-[123].json")):
        model, engine = re.fullmatch(r"(.*)-(refrain|eager|compiled)-\d", path.stem).groups()
        run = parsed(path)
        if run:
            found.setdefault(model, {}).setdefault(engine, []).append(run)
    return found


def main():
    work, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    chip = (work / "chip.txt").read_text().strip().splitlines()[0]
    date = datetime.date.today().isoformat()
    tests = (work / "tests.txt").read_text().strip().splitlines()[-1]
    ops = {dtype: parsed(work / f"ops-{dtype}.json") for dtype in ("bf16", "f16", "f32")}
    steps = trainings(work)
    name = re.sub(r"[^a-z0-9]+", "-", chip.split(",")[0].lower()).strip("-")
    (out / f"cuda-{name}-{date}.json").write_text(
        json.dumps({"chip": chip, "date": date, "tests": tests, "ops": ops, "trainings": steps}, indent=1) + "\n"
    )

    lines = [f"# {chip}, {date}", "", f"`tests/cuda_device.sh`: {tests}", ""]
    for dtype, result in ops.items():
        if not result:
            continue
        lines += [
            f"## Kernels, {dtype}",
            "",
            f"Of this chip's measured rates: copy {result['peak_gbytes_per_second']:.0f} GB/s, product {result['peak_gflops'] / 1e3:.0f} TFLOP/s.",
            "",
            "| kernel | µs | rate | share |",
            "| --- | --- | --- | --- |",
        ]
        for kernel in result["kernels"]:
            if kernel["name"].startswith(COMPUTE):
                rate, share = f"{kernel['gflops'] / 1e3:.1f} TFLOP/s", kernel["share_of_peak_flops"]
            else:
                rate, share = f"{kernel['gbytes_per_second']:.0f} GB/s", kernel["share_of_peak_bytes"]
            lines.append(f"| {kernel['name']} | {kernel['median_us']:.1f} | {rate} | {100 * share:.0f} % |")
        lines.append("")
    lines += [
        "## Training steps, bf16-mixed",
        "",
        "| training | engine | ms a step | samples/s | MFU | peak GB of tensors | plan GB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    peak_flops = ops["bf16"]["peak_gflops"] * 1e9 if ops["bf16"] else None
    for model, engines in steps.items():
        for engine, runs in engines.items():
            ms = statistics.median(run["median_ms"] for run in runs)
            samples = runs[0]["samples_per_step"] / ms * 1e3
            mfu = peak = plan = "–"
            if engine == "refrain":
                flops = runs[0]["flops_per_step"] * (1 - runs[0]["replayed_flops_share"])
                if peak_flops:
                    mfu = f"{100 * flops / (ms * 1e-3) / peak_flops:.0f} %"
                peak, plan = f"{runs[0]['peak_bytes']['total'] / 1e9:.3f}", f"{runs[0]['planned_peak_bytes'] / 1e9:.3f}"
            elif runs[0].get("device_allocated_peak_bytes"):
                peak = f"{runs[0]['device_allocated_peak_bytes'] / 1e9:.3f}"
            lines.append(f"| {model} | {engine} | {ms:.1f} | {samples:.1f} | {mfu} | {peak} | {plan} |")
    if (work / "collectives.md").exists():
        lines += ["", "## Collectives over NCCL", "", (work / "collectives.md").read_text().strip()]
    path = out / f"cuda-{name}-{date}.md"
    path.write_text("\n".join(lines) + "\n")
    print(path)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""The trainings of bench_train (bench/train/workload.cpp) in PyTorch; prints one JSON object with the same keys.

Debian 12: apt install python3-torch libopenblas0-openmp, and run it with /usr/bin/python3. PyTorch takes its matrix
products from whatever libblas.so.3 is; an OpenMP build belongs to it, as others fight with PyTorch's own threads:

    update-alternatives --list libblas.so.3-x86_64-linux-gnu
    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp /usr/bin/python3 torch_train.py --model vit-28

(compare.py sets LD_LIBRARY_PATH by itself.) The ViT is built as torchvision builds it, the decoder as nanoGPT does.
"""

import argparse
import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def process_memory():
    values = {}
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(("VmRSS:", "VmHWM:")):
                values[line[:5]] = int(line.split()[1]) * 1024
    return values["VmRSS"], values["VmHWM"]


class VitBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, image, channels, patch, width, depth, heads, classes, use_checkpoint):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.patch = nn.Conv2d(channels, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(VitBlock(width, heads, 4 * width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = checkpoint(block, x) if self.use_checkpoint else block(x)
        return self.head(self.norm(x)[:, 0])


class DecoderBlock(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.register_buffer("hidden", torch.ones(context, context, dtype=torch.bool).triu(1))

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):  # PyTorch 2: its fused kernels
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(b, t, c))
        scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(c // self.heads))
        weights = F.softmax(scores.masked_fill(self.hidden[:t, :t], float("-inf")), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        y = self.fc1(self.norm2(x))
        return x + self.fc2(F.gelu(y, approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, vocabulary, context, width, depth, heads):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, context) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def make(name, batch):
    """Model, input and targets of a named training."""
    if name in ("vit-s-16", "vit-s-16-checkpoint"):
        batch = batch or 8
        model = Vit(224, 3, 16, 384, 12, 6, 1000, name.endswith("checkpoint"))
        return model, torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    if name == "vit-28":
        batch = batch or 128
        return Vit(28, 1, 4, 64, 6, 4, 10, False), torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    if name == "gpt2-bytes":
        batch = batch or 8
        return Decoder(256, 256, 384, 6, 6), torch.randint(256, (batch, 256)), torch.randint(256, (batch, 256))
    if name in ("vit-l-16", "vit-l-16-checkpoint"):
        batch = batch or 64
        model = Vit(224, 3, 16, 1024, 24, 16, 10, name.endswith("checkpoint"))
        return model, torch.randn(batch, 3, 224, 224), torch.randint(10, (batch,))
    if name == "gpt2-124m":
        batch = batch or 32
        return Decoder(50257, 1024, 768, 12, 12), torch.randint(50257, (batch, 1024)), torch.randint(50257, (batch, 1024))
    sys.exit(f"torch_train.py: unknown model '{name}'")


def main():
    parser = argparse.ArgumentParser(description="bench_train's workloads in PyTorch")
    parser.add_argument("--model", default="vit-28")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed", "bf16-true"])
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    start_bytes, _ = process_memory()  # Python and PyTorch are loaded
    model, inputs, targets = make(options.model, options.batch)
    is_cuda = options.device.startswith("cuda")
    model, inputs, targets = model.to(options.device), inputs.to(options.device), targets.to(options.device)
    if options.precision == "bf16-true":
        model = model.to(torch.bfloat16)
        inputs = inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs
    if options.compile:
        model = torch.compile(model)
    autocast = torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=options.precision == "bf16-mixed")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    losses, step_ms = [], []
    for step in range(options.warmup + options.steps):
        begin = time.perf_counter()
        with autocast:
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        del logits, loss
        if step >= options.warmup:
            step_ms.append((time.perf_counter() - begin) * 1e3)

    _, peak_bytes = process_memory()
    step_ms.sort()
    middle = len(step_ms) // 2
    median = step_ms[middle] if len(step_ms) % 2 else (step_ms[middle - 1] + step_ms[middle]) / 2
    json.dump(
        {
            "engine": "pytorch compiled" if options.compile else "pytorch",
            "device": options.device,
            "precision": options.precision,
            "version": torch.__version__,
            "model": options.model,
            "threads": torch.get_num_threads(),
            "steps": options.steps,
            "parameters": sum(p.numel() for p in model.parameters()),
            "samples_per_step": len(inputs),
            "median_ms": median,
            "min_ms": step_ms[0],
            "max_ms": step_ms[-1],
            "samples_per_second": len(inputs) / median * 1e3,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "process_start_bytes": start_bytes,
            "process_peak_bytes": peak_bytes,
            "device_allocated_peak_bytes": torch.cuda.max_memory_allocated() if is_cuda else 0,
            "device_reserved_peak_bytes": torch.cuda.max_memory_reserved() if is_cuda else 0,
        },
        sys.stdout,
    )
    print()


if __name__ == "__main__":
    main()

"""Export the small variants of today's networks from PyTorch, and write their sequences of nodes into `tests/golden/exports`.

    pip install --target TORCH torch==2.13.0 onnxscript
    PYTHONPATH=TORCH python scripts/export_zoo.py [--networks llama,whisper] [--models DIR]

The networks of `tuner.zoo.builders` have the same sequences; a test compares them.  A line is an operator and the shape of its result;
weights and what is folded are left out.  --models keeps the exported models as well, with random weights.  Nothing else needs torch.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import onnx
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.zoo_exports import FOLDER, node_lines  # noqa: E402
from tuner.zoo.builders import NETWORKS  # noqa: E402
from tuner.zoo.builders.net import OPSET  # noqa: E402


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.input_norm, self.norm = RMSNorm(width), RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        n, tokens, width = x.shape
        y = self.input_norm(x)
        q = self.q(y).view(n, tokens, self.heads, self.size).transpose(1, 2)
        k, v = (layer(y).view(n, tokens, self.kv_heads, self.size).transpose(1, 2) for layer in (self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        times, length = self.heads // self.kv_heads, k.shape[2]
        key, value = (
            t[:, :, None].expand(n, self.kv_heads, times, length, self.size).reshape(n, self.heads, length, self.size) for t in (k, v)
        )
        scores = torch.matmul(q, key.transpose(2, 3)) * (1 / math.sqrt(self.size)) + mask
        mixed = torch.matmul(scores.softmax(-1), value).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.o(mixed)
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos[:, None], sin[:, None]
        present: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, cos, sin, mask, past[2 * i : 2 * i + 2])
            present += [key, value]
        return self.norm(x), *present


def llama(past: int, layers: int, width: int, heads: int, kv_heads: int, hidden: int) -> tuple[nn.Module, list[tuple[int, ...]]]:
    size = width // heads
    cache = [(1, kv_heads, past, size)] * (2 * layers)
    return Llama(layers, width, heads, kv_heads, hidden), [(1, 1, width), (1, 1, size), (1, 1, size), (1, 1, 1, past + 1), *cache]


class WhisperAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for bias in (True, False, True, True))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = (layer(x).view(n, tokens, self.heads, -1).permute(0, 2, 1, 3) for layer in (self.q, self.k, self.v))
        weights = (torch.matmul(q, k.transpose(2, 3)) * (width // self.heads) ** -0.5).softmax(-1)
        return self.o(torch.matmul(weights, v).permute(0, 2, 1, 3).reshape(n, tokens, width))


class WhisperLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WhisperAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Whisper(nn.Module):
    def __init__(self, frames: int, mels: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(mels, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.positions = nn.Parameter(torch.randn(frames // 2, width))
        self.layers = nn.Sequential(*(WhisperLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(x))))
        return self.norm(self.layers(x.permute(0, 2, 1) + self.positions))


def whisper(frames: int, mels: int, layers: int, width: int, heads: int) -> tuple[nn.Module, list[tuple[int, ...]]]:
    return Whisper(frames, mels, layers, width, heads), [(1, mels, frames)]


class SegformerLayer(nn.Module):
    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.reduce = nn.Conv2d(width, width, reduction, reduction) if reduction > 1 else None
        self.reduced_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.depthwise = nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width)

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        n, tokens, width = x.shape
        y = self.attention_norm(x)
        q = self.q(y).view(n, tokens, self.heads, -1).permute(0, 2, 1, 3)
        if self.reduce is not None:
            y = self.reduce(y.permute(0, 2, 1).reshape(n, width, h, w)).reshape(n, width, -1).permute(0, 2, 1)
            y = self.reduced_norm(y)
        k, v = (layer(y).view(n, -1, self.heads, width // self.heads).permute(0, 2, 1, 3) for layer in (self.k, self.v))
        weights = (torch.matmul(q, k.transpose(2, 3)) / math.sqrt(width // self.heads)).softmax(-1)
        x = x + self.o(torch.matmul(weights, v).permute(0, 2, 1, 3).reshape(n, tokens, width))
        y = self.up(self.norm(x))
        y = self.depthwise(y.transpose(1, 2).view(n, 4 * width, h, w)).flatten(2).transpose(1, 2)
        return x + self.down(F.gelu(y))


class Segformer(nn.Module):
    def __init__(self, widths: Sequence[int], layers: int, heads: Sequence[int], decoder: int, classes: int) -> None:
        super().__init__()
        before = (3, *widths[:-1])
        self.patches = nn.ModuleList(
            nn.Conv2d(c, width, 3 if i else 7, 2 if i else 4, 1 if i else 3)
            for i, (c, width) in enumerate(zip(before, widths, strict=True))
        )
        self.patch_norms, self.norms = (nn.ModuleList(nn.LayerNorm(width) for width in widths) for _ in range(2))
        self.stages = nn.ModuleList(
            nn.ModuleList(SegformerLayer(width, count, reduction) for _ in range(layers))
            for width, count, reduction in zip(widths, heads, (8, 4, 2, 1), strict=True)
        )
        self.linears = nn.ModuleList(nn.Linear(width, decoder) for width in widths)
        self.fuse, self.batch_norm = nn.Conv2d(4 * decoder, decoder, 1, bias=False), nn.BatchNorm2d(decoder)
        self.classifier = nn.Conv2d(decoder, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        features: list[Tensor] = []
        for patch, patch_norm, layers, norm in zip(self.patches, self.patch_norms, self.stages, self.norms, strict=True):
            x = patch(x)
            n, c, h, w = x.shape
            x = patch_norm(x.flatten(2).transpose(1, 2))
            for layer in layers:
                x = layer(x, h, w)
            x = norm(x).reshape(n, h, w, c).permute(0, 3, 1, 2)
            features.append(x)
        n, _, h, w = features[0].shape
        parts: list[Tensor] = []
        for feature, linear in zip(features, self.linears, strict=True):
            y = linear(feature.flatten(2).transpose(1, 2)).permute(0, 2, 1).reshape(n, -1, *feature.shape[2:])
            parts.append(F.interpolate(y, (h, w), mode="bilinear", align_corners=False))
        return self.classifier(F.relu(self.batch_norm(self.fuse(torch.cat(parts[::-1], 1)))))


def segformer(size: int, width: int, layers: int, decoder: int, classes: int) -> tuple[nn.Module, list[tuple[int, ...]]]:
    widths = width, 2 * width, 5 * width, 8 * width
    return Segformer(widths, layers, (1, 2, 5, 8), decoder, classes), [(1, 3, size, size)]


class ConvNormAct(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after, 1e-3), nn.SiLU())


class Bottleneck(nn.Module):
    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second, self.shortcut = ConvNormAct(width, width, 3), ConvNormAct(width, width, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    def __init__(self, before: int, after: int, count: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.last = ConvNormAct(before, after), ConvNormAct((2 + count) * after // 2, after)
        self.blocks = nn.ModuleList(Bottleneck(after // 2, shortcut) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        parts = list(first.split(first.shape[1] // 2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class SPPF(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last, self.pool = ConvNormAct(width, width // 2), ConvNormAct(2 * width, width), nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class YoloHead(nn.Module):
    """Boxes as distributions over 16 distances (Li et al. 2020), and scores of classes, without anchors."""

    def __init__(self, size: int, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        box, score = max(16, widths[0] // 4, 64), max(widths[0], min(classes, 100))
        self.classes = classes
        self.boxes, self.scores = (
            nn.ModuleList(
                nn.Sequential(ConvNormAct(width, inner, 3), ConvNormAct(inner, inner, 3), nn.Conv2d(inner, outputs, 1)) for width in widths
            )
            for inner, outputs in ((box, 64), (score, classes))
        )
        self.distances = nn.Conv2d(16, 1, 1, bias=False).requires_grad_(False)
        self.distances.weight.data[:] = torch.arange(16.0).view(1, 16, 1, 1)
        sides = [size // stride for stride in (8, 16, 32)]
        cells = [torch.stack(torch.meshgrid(*[torch.arange(side) + 0.5] * 2, indexing="ij")[::-1]).view(2, -1) for side in sides]
        self.register_buffer("anchors", torch.cat(cells, 1)[None])
        self.register_buffer("strides", torch.cat([torch.full((1, side * side), 8.0 * 2**i) for i, side in enumerate(sides)], 1))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        parts = [torch.cat((box(x), score(x)), 1) for x, box, score in zip(features, self.boxes, self.scores, strict=True)]
        joined = torch.cat([part.view(1, part.shape[1], -1) for part in parts], 2)
        box, score = joined.split((64, self.classes), 1)
        cells = box.shape[2]
        distances = self.distances(box.view(1, 4, 16, cells).transpose(2, 1).softmax(1)).view(1, 4, cells)
        before, after = distances.split(2, 1)
        low, high = self.anchors - before, self.anchors + after
        boxes = torch.cat(((low + high) / 2, high - low), 1) * self.strides
        return torch.cat((boxes, score.sigmoid()), 1)


class Yolo(nn.Module):
    def __init__(self, size: int, width: int, repeats: int, classes: int) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width, 8 * width, 16 * width]
        self.stem, self.downs = ConvNormAct(3, w[0], 3, 2), nn.ModuleList(ConvNormAct(w[i], w[i + 1], 3, 2) for i in range(4))
        self.stages = nn.ModuleList(C2f(w[i + 1], w[i + 1], repeats * (1 + (i in (1, 2))), True) for i in range(4))
        self.pool = SPPF(w[4])
        self.up_4, self.up_3 = C2f(w[4] + w[3], w[3], repeats, False), C2f(w[3] + w[2], w[2], repeats, False)
        self.down_3, self.down_4 = ConvNormAct(w[2], w[2], 3, 2), ConvNormAct(w[3], w[3], 3, 2)
        self.out_4, self.out_5 = C2f(w[2] + w[3], w[3], repeats, False), C2f(w[3] + w[4], w[4], repeats, False)
        self.head = YoloHead(size, w[2:], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        features: list[Tensor] = []
        for down, stage in zip(self.downs, self.stages, strict=True):
            x = stage(down(x))
            features.append(x)
        p5 = self.pool(x)
        p4 = self.up_4(torch.cat((F.interpolate(p5, scale_factor=2.0), features[2]), 1))
        p3 = self.up_3(torch.cat((F.interpolate(p4, scale_factor=2.0), features[1]), 1))
        p4 = self.out_4(torch.cat((self.down_3(p3), p4), 1))
        return self.head((p3, p4, self.out_5(torch.cat((self.down_4(p4), p5), 1))))


def yolo(size: int, width: int, repeats: int, classes: int) -> tuple[nn.Module, list[tuple[int, ...]]]:
    return Yolo(size, width, repeats, classes), [(1, 3, size, size)]


class Residual(nn.Module):
    def __init__(self, before: int, after: int, embedding: int, groups: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(groups, before), nn.GroupNorm(groups, after)
        self.first, self.second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(embedding, after)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.first_norm(x))) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.second(F.silu(self.second_norm(y)))


class SpatialAttention(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = self.norm(x).view(n, c, h * w).transpose(1, 2)
        weights = (torch.matmul(self.q(y), self.k(y).transpose(1, 2)) * c**-0.5).softmax(-1)
        return x + self.o(torch.matmul(weights, self.v(y))).transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    def __init__(self, size: int, width: int, repeats: int, groups: int, levels: Sequence[int], attended: int) -> None:
        super().__init__()
        embedding = 4 * width
        self.time_1, self.time_2 = nn.Linear(width, embedding), nn.Linear(embedding, embedding)
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        skips, c, side = [width], width, size
        for i, factor in enumerate(levels):
            for _ in range(repeats):
                attention = [SpatialAttention(factor * width, groups)] if side == attended else []
                self.downs.append(nn.ModuleList([Residual(c, factor * width, embedding, groups), *attention]))
                c = factor * width
                skips.append(c)
            if i < len(levels) - 1:
                self.downs.append(nn.Conv2d(c, c, 3, 2, 1))
                skips.append(c)
                side //= 2
        self.middle = nn.ModuleList([Residual(c, c, embedding, groups), SpatialAttention(c, groups), Residual(c, c, embedding, groups)])
        for i, factor in reversed(list(enumerate(levels))):
            for _ in range(repeats + 1):
                attention = [SpatialAttention(factor * width, groups)] if side == attended else []
                self.ups.append(nn.ModuleList([Residual(c + skips.pop(), factor * width, embedding, groups), *attention]))
                c = factor * width
            if i:
                self.ups.append(nn.Conv2d(c, c, 3, padding=1))
                side *= 2
        self.norm, self.last = nn.GroupNorm(groups, c), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        time = F.silu(self.time_2(F.silu(self.time_1(time))))
        x = self.stem(x)
        skips = [x]
        for block in self.downs:
            x = block(x) if isinstance(block, nn.Conv2d) else run_block(block, x, time)
            skips.append(x)
        x = run_block(self.middle, x, time)
        for block in self.ups:
            if isinstance(block, nn.Conv2d):
                x = block(F.interpolate(x, scale_factor=2.0))
            else:
                x = run_block(block, torch.cat((x, skips.pop()), 1), time)
        return self.last(F.silu(self.norm(x)))


def run_block(block: nn.ModuleList, x: Tensor, time: Tensor) -> Tensor:
    for layer in block:
        x = layer(x, time) if isinstance(layer, Residual) else layer(x)
    return x


def unet(size: int, width: int, repeats: int, groups: int) -> tuple[nn.Module, list[tuple[int, ...]]]:
    return UNet(size, width, repeats, groups, (1, 2, 2, 2), size // 2), [(1, 3, size, size), (1, width)]


MODULES = {"llama": llama, "whisper": whisper, "segformer": segformer, "yolo": yolo, "unet": unet}


def main(
    networks: Annotated[str, typer.Option(metavar="A,B")] = ",".join(MODULES),
    models: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the exported models there.")] = None,
) -> None:
    """Write the sequences of nodes of PyTorch's exports."""
    torch.manual_seed(0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in networks.split(","):
        module, shapes = MODULES[name](**NETWORKS[name].small)
        with tempfile.TemporaryDirectory() as folder:
            path = (models or Path(folder)) / f"{name}.onnx"
            torch.onnx.export(module.eval(), tuple(torch.randn(shape) for shape in shapes), str(path), opset_version=OPSET, dynamo=False)
            lines = node_lines(onnx.load(path))
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
        typer.echo(f"{name}: {len(lines)} nodes")


if __name__ == "__main__":
    typer.run(main)

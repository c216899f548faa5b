"""Accuracy against kilobytes on split CIFAR-100: separate small networks, and tasks as differences.

Ten tasks of ten classes; the seed draws the class order; a tenth of the training images validates,
test images are never read. ResNet-20s (shortcuts without weights) train as one stack on a leading
axis G. A job has variants that differ in `DEFAULTS`.

    separate   G = variants x seeds x tasks: every task has a network of its own
    chain      G = variants x seeds, one task after the other: weights = those of the previous task
               (`star`: of the first task) + a difference of which the share `f` is not zero

Modes of the values, trained in (straight through) in the second half of the epochs: "none" (float),
"uniform" (2^bits levels), "sparse" (the largest weights, or whole kernels: a sign, 1 or 2 levels),
"vq" (one of K kernels). Kilobytes are order-0 entropies of codes and masks per layer and tables,
16 bits a layer for its scale, the head at 8 bits, the folded norm at 20 bits a channel (`norms`
"uniform8": 16). DATA holds uoft-cs/cifar100/cifar100/train-*.parquet as on the Hub; with
frontier_kernels.py beside it and a GPU a job takes seconds, else minutes. Numbers have noise.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import io
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

try:
    from frontier_kernels import conv, norm
except ImportError:
    conv = norm = None

BATCH, CLASSES, TASKS = 128, 10, 10
STEP = {1: 1.596, 2: 0.9957, 3: 0.586, 4: 0.3352}  # best uniform quantizers of a Gaussian
DEFAULTS = dict(
    lr=0.1, wd=5e-4, ls=0.0, cut=0,  # SGD, Nesterov 0.9, cosine; label smoothing; side of a hole
    lr2=0.1, wd0=None,  # rate of a chain's later tasks (wd: of the difference), wd of its first
    bits=4, f0=1.0, f=1.0,  # density of the first task and of later ones (0: norms and head alone)
    levels=1, kernel=0, star=0, coef=0,  # later: whole kernels; a mask per kernel of the reference
)  # fmt: skip


def block(x, w, low, stride, co, p, res, folded):
    """relu(norm(convolution) + res), and means of the convolution's output and of its square.

    x is [G, N, H, H, ci], w [G, 9, ci * co], low is w in the precision of x, p [G, 2, co] has scale
    and shift of batch norm, the final ones where folded.
    """
    if x.is_cuda and conv is not None:
        y, sums = conv(x, w, low, stride, co)
        return norm(y, sums, p, res, True, folded), sums / (y[0].numel() // co)
    G, N, H, _, ci = x.shape
    w = w.reshape(G, 9, ci, co).permute(0, 3, 2, 1).reshape(G * co, ci, 3, 3).to(x.dtype)
    y = F.conv2d(x.permute(1, 0, 4, 2, 3).reshape(N, G * ci, H, H), w, None, stride, 1, 1, G)
    y = y.view(N, G, co, H // stride, H // stride).permute(1, 0, 3, 4, 2).float()
    means = torch.stack([y.mean((1, 2, 3)), y.square().mean((1, 2, 3))], 1).detach()
    if not folded:
        var, mean = torch.var_mean(y, (1, 2, 3), correction=0, keepdim=True)
        y = (y - mean) * (var + 1e-5).rsqrt()
    y = y * p[:, 0, None, None, None] + p[:, 1, None, None, None]
    return (y if res is None else y + res).relu().to(x.dtype), means


class Net:
    """A residual network's convolutions: (channels in, channels out, stride)."""

    def __init__(self, width: int, blocks: int = 3):
        self.convs, c = [(3, width, 1)], width
        for s in range(3):
            for b in range(blocks):
                co = width * 2**s
                self.convs += [(c, co, 2 if s and not b else 1), (co, co, 1)]
                c = co
        self.features, self.sites = c, [a * b for a, b, _ in self.convs]
        self.outs = [b for _, b, _ in self.convs]

    def __call__(self, x, W, P, head, folded=False):
        ws, ps, stats, skip = W.split(self.sites, 2), P.split(self.outs, 2), [], None
        lows = W.detach().to(x.dtype).split(self.sites, 2)
        for i, (_, co, stride) in enumerate(self.convs):
            res = None
            if i and i % 2 == 0:
                pad = co - skip.shape[-1]
                res = skip if not pad else F.pad(skip[:, :, ::2, ::2], (0, pad)).contiguous()
            elif i:
                skip = x
            x, means = block(x, ws[i], lows[i], stride, co, ps[i], res, folded)
            stats.append(means)
        x = x.float().mean((2, 3))
        return torch.baddbmm(head[:, -1:], x, head[:, :-1]), torch.cat(stats, 2)


def _decode(data: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def load(folder: pathlib.Path) -> tuple[torch.Tensor, np.ndarray]:
    """Training images [n, 40, 40, 3] with a grey border of 4, and labels."""
    import pyarrow.parquet as pq

    images, labels = [], []
    for file in sorted((folder / "uoft-cs/cifar100/cifar100").glob("train-*.parquet")):
        table = pq.read_table(file, columns=["img", "fine_label"])
        with concurrent.futures.ProcessPoolExecutor() as pool:
            encoded = [row["bytes"] for row in table["img"].to_pylist()]
            images += pool.map(_decode, encoded, chunksize=500)
        labels += table["fine_label"].to_pylist()
    padded = F.pad(torch.from_numpy(np.stack(images)), (0, 0, 4, 4, 4, 4), value=120)
    return padded, np.array(labels)


def split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training and validation indices per task, and all labels within their task."""
    rng = np.random.default_rng(seed)
    order, train, valid = rng.permutation(100).reshape(TASKS, CLASSES), [], []
    for task in order:
        per = [rng.permutation(np.flatnonzero(labels == c)) for c in task]
        tenth = len(per[0]) // 10
        valid.append(np.concatenate([p[:tenth] for p in per]))
        train.append(np.concatenate([p[tenth:] for p in per]))
    where = np.empty(100, np.int64)
    where[order.reshape(-1)] = np.arange(100) % CLASSES
    return np.stack(train), np.stack(valid), where[labels]


def entropy_bits(codes: torch.Tensor, skip: int = 99) -> np.ndarray:
    """Order-0 entropy of each row of codes in bits, and 8 bits for every symbol of its table."""
    seen = [(codes == v).sum(1) for v in codes.unique().tolist() if v != skip]
    n = torch.stack(seen or [0 * codes[:, 0]]).double()
    p = (n / n.sum(0).clamp_min(1)).clamp_min(1e-12)
    return (8 * (n > 0).sum(0) - (n * p.log2()).sum(0)).cpu().numpy()


class Stack:
    """All networks of one run, their training and what is stored of them."""

    def __init__(self, job: dict, images: torch.Tensor, labels: np.ndarray, device: str):
        self.job, self.images, self.dev, self.mode = job, images, device, job.get("mode", "none")
        self.seeds, self.chain, self.K = job["seeds"], job.get("chain", False), job.get("K", 16)
        given = {k: v for k, v in job.items() if k in DEFAULTS}
        self.variants = [{**DEFAULTS, **given, **v} for v in job["variants"]]
        tasks = [None] if self.chain else range(TASKS)
        self.groups = [(v, s, t) for v in self.variants for s in self.seeds for t in tasks]
        self.splits = {s: split(labels, s) for s in self.seeds}
        self.G, self.net = len(self.groups), Net(job.get("width", 16), job.get("blocks", 3))
        G, S, net = self.G, sum(self.net.sites), self.net
        self.lat, self.ref = self.zeros(G, 9, S), self.zeros(G, 9, S)
        self.coef, self.P = self.zeros(G, 1, S), self.zeros(G, 2, sum(net.outs))
        self.head = self.zeros(G, net.features + 1, CLASSES)
        self.leaves = [self.lat, self.P, self.head]
        self.leaves += [self.coef] if any(v["coef"] for v in self.variants) else []
        self.momentum = [torch.zeros_like(p) for p in self.leaves]
        for p in self.leaves:
            p.requires_grad_()
        sizes = torch.tensor(net.sites)
        self.layer = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        self.hot, self.sizes = F.one_hot(self.layer, len(sizes)).float(), sizes.to(device).float()
        self.lean = (self.sizes / self.sizes.max()).pow(0.2)[self.layer]  # small layers stay denser
        self.v = {k: self.per(k) for k in ("ls", "cut", "star", "coef", "wd", "kernel", "levels")}
        self.step = self.per("bits", lambda b: STEP[int(b)])
        self.top = self.per("bits", lambda b: 2 ** (b - 1) - 0.5)
        self.threshold, self.owns = self.zeros(G, 1, 1) + 0.05, self.zeros(G, 1, 1)
        self.book = self.zeros(G, self.K, 9)
        self.epochs, self.per_epoch = job.get("epochs", 50), 4500 // BATCH
        self.total, n = self.epochs * self.per_epoch, self.per_epoch
        self.k, self.kk = self.zeros(1, dtype=torch.long), self.zeros(1, dtype=torch.long)
        self.rates, self.targets = self.zeros(self.total + 4, G), self.zeros(self.total + 4, G)
        self.index, self.truth, self.flip = self.zeros(3, n, G, BATCH, dtype=torch.long)
        self.shift, self.hole = self.zeros(2, n, G, BATCH, 2, dtype=torch.long)

    def zeros(self, *shape, **options):
        return torch.zeros(*shape, device=self.dev, **options)

    def per(self, key, of=float):
        return torch.tensor([of(g[0][key]) for g in self.groups], device=self.dev).view(-1, 1, 1)

    def layerwise(self, values):
        """Means per layer of [G, sites] values, spread over the layer's sites again."""
        return (values @ self.hot / self.sizes)[:, self.layer][:, None]

    def weights(self, phase, learn=False, codes=None):
        """The networks' weights [G, 9, sites]; `codes` receives what would be stored."""
        lat, ref, d, mode = self.lat, self.ref, self.lat.detach(), self.mode
        if mode == "none" or (phase == 0 and mode != "sparse"):
            return lat + ref
        sigma = self.layerwise((d + ref).square().mean(1)).sqrt() + 1e-8
        if mode == "uniform":
            q = (torch.floor(d / (sigma * self.step)) + 0.5).clamp(-self.top, self.top)
            sym, q = (2 * q).int(), q * sigma * self.step
        elif mode == "vq":
            v = d / sigma
            a = self.nearest(v)
            q = self.book.transpose(1, 2).gather(2, a[:, None].expand(-1, 9, -1)) * sigma
            sym = a[:, None]
            if learn:
                self.refine(v, a, 0.02)
        else:
            n = d / (sigma * self.lean)
            whole = n.square().mean(1, keepdim=True).sqrt()
            m = (torch.where(self.v["kernel"] > 0, whole, n.abs()) > self.threshold).float()
            if learn:  # the threshold follows the density wanted
                want = self.targets.index_select(0, self.k).view(-1, 1, 1)
                have = m.mean((1, 2), keepdim=True).clamp_min(1e-5)
                self.threshold.mul_((have / want.clamp_min(1e-5)).pow(0.05)).clamp_(1e-4, 30.0)
            m = m * self.owns
            q, sym = d * m, m
            if phase == 1:
                mean = self.layerwise(q.abs().mean(1)) / self.layerwise(m.mean(1)).clamp_min(1e-9)
                most = self.v["levels"]
                unit = mean.clamp_min(1e-8) * torch.where(most == 1, 1.0, 2 / (most + 1))
                level = torch.maximum(torch.round(q.abs() / unit), 1 - self.v["kernel"])
                sym = d.sign() * torch.minimum(level, most) * m
                q = sym * unit
            if codes is not None:
                codes["mask"] = m[:, 0] > 0
        if codes is not None:
            codes["values"] = sym.int()
        w = lat + (q - lat).detach()
        if len(self.leaves) == 3:
            return w + ref
        c = 1 + self.v["coef"] * self.coef / (3 * sigma)  # kernels of the reference kept: 0 or 1
        if phase == 1:
            hard = torch.round(c.detach()).clamp(0, 1)
            c = c + (hard - c).detach()
            if codes is not None:
                codes["coef"] = hard.int()
        return w + ref * c

    def nearest(self, v):
        return (2 * torch.bmm(self.book, v) - self.book.square().sum(2)[:, :, None]).argmax(1)

    def refine(self, v, a, rate):
        sums = self.zeros(self.G, 9, self.K).scatter_add_(2, a[:, None].expand(-1, 9, -1), v)
        n = self.zeros(self.G, self.K).scatter_add_(1, a, torch.ones_like(v[:, 0]))[:, :, None]
        self.book.add_((n > 0) * (sums.transpose(1, 2) / n.clamp_min(1) - self.book), alpha=rate)

    def batch(self, index, shift=None, flip=None, hole=None):
        """Images [G, n] by index, as they are or shifted, mirrored, with a square hole."""
        r = torch.arange(32, device=self.dev)
        if shift is None:
            shift, flip = torch.full((*index.shape, 2), 4, device=self.dev), torch.zeros_like(index)
        rows = (index * 40 + shift[..., 0])[..., None] + r
        cols = torch.where(flip[..., None] > 0, 31 - r, r) + shift[..., 1, None]
        x = self.images.view(-1, 3)[rows[..., :, None] * 40 + cols[..., None, :]]
        x = (x.float() - 120.0) / 65.0
        if hole is not None and any(v["cut"] for v in self.variants):
            out = (r - hole[..., None]).abs() < self.v["cut"][..., None] / 2
            x = x.masked_fill((out[:, :, 0, :, None] & out[:, :, 1, None, :])[..., None], 0.0)
        return x.to(torch.bfloat16 if self.dev == "cuda" else torch.float32)

    def train_step(self, phase):
        fields = (self.index, self.shift, self.flip, self.hole, self.truth)
        *picture, truth = (a.index_select(0, self.kk)[0] for a in fields)
        logits, _ = self.net(self.batch(*picture), self.weights(phase, True), self.P, self.head)
        logp, ls = logits.log_softmax(2), self.v["ls"].view(-1)
        loss = -(1 - ls) * logp.gather(2, truth[..., None]).mean((1, 2)) - ls * logp.mean((1, 2))
        grads = torch.autograd.grad(loss.sum(), self.leaves)
        with torch.no_grad():
            rate = self.rates.index_select(0, self.k).view(-1, 1, 1)
            for p, g, m in zip(self.leaves, grads, self.momentum, strict=True):
                g = g if p is self.P else g + self.v["wd"] * p
                m.mul_(0.9).add_(g)
                p.sub_(rate * (g + 0.9 * m))
            self.k += 1
            self.kk += 1

    def record(self):
        """CUDA graphs of a step before and after the values are quantized."""
        self.graphs = []
        for phase in (0, 1) if self.dev == "cuda" else ():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.k.zero_(), self.kk.zero_()
                self.train_step(phase), self.train_step(phase)
            torch.cuda.current_stream().wait_stream(side)
            self.graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(self.graphs[-1]):
                self.train_step(phase)

    @torch.no_grad()
    def prepare(self, first):
        """Rates, densities and start values of a task."""
        late, ks = self.chain and not first, np.arange(self.total + 4)
        shape = np.minimum(1, (ks + 1) / self.per_epoch) * np.cos(np.pi * ks / self.total / 2) ** 2
        ramp = np.maximum(0, 1 - ks / (0.4 * self.total)) ** 3
        of = [g[0] for g in self.groups]
        goal = [v["f" if late else "f0"] for v in of]
        rates = [shape * v["lr2" if late else "lr"] for v in of]
        self.rates.copy_(torch.tensor(np.array(rates).T))
        self.targets.copy_(torch.tensor(np.array([f + (1 - f) * ramp for f in goal]).T))
        self.owns.copy_(torch.tensor(goal).view(-1, 1, 1).gt(0))
        begins = self.chain and first  # a chain's first task owns single weights
        self.v["wd"].copy_(self.per("wd0" if begins and of[0]["wd0"] else "wd"))
        self.v["kernel"].copy_(self.per("kernel") * (not begins))
        for (_, co, _), w in zip(self.net.convs, self.lat.split(self.net.sites, 2), strict=True):
            w.zero_() if late else w.normal_(0, math.sqrt(2 / (9 * co)))
        self.threshold.fill_(0.02 if late else 0.05)
        if first:
            self.P[:, 0], self.P[:, 1] = 1, 0
        self.head.normal_(0, 1 / math.sqrt(self.net.features))[:, -1] = 0
        for a in (self.coef, self.k, *self.momentum):
            a.zero_()

    def data(self, stage, part):
        pairs = [(self.splits[s], stage if t is None else t) for _, s, t in self.groups]
        index = np.stack([sp[part][t] for sp, t in pairs])
        truth = np.stack([sp[2][i] for (sp, _), i in zip(pairs, index, strict=True)])
        return torch.tensor(index, device=self.dev), torch.tensor(truth, device=self.dev)

    def learn(self, stage, first):
        self.prepare(first)
        if first:
            self.record()
            self.prepare(first)
        index, truth = self.data(stage, 0)
        n = self.per_epoch
        for epoch in range(self.epochs):
            phase = int(2 * epoch >= self.epochs)
            order = torch.rand(index.shape, device=self.dev).argsort(1)[:, : n * BATCH]
            for table, values in ((self.index, index), (self.truth, truth)):
                table.copy_(values.gather(1, order).view(self.G, n, BATCH).transpose(0, 1))
            self.shift.random_(0, 9), self.hole.random_(0, 32), self.flip.random_(0, 2)
            self.kk.zero_()
            if self.mode == "vq" and 2 * (epoch - 1) < self.epochs <= 2 * epoch:
                lat = self.lat.detach()
                v = lat / (self.layerwise(lat.square().mean(1)).sqrt() + 1e-8)
                at = torch.rand(v[:, :1].shape, device=self.dev).argsort(2)[:, :, : self.K]
                self.book.copy_(v.gather(2, at.expand(-1, 9, -1)).transpose(1, 2))
                for _ in range(15):
                    self.refine(v, self.nearest(v), 1.0)
            for _ in range(n):
                self.graphs[phase].replay() if self.graphs else self.train_step(phase)

    def folded(self, W, stage):
        """Scale and shift per channel by statistics of 2,250 training images, rounded as stored."""
        index = self.data(stage, 0)[0][:, torch.randperm(4500, device=self.dev)[:2250]]
        parts = [self.net(self.batch(i), W, self.P, self.head)[1] for i in index.split(250, 1)]
        mean, square = torch.stack(parts).mean(0).unbind(1)
        scale = self.P[:, 0] * (square - mean**2).clamp_min(0).add(1e-5).rsqrt()
        exact = torch.stack([scale, self.P[:, 1] - mean * scale], 1)
        rounded = []
        for p in exact.split(self.net.outs, 2):
            top = p.abs().amax(2, keepdim=True) + 1e-12
            if self.job.get("norms") == "uniform8":  # a dead channel's huge scale spoils the layer
                rounded.append(torch.round(p / top * 127) * top / 127)
            else:  # sign and 9 bits of magnitude, 1/32 octave apart
                e = torch.round(torch.log2((p.abs() / top).clamp_min(2.0**-16)) * 32)
                rounded.append(p.sign() * top * torch.exp2(e / 32) * (e > -511))
        return torch.cat(rounded, 2)

    @torch.no_grad()
    def accuracy(self, W, stage):
        top = self.head.abs().amax(1, keepdim=True)
        P, head = self.folded(W, stage), torch.round(self.head / top * 127) * top / 127
        index, truth = self.data(stage, 1)
        said = [self.net(self.batch(i), W, P, head, True)[0].argmax(2) for i in index.split(250, 1)]
        return (torch.cat(said, 1) == truth).float().mean(1).mul(100).cpu().numpy()

    def size_bits(self, codes):
        """Bits of values, masks and private parts of every network."""
        values, masks = np.zeros(self.G) + 16 * len(self.net.sites), np.zeros(self.G)
        kernel, coef = (self.v[k].view(-1).cpu().numpy() > 0 for k in ("kernel", "coef"))
        if self.mode == "vq":
            values += entropy_bits(codes["values"].flatten(1)) + 72 * self.K
        for i, at in enumerate(self.net.sites if self.mode in ("uniform", "sparse") else []):
            part = slice(sum(self.net.sites[:i]), sum(self.net.sites[:i]) + at)
            v = codes["values"][:, :, part]
            values += np.where(kernel, 0, entropy_bits(v.flatten(1)))
            if kernel.any():
                own = codes["mask"][:, part]
                inside = entropy_bits(v.masked_fill(~own[:, None], 99).flatten(1))
                values += np.where(kernel, inside, 0)
                masks += np.where(kernel, entropy_bits(own.int()), 0)
            if "coef" in codes and self.ref.any():
                masks += np.where(coef, entropy_bits(codes["coef"][:, 0, part]), 0)
        if self.mode == "none":
            values += 32 * self.lat[0].numel()
        each = 16 if self.job.get("norms") == "uniform8" else 20
        private = each * sum(self.net.outs) + 32 * len(self.net.outs) + 8 * self.head[0].numel()
        return np.stack([values, masks, np.full(self.G, private + 160)])

    @torch.no_grad()
    def k_means(self, bits):
        """Weights coded per layer by k-means after training, and the bits of the codes."""
        out, size = [], 0
        for w in self.lat.split(self.net.sites, 2):
            v = w.flatten(1).contiguous()
            c = torch.linspace(-2.5, 2.5, 2**bits, device=self.dev)[None] * v.std(1, keepdim=True)
            for _ in range(41):
                a = torch.searchsorted((c[:, 1:] + c[:, :-1]) / 2, v)
                n = torch.zeros_like(c).scatter_add_(1, a, torch.ones_like(v))
                means = torch.zeros_like(c).scatter_add_(1, a, v) / n
                last, c = c, torch.where(n > 0, means, c).sort(1)[0]
            size = size + entropy_bits(a) + 16 * 2**bits
            out.append(last.gather(1, a).view_as(w))
        return torch.cat(out, 2), size

    def run(self):
        """One result per variant (and per k-means width)."""
        torch.manual_seed(0)
        begin, rows, extra, first = time.time(), [], {}, self.P
        for stage in range(TASKS if self.chain else 1):
            self.learn(stage, stage == 0)
            with torch.no_grad():
                codes = {}
                W = self.weights(1, False, codes)
                rows.append((self.accuracy(W, stage), self.size_bits(codes)))
                if self.chain:
                    first = self.P.clone() if stage == 0 else first
                    self.P.copy_(torch.where(self.v["star"] > 0, first, self.P))
                    self.ref.copy_(torch.where((self.v["star"] > 0) & (stage > 0), self.ref, W))
        for bits in (4, 3, 2) if self.job.get("k_means") else ():
            W, size = self.k_means(bits)
            extra[bits] = [(self.accuracy(W, 0), np.stack([size, 0 * size, rows[0][1][2]]))]
        for bits, found in ((None, rows), *extra.items()):
            shape = (len(self.variants), len(self.seeds), -1)  # the last: tasks
            acc = np.stack([r[0] for r in found], 1).astype(float).reshape(shape)
            size = np.stack([r[1] for r in found], 2).reshape(3, *shape) / 8000
            for i, asked in enumerate(self.job["variants"]):
                kb = size[:, i].sum(2).mean(1).round(1).tolist()
                yield dict(
                    job=self.job["name"] + (f", k-means {bits} bits" if bits else ""),
                    variant=asked, acc=round(float(acc[i].mean()), 2),
                    acc_seeds=acc[i].mean(1).round(2).tolist(), kB=round(sum(kb), 1),
                    codes=kb[0], masks=kb[1], private=kb[2], tasks=acc[i].mean(0).round(1).tolist(),
                    secs=round(time.time() - begin, 1),
                    settings={k: v for k, v in self.job.items() if k != "variants"},
                )  # fmt: skip


def job(name: str, *variants: dict, **settings) -> dict:
    return {"name": name, **settings, "variants": variants or [{}]}


OLD = {"norms": "uniform8"}  # how norms were rounded before the flaw was found
CHAIN = {"chain": True, "mode": "sparse", "wd0": 4e-3, "wd": 1e-3}
OLD_CHAIN = CHAIN | OLD
FIRST = {"chain": True, "mode": "sparse", "wd0": 1e-3, "f0": 0.5, "lr2": 0.05, **OLD}
UNIFORM = {"mode": "uniform", "wd": 5e-3}
BITS = [{"bits": b} for b in (1, 2, 3, 4)]
MEASURED = [
    job("tune", {"wd": 5e-4}, {"wd": 1e-3}, {"lr": 0.05, "wd": 1e-3}, {"wd": 2e-3},
        {"wd": 1e-3, "cut": 12}, {"wd": 1e-3, "ls": 0.1}, {"wd": 4e-3}, {"lr": 0.2, "wd": 2e-3},
        {"wd": 8e-3}, {"lr": 0.2, "wd": 4e-3}, k_means=True, seeds=[100], **OLD),
    job("chain, float", {}, {"lr2": 0.03}, {"lr2": 0.01}, chain=True, wd0=1e-3, **OLD),
    job("chain, first look", {"f": 0.05}, {"f": 0.1}, {"f": 0.2, "kernel": 1},
        {"f": 0.1, "kernel": 1}, {"f": 0, "coef": 1, "star": 1}, {"f": 0, "star": 1},
        {"f": 0.05, "star": 1}, **FIRST),
    job("separate, wd 2e-3", *BITS[:4], mode="uniform", wd=2e-3, **OLD),
    job("separate", *BITS[:2], **UNIFORM, **OLD),
    job("separate", *BITS[:3], width=8, **UNIFORM, **OLD),
    job("separate", *BITS[:2], width=12, **UNIFORM),
    job("separate, one of 16 kernels", mode="vq", wd=5e-3, **OLD),
    job("separate, sparse", {"f0": 0.3, "wd": 5e-3}, {"f0": 0.15, "wd": 5e-3},
        {"f0": 0.07, "wd": 5e-3}, {"f0": 0.15, "wd": 1e-3}, {"f0": 0.07, "wd": 1e-3},
        mode="sparse", **OLD),
    job("separate, sparse", {"f0": 0.15, "wd": 4e-3}, {"f0": 0.07, "wd": 4e-3},
        {"f0": 0.07, "wd": 1e-3}, mode="sparse"),
    job("chain", {"f": 0.02}, {"f": 0.05}, {"f": 0.1}, width=8, f0=0.5, **OLD_CHAIN),
    job("chain", {"f": 0.02}, {"f": 0.05, "lr2": 0.2}, {"f": 0.05, "lr2": 0.04},
        {"f": 0.05, "levels": 2}, {"f": 0.05, "coef": 1}, {"f": 0.05, "wd": 5e-3},
        f0=0.3, **OLD_CHAIN),
    job("chain", {"f": 0.02}, width=24, f0=0.2, **CHAIN),
    job("chain", {"f": 0.02}, {"f": 0.05}, {"f": 0.1, "kernel": 1}, width=32, f0=0.2, **OLD_CHAIN),
    job("chain", {"f": 0.02}, width=32, f0=0.15, **CHAIN),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, help="JSON lines are added to it")
    parser.add_argument("--only", default="", help="text in the name or width, as 'chain w8'")
    parser.add_argument("--jobs", type=pathlib.Path, help="JSON lines instead of the jobs above")
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    images, labels = load(args.data)
    for one in map(json.loads, args.jobs.open()) if args.jobs else MEASURED:
        one = {"seeds": [100, 101], "width": 16, "variants": [{}], **one}
        one["name"] += f" w{one['width']}"
        one["epochs"] = args.epochs or one.get("epochs", 50)
        if args.only in one["name"]:
            for result in Stack(one, images.to(device), labels, device).run():
                print(result["job"], result["variant"], result["acc"], result["kB"], flush=True)
                with args.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

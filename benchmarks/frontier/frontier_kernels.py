"""Triton kernels for stacks of networks: one convolution, one batch norm for G networks at once.

Feature maps are [G, N, H, W, C]; weights [G, taps, ci * co]; taps is 9 (3x3) or 1 (1x1).
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _conv(
    x,
    w,
    y,
    st,
    M,
    MI,
    wg,
    wt,
    HI: tl.constexpr,
    WI: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CI: tl.constexpr,
    CO: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    TRANS: tl.constexpr,
    STATS: tl.constexpr,
    NK: tl.constexpr,
    STAGES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    g = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(2) * BN + tl.arange(0, BN)
    ck = tl.arange(0, BK)
    n = r // (HO * WO)
    p = r % (HO * WO)
    oh = p // WO
    ow = p % WO
    live = r < M
    x += g * MI * CI
    w += g * wg
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in tl.range(0, TAPS * NK, num_stages=STAGES):
        t = i // NK
        dh = (t // 3 - 1) * (TAPS // 9)
        dw = (t % 3 - 1) * (TAPS // 9)
        if TRANS:
            ph = oh - dh
            pw = ow - dw
            ih = ph // STRIDE
            iw = pw // STRIDE
            ok = (
                live
                & (ph >= 0)
                & (pw >= 0)
                & (ph % STRIDE == 0)
                & (pw % STRIDE == 0)
                & (ih < HI)
                & (iw < WI)
            )
        else:
            ih = oh * STRIDE + dh
            iw = ow * STRIDE + dw
            ok = live & (ih >= 0) & (iw >= 0) & (ih < HI) & (iw < WI)
        at = ((n * HI + ih) * WI + iw) * CI
        k = (i % NK) * BK + ck
        a = tl.load(x + at[:, None] + k[None, :], mask=ok[:, None] & (k < CI)[None, :], other=0.0)
        m = (k < CI)[:, None] & (co < CO)[None, :]
        if TRANS:
            b = tl.load(w + t * wt + co[None, :] * CI + k[:, None], mask=m, other=0.0)
        else:
            b = tl.load(w + t * wt + k[:, None] * CO + co[None, :], mask=m, other=0.0)
        acc = tl.dot(a, b.to(a.dtype), acc)
    m = live[:, None] & (co < CO)[None, :]
    tl.store(y + g * M * CO + r[:, None] * CO + co[None, :], acc.to(y.dtype.element_ty), mask=m)
    if STATS:
        s = st + g * 2 * CO + co
        tl.atomic_add(s, tl.sum(acc, 0), mask=co < CO)
        tl.atomic_add(s + CO, tl.sum(acc * acc, 0), mask=co < CO)


@triton.jit
def _wgrad(
    x,
    dy,
    dw,
    M,
    MI,
    HI: tl.constexpr,
    WI: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CI: tl.constexpr,
    CO: tl.constexpr,
    NI: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    g = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0) % TAPS
    q = tl.program_id(0) // TAPS
    ci = (q % NI) * BK + tl.arange(0, BK)
    co = (q // NI) * BN + tl.arange(0, BN)
    dh = (t // 3 - 1) * (TAPS // 9)
    dv = (t % 3 - 1) * (TAPS // 9)
    x += g * MI * CI
    dy += g * M * CO
    acc = tl.zeros((BK, BN), dtype=tl.float32)
    start = tl.program_id(1) * ROWS
    for i in range(0, ROWS, BM):
        r = start + i + tl.arange(0, BM)
        n = r // (HO * WO)
        p = r % (HO * WO)
        ih = p // WO * STRIDE + dh
        iw = p % WO * STRIDE + dv
        ok = (r < M) & (ih >= 0) & (iw >= 0) & (ih < HI) & (iw < WI)
        at = ((n * HI + ih) * WI + iw) * CI
        a = tl.load(x + at[:, None] + ci[None, :], mask=ok[:, None] & (ci < CI)[None, :], other=0.0)
        b = tl.load(
            dy + r[:, None] * CO + co[None, :],
            mask=(r < M)[:, None] & (co < CO)[None, :],
            other=0.0,
        )
        acc = tl.dot(tl.trans(a), b, acc)
    out = dw + (g * TAPS + t) * CI * CO + ci[:, None] * CO + co[None, :]
    tl.atomic_add(out, acc, mask=(ci < CI)[:, None] & (co < CO)[None, :])


@triton.jit
def _norm(
    y,
    st,
    p,
    res,
    out,
    M,
    pg,
    pk,
    C: tl.constexpr,
    FOLDED: tl.constexpr,
    RES: tl.constexpr,
    RELU: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    g = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BC)
    cm = c < C
    scale = tl.load(p + g * pg + c, mask=cm, other=0.0)
    shift = tl.load(p + g * pg + pk + c, mask=cm, other=0.0)
    if not FOLDED:
        mean = tl.load(st + g * 2 * C + c, mask=cm, other=0.0) / M
        var = tl.load(st + g * 2 * C + C + c, mask=cm, other=1.0) / M - mean * mean
        scale = scale * tl.rsqrt(tl.maximum(var, 0.0) + 1e-5)
        shift = shift - mean * scale
    at = g * M * C + r[:, None] * C + c[None, :]
    m = (r < M)[:, None] & cm[None, :]
    v = tl.load(y + at, mask=m, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if RES:
        v += tl.load(res + at, mask=m, other=0.0).to(tl.float32)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=m)


@triton.jit
def _norm_sums(
    y,
    st,
    p,
    out,
    dout,
    sums,
    M,
    pg,
    pk,
    C: tl.constexpr,
    ITERS: tl.constexpr,
    RES: tl.constexpr,
    RELU: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    g = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BC)
    cm = c < C
    mean = tl.load(st + g * 2 * C + c, mask=cm, other=0.0) / M
    var = tl.load(st + g * 2 * C + C + c, mask=cm, other=1.0) / M - mean * mean
    rstd = tl.rsqrt(tl.maximum(var, 0.0) + 1e-5)
    scale = tl.load(p + g * pg + c, mask=cm, other=0.0)
    shift = tl.load(p + g * pg + pk + c, mask=cm, other=0.0)
    s0 = tl.zeros((BC,), dtype=tl.float32)
    s1 = tl.zeros((BC,), dtype=tl.float32)
    for i in range(ITERS):
        r = (tl.program_id(0) * ITERS + i) * BM + tl.arange(0, BM)
        at = g * M * C + r[:, None] * C + c[None, :]
        m = (r < M)[:, None] & cm[None, :]
        d = tl.load(dout + at, mask=m, other=0.0).to(tl.float32)
        h = (tl.load(y + at, mask=m, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        if RES:
            d = tl.where(tl.load(out + at, mask=m, other=0.0).to(tl.float32) > 0, d, 0.0)
        elif RELU:
            d = tl.where(h * scale[None, :] + shift[None, :] > 0, d, 0.0)
        s0 += tl.sum(d * h, 0)
        s1 += tl.sum(d, 0)
    tl.atomic_add(sums + g * 2 * C + c, s0, mask=cm)
    tl.atomic_add(sums + g * 2 * C + C + c, s1, mask=cm)


@triton.jit
def _norm_back(
    y,
    st,
    p,
    out,
    dout,
    sums,
    dy,
    dres,
    M,
    pg,
    pk,
    C: tl.constexpr,
    RES: tl.constexpr,
    RELU: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    g = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BC)
    cm = c < C
    mean = tl.load(st + g * 2 * C + c, mask=cm, other=0.0) / M
    var = tl.load(st + g * 2 * C + C + c, mask=cm, other=1.0) / M - mean * mean
    rstd = tl.rsqrt(tl.maximum(var, 0.0) + 1e-5)
    s0 = tl.load(sums + g * 2 * C + c, mask=cm, other=0.0) / M
    s1 = tl.load(sums + g * 2 * C + C + c, mask=cm, other=0.0) / M
    scale = tl.load(p + g * pg + c, mask=cm, other=0.0)
    shift = tl.load(p + g * pg + pk + c, mask=cm, other=0.0)
    at = g * M * C + r[:, None] * C + c[None, :]
    m = (r < M)[:, None] & cm[None, :]
    d = tl.load(dout + at, mask=m, other=0.0).to(tl.float32)
    h = (tl.load(y + at, mask=m, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    if RES:
        d = tl.where(tl.load(out + at, mask=m, other=0.0).to(tl.float32) > 0, d, 0.0)
        tl.store(dres + at, d.to(dres.dtype.element_ty), mask=m)
    elif RELU:
        d = tl.where(h * scale[None, :] + shift[None, :] > 0, d, 0.0)
    scale = scale * rstd
    v = scale[None, :] * (d - s1[None, :] - h * s0[None, :])
    tl.store(dy + at, v.to(dy.dtype.element_ty), mask=m)


def _up(n, low=16, high=1 << 20):
    p = low
    while p < n and p < high:
        p *= 2
    return p


def _launch_conv(x, w, taps, stride, trans, H, W, co, st=None):
    G, N, HI, WI, ci = x.shape
    y = x.new_empty(G, N, H, W, co)
    M, BN, BK = N * H * W, _up(co, high=128), _up(ci, high=64)
    BM = 256 if max(BN, BK) <= 32 else 128
    grid = (triton.cdiv(M, BM), G, triton.cdiv(co, BN))
    _conv[grid](
        x,
        w,
        y,
        y if st is None else st,
        M,
        N * HI * WI,
        w.stride(0),
        w.stride(1),
        HI=HI,
        WI=WI,
        HO=H,
        WO=W,
        CI=ci,
        CO=co,
        STRIDE=stride,
        TAPS=taps,
        TRANS=trans,
        STATS=st is not None,
        NK=triton.cdiv(ci, BK),
        STAGES=3,
        BM=BM,
        BN=BN,
        BK=BK,
        num_warps=8 if BN >= 128 else 4,
    )
    return y


class Conv(torch.autograd.Function):
    """`low` is `w` in the precision of `x`; the gradient goes to `w`."""

    @staticmethod
    def forward(ctx, x, w, low, stride, co):
        ctx.save_for_backward(x, low)
        ctx.stride, taps = stride, w.shape[1]
        st = x.new_zeros(x.shape[0], 2, co, dtype=torch.float32)
        H = x.shape[2] // stride
        y = _launch_conv(x, low, taps, stride, False, H, H, co, st)
        ctx.mark_non_differentiable(st)
        return y, st

    @staticmethod
    def backward(ctx, dy, _):
        x, w = ctx.saved_tensors
        (G, N, H, W, ci), (_, _, HO, WO, co), taps = x.shape, dy.shape, w.shape[1]
        dy = dy.contiguous()
        dx = (
            _launch_conv(dy, w, taps, ctx.stride, True, H, W, ci)
            if ctx.needs_input_grad[0]
            else None
        )
        dw = w.new_zeros(G, taps, ci * co, dtype=torch.float32)
        M, BN, BK = N * HO * WO, _up(co, high=64), _up(ci, high=64)
        small = BK * BN <= 1024
        rows = 4096 if M >= 65536 else 2048
        ni, no = triton.cdiv(ci, BK), triton.cdiv(co, BN)
        _wgrad[(taps * ni * no, triton.cdiv(M, rows), G)](
            x,
            dy,
            dw,
            M,
            N * H * W,
            HI=H,
            WI=W,
            HO=HO,
            WO=WO,
            CI=ci,
            CO=co,
            NI=ni,
            ROWS=rows,
            STRIDE=ctx.stride,
            TAPS=taps,
            BM=128 if small else 64,
            BN=BN,
            BK=BK,
            num_warps=2 if small else 4,
            num_stages=2,
        )
        return dx, dw, None, None, None


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, st, p, res, relu, folded):
        G, C = y.shape[0], y.shape[-1]
        M, BC = y[0].numel() // C, _up(C)
        BM = max(8, 4096 // BC)
        out = torch.empty_like(y)
        _norm[(triton.cdiv(M, BM), G)](
            y,
            st,
            p,
            y if res is None else res,
            out,
            M,
            p.stride(0),
            p.stride(1),
            C=C,
            FOLDED=folded,
            RES=res is not None,
            RELU=relu,
            BM=BM,
            BC=BC,
        )
        ctx.save_for_backward(y, st, p, out)
        ctx.relu, ctx.res = relu, res is not None
        return out

    @staticmethod
    def backward(ctx, dout):
        y, st, p, out = ctx.saved_tensors
        G, C = y.shape[0], y.shape[-1]
        M, BC = y[0].numel() // C, _up(C)
        BM, iters = max(8, 4096 // BC), 8
        dout = dout.contiguous()
        sums = torch.zeros_like(st)
        dy = torch.empty_like(y)
        dres = torch.empty_like(y) if ctx.res else None
        _norm_sums[(triton.cdiv(M, BM * iters), G)](
            y,
            st,
            p,
            out,
            dout,
            sums,
            M,
            p.stride(0),
            p.stride(1),
            C=C,
            ITERS=iters,
            RES=ctx.res,
            RELU=ctx.relu,
            BM=BM,
            BC=BC,
        )
        _norm_back[(triton.cdiv(M, BM), G)](
            y,
            st,
            p,
            out,
            dout,
            sums,
            dy,
            dres if ctx.res else dy,
            M,
            p.stride(0),
            p.stride(1),
            C=C,
            RES=ctx.res,
            RELU=ctx.relu,
            BM=BM,
            BC=BC,
        )
        return dy, None, sums, dres, None, None


def conv(x, w, low, stride, co):
    """Convolution of a stack, and sums of its output and of its square per channel."""
    return Conv.apply(x, w, low, stride, co)


def norm(y, sums, p, res=None, relu=True, folded=False):
    """Batch norm (+ res), relu; p is scale and shift, the final ones where folded."""
    return Norm.apply(y, sums, p, res, relu, folded)

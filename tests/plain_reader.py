"""A second reader of formats 1 and 2, written from docs/FORMAT.md alone, in numpy."""

from __future__ import annotations

import itertools
import json
import math
import zlib
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np

COMMON = {1: ("records", "constants"), 2: ("constants", "base")}
GROUPS = {  # the sections of an entry that have one hash together
    1: {k: (k,) for k in ("codes", "codebooks", "masks", "heads", "private", "memory")},
    2: {
        "weights": ("codes", "codebooks", "masks"),
        "task": ("heads", "task_params", "memory", "routing"),
    },
}
GOLDEN, ALL = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Bytes:
    """Bytes that are read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        head, self.data = self.data[:count], self.data[count:]
        assert len(head) == count
        return head

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def floats(self, count: int, wide: int) -> np.ndarray:
        kind = "<f4" if wide else "<f2"
        return np.frombuffer(self.take(count * (4 if wide else 2)), kind).astype(np.float32)


def read(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """The tensors of every task by name, as the network takes them."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = header["__metadata__"]["tinysubnets"]
    front = first_front if text.startswith("{") else second_front
    config, index, rest = front(header, data[8 + length :])
    sections = split(index, rest, len(config["tasks"]), config["format"])
    found = zip(config["tasks"], tasks(config, sections), strict=True)
    return {t["name"]: tensors for t, tensors in found if "name" in t}


def second_front(header: dict[str, Any], data: bytes) -> Any:
    """Config, index, and where each section is taken from: one after the other."""
    rest = Bytes(data)
    text, stream, index = (rest.varint() for _ in range(3))
    start = len(data) - len(rest.data)
    hashed = digest(data[: start + stream + index], "front").hex()
    assert header["__metadata__"] == {"blake2b": hashed, "tinysubnets": "2"}
    assert header["model"]["data_offsets"] == [0, len(data)]
    inflate = zlib.decompressobj(-15, zdict=dictionary())
    found = inflate.decompress(rest.take(stream))
    assert len(found) == text and inflate.eof
    config, index = json.loads(found), rest.take(index)
    kinds = [*COMMON[2], *(kind for kinds in GROUPS[2].values() for kind in kinds)]
    return config, index, dict.fromkeys(kinds, rest)


def dictionary() -> bytes:
    """What the config is deflated against: the lines in the specification, joined."""
    page = (Path(__file__).parent.parent / "docs" / "FORMAT.md").read_text(encoding="utf-8")
    block = page.split("### The dictionary", 1)[1].split("```")[1]
    return "".join(block.split("\n")[1:]).encode()


def first_front(header: dict[str, Any], data: bytes) -> Any:
    """The same in format 1, where each kind of section is a tensor of its own."""
    text = header["__metadata__"]["tinysubnets"]
    assert digest(text.encode(), "config").hex() == header["__metadata__"]["blake2b"]
    config = json.loads(text)
    places = {n: entry["data_offsets"] for n, entry in header.items() if n != "__metadata__"}
    blobs = {name: data[start:stop] for name, (start, stop) in places.items()}
    assert digest(blobs["index"], "index").hex() == config["index"]
    return config, blobs["index"], {kind: Bytes(blob) for kind, blob in blobs.items()}


def digest(data: bytes, place: str) -> bytes:
    return blake2b(data, digest_size=8, person=place.encode()).digest()


def split(
    data: bytes, rest: dict[str, Bytes], count: int, version: int
) -> dict[tuple[str, int], bytes]:
    index = Bytes(data)
    order = [(kind, 0, (kind,)) for kind in COMMON[version]]
    order += [(g, t, kinds) for t in range(count) for g, kinds in GROUPS[version].items()]
    out = {}
    for group, task, kinds in order:
        for kind in kinds:
            size = index.varint()
            out[kind, task] = rest[kind].take(size) if size else b""
        data = b"".join(out[kind, task] for kind in kinds)
        assert not data or digest(data, f"{group} {task}") == index.take(8)
    assert not index.data
    assert not any(part.data for kind, part in rest.items() if kind != "index")
    return out


def tasks(config: dict[str, Any], sections: dict[tuple[str, int], bytes]) -> Any:
    network = config["architecture"]
    shared = network["shared"]
    sizes = [math.prod(shape) for _, shape in shared]
    blocks = [block_ids(shape, config["block"]) for _, shape in shared]
    counts = [int(b[-1]) + 1 for b in blocks]
    banks: dict[int | None, dict[str, Any]] = {}
    base = read_base(config, sections)
    decoded: dict[int | str, np.ndarray] = {}
    named: dict[int, Any] = {}  # task-specific parameters by number
    if base:
        decoded["base"] = np.concatenate([base[name].reshape(-1) for name, _ in shared])
    number = -1
    for place, task in enumerate(config["tasks"]):
        number = task.get("number", number + 1)
        new_bank = {
            "masks": [],
            "owned": np.zeros(sum(counts), bool),
            "values": np.zeros(sum(sizes), "f4"),
        }
        bank = banks.setdefault(task.get("bank"), new_bank)
        names = [name for name, _ in shared]
        widths = [kernel(shape) if config["block"] == 1 else 1 for _, shape in shared]
        rows = [s[0] if n % s[0] == 0 else 1 for n, (_, s) in zip(counts, shared, strict=True)]
        start = (task.get("bank"), number, names, counts, widths, rows)
        mask = np.zeros(sum(counts), bool)
        if not task.get("empty") and not task.get("rank"):
            mask = read_mask(Bytes(sections["masks", place]), bank, start)
        else:
            assert "bank" not in task and not sections["masks", place]
        owned = bank["owned"] if "bank" in task else np.zeros_like(mask)
        new = expand(mask & ~owned, blocks)
        parts = [new] if task.get("codebooks") else np.split(new, np.cumsum(sizes)[:-1])
        codes, books = Bytes(sections["codes", place]), Bytes(sections["codebooks", place])
        if new.any() and (config["format"] == 1 or books.take(1)[0] == 0):
            found = [read_values(codes, read_form(books), int(p.sum())) for p in parts]
            bank["values"][new] = np.concatenate(found)
        elif new.any():
            kernels = [kernel(shape) for _, shape in shared]
            bank["values"][new] = alike(codes, books, parts, follows(new, sizes, kernels))
        deltas = factors(codes, [shape for _, shape in shared], task.get("rank", 0))
        assert not codes.data and not books.data
        bank["masks"].append(mask)
        bank["owned"] |= mask
        flat = np.where(expand(mask, blocks), bank["values"], np.float32(0))
        if "reference" in task:
            other = decoded[task["reference"]]
            flat = np.where(expand(mask, blocks), other + bank["values"], other)
        if deltas:
            ends = np.cumsum(sizes)
            for i, delta in deltas.items():
                flat[ends[i] - sizes[i] : ends[i]] += delta.reshape(-1)
        decoded[number] = flat
        out = {
            name: part.reshape(shape)
            for (name, shape), part in zip(
                shared, np.split(flat, np.cumsum(sizes)[:-1]), strict=True
            )
        }
        if "name" in task:
            near = named.get(task.get("reference"), {})
            named[number] = private(config, task, sections, place, base, near)
            added = task.get("adds") and base
            own = {*named[number]} - lacking(config, task)  # of which none is the base's own
            out |= {
                name: base[name] + value if added and name in base and name in own else value
                for name, value in named[number].items()
            }
        yield out


def lacking(config: dict[str, Any], task: dict[str, Any]) -> set[str]:
    """The names of a task's parameters that are the base's own."""
    runs = config["absent"][task["absent"]] if "absent" in task else ()
    places = {run[0] + i * run[2] for run in runs if len(run) == 3 for i in range(run[1])}
    key = "private" if config["format"] == 1 else "task_params"
    return {config["architecture"][key][place][0] for place in places}


def factors(data: Bytes, shapes: list[list[int]], rank: int) -> dict[int, np.ndarray]:
    """What a difference of low rank adds to tensors, by their places."""
    if not rank:
        return {}
    sizes = {i: (s[0], math.prod(s[1:])) for i, s in enumerate(shapes) if len(s) > 1}
    sizes = {i: (m, n) for i, (m, n) in sizes.items() if 2 * rank * (m + n) <= m * n}
    counts = {f"{i}.up": m * rank for i, (m, _) in sizes.items()}
    counts |= {f"{i}.down": rank * n for i, (_, n) in sizes.items()}
    found = {}
    for group in groups_of(data, list(counts)):
        each = [counts[n] for n in group]
        values = read_list(data, sum(each), [])
        found |= dict(zip(group, np.split(values, np.cumsum(each)[:-1]), strict=True))
    out = {}
    for i, (m, n) in sizes.items():
        up, down = found[f"{i}.up"].reshape(m, rank), found[f"{i}.down"].reshape(rank, n)
        out[i] = np.zeros((m, n), np.float32)
        for k in range(rank):
            out[i] = np.outer(up[:, k], down[k]) + (out[i] if k else np.float32(-0.0))
    return out


def alike(codes: Bytes, books: Bytes, parts: list[np.ndarray], follow: np.ndarray) -> np.ndarray:
    """Own weights whose codebooks are all full and of one width."""
    form = books.take(1)[0]
    counts = [int(p.sum()) for p in parts if p.any()]
    wide = bit_stream(books.take(-(-len(counts) // 8))) if form & 1 else [0] * len(counts)
    books_of = [books.floats(2 ** (form >> 1), wide[i]) for i in range(len(counts))]
    indices = indices_of(codes.take(len(codes.data)), form >> 1, sum(counts), follow)
    ends = np.cumsum(counts)
    lists = np.split(indices, ends[:-1])
    return np.concatenate([book[one] for book, one in zip(books_of, lists, strict=True)])


def kernel(shape: list[int]) -> int:
    trailing = math.prod(shape[2:])
    return trailing if len(shape) > 2 and 2 <= trailing <= 64 else 1


def follows(new: np.ndarray, sizes: list[int], kernels: list[int]) -> np.ndarray:
    """Which of the new weights are in the kernel of the new weight before."""
    owners: list[tuple[int, int]] = []
    for place, (part, width) in enumerate(
        zip(np.split(new, np.cumsum(sizes)[:-1]), kernels, strict=True)
    ):
        owners += [(place, int(w) // width) for w in np.flatnonzero(part)]
    return np.array([i > 0 and owners[i] == owners[i - 1] for i in range(len(owners))])


def read_base(config: dict[str, Any], sections: Any) -> dict[str, np.ndarray]:
    """The base's tensors by name, where the file has them."""
    data, network = Bytes(sections.get(("base", 0), b"")), config["architecture"]
    if not data.data:
        return {}
    own = [t for t in network["task_params"] if not t[1] or t[1][0] != 0]
    specs = [*network["shared"], *own]
    out = {n: data.floats(math.prod(shape), 1).reshape(shape) for n, shape, *_ in specs}
    assert not data.data
    sha = sha256()
    for name, values in sorted(out.items()):
        shape = ",".join(map(str, values.shape))
        sha.update(f"{name}\0float32\0{shape}\0".encode() + values.tobytes())
    assert sha.hexdigest() == config["base"]["sha256"]
    return out


def private(
    config: dict[str, Any],
    task: dict[str, Any],
    sections: Any,
    place: int,
    base: dict[str, Any],
    reference: dict[str, np.ndarray],
) -> Any:
    """A task's parameters before anything is added to them, which others may differ from."""
    key = "private" if config["format"] == 1 else "task_params"
    head, other = Bytes(sections["heads", place]), Bytes(sections[key, place])
    other.floats(2 * task.get("channels", 0), 1)
    outputs = len(config["classes"][task["classes"]]) * (4 if task.get("rotations") else 1)
    absent = {}
    for first, count, step, *value in config["absent"][task["absent"]] if "absent" in task else ():
        absent |= {first + i * step: value for i in range(count)}
    out, shapes = {}, {}
    for where, (name, shape, *_) in enumerate(config["architecture"][key]):
        shapes[name] = [outputs, *shape[1:]] if shape and shape[0] == 0 else shape
        if where in absent:
            value = absent[where]
            out[name] = np.full(shapes[name], value[0], np.float32) if value else base[name]
    prefix = config["architecture"]["head"] + "."
    stored = [name for name in shapes if name not in out]
    for data, names in (
        (head, [n for n in stored if n.startswith(prefix)]),
        (other, [n for n in stored if not n.startswith(prefix)]),
    ):
        for group in groups_of(data, names) if key == "task_params" else [[n] for n in names]:
            sizes = [math.prod(shapes[n]) for n in group]
            near = [reference[n].reshape(-1) for n in group if n in reference]
            values = read_list(data, sum(sizes), near if data is other else [])
            for n, part in zip(group, np.split(values, np.cumsum(sizes)[:-1]), strict=True):
                out[n] = part.reshape(shapes[n])
    assert not head.data and not other.data
    return out


def groups_of(data: Bytes, names: list[str]) -> Any:
    """The tensors whose values come next, again and again: those of one last name, or one."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(name.split(".")[-1], []).append(name)
    for kind in kinds.values():
        together = len(kind) > 1 and data.take(1)[0]
        yield from [kind] if together else [[name] for name in kind]


def read_list(data: Bytes, count: int, reference: list[np.ndarray]) -> np.ndarray:
    if data.data[0] < 64:
        return read_values(data, read_form(data), count)
    form, mantissa, floor = data.take(3)
    integers = read_integers(data, count)
    if form == 65:
        integers = integers + on_grid(np.concatenate(reference), mantissa, floor - 128)
    octaves, fractions = np.divmod(np.abs(integers), 1 << mantissa)
    sizes = (fractions + (octaves > 0) * 2.0**mantissa) * 2.0 ** (
        floor - 128 - mantissa + np.maximum(octaves, 1) - 1
    )
    return np.where(integers < 0, -sizes, sizes).astype(np.float32)


def on_grid(values: np.ndarray, mantissa: int, floor: int) -> np.ndarray:
    """The integers of the nearest numbers of a grid, half-way cases to the even magnitude."""
    out = []
    for value in values.astype(float):
        exponent = floor
        while abs(value) >= 2.0 ** (exponent + 1):
            exponent += 1
        size = round(abs(value) / 2.0 ** (exponent - mantissa))  # Python rounds to even
        size += (exponent - floor) << mantissa
        out.append(-size if value < 0 else size)
    return np.array(out, np.int64)


def read_integers(data: Bytes, count: int) -> np.ndarray:
    first = data.take(1)[0]
    shift, width = first & 15, (first >> 5) + 1
    sizes = coded_indices(data, width, count).astype(np.int64) << shift
    if shift:
        sizes += planes(data.take(-(-shift * count // 8)), shift, count)
    if first & 16:
        filled = np.flatnonzero(sizes)
        signs = planes(data.take(-(-len(filled) // 8)), 1, len(filled))
        sizes[filled] *= 1 - 2 * signs
    return sizes


def block_ids(shape: list[int], block: int) -> np.ndarray:
    """The number of the block that each weight of a tensor belongs to."""
    size = math.prod(shape)
    trailing = math.prod(shape[2:])
    if block == 1:
        return np.arange(size)
    if len(shape) > 1 and 2 <= trailing <= 64:
        return np.arange(size) // trailing
    row = size if len(shape) < 2 else shape[1] if trailing == 1 else shape[-1]
    per_row = -(-row // block)
    place = np.arange(size)
    return place // row * per_row + place % row // block


def expand(mask: np.ndarray, blocks: list[np.ndarray]) -> np.ndarray:
    parts, start = [], 0
    for ids in blocks:
        stop = start + int(ids[-1]) + 1
        parts.append(mask[start:stop][ids])
        start = stop
    return np.concatenate(parts)


def read_form(data: Bytes) -> tuple[int, int, np.ndarray | None]:
    form = data.take(1)[0]
    bits, wide = form >> 1, form & 1
    return bits, wide, data.floats(data.varint() + 1, wide) if bits else None


def read_values(data: Bytes, form: tuple[int, int, np.ndarray | None], count: int) -> np.ndarray:
    bits, wide, centroids = form
    if centroids is None:
        return data.floats(count, wide)
    return centroids[coded_indices(data, bits, count)]


def coded_indices(data: Bytes, bits: int, count: int) -> np.ndarray:
    return indices_of(data.take(data.varint()), bits, count)


def indices_of(coded: bytes, bits: int, count: int, follow: Any = None) -> np.ndarray:
    tag, body = coded[0], coded[1:]
    if tag == 0:
        return planes(body, bits, count)
    if tag == 3:
        num_first = count - int(follow.sum())
        first = iter(planes(body[: -(-num_first // 8)], 1, num_first))
        changes = iter(flips(body[-(-num_first // 8) :], count - num_first))
        signs: list[int] = []
        for does in follow:
            signs.append(int(next(changes)) ^ signs[-1] if does else int(next(first)))
        return np.array(signs)
    symbols = np.frombuffer(zlib.decompress(body, -15), np.uint8)
    each = 8 // bits if tag == 1 else 1
    codes = np.stack([symbols >> (bits * i) & ((1 << bits) - 1) for i in range(each)], 1)
    return codes.reshape(-1)[:count]


def bit_stream(data: bytes) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")


def planes(data: bytes, bits: int, count: int) -> np.ndarray:
    stream = bit_stream(data)[: bits * count].reshape(bits, count).astype(np.int64)
    return (stream << np.arange(bits)[:, None]).sum(0)


def mix(word: int) -> int:
    word &= ALL
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & ALL
    return word ^ (word >> 31)


def key(*parts: int | str) -> int:
    state = 0
    for part in parts:
        words = [1, part % (1 << 64)] if isinstance(part, int) else [2, len(part.encode())]
        if isinstance(part, str):
            text = part.encode()
            words += [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]
        for word in words:
            state = mix((state + GOLDEN) ^ mix(word + GOLDEN))
    return state


def first_scores(data: Bytes, place: Any) -> np.ndarray:
    bank, number, names, counts, *_ = place
    seed = int.from_bytes(data.take(8), "little")
    levels = [int.from_bytes(data.take(4), "little") for _ in names]
    out = []
    for name, count, level in zip(names, counts, levels, strict=True):
        start = key(seed, "scores", bank, number, name)
        tops = [mix(start + (i + 1) * GOLDEN) >> 40 for i in range(count)]
        out += [abs(2 * top - (1 << 24)) >= level for top in tops]
    return np.array(out)


def read_mask(data: Bytes, bank: dict[str, Any], place: Any) -> np.ndarray:
    reference = data.varint()
    against = np.zeros_like(bank["owned"])
    if reference == 1:
        against = bank["owned"]
    elif reference in (2, 3):
        against = first_scores(data, place)
        against = against & ~bank["owned"] if reference == 3 else against
    elif reference >= 4:
        against = bank["masks"][reference - 4]
    counts, widths = place[3], place[4]
    if data.data[0] == 6:
        return by_kernel(Bytes(data.data[1:]), counts, widths) ^ against
    if data.data[0] not in (5, 7):
        return coded_mask(data.data, against)
    data.take(1)
    parts = np.split(against, np.cumsum(counts)[:-1])
    codes = [data.take(data.varint()) for _ in parts[:-1]]
    out = []
    for code, part, rows in zip([*codes, data.data], parts, place[5], strict=True):
        if code[0] == 7:
            out.append(part ^ by_matrix(Bytes(code[1:]), rows, len(part) // rows))
        else:
            out.append(coded_mask(code, part))
    return np.concatenate(out)


def by_matrix(data: Bytes, rows: int, columns: int) -> np.ndarray:
    ones = data.varint()
    out = np.zeros((rows, columns), bool)
    if not ones:
        return out.reshape(-1)
    q, a = data.take(2)
    stream = iter(data.data + bytes(1 << 16))
    v, r = int.from_bytes(bytes(next(stream) for _ in range(6)), "big"), 1 << 48
    for row in range(rows):
        weights = [q + 16 * int(n) for n in out[:row].sum(0)]
        sums = [sum(weights[:i]) for i in range(columns + 1)]
        rho = max(1, a * sums[-1] * rows // ones)

        def limit(i: int, p: int, n: int, sums: list[int] = sums, rho: int = rho) -> int:
            if i > columns:
                return 1 << 24
            u, s = ((rho + sums[p]) << 32) // (rho + sums[i]), 1 << 32
            for bit in range(16):
                s = s * u >> 32 if a + n >> bit & 1 else s
                u = u * u >> 32
            return (((1 << 32) - s) * ((1 << 24) - 1 - columns + p) >> 32) + i - p

        p = 0
        while p < columns and out.sum() < ones:
            t = r >> 24
            number, n = min(v // t, (1 << 24) - 1), int(out[row].sum())
            i = next(i for i in range(p, columns + 1) if number < limit(i + 1, p, n))
            v, r = v - t * limit(i, p, n), t * (limit(i + 1, p, n) - limit(i, p, n))
            while r <= 1 << 40:
                v, r = 256 * v + next(stream), 256 * r
            if i == columns:
                break
            out[row, i], p = True, i + 1
    return out.reshape(-1)


def by_kernel(data: Bytes, counts: list[int], widths: list[int]) -> np.ndarray:
    singles = np.zeros(0, bool)
    if num := sum(n for n, k in zip(counts, widths, strict=True) if k == 1):
        singles = flips(data.take(data.varint()), num)
    num = sum(n // k for n, k in zip(counts, widths, strict=True) if k > 1)
    filled = flips(data.take(data.varint()), num)
    bits = (max(widths) - 1).bit_length()
    ones = iter(coded_indices(data, bits, int(filled.sum())) + 1)
    kernels = []  # width, ones, where it begins
    out, start, used, seen = [], 0, 0, 0
    for n, k in zip(counts, widths, strict=True):
        if k == 1:
            out.append(singles[used : used + n])
            used += n
        else:
            out.append(np.zeros(n, bool))
            for i in range(n // k):
                if filled[seen + i]:
                    kernels.append((k, int(next(ones)), start + i * k))
            seen += n // k
        start += n
    mask = np.concatenate(out)
    stream, position = bit_stream(data.data), 0
    order = sorted(kernels)
    for (k, c), _ in itertools.groupby(order, lambda kernel: kernel[:2]):
        same = [begin for width, num, begin in order if (width, num) == (k, c)]
        base, each = math.comb(k, c), 1
        if base == 1:
            for begin in same:
                mask[begin : begin + k] = True
            continue
        while base ** (each + 1) <= 1 << 62:
            each += 1
        for first in range(0, len(same), each):
            group = same[first : first + each]
            size = (base ** len(group) - 1).bit_length()
            number = sum(int(b) << i for i, b in enumerate(stream[position : position + size]))
            position += size
            for begin in group:
                number, rank = divmod(number, base)
                for left in range(c, 0, -1):
                    t = max(t for t in range(k) if math.comb(t, left) <= rank)
                    rank -= math.comb(t, left)
                    mask[begin + t] = True
    assert len(data.data) == -(-position // 8) and not stream[position:].any()
    return mask


def coded_mask(data: bytes, against: np.ndarray) -> np.ndarray:
    if data[0] != 4:
        return flips(data, len(against)) ^ against
    rest = Bytes(data[1:])
    dropped = flips(rest.take(rest.varint()), int(against.sum()))
    mask = against.copy()
    mask[against] = ~dropped
    return mask | flips(rest.data, len(against))


def flips(data: bytes, count: int) -> np.ndarray:
    codec, inverted, k, body = data[0] & 7, data[0] >> 3 & 1, data[0] >> 4, data[1:]
    if codec == 0:
        return bit_stream(body)[:count].astype(bool)
    if codec == 1:
        return bit_stream(zlib.decompress(body, -15))[:count].astype(bool)
    gaps = huffman_gaps(body, k) if codec == 2 else rice_gaps(body, k)
    out = np.zeros(count, bool)
    out[np.cumsum(gaps + 1) - 1] = True
    return ~out if inverted else out


def huffman_gaps(body: bytes, k: int) -> np.ndarray:
    inflate = zlib.decompressobj(-15)
    quotients, sum_so_far = [], 0
    for symbol in inflate.decompress(body):
        sum_so_far += symbol
        if symbol < 255:
            quotients.append(sum_so_far)
            sum_so_far = 0
    low = planes(inflate.unused_data, k, len(quotients)) if k else 0
    return (np.array(quotients, np.int64) << k) + low


def rice_gaps(body: bytes, k: int) -> np.ndarray:
    bits = bit_stream(body)
    ones = np.flatnonzero(bits)
    m = next((i for i in range(1, len(ones)) if ones[i - 1] + 1 + i * k == ones[-1]), 0)
    quotients = np.diff(ones[:m], prepend=-1) - 1
    unary = int(ones[m - 1]) + 1 if m else 0
    low = bits[unary : unary + m * k].reshape(k, m).astype(np.int64)
    return (quotients << k) + (low << np.arange(k)[:, None]).sum(0)

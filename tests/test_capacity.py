"""Size: the ledger's sums, the worked example, the paper's word, and a bank that is full."""

from __future__ import annotations

import doctest
import warnings

import pytest
import torch

import paper_words as words
from nets import NETWORKS, data, learner, mlp, task
from paper_words import decode, encode, owners
from tinysubnets.errors import CapacityError, CapacityWarning, FormatError
from tinysubnets.model import size as capacity
from tinysubnets.model.size import Entry, printed_bits, worked_example_bits


def test_docstring_examples() -> None:
    for module in (capacity, words):
        assert doctest.testmod(module).failed == 0


def test_worked_example() -> None:
    assert 12 * 32 == 384
    steps = [(8, 2), (2, 1), (0, 2)]
    assert [worked_example_bits(steps[:n]) for n in (1, 2, 3)] == [152, 220, 220]


def test_worked_example_of_a_store() -> None:
    learn = learner(mlp(6, 10), density=0.5, bits=2, max_banks=1, pruning={"iterations": 0})
    learn.learn(task("a"))
    ledger = learn.ledger()
    assert ledger.new_weights == (80,) and ledger.num_weights == 160
    assert ledger.worked_example == (80 * 2 + 4 * 34) / (160 * 32)


def test_the_printed_formula() -> None:
    """By hand: 80 weights in use of 2 bits, two layers with a codebook each, a bit of mask each."""
    learn = learner(mlp(6, 10), density=0.5, bits=2, max_banks=1, pruning={"iterations": 0})
    learn.learn(task("a"))
    assert learn.ledger().printed == (80 * 2 + 2 * 4 * 34 + 80) / (160 * 32)
    assert printed_bits([(10, 32), (5, 32)], 3) == 15 * 33
    assert printed_bits([(10, 4), (0, 8)], 1) == 10 * 4 + 16 * 36 + 10


def test_the_paper_view_counts_task_specific_parameters_but_no_heads() -> None:
    learn = learner(mlp(6, 10), bits=2, max_banks=1, memory=None)
    learn.learn(task("a"))
    ledger = learn.ledger()
    t = ledger.total
    assert t.task_params > 0 and t.heads > 0
    assert ledger.paper == (t.codes + t.codebooks + t.masks + t.task_params) / (160 * 32)


def test_the_paper_s_word() -> None:
    codebooks = {(0, 0): (0.5, 0.25, 0.125, -0.3576), (0, 1): (1.0, 2.0)}
    assert decode("0 00 11", codebooks) == -0.3576
    assert encode(0, 0, 3) == "0 00 11"
    assert decode("0 01 1", codebooks) == 2.0
    assert encode(1, 5, 2, (1, 3, 4)) == "1 101 0010"


@pytest.mark.parametrize("word", ["", "0 00", "0 00 2", "1 00 11", "0 01 11", "0 10 00"])
def test_words_that_mean_nothing_are_refused(word: str) -> None:
    with pytest.raises(FormatError):
        decode(word, {(0, 0): (1.0, 2.0, 3.0, 4.0), (0, 1): (1.0, 2.0)})


def test_words_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FormatError, match="code 4 does not fit into 2 bits"):
        encode(0, 0, 4)


def test_every_weight_of_a_store_has_its_word() -> None:
    """Owner and code of each owned weight give the bank's value, with no prefix stored."""
    learn = learner(mlp(), density=0.4, bits=3, max_banks=2, codebooks="task")
    for number in range(4):
        learn.learn(task(f"t{number}", seed=number, offset=6.0 * (number % 2)))
    store, checked = learn.store, 0
    codebooks, codes = {}, {}
    for b in range(len(store.banks)):
        for n, subnet in enumerate(store.members(b)):
            (coded,) = subnet.own
            codebooks[b, n] = coded.values.tolist()
            plain = coded.codes is None
            codes[b, n] = list(range(len(coded))) if plain else coded.codes.tolist()
    for b, bank in enumerate(store.banks):
        members = store.members(b)
        assert len(members) == 2
        owner = owners(store.layout.expand(torch.stack([m.mask for m in members])))
        assert torch.equal(owner >= 0, store.layout.expand(bank.owned))
        for n in range(len(members)):
            for code, value in zip(codes[b, n], bank.values[owner == n].tolist(), strict=True):
                assert decode(encode(b, n, code, (1, 2, 8)), codebooks) == value
                checked += 1
    assert checked == sum(int(store.layout.expand(b.owned).sum()) for b in store.banks)


def test_owners_of_nothing() -> None:
    assert owners(torch.zeros(0, 3, dtype=torch.bool)).tolist() == [-1, -1, -1]


def test_ledger_adds_up() -> None:
    make, shape = NETWORKS["batchnorm_resnet"]
    learn = learner(make(), density=0.5, bits=4)
    for number in range(2):
        learn.learn(task(f"t{number}", shape, seed=number))
    for ledger in (learn.ledger(), learn.store.ledger()):
        total = ledger.total
        for line in ("codes", "codebooks", "masks", "heads", "task_params", "memory", "metadata"):
            parts = [getattr(e, line) for e in ledger.tasks.values()]
            assert getattr(total, line) == sum(parts, getattr(ledger.common, line))
            assert all(p >= 0 for p in parts)
        parts = [e.total for e in (*ledger.tasks.values(), ledger.common)]
        assert total.total == pytest.approx(sum(parts), abs=1e-6)
        assert set(ledger.tasks) == {"t0", "t1"}
        assert all(e.heads > 0 and e.task_params > 0 and e.masks > 0 for e in ledger.tasks.values())
        counted = total.codes + total.codebooks + total.masks + total.task_params
        assert ledger.paper == counted / (32 * ledger.num_weights)
        assert ledger.as_dict()["total"]["total"] == total.total  # type: ignore[index]


def test_samples_count_in_the_paper_s_view() -> None:
    learn = learner(memory="samples", memory_samples=10)
    learn.learn(task("a"))
    ledger = learn.ledger()
    assert ledger.total.memory >= 10 * 6 * 32
    assert ledger.samples_kept
    assert ledger.paper * 32 * ledger.num_weights >= ledger.total.memory


def test_entries_add() -> None:
    assert (Entry(1, 2) + Entry(3, masks=4)).total == 10


def test_sharing_values_goes_on_by_mask_alone_and_says_so_once() -> None:
    learn = learner(mlp(), density=1.0, max_banks=1, bits=4, post_pruning=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.learn(task("a"))
    assert learn.store.free_share() == 0.0
    values = learn.store.banks[0].values.clone()
    with pytest.warns(CapacityWarning, match="no free weights left") as caught:
        learn.learn(task("b", seed=1))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.learn(task("c", seed=2))
    assert torch.equal(learn.store.banks[0].values, values)
    assert learn.store.free_share() == 0.0
    assert learn.store.subnet("b").num_new == learn.store.subnet("c").num_new == 0
    entry = learn.ledger().tasks["c"]
    assert entry.codes == 0 and learn.ledger().new_weights == (160, 0, 0)
    x, _ = data(seed=2)
    assert len(learn.predict("c", x)) == len(x)


def test_a_full_bank_still_learns_by_its_mask() -> None:
    """Another mask over the same values is another function, and a better one for the task."""
    learn = learner(
        mlp(6, 40), density=0.4, max_banks=1, bits=4, post_pruning=False, training={"epochs": 15}
    )
    learn.store.banks.append(_full_bank(learn))
    with pytest.warns(CapacityWarning):
        learn.learn(task("a", samples=90))
    assert learn.store.subnet("a").num_new == 0
    x, y = data(samples=90)
    assert (learn.predict("a", x) == y).mean() > 0.9


def _full_bank(learn: object) -> object:
    from tinysubnets.model.bank import Bank

    layout = learn.store.layout  # type: ignore[attr-defined]
    bank = Bank(layout)
    everything = torch.ones(layout.num_blocks, dtype=torch.bool)
    bank.claim_(everything, torch.randn(layout.num_weights) * 0.4)
    return bank


def test_disjoint_masks_until_the_bank_is_full() -> None:
    """sharing="none": k = min(c|θ|, free) per tensor, masks disjoint, then a refusal."""
    learn = learner(
        mlp(), density=0.4, sharing="none", max_banks=1, memory=None, pruning={"iterations": 0}
    )
    kept = []
    for number in range(3):
        learn.learn(task(f"t{number}", seed=number))
        mask = learn.store.subnet(f"t{number}").mask
        kept.append([int(mask[i:j].sum()) for i, j in learn.store.layout.block_segments])
    assert kept == [[24, 40], [24, 40], [12, 20]]
    masks = torch.stack([s.mask for s in learn.store.subnets.values()])
    assert (masks.sum(0) == 1).all()
    assert learn.store.free_share() == 0.0
    before = (learn.store.tasks, learn.store.digest("t2"))
    with pytest.raises(CapacityError, match=r"Raise max_banks"):
        learn.begin(task("t3", seed=3))
    assert (learn.store.tasks, learn.store.digest("t2")) == before
    assert len(learn.store.banks) == 1


def test_disjoint_masks_open_the_next_bank_when_one_is_full() -> None:
    learn = learner(
        mlp(), density=0.5, sharing="none", max_banks=2, threshold=1e9, post_pruning=False
    )
    for number in range(4):
        learn.learn(task(f"t{number}", seed=number))
    banks = [learn.store.subnet(t).bank for t in learn.store.tasks]
    assert banks == [0, 0, 1, 1]
    assert "is full, so bank 1" in learn.reports["t2"].reason
    for bank in range(2):
        masks = torch.stack([s.mask for s in learn.store.members(bank)])
        assert masks.sum(0).max() == 1
    with pytest.raises(CapacityError):
        learn.begin(task("t4", seed=4))
